"""Each example runs as its head comment says, and what comes out is compared with the truth.

The source is the table `orders` of `tests.test_readme`, versions 0 to 3; `EVENTS` are its changes.
The demonstration, `demo`, has its tests in `integration/test_demo.py`.

On every landing: its rows arrive, and it goes on after a restart, in this module; the first run of `spark_stream.py`.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.topics import Record, read_topic, unique_name
from tests.support.servers.ports import free_ports
from tests.support.waiting import until
from tests.test_readme import make_orders

ROOT: Final = Path(__file__).resolve().parents[1]
EXAMPLES: Final = ROOT / "examples"
TOOLS: Final = Path(sys.executable).parent
END_S: Final = 600

Event = tuple[int, str, int, float]  # version, change type, id, amount

EVENTS: Final[list[Event]] = [
    *((0, "insert", each, 10.0 * each) for each in (1, 2, 3)),
    *((1, "insert", each, 10.0 * each) for each in (4, 5)),
    (2, "delete", 2, 20.0),
    (2, "insert", 2, 21.0),
    (3, "delete", 4, 40.0),
]
IMAGES: Final = {(2, "delete"): "update_preimage", (2, "insert"): "update_postimage"}
PAIRED: Final[list[Event]] = [
    (version, IMAGES.get((version, kind), kind), each, amount) for version, kind, each, amount in EVENTS
]
ROWS: Final = [(1, "customer-1", 10.0), (2, "customer-2", 21.0), (3, "customer-3", 30.0), (5, "customer-5", 50.0)]
LATER: Final[Event] = (4, "insert", 6, 60.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the table `orders` and a copy of the examples."""
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "build"))
    make_orders(tmp_path)
    return tmp_path


def add_a_row(folder: Path) -> None:
    """Commit `LATER`."""
    row = pa.table({"id": [6], "customer": ["customer-6"], "amount": [60.0]})
    write_deltalake(folder / "orders", row, mode="append")


def environment(**variables: str) -> dict[str, str]:
    """The variables of a shell whose Python is this one."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TAILER_", "PYTHON"))}
    return inherited | {"PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}"} | variables


def run(folder: Path, *command: str, **variables: str) -> str:
    """Run a command that must succeed; what it printed."""
    done = subprocess.run(
        command, cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=END_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def daemon(folder: Path, config: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `tailer run` beside the test; it must end well at SIGTERM, unless the test has ended it."""
    with (folder / "daemon.log").open("ab") as said:
        process = subprocess.Popen(
            ["tailer", "run", "-v", "--config", config],
            cwd=folder,
            env=environment(**variables),
            stdout=said,
            stderr=said,
        )
    try:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(END_S) == 0, (folder / "daemon.log").read_text()
    finally:
        process.kill()
        process.wait()


def events_of(rows: pa.Table) -> list[Event]:
    """The events in a table of change rows."""
    names = ("_commit_version", "_change_type", "id", "amount")
    return sorted(zip(*(rows.column(name).to_pylist() for name in names), strict=True))


def test_tail_to_json_lines(folder: Path) -> None:
    assert run(folder, "./tail_to_json_lines.sh", "orders", "all.jsonl").split() == ["2", "delete", "6", "insert"]
    assert run(folder, "./tail_to_json_lines.sh", "orders", "new.jsonl", "2").split() == ["2", "delete", "1", "insert"]
    for name, first in (("all", 0), ("new", 2)):
        rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        assert events_of(pa.Table.from_pylist(rows)) == sorted(event for event in EVENTS if event[0] >= first)
    assert not list(folder.glob("*.part"))


