"""Values that `select` masks, and the key of a keyed hash, occur in nothing that a pipeline writes."""

import logging
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.request import urlopen

import anyio
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.equal_rows import row_index
from tailer.changelog.equal_rows.row_index import RowIndex
from tailer.changelog.rules import PairingRules
from tailer.changelog.spill import SpilledPreimages
from tailer.config.tables import TableRef
from tailer.engine import Engine
from tailer.engine.local import LocalEngine
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.sink import Sink
from tailer.spark.engine.engine import SparkEngine
from tailer.spark.engine.executors import Executors
from tailer.start import Start
from tailer.stores.wakeup import TimerWake
from tailer_sinks.delta.sink import DeltaSink
from tailer_sinks.delta.spool import Spool
from tailer_sinks.encoding.flat import FlatEncoder
from tailer_sinks.files.sink import FilesSink
from tailer_sinks.kafka.sink import KafkaSink
from tests.support.daemon.commands import background, tailer
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.topics import read_topic, unique_name
from tests.support.servers.otlp import Receiver
from tests.support.spark.event_log import writing_event_log
from tests.support.waiting import until

KEY: Final = "correct-horse-battery"
SECRETS: Final = [f"{name}-hidden-{row:02}" for name in ("mail", "card", "phone", "name", "note") for row in range(6)]
MASKS: Final = (
    "id, sha2(mail, 256) AS mail, hmac_sha256(card, 'env:MASK_KEY') AS card, NULL AS phone, 'hidden' AS name, "
    "concat('***', right(note, 4)) AS note"
)

SPILLED_ROWS: Final = 300_000
SPILLING_BYTES: Final = 64 * 2**20  # of the database, too little for so many rows


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table whose second version deletes rows by rewriting a file: versions are compared."""
    columns = {
        name: [f"{name}-hidden-{row:02}" for row in range(6)] for name in ("mail", "card", "phone", "name", "note")
    }
    write_deltalake(tmp_path / "source", pa.table({"id": pa.array(range(6), pa.int64()), **columns}))
    DeltaTable(tmp_path / "source").delete("id = 2")
    return tmp_path / "source"


def leaked(*written: str | bytes) -> set[str]:
    """Return the secrets that occur in what was written."""
    texts = [each if isinstance(each, bytes) else each.encode() for each in written]
    return {secret for secret in (KEY, *SECRETS) if any(secret.encode() in text for text in texts)}


def asked(url: str) -> bytes:
    """Return the answer of the daemon's server."""
    with urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


def test_a_daemon_writes_no_masked_value(table: Path, tmp_path: Path) -> None:
    """Rows, logs of everything, traces, metrics, the status page and its data, `check`, `status` and `plan`."""
    scratch, target, config = tmp_path / "scratch", tmp_path / "target", tmp_path / "tailer.toml"
    scratch.mkdir()
    config.write_text(
        f'metrics = "127.0.0.1:0"\n[pipelines.masked]\ntable = "{table}"\nstart = "earliest"\npoll_interval_s = 0.1\n'
        f'compute_updates = true\nkey = ["id"]\nselect = """{MASKS}"""\n'
        f'sink = {{ kind = "files", path = "{target}" }}\n'
    )
    with Receiver() as receiver:
        environment = {"MASK_KEY": KEY, "TMPDIR": str(scratch)}
        said = [tailer("check", "--config", config, cwd=None, **environment)]
        said += [tailer("plan", table, version, "--where", "mail > 'm' AND card < 'z'") for version in range(2)]
        with background(
            "run", "--verbose", "--config", config, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, **environment
        ) as daemon:
            assert daemon.stderr is not None
            logged = [""]
            while "metrics on http://" not in logged[-1]:
                logged.append(daemon.stderr.readline())
            address = logged[-1].partition("metrics on ")[2].partition("/metrics")[0]
            until(
                lambda: (
                    daemon.poll() is not None or '"delete"' in "".join(f.read_text() for f in target.rglob("*.jsonl"))
                )
            )
            assert daemon.poll() is None
            said.append(tailer("status", "--config", config, cwd=None, **environment))
            answers = {page: asked(f"{address}/{page}") for page in ("", "history", "status", "metrics")}
            written = [
                file.read_bytes() for folder in (target, scratch) for file in folder.rglob("*") if file.is_file()
            ]
            daemon.terminate()
            logged += filter(None, daemon.communicate())
    assert [each.returncode for each in said] == [0] * 4
    assert b"***" in b"".join(written)
    assert receiver.spans
    assert all(b"masked" in answers[page] for page in ("status", "metrics"))
    assert not leaked(
        *written, *logged, *answers.values(), receiver.texts, *(each.stdout + each.stderr for each in said)
    )


@pytest.mark.parametrize("text", ["CAST(mail AS INT) AS n", "1 / (id - 2) AS n", "CAST(note AS DATE) AS n"])
def test_an_expression_that_fails_says_no_value(table: Path, text: str) -> None:
    done = tailer("tail", table, "--from", "0", "--to", "1", "--select", f"{MASKS}, {text}", MASK_KEY=KEY)
    assert done.returncode != 0
    assert text in done.stderr
    assert not leaked(done.stdout, done.stderr)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    """The key of the keyed hash, in the environment."""
    monkeypatch.setenv("MASK_KEY", KEY)
    return KEY


