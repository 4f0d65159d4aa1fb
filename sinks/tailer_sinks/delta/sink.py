"""The `delta` sink: change rows appended to a Delta table, exactly once.

A transaction is one Delta commit that adds any number of rows and a `txn` action (PROTOCOL.md, "Transaction
Identifiers"), whose version is the last complete source version. So readers of the target never see half a version, and
the table itself holds the progress. The target has the columns of the source and Delta's three metadata columns
`_change_type`, `_commit_version` and `_commit_timestamp`. The first commit creates it, and it grows with the source
(`tailer_sinks.delta.schema`), also inside a transaction: rows of two schemas are then written with the columns of both.
Rows of a Delta table have no order except by `_commit_version`.

Only a large table's snapshot, at the start of a stream or after a gap, takes several commits. Two more `txn` actions
hold the position inside it (`tailer_sinks.delta.table`). It is complete when the `txn` of app_id has its version.

A gap is also a row: its `_change_type` is `gap`, its `_commit_version` the last lost version, all other columns are
null. Rows of that same version are the snapshot that follows it. Nothing is lost before a snapshot that an operator
asked for: the gap has the version of the snapshot, whose changes came in earlier commits. The `commitInfo` of the
gap's commit describes the loss under `gap`.

    table      the table, through delta-rs: makes an append exactly once
    txns       the actions that hold progress
    folder     the table's folder, on this machine or, with `in_store`, in an object store
    options    the configuration, checked without I/O
    target     rules: which tables and folders may be written to
    schema     fit of rows and tables
    writes     how delta-rs writes files
    spool      rows before they are committed, in bounded memory
    mirror     `mode = "mirror"`: a table that equals the source

An aborted transaction has written nothing to the table. One that died while committing may leave data files that no
commit names: VACUUM removes them. The target is an ordinary Delta table, and each commit adds at least one file, so it
needs OPTIMIZE now and then: delta-rs opens a table in time that grows with the number of files.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Self

import pyarrow as pa
from anyio import to_thread
from typing_extensions import override

from tailer.errors import SinkError, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch, ControlEvent, Gap, joined_rows
from tailer.plan import Position
from tailer.sink import Heartbeats, Progress, Sink, SinkTransaction, refused
from tailer.stores.stores import Stores
from tailer_sinks.delta.mirror.sink import DeltaMirror
from tailer_sinks.delta.options import read
from tailer_sinks.delta.schema import far_dates, partition_refusal, rows_schema
from tailer_sinks.delta.spool import Spool
from tailer_sinks.delta.table import Anchor, TargetTable
from tailer_sinks.encoding.typed import Misfit, conform, gap_row

__all__ = ["DeltaSink"]


class DeltaSink(Sink):
    """A `Sink` that appends to the Delta table at `path`.

    `partition_by`: columns to partition a new table by; None leaves a new table unpartitioned and takes any table.
    `adopt`: write also to a table that has neither our progress nor our columns, or into a folder with other files.
    """

    splits_versions: Final = False
    splits_snapshots: Final = True
    writes_to_stores = True

    def __init__(self, name: str, path: str, partition_by: Sequence[str] | None = None, *, adopt: bool = False) -> None:
        self.name = name
        self._table = TargetTable(name, path, partition_by, adopt=adopt)
        self._expected: dict[str, Position | None] = {}

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> Self | DeltaMirror:
        """Read the options (`tailer_sinks.delta.options`). No I/O. Raises `ConfigError`."""
        chosen = read(name, options)
        if chosen.mode != "append":
            return DeltaMirror(name, chosen)
        return cls(name, chosen.path, chosen.partition_by, adopt=chosen.adopt)

    @override
    def use_stores(self, stores: Stores) -> None:
        self._table.folder.use_stores(stores)

    async def progress(self, app_id: str) -> Progress | None:
        """Read the progress of `app_id` from the table's `txn` actions. None: there are none, or no table.

        Raises `SinkRejected` for a table that could forget its progress, is not ours or has lost its progress, and
        `SinkUnavailable` if it cannot be read.
        """
        position = await to_thread.run_sync(self._table.position, app_id)
        if position is None:
            self._table.expect(None, self._expected.get(app_id))
        self._expected[app_id] = position
        return None if position is None else Progress(app_id, position)

    async def has_delivered(self, pipeline: str) -> bool:
        """Return whether the table has the `txn` action that the pipeline's first commit writes.

        Raises as `progress` does.
        """
        return await to_thread.run_sync(self._table.has_delivered, pipeline)

    @override
    async def refusals(self, app_id: str, schema: pa.Schema) -> Sequence[SinkError]:
        """Return refusals: the rows do not fit the table, or no table can have them."""
        return await to_thread.run_sync(refused, self._table.anchor, app_id, schema, self._expected.get(app_id))

    async def reset(self, progress: Progress) -> None:
        """Commit `progress` without rows. If there is no table, one with only the metadata columns is created.

        Raises as `SinkTransaction.commit` does, and `SinkRejected` for a position inside a version.
        """
        position = progress.position
        if not position.closes_version:
            raise SinkRejected(self.name, f"{position} is in the middle of a version", "Name a whole version.")
        await to_thread.run_sync(self._table.reset, progress.app_id, position)
        self._expected[progress.app_id] = position

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator["_DeltaTransaction"]:
        """Begin a transaction on top of the progress that was read last, or else the current one.

        Entering raises `SinkFenced` if another instance has committed since, and `SinkRejected` if rows of `schema` do
        not fit the table.
        """
        if app_id not in self._expected:
            await self.progress(app_id)
        anchor = await to_thread.run_sync(self._table.anchor, app_id, schema, self._expected[app_id])
        spool = Spool()
        try:
            yield _DeltaTransaction(self._table, anchor, schema, spool, self._expected)
        finally:
            spool.close()

    @override
    def open_heartbeats(self, pipeline: str, timeout_s: float) -> Heartbeats:
        return self._table.folder.open_heartbeats(pipeline)

    async def aclose(self) -> None:
        """Do nothing: no resources are held between transactions."""


class _DeltaTransaction(SinkTransaction):
    """Rows in a spool until `commit` appends them to the table as it was when the transaction began."""

    writes_together = True

    def __init__(
        self,
        table: TargetTable,
        anchor: Anchor,
        schema: pa.Schema,
        spool: Spool,
        expected: dict[str, Position | None],
    ) -> None:
        self._table = table
        self._anchor = anchor
        self._schema = schema
        self._spool = spool
        self._expected = expected
        self._notes: list[str] = []
        self._far: set[str] = set()

    @override
    async def write(self, batch: ChangeBatch) -> None:
        """Raises `SinkUnavailable` if the spool's disk is full."""
        await self.write_all([batch])

    @override
    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        """Raises as `write` does."""
        rows = joined_rows(batches)
        if not rows.schema.equals(self._schema):
            remedy = "This is a defect of the pipeline: every batch must have the schema that was announced last."
            raise SinkRejected(self._table.name, f"rows of another schema at version {batches[0].version}", remedy)
        await to_thread.run_sync(self._spool_rows, rows)

    @override
    async def announce(self, event: ControlEvent) -> None:
        """Rows that would not fit the table are refused before they come."""
        if isinstance(event, Gap):
            text = f"versions {event.first_version} to {event.version} are lost: {event.reason}"
            self._notes.append(event.reason if event.command is not None else text)
            await to_thread.run_sync(self._spool_rows, gap_row(event, rows_schema(self._schema)))
        else:
            rows = bool(self._spool)
            self._anchor = await to_thread.run_sync(partial(self._table.extended, self._anchor, event.after, rows=rows))
            self._schema = event.after

    @override
    async def commit(self, progress: Progress) -> None:
        """Not cancelled once begun.

        Raises `SinkFenced`, `SinkRejected`, `SinkUnavailable` (nothing was committed) or `CommitUnknown`.
        """
        anchor, position = self._anchor, progress.position
        if not (position.closes_version or position.in_snapshot):
            remedy = "This is a defect of the pipeline: the delta sink does not split versions."
            raise SinkRejected(self._table.name, f"{position} is in the middle of a version", remedy)
        if progress.app_id != anchor.app_id or (anchor.expected is not None and position <= anchor.expected):
            reason = f"progress of {anchor.app_id} must continue after {anchor.expected}, not at {progress}"
            raise SinkRejected(
                self._table.name, reason, "Use `tailer progress reset PIPELINE --to VERSION` to go back."
            )
        await to_thread.run_sync(self._table.append, anchor, position, self._spool.reader, self._notes, self._far)
        self._expected[anchor.app_id] = position

    def _spool_rows(self, rows: pa.RecordBatch) -> None:
        if reason := partition_refusal(rows, self._anchor.partition_by):
            raise SinkRejected(self._table.name, reason, "Partition the target by another column.")
        self._far.update(far_dates(rows))
        try:
            self._spool.add(conform(rows, self._anchor.schema))
        except Misfit as misfit:
            raise SinkRejected(self._table.name, str(misfit), "Choose a new path for the new schema.") from misfit
        except OSError as error:
            raise SinkUnavailable(self._table.name, f"no room for the rows in TMPDIR: {error}") from error
