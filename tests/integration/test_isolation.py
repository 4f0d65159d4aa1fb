"""Fifty pipelines in one daemon, of which thirteen fail, each in its own way: the others notice nothing."""

import json
import resource
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.daemon.commands import background, metrics_address
from tests.support.waiting import until

HEALTHY: Final = 37
ROWS: Final = 10
MANY_ROWS: Final = 20_000  # more than a pipe holds, or the disk of the daemon has room for
DISK_BYTES: Final = 100_000
DELAY_S: Final = 1.0  # that of a quiet machine is a twentieth of it


@dataclass(frozen=True)
class Failure:
    """A way to fail: harm to the table, further settings, or the sink; and what the operator must see."""

    harm: Callable[[Path], None]
    state: str
    why: str
    hint: str
    position: str | None = None
    more: str = ""
    sink: str = 'kind = "files", path = "out/{name}"'


def nothing(_table: Path) -> None:
    """Leave the table as it is."""


def commit(table: Path, version: int, *actions: Mapping[str, Any]) -> None:
    """Write a commit file."""
    lines = [json.dumps(action) for action in actions]
    (table / "_delta_log" / f"{version:020d}.json").write_text("".join(f"{line}\n" for line in lines))


def garbage(table: Path) -> None:
    """Write a commit that is no JSON."""
    (table / "_delta_log" / f"{1:020d}.json").write_text("{garbage\n")


def gap(table: Path) -> None:
    """Lose a commit before others."""
    append(table, 11)
    append(table, 12)
    (table / "_delta_log" / f"{1:020d}.json").unlink()


def no_folder(table: Path) -> None:
    """Put a file in the place of the table."""
    shutil.rmtree(table)
    table.touch()


def no_file(table: Path) -> None:
    """Remove the data file, as VACUUM does."""
    for file in table.glob("*.parquet"):
        file.unlink()


def torn_file(table: Path) -> None:
    """Damage the data file."""
    for file in table.glob("*.parquet"):
        file.write_bytes(b"PAR1" + b"\0" * (file.stat().st_size - 8) + b"PAR1")


def unknown_feature(table: Path) -> None:
    """Demand a feature that nobody knows."""
    features = {"readerFeatures": ["telepathy"], "writerFeatures": ["telepathy"]}
    commit(table, 1, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features})


def more_columns(table: Path) -> None:
    """Add a column."""
    rows = pa.table({"id": pa.array([11], pa.int64()), "extra": pa.array(["x"])})
    write_deltalake(table, rows, mode="append", schema_mode="merge")


def many_rows(table: Path) -> None:
    """Add more rows than fit."""
    append(table, *range(11, MANY_ROWS))


def append(table: Path, *ids: int) -> None:
    """Commit rows."""
    write_deltalake(table, pa.table({"id": pa.array(ids, pa.int64())}), mode="append")


def kafka(servers: str) -> str:
    """Return the options of a sink."""
    return f'kind = "kafka", bootstrap_servers = "{servers}", topic = "t"'


BEFORE: Final = "the end of version 0"  # everything before the failure is delivered
FILE_SINK: Final = 'kind = "files", path = "out/{name}"'
FAILURES: Final = {
    "missing": Failure(no_folder, "stopped", "NotATable", "Give the folder of a table"),
    "garbage": Failure(garbage, "stopped", "LogCorrupt", "Inspect the file", BEFORE),
    "gap": Failure(gap, "stopped", "VersionGone", "Restore the commit file of version 1, and", BEFORE),
    "vacuumed": Failure(no_file, "stopped", "FileVacuumed", "Restore the file, and run"),
    "torn": Failure(torn_file, "stopped", "DataCorrupt", "Restore the file from a copy"),
    "feature": Failure(unknown_feature, "stopped", "UnsupportedFeature", "Upgrade lake-tailer", BEFORE),
    "columns": Failure(
        more_columns, "stopped", "SchemaChanged", 'Set on_schema_change = "evolve"', BEFORE, 'on_schema_change = "fail"'
    ),
    "blocked": Failure(
        nothing, "stopped", "SinkRejected", "Choose another path", sink=FILE_SINK.replace("out", "a-file")
    ),
    "taken": Failure(nothing, "stopped", "SinkRejected", "set adopt = true", sink='kind = "files", path = "strange"'),
    "full": Failure(many_rows, "retrying", "SinkUnavailable", "Check that the dest"),
    "refusing": Failure(nothing, "retrying", "SinkUnavailable", "Check that the dest", sink=kafka("127.0.0.1:1")),
    "silent": Failure(nothing, "retrying", "SinkUnavailable", "Check that the dest", sink=kafka("{silent}")),
}