def deliver(
    table: Path, sink: Sink, columns: str = MASKS, *, key: Sequence[str] = ("id",), engine: Engine | None = None
) -> None:
    """Deliver all changes with these columns; images of updates are paired by the key."""
    rules = PairingRules(compute_updates=True, key=tuple(key), null_keys=True)
    changes, policy = ChangelogEngine(engine or LocalEngine(), rules), Policy(select=columns)
    start, end = Start.parse("earliest"), Start.parse("latest")

    async def run() -> None:
        try:
            await row_pipeline(
                "masked", TableRef(str(table)).open(), sink, changes, TimerWake(), start, end, policy
            ).run()
        finally:
            await sink.aclose()

    anyio.run(run)


@pytest.mark.usefixtures("key")
def test_an_encoder_that_fails_quotes_masked_values(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An encoder may put whatever it is given into its error."""

    def fail(_encoder: FlatEncoder, rows: pa.RecordBatch) -> pa.Buffer:
        raise pa.ArrowInvalid(f"cannot encode {rows.to_pylist()}")

    monkeypatch.setattr(FlatEncoder, "lines", fail)
    caplog.set_level(logging.DEBUG)
    with pytest.raises(pa.ArrowInvalid) as raised:
        deliver(table, FilesSink.configure("sink", {"path": str(tmp_path / "target")}))
    said = "".join(traceback.format_exception(raised.value))
    assert "***" in said
    assert not leaked(said, caplog.text)


class WatchedIndex(RowIndex):
    """An index that spills its rows, and keeps what it has spilled when it is emptied."""

    spilled: ClassVar[list[bytes]] = []

    def __init__(self) -> None:
        super().__init__(SPILLING_BYTES, few_rows=0)

    def begin(self, maps_in_order: bool = False) -> None:
        """See `RowIndex.begin`."""
        self.spilled.extend(file.read_bytes() for file in Path(tempfile.gettempdir()).rglob("*.tmp"))
        super().begin(maps_in_order)


@pytest.mark.long
@pytest.mark.usefixtures("key")
def test_spill_files_hold_masked_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look into the rows and preimages of a comparison, and into the rows of the sink's transaction."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(row_index, "RowIndex", WatchedIndex)
    spools: list[bytes] = []
    preimages: list[bytes] = []
    close, leave = Spool.close, SpilledPreimages.__exit__

    def closed(spool: Spool) -> None:
        if spool.on_disk:
            spools.append(read_spool(spool))
        close(spool)

    def left(spilled: SpilledPreimages, *raised: Any) -> None:
        preimages.extend(file.read_bytes() for file in spilled.folder.iterdir())
        leave(spilled, *raised)

    monkeypatch.setattr(Spool, "close", closed)
    monkeypatch.setattr(SpilledPreimages, "__exit__", left)
    mails = pa.array([f"mail-hidden-{row % 6:02} of {row}" for row in range(SPILLED_ROWS)])
    for version in range(2):
        rows = pa.table({"id": pa.array(range(SPILLED_ROWS), pa.int64()), "mail": mails, "v": [version] * SPILLED_ROWS})
        write_deltalake(tmp_path / "source", rows, mode="overwrite")
    columns = "id, v, concat('masked ', right(mail, 6)) AS mail"
    deliver(tmp_path / "source", DeltaSink.configure("sink", {"path": str(tmp_path / "target")}), columns)
    for spilled in (spools, preimages):
        assert b"masked " in b"".join(spilled)
    assert WatchedIndex.spilled
    assert not leaked(*spools, *preimages, *WatchedIndex.spilled)


def read_spool(spool: Spool) -> bytes:
    """Return the text of the rows in the file of a spool."""
    assert spool._file is not None
    spool._file.seek(0)
    found = []
    with suppress(pa.ArrowInvalid), pa.PythonFile(spool._file) as file:  # it ends
        while True:
            found.append(pa.ipc.open_stream(file).read_all())
    return " ".join(mail for rows in found for mail in rows["mail"].to_pylist()).encode()


@pytest.mark.usefixtures("key")
def test_topics_hold_no_masked_value(table: Path, kafka: KafkaCluster) -> None:
    """Read the topics of rows, dead letters, ends, schemas and progress; the key is a masked column."""
    topic = unique_name("masked")
    topics = {name: f"{topic}-{name}" for name in ("dead_letter_topic", "end_topic", "schema_topic", "progress_topic")}
    options = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "topic": topic,
        "create_topics": True,
        "key": ["mail"],
        "envelope": "debezium",
        "large_records": "dead_letter",
        "max_record_bytes": 2000,
    }
    large = f"CASE WHEN id % 3 = 2 THEN '{'x' * 3000}' END AS large"
    deliver(table, KafkaSink.configure("sink", options | topics), f"{MASKS}, {large}", key=["mail"])
    found = {name: read_topic(kafka.bootstrap_servers, name) for name in (topic, *topics.values())}
    written = {name: b"".join((each.key or b"") + (each.value or b"") for each in of) for name, of in found.items()}
    assert b"***" in written[topic]
    assert written[topics["dead_letter_topic"]].count(b"max_record_bytes") == 3
    assert not leaked(*written.values())


def test_the_event_log_of_executors_holds_no_masked_value(
    spark: SparkSession, table: Path, tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(spark.sparkContext.environment, "MASK_KEY", key)
    executors = Executors(spark)
    sink = FilesSink.configure("sink", {"path": str(tmp_path / "target")})
    with writing_event_log(spark, tmp_path / "events"):
        deliver(table, sink, engine=SparkEngine(lambda: executors))
        executors.close()
    events = [file.read_bytes() for file in (tmp_path / "events").rglob("*") if file.is_file()]
    assert b"SparkListenerTaskEnd" in b"".join(events)
    assert b"***" in b"".join(file.read_bytes() for file in (tmp_path / "target").rglob("*.jsonl"))
    assert not leaked(*events)
