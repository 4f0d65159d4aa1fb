"""Whole streams for the suites: a growing table, and a destination that remembers its transactions.

Delivered rows are read from the destination, expected rows are kept by the table; both as (version, id).
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio

from tailer.engine import Engine
from tailer.engine.local import LocalEngine
from tailer.events import ChangeBatch, ControlEvent
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import Limits, Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import Position
from tailer.sink import AtLeastOnceSink, Progress, Sink
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer.stores.port import ObjectStore
from tailer.stores.wakeup import TimerWake, Wake
from tailer_sinks.files.sink import FilesSink
from tailer_sinks.memory import MemoryDestination, MemorySink
from tailer_sinks.testing import Fault, FaultySink
from tests.support.tables.handwritten import HandwrittenTable

__all__ = ["APP", "Destination", "Growing", "Lines", "WholeVersions", "become", "deliver_to_files", "pipeline"]

APP: Final = "p/11111111-2222-3333-4444-555555555555"
Delivered = list[tuple[int, int]]


@dataclass
class Growing(HandwrittenTable):
    """A table whose commits appear whole, as a real writer's do, and that knows their rows."""

    inserted: Delivered = field(default_factory=list)

    def commit_text(self, text: str) -> int:
        """Write the next commit to another name and rename it into place."""
        self.version += 1
        part = self.path / "_delta_log" / f".{self.version}.tmp"
        part.write_text(text)
        part.rename(self.commit_file())
        return self.version

    def insert(self, *files: Iterable[int], row_group_size: int | None = None) -> int:
        """Commit one data file for each collection of ids."""
        names = [f"{self.version + 1}-{number}.parquet" for number in range(len(files))]
        for name, ids in zip(names, files, strict=True):
            self.data(name, ids, row_group_size)
        version = self.commit(*map(self.add, names))
        self.inserted.extend((version, each) for ids in files for each in ids)
        return version

    def add_column(self, name: str) -> int:
        """Commit a schema with one more column, which is null in all files."""
        schema = json.loads(self.metadata["schemaString"])
        schema["fields"].append({"name": name, "type": "string", "nullable": True, "metadata": {}})
        self.metadata = {**self.metadata, "schemaString": json.dumps(schema)}
        return self.commit({"metaData": self.metadata})

    def insert_again(self, ids: Sequence[int], versions: int) -> None:
        """Commit the same file many times over: quick to write, and all versions differ."""
        name = self.data("again.parquet", ids)
        for _ in range(versions):
            version = self.commit(self.add(name))
            self.inserted.extend((version, each) for each in ids)

    def rows(self, first: int = 0, last: int | None = None) -> Delivered:
        """Return the rows that versions `first` to `last` (None: the newest) insert."""
        return [row for row in self.inserted if first <= row[0] and (last is None or row[0] <= last)]


@dataclass(slots=True)
class Destination(MemoryDestination):
    """A destination with the position and the number of rows of every transaction; calls `then` after each."""

    transactions: list[tuple[Position, int]] = field(default_factory=list)
    then: Callable[[], object] = bool

    def commit(self, token: object, items: list[ChangeBatch | ControlEvent], progress: Progress) -> bool:
        """See `MemoryDestination.commit`."""
        took_place = MemoryDestination.commit(self, token, items, progress)
        if took_place:
            rows = sum(len(item) for item in items if isinstance(item, ChangeBatch))
            self.transactions.append((progress.position, rows))
            self.then()
        return took_place

    def sink(self) -> MemorySink:
        """Make a new writer."""
        return MemorySink("memory", self)

    def delivered(self, app_id: str = APP) -> Delivered:
        """Return every delivered row, in order."""
        return [(row["_commit_version"], row["id"]) for row in self.rows(app_id)]

    def position(self, app_id: str = APP) -> Position | None:
        """Return the delivered position, if anything was ever committed."""
        progress = self.progress.get(app_id)
        return None if progress is None else progress.position

    def ends(self) -> list[int]:
        """Return the last versions of all transactions."""
        return [position.version for position, _ in self.transactions]


class Lines(AtLeastOnceSink):
    """A destination that keeps everything at once."""

    name = "lines"

    def __init__(self) -> None:
        self.rows: list[tuple[int, int]] = []

    async def write(self, batch: ChangeBatch) -> None:
        self.rows.extend((batch.version, each) for each in batch.rows.column("id").to_pylist())

    async def announce(self, event: ControlEvent) -> None:
        """Do nothing: rows are enough here."""

    async def flush(self) -> None:
        """Do nothing: nothing is held back."""

    async def aclose(self) -> None:
        """Do nothing: no resources are held."""


class WholeVersions(FaultySink):
    """A sink that cannot store a position inside a version."""

    @property
    def splits_versions(self) -> bool:
        """Return False."""
        return False

    @property
    def splits_snapshots(self) -> bool:
        """Return False."""
        return False


def pipeline(
    table: HandwrittenTable,
    sink: Sink,
    start: str = "earliest",
    until: str | None = None,
    *,
    engine: Engine | None = None,
    wake: Wake | None = None,
    policy: Policy | None = None,
    store: ObjectStore | None = None,
    **limits: Any,
) -> Pipeline:
    """Make a pipeline called `p` that polls often; `limits` are fields of `Limits`."""
    return row_pipeline(
        "p",
        DeltaTableLog(store or LocalStore(table.path)),
        sink,
        engine or LocalEngine(2),
        wake or TimerWake(),
        Start.parse(start),
        None if until is None else Start.parse(until),
        policy,
        Limits(**{"poll_interval_s": 0.005, **limits}),
    )


def deliver_to_files(table: HandwrittenTable, out: Path, fault: Fault) -> None:
    """Deliver everything, two versions per transaction, with a fault in it: for a separate process."""
    sink = FaultySink(FilesSink("files", out), fault)
    anyio.run(pipeline(table, sink, until="latest", max_versions=2).run)


async def become(condition: Callable[[], bool]) -> None:
    """Return when `condition` holds."""
    with anyio.fail_after(300):
        while not condition():  # noqa: ASYNC110 - a destination does not notify
            await anyio.sleep(0.002)
