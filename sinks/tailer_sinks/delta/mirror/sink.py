"""The mirror for the pipeline; the package's docstring explains how it works."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import pyarrow as pa
from anyio import to_thread
from typing_extensions import override

from tailer.errors import SinkError, SinkRejected
from tailer.events import COMMIT_TIMESTAMP, ChangeBatch, ControlEvent, Gap, SchemaChange, joined_rows
from tailer.plan import END, SNAPSHOT_TASKS, Position
from tailer.sink import (
    Demands,
    Heartbeats,
    MirrorRows,
    Progress,
    Sink,
    SinkTransaction,
    pipeline_of,
    refused,
)
from tailer.stores.stores import Stores
from tailer_sinks.delta.mirror.changes import Changes, Contradiction
from tailer_sinks.delta.mirror.columns import difference, only_adds, origins_of, table_schema
from tailer_sinks.delta.mirror.keys import columns_name, key_in, keyed_parts, known_from_name, other_columns
from tailer_sinks.delta.mirror.past import DELETE, NOTHING, STATES, UPDATE, past_of
from tailer_sinks.delta.mirror.table import MirrorStep, MirrorTable
from tailer_sinks.delta.mirror.verified_rows import check_goes_on, open_rows
from tailer_sinks.delta.options import Options
from tailer_sinks.delta.table import Anchor
from tailer_sinks.delta.writes import rows_schema_of
from tailer_sinks.encoding.typed import Misfit
from tailer_sinks.mirrors import CONTRADICTED, RESNAPSHOT, chosen_key, key_faults, one_version

__all__ = ["DeltaMirror"]

# Arrow memory of the rows of a transaction, after which it ends with a version: delta-rs merges them in memory.
_DUE_BYTES: Final = 32 * 1024 * 1024


class DeltaMirror(Sink):
    """A `Sink` that keeps the Delta table at `options.path` equal to the source, or makes it the source's history."""

    splits_versions: Final = False
    splits_snapshots: Final = False
    writes_to_stores = True

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self._key = tuple(options.key)
        self._source_key: tuple[str, ...] = ()
        past = past_of(options.mode, options.deletes)
        self._table = MirrorTable(name, options.path, options.partition_by, past)
        self._expected: dict[str, Position | None] = {}

    @override
    def use_stores(self, stores: Stores) -> None:
        self._table.folder.use_stores(stores)

    @override
    def use_key(self, key: tuple[str, ...]) -> None:
        self._source_key = key

    @property
    def demands(self) -> Demands:
        """A mirror has all rows of the source, so it begins with a snapshot, or with the first version."""
        return Demands(max_bytes=_DUE_BYTES, whole=True, primary_key=not self._key)

    async def progress(self, app_id: str) -> Progress | None:
        """Read the progress of `app_id` from the table's `txn` actions. None: there are none, or no table.

        Raises `SinkRejected` for a table that is not this pipeline's mirror, or has lost its progress, and
        `SinkUnavailable` if it cannot be read.
        """
        position = await to_thread.run_sync(self._table.position, app_id)
        if position is None:
            self._table.expect(None, self._expected.get(app_id))
        self._expected[app_id] = position
        return None if position is None else Progress(app_id, position)

    async def has_delivered(self, pipeline: str) -> bool:
        """Return whether the table has the `txn` action of all commits of the pipeline. Raises as `progress` does."""
        return await to_thread.run_sync(self._table.has_delivered, pipeline)

    async def check_first_start(self, pipeline: str, table_ids: Sequence[str]) -> None:
        """Refuse a mirror with rows and without progress."""
        await to_thread.run_sync(self._table.check_new, pipeline)

    @override
    async def refusals(self, app_id: str, schema: pa.Schema) -> Sequence[SinkError]:
        """Return refusals: the rows do not fit the table, or have no key."""
        try:
            async with self.begin(app_id, schema) as transaction:
                return await to_thread.run_sync(transaction.refusals)
        except SinkError as error:
            return [error]

    async def reset(self, progress: Progress) -> None:
        """Set the progress to the version that the table has under another id of the source, which had this one before.

        Raises `SinkRejected` for any other version: the table cannot become another one without rows.
        """
        app_id, position = progress.app_id, progress.position
        others = {other for other, expected in self._expected.items() if expected == position and other != app_id}
        same = [other for other in sorted(others) if pipeline_of(other) == pipeline_of(app_id)]
        if not same or not await to_thread.run_sync(self._table.take_over, app_id, same[0], position):
            reason = f"{self._table.path} would not be a mirror of version {position.version}"
            raise SinkRejected(self.name, reason, RESNAPSHOT)
        self._expected[app_id] = position

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator["_MirrorTransaction"]:
        """Begin a transaction on top of the progress that was read last, or else the current one.

        Entering raises `SinkFenced` if another instance has committed since, and `SinkRejected` if the table is not
        this pipeline's mirror, or no table can have rows of `schema`.
        """
        if app_id not in self._expected:
            await self.progress(app_id)
        anchor = await to_thread.run_sync(self._table.anchor, app_id, schema, self._expected[app_id])
        transaction = _MirrorTransaction(self._table, anchor, schema, self._keys, self._expected)
        try:
            yield transaction
        finally:
            transaction.close()

    def _keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return self._key, self._source_key

    @asynccontextmanager
    @override
    async def open_mirror(self, pipeline: str, version: int | None = None) -> AsyncIterator[MirrorRows]:
        """The state is a version of the table."""
        if version is not None and self._table.past is not STATES:
            raise one_version(self.name, self._table.path)
        rows = await to_thread.run_sync(open_rows, self._table, pipeline, self._keys(), version)
        try:
            yield rows
        finally:
            rows.close()

    @override
    def open_heartbeats(self, pipeline: str, timeout_s: float) -> Heartbeats:
        return self._table.folder.open_heartbeats(pipeline)

    async def aclose(self) -> None:
        """Do nothing: no resources are held between transactions."""