def test_delta_to_delta_with_metrics(folder: Path) -> None:
    config, address = "delta_to_delta_with_metrics.toml", f"127.0.0.1:{free_ports(1)[0]}"
    run(folder, "tailer", "check", "--config", config)
    target = folder / "orders_history"

    def history() -> list[Event]:
        begun = (target / "_delta_log" / f"{0:020d}.json").exists()
        return events_of(DeltaTable(target).to_pyarrow_table()) if begun else []

    with daemon(folder, config, TAILER_METRICS=address) as process:
        until(lambda: len(history()) == len(PAIRED))
        process.kill()
        process.wait()
    add_a_row(folder)
    with daemon(folder, config, TAILER_METRICS=address):
        until(lambda: len(history()) > len(PAIRED))
        with urllib.request.urlopen(f"http://{address}/metrics") as answer:
            metrics = answer.read().decode()
        urllib.request.urlopen(f"http://{address}/readyz").close()
    assert history() == sorted([*PAIRED, LATER])
    for line in (folder / config).read_text().splitlines():
        if "lake_tailer_" in line:
            assert f"\n{line.split()[1]}{{" in metrics


def test_many_tables(folder: Path) -> None:
    config, address = "many_tables.toml", f"127.0.0.1:{free_ports(1)[0]}"
    sales = folder / "lake" / "sales"
    sales.mkdir(parents=True)
    shutil.move(folder / "orders", sales / "orders")
    run(folder, "tailer", "check", "--connect", "--config", config)

    def targets(name: str) -> list[list[Event]]:
        """Return the events of a table in its two targets."""
        files = (folder / "export" / name).rglob("*.jsonl")
        lines = [line for file in files for line in file.read_text().splitlines()]
        history = folder / "history" / name
        rows = events_of(DeltaTable(history).to_pyarrow_table()) if (history / "_delta_log").exists() else []
        return [rows, events_of(pa.Table.from_pylist(list(map(json.loads, lines)))) if lines else []]

    def states() -> dict[str, str]:
        """Return the state of each pipeline, as printed."""
        lines = run(folder, "tailer", "status", "--config", config).splitlines()[1:]
        return {line.split("\t")[0]: line.split("\t")[1] for line in lines}

    with daemon(folder, config, TAILER_METRICS=address):
        until(lambda: targets("orders") == [sorted(EVENTS)] * 2)
        make_orders(sales / "made_later")
        shutil.move(sales / "made_later" / "orders", sales / "items")
        until(lambda: targets("items") == [sorted(EVENTS)] * 2)
        assert set(states()) == {f"{each}/{name}" for each in ("history", "export") for name in ("orders", "items")}
        run(folder, "tailer", "pause", "history/orders", "--config", config)
        until(lambda: states()["history/orders"] == "paused")
        add_a_row(sales)
        until(lambda: targets("orders") == [sorted(EVENTS), sorted([*EVENTS, LATER])])
        run(folder, "tailer", "resume", "history/orders", "--config", config)
        until(lambda: targets("orders") == [sorted([*EVENTS, LATER])] * 2)
        shutil.rmtree(sales / "items")
        until(lambda: set(states()) == {"history/orders", "export/orders"})


@pytest.mark.parametrize("library", ["polars", pytest.param("pandas", marks=pytest.mark.spark_connect)])
def test_changes_in_dataframes(folder: Path, library: str) -> None:
    printed = run(folder, "python", "changes_in_dataframes.py", "orders", library)
    assert printed == f"updates: [(2, 1)]\namounts: {[(each, amount) for each, _, amount in ROWS]}\n"


def mirrored(folder: Path) -> tuple[list[tuple[int, str, float]], int | None]:
    """Return the rows and the version of the mirror in SQLite."""
    with closing(sqlite3.connect(folder / "shop.db")) as database, suppress(sqlite3.OperationalError):
        ((version,),) = database.execute("SELECT version FROM lake_tailer_mirrors")
        return database.execute("SELECT * FROM orders ORDER BY id").fetchall(), version
    return [], None


