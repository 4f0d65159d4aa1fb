"""Write the archives of `old_data`: targets that former code left in the middle of its work.

It runs with that code, not with the code beside it. Existing archives are never changed, because they are the record.
To add some, name them. The present ones are by commit 81fbfc9, in a separate working tree OLD, prepared with `make
.venv/.synced`::

    cd OLD
    PYTHONPATH=. .venv/bin/python -P HERE/tests/generate_old_targets.py NAME...

So modules of the project are imported by their former names, and nothing is imported from the current tests.

Each archive has `facts.json`, the source `table`, and the delivered data: a `target`, or `state` and `stdout.jsonl`, or
the records of Kafka's topics, or the `checkpoint` and the `batches` of a Spark query. A pipeline ends as by `kill -9`,
right after a commit; a query fails in a micro-batch that its checkpoint has planned.
"""

import importlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

__all__ = ["main"]

OLD_DATA: Final = Path(__file__).resolve().parent / "old_data"
EPOCH: Final = 1_790_000_000  # commits are dated a minute apart from then on
REWRITTEN: Final = 2  # the version that rewrites every file
SNAPSHOT: Final = 3  # the version of snapshots; later ones are written during these
NAME: Final = "old"
PARTITIONS: Final = 6


@dataclass(frozen=True)
class Case:
    """A pipeline and its end: the commit numbered `commits` of those within `version`.

    `within`: whether these are commits inside the version; else the one that closes it.
    """

    kind: str
    version: int
    within: bool
    commits: int = 1
    start: str = "earliest"
    options: tuple[tuple[str, Any], ...] = ()
    key: tuple[str, ...] = ()


_KAFKA: Final = (("topic", "old-rows"), ("progress_topic", "old-progress"), ("partitions", 2))
CASES: Final = {
    "delta_history": Case("delta", 3, within=False),
    "delta_snapshot": Case("delta", SNAPSHOT, within=True, commits=3, start="snapshot"),
    "files_history": Case("files", 3, within=False),
    "files_snapshot": Case("files", SNAPSHOT, within=True, commits=3, start="snapshot"),
    "files_snapshot_parquet": Case(
        "files", SNAPSHOT, within=True, commits=3, start="snapshot", options=(("format", "parquet"),)
    ),
    "state_history": Case("stdout", 3, within=False),
    "state_snapshot": Case("stdout", SNAPSHOT, within=True, commits=3, start="snapshot"),
    "state_inside": Case("stdout", REWRITTEN, within=True, commits=5),
    "state_inside_updates": Case("stdout", REWRITTEN, within=True, commits=5, key=("id",)),
    "kafka_history": Case("kafka", 3, within=False, options=_KAFKA),
    "kafka_snapshot": Case("kafka", SNAPSHOT, within=True, commits=3, start="snapshot", options=_KAFKA),
    "kafka_inside": Case("kafka", REWRITTEN, within=True, commits=5, options=_KAFKA),
    "kafka_inside_keyed": Case("kafka", REWRITTEN, within=True, commits=5, options=(*_KAFKA, ("key", ["id"]))),
}
QUERIES: Final = {"spark_typed": "typed", "spark_envelope": "envelope"}


def old(module: str) -> Any:
    """Import a module of the project by its former name."""
    return importlib.import_module(module)


def in_process(what: str, name: str, folder: Path, *more: str) -> None:
    """Run a part of this script in a separate process: a pipeline ends it, and a process has one Spark."""
    subprocess.run([sys.executable, "-P", __file__, what, name, str(folder), *more], check=True, timeout=300)


# The source table.


def rows(begin: int, end: int) -> pa.Table:
    """Make rows with these ids, in every partition."""
    ids = range(begin, end)
    parts = pa.array([f"p {each % PARTITIONS}" for each in ids])
    return pa.table({"id": pa.array(ids, pa.int64()), "amount": [each / 4 for each in ids], "part": parts})


def write_table(path: Path, first: int, last: int) -> None:
    """Write versions `first` to `last`: none has a change feed, and all files of `REWRITTEN` are rewritten."""
    for version in range(first, last + 1):
        if version in (0, 1, 4):
            begin = 100 * version
            write_deltalake(
                path, rows(begin, begin + 36), mode="append", partition_by=["part"] if not version else None
            )
        elif version in (REWRITTEN, 5):
            DeltaTable(path).update(predicate=f"id % 100 < {3 * PARTITIONS}", updates={"amount": "amount + 1000"})
        else:
            DeltaTable(path).delete("id % 100 >= 30")
        commit = path / "_delta_log" / f"{version:020d}.json"
        os.utime(commit, (EPOCH + 60 * version, EPOCH + 60 * version))


# A pipeline, which ends its process.


class Ending:
    """A counter that ends the process after a commit."""

    def __init__(self, case: Case, report: Path) -> None:
        self._case = case
        self._report = report
        self._left = case.commits

    def note(self, progress: Any) -> None:
        """Count a commit."""
        at = progress.position
        self._left -= at.version == self._case.version and at.closes_version is not self._case.within
        if self._left == 0:
            place = {"version": at.version, "task": at.task, "row": at.row}
            self._report.write_text(json.dumps({"app_id": progress.app_id, **place}))
            os._exit(0)


class EndingSink:
    """A sink that reports every commit to `ending`."""

    def __init__(self, sink: Any, ending: Ending) -> None:
        self._sink = sink
        self._ending = ending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def begin(self, app_id: str, schema: pa.Schema) -> Any:
        """See `Sink.begin`."""
        return _Begun(self._sink.begin(app_id, schema), self._ending)


