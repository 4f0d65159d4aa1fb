"""The modules and functions that run while a pipeline delivers one more version to Kafka: what a newcomer must read.

The pipeline is one of `row_pipeline`: a Delta table on disk without a change feed, a `ChangelogEngine` that computes
updates around a `LocalEngine`, and the `kafka` sink with flat JSON and a key. It has delivered a version and waits;
then one more version is committed. Counted is what runs from there until the pipeline has caught up, in all threads:
the distinct functions in files of `tailer` and `sinks` that begin, or go on after an `await`, so also those that wait
for the ones below them. A function counts once however often it runs. Comprehensions and lambdas belong to the function
around them, and code that dataclasses generate is not counted. Nor are the start and the end of the pipeline,
heartbeats, the daemon around it, and the clients below `Producer` and `Cluster`: these are replaced by ones that keep
messages in memory.

`python -m tests.support.delivery_path append` prints them in the order of their first call, `update` those of a version
that rewrites a file and must be compared.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, Final, Literal, get_args
from unittest.mock import patch

import anyio

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.tables import TableRef, open_files
from tailer.engine.local import AHEAD_BYTES, LocalEngine
from tailer.events import ChangeBatch
from tailer.pipeline.limits import Limits
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.sink_writer import TransactionSize
from tailer.pipeline.status import PipelineStatus
from tailer.start import Start
from tailer.stores.wakeup import TimerWake, Wake
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.kafka import link
from tailer_sinks.kafka.clients.port import Connection, Producer, ProducerSettings
from tailer_sinks.kafka.clients.python_cluster import Owner, ReadResult
from tailer_sinks.kafka.clients.python_records import Record
from tailer_sinks.kafka.sink import KafkaSink
from tailer_sinks.kafka.topics import TopicState
from tests.support.tables.handwritten import HandwrittenTable

__all__ = ["KINDS", "Executed", "Kind", "execute"]

ROOT: Final = Path(__file__).resolve().parents[2]
_COUNTED: Final = tuple(f"{ROOT / folder}/" for folder in ("tailer", "sinks"))
_NO_CARRIERS: Final = (ChangeBatch, TransactionSize)  # the rows themselves, and what only counts them
_TOPICS: Final = ("rows", "progress", "ends")
_WRITER: Final = (0, 0)

Kind = Literal["append", "update"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass
class Executed:
    """The functions that ran, in the order of their first call, and the messages about rows that were sent.

    `carriers`: the classes of `tailer` that hand rows on: a method had rows as a local variable, or returned or yielded
    some.
    """

    codes: dict[CodeType, None] = field(default_factory=dict)
    carriers: set[str] = field(default_factory=set)
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def functions(self) -> list[tuple[str, str]]:
        """The module of each function, as a path below the root, and its qualified name."""
        return [(str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname) for code in self.codes]

    @property
    def modules(self) -> list[str]:
        """The modules of the functions."""
        return list(dict.fromkeys(module for module, _ in self.functions))

    def note(self, frame: FrameType, event: str, value: object) -> None:
        """Note a call of a function, or a return from it with `value`."""
        if event == "call" and frame.f_code.co_name[0] != "<":
            self.codes.setdefault(frame.f_code)
        owner = frame.f_locals.get("self")
        is_ours = (
            owner is not None
            and not isinstance(owner, _NO_CARRIERS)
            and frame.f_code.co_filename.startswith(_COUNTED[0])
        )
        if is_ours and (_has_rows(value) or any(map(_has_rows, frame.f_locals.values()))):
            self.carriers.add(type(owner).__name__)


def _has_rows(value: object) -> bool:
    return isinstance(value, ChangeBatch) or (isinstance(value, list | tuple) and any(map(_has_rows, value)))


class MemoryCluster:
    """A cluster with the topics of the sink, and one writer of progress. Stands for `Cluster`."""

    progress: Final[dict[bytes, bytes]] = {}
    rows: Final[list[dict[str, Any]]] = []

    def __init__(self, connection: Connection) -> None:
        """Connect to nothing."""

    def describe(self, topics: Sequence[str], with_configs: bool = True) -> dict[str, TopicState]:
        """See `Cluster`."""
        configs = {"cleanup.policy": "compact"}
        return {topic: TopicState(1, configs if topic == "progress" else {}) for topic in topics if topic in _TOPICS}

    def read(self, topic: str, before: int | None = None) -> ReadResult:
        """See `Cluster`."""
        return ReadResult({key: Record(0, key, value, _WRITER) for key, value in self.progress.items()}, frozenset())

    def owner(self, transactional_id: str) -> Owner:
        """See `Cluster`."""
        return Owner(_WRITER, in_transaction=False)

    def had_messages(self, topic: str) -> bool:
        """See `Cluster`."""
        return False

    def close(self) -> None:
        """See `Cluster`."""


class MemoryProducer(Producer):
    """A producer whose messages `MemoryCluster` keeps."""

    def __init__(self, connection: Connection, settings: ProducerSettings, transactional_id: str) -> None:
        """Connect to nothing."""

    def begin(self) -> None: ...

    def send(self, topic: str, messages: Messages, partition: int | None = None) -> None:
        if topic == "rows":
            MemoryCluster.rows.extend(json.loads(value) for value in messages.values.to_pylist())
        elif topic == "progress" and messages.keys is not None:
            MemoryCluster.progress.update(zip(messages.keys.to_pylist(), messages.values.to_pylist(), strict=True))

    def start_flush(self) -> None: ...

    def flush(self) -> int:
        return 0

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class OneWait(TimerWake):
    """A wake-up whose first wait is `instead`."""

    def __init__(self, instead: Callable[[], None]) -> None:
        super().__init__()
        self._instead: Callable[[], None] | None = instead

    async def wait(self, timeout_s: float) -> None:
        """See `Wake.wait`."""
        instead, self._instead = self._instead, None
        if instead is None:
            await super().wait(timeout_s)
        else:
            instead()


class NotingStatus(PipelineStatus):
    """A status that calls `caught_up` with the version that the pipeline has reached each time it begins to wait."""

    def __init__(self, caught_up: Callable[[int], None]) -> None:
        super().__init__("p")
        self._caught_up = caught_up

    def note_caught_up(self, version: int, has_progress: bool = True) -> None:
        """See `PipelineStatus`."""
        super().note_caught_up(version, has_progress)
        self._caught_up(version)


def execute(kind: Kind, folder: Path) -> Executed:
    """Deliver one more version of a new table in `folder`: an appended file, or a rewritten one to be compared."""
    table = HandwrittenTable(folder / "table")
    table.metadata = {**table.metadata, "configuration": {}}
    table.commit({"metaData": table.metadata}, table.add(table.data("first.parquet", range(3))))
    second = table.add(table.data("second.parquet", range(1, 4)))
    actions = [second] if kind == "append" else [table.remove("first.parquet"), second]
    found, is_counting = Executed(), False

    def profile(frame: FrameType, event: str, value: object) -> None:
        if is_counting and frame.f_code.co_filename.startswith(_COUNTED):
            found.note(frame, event, value)

    def begin() -> None:
        nonlocal is_counting
        MemoryCluster.rows.clear()
        table.commit(*actions)
        is_counting = True

    def end(version: int) -> None:
        nonlocal is_counting
        if version == table.version and is_counting:
            is_counting = False
            found.messages = list(MemoryCluster.rows)
            made.stop()

    MemoryCluster.progress.clear()
    with patch.object(link, "Cluster", MemoryCluster), patch.object(link, "PythonProducer", MemoryProducer):
        made = _pipeline(table, OneWait(begin), NotingStatus(end))
        with _profiled(profile):
            anyio.run(made.run)
    return found


def _pipeline(table: HandwrittenTable, wake: Wake, status: PipelineStatus) -> Pipeline:
    """Make a pipeline into Kafka as the daemon does."""
    options: dict[str, Any] = {"bootstrap_servers": "none:9092", "key": ["id"], "library": "kafka-python"}
    options["transaction_timeout_s"] = 900  # so that a busy machine is not slow to give rows
    topics = {"topic": "rows", "progress_topic": "progress", "end_topic": "ends"}
    rules = PairingRules(compute_updates=True, key=("id",), null_keys=True)
    files = open_files()
    engine = ChangelogEngine(LocalEngine(files=files, ahead_bytes=AHEAD_BYTES), rules, lambda *_: None, files)
    log = TableRef(str(table.path)).open()
    limits = Limits(poll_interval_s=0.01)
    sink = KafkaSink.configure("kafka", {**options, **topics})
    start = Start.parse("earliest")
    return row_pipeline("p", log, sink, engine, wake, start, None, None, limits, None, status)


@contextmanager
def _profiled(profile: Callable[[FrameType, str, object], None]) -> Iterator[None]:
    """Call `profile` at each call of a function, in this thread and in all that begin meanwhile."""
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def main(kind: Kind) -> None:
    """Print what runs for a version of a `kind`."""
    with TemporaryDirectory() as folder:
        found = execute(kind, Path(folder))
    for module, function in found.functions:
        print(f"{module}: {function}")
    print(f"rows pass {', '.join(sorted(found.carriers))}")
    print(f"{len(found.modules)} modules, {len(found.functions)} functions")


if __name__ == "__main__":
    main("update" if sys.argv[1:] == ["update"] else "append")