def test_mirror_in_sqlite(folder: Path) -> None:
    config = "mirror_in_sqlite.toml"
    run(folder, "tailer", "check", "--config", config)
    with daemon(folder, config):
        until(lambda: mirrored(folder) == (ROWS, 3))
    orders = DeltaTable(folder / "orders")
    orders.update(updates={"id": "id + 10"}, predicate="id < 3")
    orders.delete("id = 3")
    add_a_row(folder)
    after = [(5, *ROWS[3][1:]), (6, "customer-6", 60.0), (11, *ROWS[0][1:]), (12, *ROWS[1][1:])]
    with daemon(folder, config):
        until(lambda: mirrored(folder) == (after, 6))


@pytest.mark.spark
@pytest.mark.parametrize("runs", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_spark_stream(folder: Path, runs: int) -> None:
    command = ("python", "spark_stream.py", "orders", "events", "checkpoint")
    for wanted in (PAIRED, [*PAIRED, LATER])[:runs]:
        if wanted is not PAIRED:
            add_a_row(folder)
        printed = run(folder, *command)
        assert events_of(parquet.read_table(folder / "events")) == sorted(wanted)
        for kind, count in Counter(event[1] for event in wanted).items():
            assert f"|{kind}|{count}|" in printed.replace(" ", "")


@pytest.mark.kafka
def test_delta_to_kafka(folder: Path, kafka: KafkaCluster) -> None:
    config, topic = "delta_to_kafka.toml", unique_name("shop.orders")
    settings = {
        "TAILER_PIPELINES__ORDERS__SINK__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "TAILER_PIPELINES__ORDERS__SINK__TOPIC": topic,
        "TAILER_PIPELINES__ORDERS__SINK__PROGRESS_TOPIC": unique_name("progress"),
    }
    run(folder, "tailer", "check", "--config", config, **settings)
    log = folder / "daemon.log"
    with daemon(folder, config, **settings) as process:
        until(lambda: "delivered up to version 3" in log.read_text())
        process.kill()
        process.wait()
    DeltaTable(folder / "orders").update(updates={"amount": "amount + 1"}, predicate="id = 1")
    DeltaTable(folder / "orders").delete("id = 5")
    with daemon(folder, config, **settings):
        until(lambda: "delivered up to version 5" in log.read_text())
    records = read_topic(kafka.bootstrap_servers, topic)
    assert Counter(map(_operation, records)) == Counter(
        [
            *((each, "r", None, amount) for each, _, amount in ROWS),
            (1, "u", 10.0, 11.0),
            (5, "d", 50.0, None),
            (5, "tombstone", None, None),
        ]
    )
    assert len({record.partition for record in records}) > 1


@pytest.mark.kafka
def test_a_consumer_of_flat_messages_follows_deletes_columns_and_snapshots(folder: Path, kafka: KafkaCluster) -> None:
    topic, log, config = unique_name("flat"), folder / "daemon.log", "flat.toml"
    (folder / config).write_text(
        f"""
        control = "tailer.sock"
        [pipelines.orders]
        table = "orders"
        start = "earliest"
        [pipelines.orders.sink]
        kind = "kafka"
        bootstrap_servers = "{kafka.bootstrap_servers}"
        topic = "{topic}"
        key = ["id"]
        partitions = 3
        create_topics = true
        progress_topic = "{unique_name("progress")}"
        tombstones = true
        """
    )

    consumer = [sys.executable, "flat_consumer.py", kafka.bootstrap_servers, topic, "copy.db"]

    def stops(error: str) -> None:
        done = subprocess.run(
            consumer, cwd=folder, env=environment(), capture_output=True, text=True, timeout=END_S, check=False
        )
        assert (done.returncode, error in done.stderr) == (1, True), done.stderr

    def consumed() -> list[tuple[int, float]]:
        run(folder, *consumer)
        with closing(sqlite3.connect(folder / "copy.db")) as copy:
            rows = [json.loads(value) for (value,) in copy.execute("SELECT value FROM rows")]
        return sorted((row["id"], row["amount"]) for row in rows)

    stops(f"has no topic {topic}")
    assert not (folder / "copy.db").exists()
    with daemon(folder, config):
        until(lambda: "delivered up to version 3" in log.read_text())
        assert consumed() == [(each, amount) for each, _, amount in ROWS]
        DeltaTable(folder / "orders").delete("id = 5")
        note = pa.table({"id": [6], "customer": ["customer-6"], "amount": [60.0], "note": ["new"]})
        write_deltalake(folder / "orders", note, mode="append", schema_mode="merge")
        until(lambda: "delivered up to version 5" in log.read_text())
        run(folder, str(TOOLS / "tailer"), "resnapshot", "orders", "--config", config)
        until(lambda: any(b'"gap"' in (record.value or b"") for record in read_topic(kafka.bootstrap_servers, topic)))
    assert consumed() == [(1, 10.0), (2, 21.0), (3, 30.0), (6, 60.0)]
    with closing(sqlite3.connect(folder / "copy.db")) as copy, copy:
        copy.execute("UPDATE offsets SET next = 1000000")  # as if the topic had been made again
    stops("OffsetOutOfRangeError")


def _operation(record: Record) -> tuple[int, str, float | None, float | None]:
    """The id, the operation, and the amount before and after it."""
    assert record.key is not None
    each = json.loads(record.key)["id"]
    if record.value is None:
        return each, "tombstone", None, None
    value = json.loads(record.value)
    before, after = (image and image["amount"] for image in (value["before"], value["after"]))
    return each, value["op"], before, after


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built and installed into a folder of its own."""
    source, target = tmp_path_factory.mktemp("source") / "sink", tmp_path_factory.mktemp("installed")
    shutil.copytree(EXAMPLES / "command_sink", source)
    command = [str(TOOLS / "uv"), "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(source)]
    variables = {"UV_SYSTEM_CERTS": "1", **environment(VIRTUAL_ENV=sys.prefix)}
    if subprocess.run([*command, "--offline"], env=variables, capture_output=True, check=False).returncode:
        subprocess.run(command, env=variables, check=True)
    return target


class TestCommandSink:
    @pytest.mark.nightly
    def test_it_keeps_the_contract(self, folder: Path, installed: Path) -> None:
        tests = run(folder / "command_sink", "pytest", "-q", "-p", "no:cacheprovider", PYTHONPATH=str(installed))
        assert " passed" in tests
        assert "failed" not in tests

    def test_changes_arrive(self, folder: Path, installed: Path) -> None:
        shutil.move(folder / "orders", folder / "command_sink" / "orders")
        received = folder / "command_sink" / "received.jsonl"

        def lines() -> list[bytes]:
            return received.read_bytes().splitlines() if received.exists() else []

        settings = {"PYTHONPATH": str(installed)}
        assert "command" in run(folder / "command_sink", "tailer", "check", "--config", "tailer.toml", **settings)
        with daemon(folder / "command_sink", "tailer.toml", **settings):
            until(lambda: len(lines()) >= len(EVENTS))
        with daemon(folder / "command_sink", "tailer.toml", **settings):
            add_a_row(folder / "command_sink")
            until(lambda: len(lines()) > len(EVENTS))
        assert events_of(pa.Table.from_pylist(list(map(json.loads, lines())))) == sorted([*EVENTS, LATER])

    def test_a_wrong_option_is_named(self, folder: Path, installed: Path) -> None:
        settings = {"PYTHONPATH": str(installed), "TAILER_PIPELINES__ORDERS__SINK__COMMAND": "nothing"}
        with pytest.raises(AssertionError, match="is not the only option, or no list"):
            run(folder / "command_sink", "tailer", "check", "--config", "tailer.toml", **settings)


def test_every_example_is_listed_and_tested() -> None:
    page, tests = (EXAMPLES / "README.md").read_text(), Path(__file__).read_text()
    for each in EXAMPLES.iterdir():
        if each.name not in ("README.md", "__pycache__"):
            assert f"]({each.name})" in page or f"]({each.name}/" in page
            assert each.stem in tests