@contextmanager
def silence() -> Iterator[str]:
    """Listen on a port and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield "{}:{}".format(*opened.getsockname())


def configure(folder: Path, silent: str) -> Path:
    """Make the tables and the configuration."""
    names = [*(f"p{number}" for number in range(HEALTHY)), *FAILURES]
    append(folder / "template", *range(ROWS))
    lines = ['metrics = "127.0.0.1:0"', 'state_table = "state"']
    for name in names:
        shutil.copytree(folder / "template", folder / name)
        failure = FAILURES.get(name)
        if failure is not None:
            failure.harm(folder / name)
        sink = (FILE_SINK if failure is None else failure.sink).replace("{name}", name).replace("{silent}", silent)
        lines += [f"[pipelines.{name}]", f'table = "{name}"', f"sink = {{{sink}}}", failure.more if failure else ""]
    many_rows(folder / "template")
    lines += ["[pipelines.slow]", 'table = "template"', 'sink = {kind = "stdout"}']
    (folder / "a-file").touch()
    (folder / "strange").mkdir()
    (folder / "strange" / "diary.txt").write_text("dear diary")
    (folder / "tailer.toml").write_text("\n".join(lines))
    return folder / "tailer.toml"


def delivered(folder: Path, name: str) -> list[int]:
    """Return the ids in the target of a pipeline."""
    files = sorted((folder / "out" / name).rglob("*.jsonl"))
    return [json.loads(line)["id"] for file in files for line in file.read_text().splitlines()]


def seen(url: str) -> dict[str, dict[str, Any]]:
    """Return the status of the pipelines by name."""
    return {each["name"]: each for each in httpx2.get(f"{url}/status").json()["pipelines"]}


def in_time(folder: Path, name: str) -> float:
    """Commit to a table; return after how many seconds the row is delivered."""
    append(folder / name, 77)
    began = time.monotonic()
    until(lambda: delivered(folder, name) == [*range(ROWS), 77])
    return time.monotonic() - began


@pytest.mark.long
def test_the_others_deliver_in_time_and_each_failure_is_named(tmp_path: Path) -> None:
    healthy = [f"p{number}" for number in range(HEALTHY)]
    with (
        silence() as silent,
        background("run", "--config", configure(tmp_path, silent), "--log-format", "text") as daemon,
    ):
        # A file cannot be larger, as on a full disk. Nobody reads the daemon's standard output.
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (DISK_BYTES, DISK_BYTES))
        url = metrics_address(daemon)
        until(lambda: all(delivered(tmp_path, name) == list(range(ROWS)) for name in healthy))
        until(lambda: all(seen(url)[name]["state"] == failure.state for name, failure in FAILURES.items()))
        delays = sorted(in_time(tmp_path, name) for name in healthy)
        assert delays[int(len(delays) * 0.9)] < DELAY_S, delays
        pipelines = seen(url)
        for name, failure in FAILURES.items():
            found = pipelines[name]
            assert (found["state"], found["position"]) == (failure.state, failure.position), found
            assert found["why"].startswith(f"{failure.why}: "), found
            assert failure.hint in found["hint"], found
            assert found["last_error"]["name"] == failure.why
            assert found["retry_at"] is None, found  # by itself only where it may help
        assert (pipelines["slow"]["state"], pipelines["slow"]["position"]) == ("catching_up", None)
        assert {pipelines[name]["state"] for name in healthy} == {"streaming"}
        assert httpx2.get(f"{url}/livez").status_code == 200
        ready = httpx2.get(f"{url}/readyz")
        assert (ready.status_code, "p0: streaming\n" in ready.text, "gap: stopped\n" in ready.text) == (503, True, True)