class _Begun:
    def __init__(self, inner: Any, ending: Ending) -> None:
        self._inner = inner
        self._ending = ending
        self._transaction: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    async def __aenter__(self) -> "_Begun":
        self._transaction = await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._inner.__aexit__(*error)

    async def commit(self, progress: Any) -> None:
        await self._transaction.commit(progress)
        self._ending.note(progress)


def run_case(name: str, folder: Path, servers: str) -> None:
    """Deliver until the process ends."""
    case = CASES[name]
    options = dict(case.options)
    if case.kind in ("delta", "files"):
        options["path"] = str(folder / "target")
    if case.kind == "kafka":
        options |= {"bootstrap_servers": servers, "create_topics": True}
    if case.kind == "stdout":
        options["format"] = "jsonl"
        os.dup2(os.open(folder / "stdout.jsonl", os.O_WRONLY | os.O_CREAT), 1)
    sink = old("tailer.sink").configure_sink("sink", case.kind, options)
    store = old("tailer.storage").LocalStore
    if case.kind == "stdout":
        sink = old("tailer.sink").Recorded(sink, old("tailer.delta.state").StateTable(store(folder / "state")))
    policy, pipeline = old("tailer.policy"), old("tailer.pipeline")
    keyed = bool(sink.demands.key)
    rules = policy.PairingRules(
        compute_updates=bool(case.key) or keyed, key=sink.demands.key or case.key, null_keys=keyed
    )
    engine = old("tailer.pairing_engine").PairingEngine(old("tailer.engine").LocalEngine(1), rules)
    table = old("tailer.delta.table").DeltaTableLog(store(folder / "table"))
    ending = EndingSink(sink, Ending(case, folder / "facts.json"))
    start, wake = old("tailer.start").Start.parse(case.start), old("tailer.watch").TimerWake()
    limits = pipeline.Limits(max_versions=1, max_rows=1, retry_for_s=1.0)
    anyio.run(pipeline.Pipeline(NAME, table, ending, engine, wake, start, limits=limits).run)


def make_pipeline(name: str, folder: Path, servers: str) -> None:
    """Write everything that the archive of a pipeline holds."""
    case = CASES[name]
    write_table(folder / "table", 0, SNAPSHOT)
    if case.start != "snapshot":
        write_table(folder / "table", SNAPSHOT + 1, 5)
    in_process("--pipeline", name, folder, servers)
    if case.start == "snapshot":
        write_table(folder / "table", SNAPSHOT + 1, 5)
    file = folder / "facts.json"
    file.write_text(json.dumps(asdict(case) | {"name": NAME, "progress": json.loads(file.read_text())}, indent=1))
    if case.kind == "kafka":
        (folder / "topics.json").write_text(json.dumps(records(servers, "old-rows", "old-progress"), indent=1))


def records(servers: str, *names: str) -> dict[str, list[dict[str, Any]]]:
    """Return the records that readers see in topics with text messages."""
    read = old("tests.kafka.topics").read_topic
    return {
        name: [
            {
                "partition": each.partition,
                "timestamp": each.timestamp,
                "key": each.key and each.key.decode(),
                "value": each.value and each.value.decode(),
                "headers": [(header, value.decode()) for header, value in each.headers],
            }
            for each in read(servers, name)
        ]
        for name in names
    }


# A query.


def make_query(name: str, folder: Path) -> None:
    """Write everything that the archive of a query holds: it fails in the batch with the rewritten version."""
    write_table(folder / "table", 0, 5)
    options = {"schema": QUERIES[name], "startingVersion": "0", "maxFilesPerTrigger": "2"}
    with tempfile.TemporaryDirectory() as scratch:
        spark = old("tests.spark").build_spark(Path(scratch))
        old("tailer.spark").register(spark)

        def take(found: Any, number: int) -> None:
            table = found.toArrow()
            if REWRITTEN in table["_commit_version"].to_pylist():
                message = "the query fails here"
                raise RuntimeError(message)
            (folder / "batches").mkdir(exist_ok=True)
            pq.write_table(table, folder / "batches" / f"{number}.parquet")

        source = spark.readStream.format("tailer").options(**options).load(str(folder / "table"))
        writer = source.writeStream.foreachBatch(take).option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as error:
            if "the query fails here" not in str(error):
                raise
        spark.stop()
    (folder / "facts.json").write_text(json.dumps({"kind": "spark", "options": options}, indent=1))


def pack(folder: Path, archive: Path) -> None:
    """Write an archive of a folder's content."""
    files = [file for file in folder.rglob("*") if not (file.suffix == ".crc" or file.name.endswith(".tmp"))]
    with tarfile.open(archive, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as tar:
        for file in sorted(file for file in files if file.is_file()):
            tar.add(file, file.relative_to(folder), filter=_anonymous)
    print(f"{archive.name}: {archive.stat().st_size} bytes")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = int(member.mtime)
    return member


def main(names: list[str]) -> None:
    """Write the archives of these names."""
    OLD_DATA.mkdir(exist_ok=True)
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "archive"
            folder.mkdir()
            if name in QUERIES:
                in_process("--query", name, folder)
            elif CASES[name].kind == "kafka":
                with old("tests.kafka.cluster").KafkaCluster(Path(scratch) / "kafka") as cluster:
                    make_pipeline(name, folder, cluster.bootstrap_servers)
            else:
                make_pipeline(name, folder, "")
            pack(folder, OLD_DATA / f"{name}.tar.xz")


if __name__ == "__main__":
    if sys.argv[1] == "--pipeline":
        run_case(sys.argv[2], Path(sys.argv[3]), sys.argv[4])
    elif sys.argv[1] == "--query":
        make_query(sys.argv[2], Path(sys.argv[3]))
    else:
        main(sys.argv[1:])