class _MirrorTransaction(SinkTransaction):
    """Changes that wait until `commit` merges them into the table as it was when the transaction began.

    `keys` returns the columns of the options, and those of the source's key.
    """

    writes_together = True

    def __init__(
        self,
        table: MirrorTable,
        anchor: Anchor,
        schema: pa.Schema,
        keys: Callable[[], tuple[tuple[str, ...], tuple[str, ...]]],
        expected: dict[str, Position | None],
    ) -> None:
        self._table = table
        self._anchor = anchor
        self._schema = schema
        self._keys = keys
        self._expected = expected
        self._key: tuple[str, ...] | None = None
        self._changes = Changes(table.name, table.past)
        self._replaces = anchor.table is None
        self._first_version: int | None = None
        self._snapshot: int | None = None
        self._uncompared: frozenset[str] | None = None
        self._notes: list[str] = []
        self._refusal: SinkRejected | None = None
        # The name in the table of each column that it has; None: all columns there are as they were.
        self._origins: Mapping[str, str] | None = None
        table.check_names(schema)
        if anchor.table is not None:
            there = rows_schema_of(anchor.table.schema())
            self._refusal = difference(table.name, table.path, there, anchor.schema)
            if self._refusal is None and table.past is STATES:
                number = table.number(anchor, columns_name)
                self._refusal = other_columns(table.name, table.path, _source_names(table, schema), number)

    @override
    async def write(self, batch: ChangeBatch) -> None:
        await self.write_all([batch])

    @override
    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        rows = joined_rows(batches)
        if not rows.schema.equals(self._schema):
            remedy = "This is a defect of the pipeline: every batch must have the schema that was announced last."
            raise SinkRejected(self._table.name, f"rows of another schema at version {batches[0].version}", remedy)
        if len(rows):
            await to_thread.run_sync(self._take, batches, rows)

    @override
    async def announce(self, event: ControlEvent) -> None:
        """A gap without a snapshot is refused: a mirror leaves no changes out."""
        table = self._table
        if not isinstance(event, Gap):
            await to_thread.run_sync(self._turn_to, event)
            return
        text = f"versions {event.first_version} to {event.version} are lost"
        if not event.snapshot:
            remedy = 'Set on_data_loss = "resnapshot", or ask for it: `tailer resnapshot PIPELINE`.'
            raise SinkRejected(table.name, f"{text}, and {table.path} would not be a mirror", remedy)
        self._notes.append(event.reason if event.command is not None else f"{text}: {event.reason}")
        await to_thread.run_sync(self._replace, event.version, event.timestamp_ms * 1000)

    @override
    async def commit(self, progress: Progress) -> None:
        """Not cancelled once begun.

        Raises `SinkFenced`, `SinkRejected`, `SinkUnavailable` (nothing was committed) or `CommitUnknown`.
        """
        anchor, position = self._anchor, progress.position
        if not position.closes_version:
            remedy = "This is a defect of the pipeline: a mirror has whole versions."
            raise SinkRejected(self._table.name, f"{position} is in the middle of a version", remedy)
        if progress.app_id != anchor.app_id or (anchor.expected is not None and position <= anchor.expected):
            reason = f"progress of {anchor.app_id} must continue after {anchor.expected}, not at {progress}"
            raise SinkRejected(self._table.name, reason, "Use `tailer resnapshot PIPELINE` to make the table again.")
        self._check_room()
        await to_thread.run_sync(self._commit, position)
        self._expected[anchor.app_id] = position

    def refusals(self) -> list[SinkError]:
        """Return all errors with which the first rows would be refused."""
        table, schema = self._table, self._anchor.schema
        key = chosen_key(schema.names, *self._keys())
        faults = list(key_faults(table.name, table.path, schema, key, pa.types.is_nested))
        return [*refused(self._check_room), *(faults or refused(self._use_key))]

    def close(self) -> None:
        """Release memory and files."""
        self._changes.close()

    def _turn_to(self, event: SchemaChange) -> None:
        self._check_room()
        table, before = self._table, self._anchor.schema
        table.check_names(event.after)
        self._first_version = event.version if self._first_version is None else self._first_version
        waiting = bool(self._changes.size_bytes)
        if self._replaces and self._snapshot is None and not waiting:  # the table is made anew, with any columns
            self._anchor, self._schema, self._key = table.extended(self._anchor, event.after), event.after, None
            return
        after, named = self._after(event)
        key = self._use_key()
        origins = {
            **origins_of(table.name, table.path, before, after.schema, named, table.remedy),
            **{column: column for column in table.past.columns},
        }
        if others := [column for column in key if origins.get(column) != column]:
            raise _key_change(table, others[0], event)
        key_in(table.name, table.path, after.schema, key, ())
        adds = only_adds(before, after.schema, origins)
        if waiting and not adds:
            # A version deletes rows with its former columns, and rows of earlier versions may wait, too.
            try:
                self._changes.reshape(self._anchor.schema, after.schema, origins, key)
            except Misfit as misfit:
                raise SinkRejected(table.name, str(misfit), RESNAPSHOT) from misfit
        if self._origins is not None:
            origins = {new: self._origins[old] for new, old in origins.items() if old in self._origins}
        if not (adds and self._origins is None):
            self._origins = origins
        self._anchor, self._schema = after, event.after

    def _after(self, event: SchemaChange) -> tuple[Anchor, Mapping[str, str] | None]:
        """Return the anchor for the columns after a change, and the former name of each.

        A history keeps the columns that the source has dropped. One that comes with such a name is another column.
        """
        table, before = self._table, self._anchor.schema
        if table.past is not STATES:
            return table.extended(self._anchor, event.after), event.origins
        origins = event.origins
        if origins is None:
            origins = {name: name for name in event.after.names if name in self._schema.names}
        dropped = [column for column in before if column.name not in origins.values()]
        if again := [column.name for column in dropped if column.name in event.after.names]:
            reason = f"version {event.version} has another column {again[0]} than earlier states in {table.path}"
            raise SinkRejected(table.name, reason, RESNAPSHOT)
        after = table.extended(self._anchor, pa.schema([*event.after, *dropped]))
        return after, {**{column.name: column.name for column in dropped}, **origins}

    def _replace(self, version: int, time_us: int) -> None:
        """Forget all changes: all rows of the source follow, as they were at `version`."""
        table, anchor = self._table, self._anchor
        self._changes.close()
        self._changes = Changes(table.name, table.past)
        self._changes.times.note(version, time_us)
        self._replaces, self._refusal, self._origins, self._key = True, None, None, None
        self._first_version, self._uncompared = version, None
        if anchor.table is not None and table.past is not NOTHING:
            self._snapshot = version
            there = rows_schema_of(anchor.table.schema())
            self._origins = origins_of(table.name, table.path, there, anchor.schema, None, table.remedy)

    def _use_key(self) -> tuple[str, ...]:
        """Return the key of the rows. Raises `SinkRejected` for another one than that of the rows that stay."""
        if self._key is None:
            table, anchor = self._table, self._anchor
            key = key_in(table.name, table.path, table.past.source(anchor.schema), *self._keys())
            if not self._replaces or self._snapshot is not None:
                table.check_same_key(anchor, key)
            self._key = key
        return self._key

    def _check_room(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _take(self, batches: Sequence[ChangeBatch], rows: pa.RecordBatch) -> None:
        table, first = self._table, batches[0]
        times: dict[int, int] = {
            batch.version: batch.rows.column(COMMIT_TIMESTAMP)[0].value for batch in batches if len(batch)
        }
        if SNAPSHOT_TASKS <= first.task < END and not self._replaces:
            self._replace(first.version, times[first.version])
        self._check_room()
        key, anchor = self._use_key(), self._anchor
        self._first_version = first.version if self._first_version is None else self._first_version
        schema = table.past.source(anchor.schema)
        if self._uncompared is None:
            self._uncompared = frozenset(schema.names).difference(self._schema.names)
        for version, time_us in times.items():
            self._changes.times.note(version, time_us)
        parts = keyed_parts(table.name, table.path, schema, anchor.partition_by, key, rows)
        for kept, versions, is_insert in parts:
            self._changes.add(kept, [kept.column(column) for column in key], versions, inserted=is_insert)

    def _commit(self, position: Position) -> None:
        table, anchor, changes, key = self._table, self._anchor, self._changes, self._use_key()
        try:
            changes.reduce()
        except Contradiction as twice:
            reason = f"version {twice.version} inserts or deletes a key twice; the key is {', '.join(key)}"
            raise SinkRejected(table.name, reason, CONTRADICTED) from twice
        if self._replaces and set(changes.counts) & {UPDATE, DELETE}:
            raise SinkRejected(table.name, "the first changes of a key delete it", CONTRADICTED)
        step = self._step(position, key)
        if not self._replaces or self._snapshot is not None:
            table.apply(anchor, step, changes)
            return

        def rows() -> pa.RecordBatchReader:
            return pa.RecordBatchReader.from_batches(anchor.schema, changes.rows(anchor.schema))

        table.replace_rows(anchor, step, rows, changes.row_bytes)

    def _step(self, position: Position, key: tuple[str, ...]) -> MirrorStep:
        step = MirrorStep(position=position, key=key, origins=self._origins, notes=self._notes, snapshot=self._snapshot)
        table, anchor = self._table, self._anchor
        if table.past is not STATES:
            return step
        first = position.version if self._first_version is None else self._first_version
        if anchor.expected is None:
            check_goes_on(table, anchor, first)
        return replace(
            step,
            columns=_source_names(table, self._schema),
            known_from=first if self._replaces or table.number(anchor, known_from_name) is None else None,
            uncompared=self._uncompared or frozenset(),
        )


def _source_names(table: MirrorTable, schema: pa.Schema) -> list[str]:
    names: list[str] = table_schema(table.name, schema).names
    return names


def _key_change(table: MirrorTable, column: str, event: SchemaChange) -> SinkRejected:
    if column in event.after.names:
        reason = f"the key column {column} of {table.path} is another column from version {event.version} on"
        return SinkRejected(table.name, reason, table.remedy)
    reason = f"the key column {column} of {table.path} is dropped or renamed in version {event.version}"
    remedy = "If the sink has the option key, set it to other columns. Then run `tailer resnapshot PIPELINE`."
    return SinkRejected(table.name, reason, remedy if table.past is NOTHING else table.remedy)
