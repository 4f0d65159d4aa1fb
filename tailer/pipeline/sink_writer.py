"""The sink's side of a session: at most one open transaction, its size, and the schema of its rows.

A change of schema is announced to the sink (`SchemaChange`) before the first row with the new schema, or at the end of
a version that changes the schema but no row. That place is the same in every run. The announcement is committed
together with the rows around it, so a sink receives it exactly once, like a row.

After REPLACE TABLE the stream continues under another `app_id`. The open transaction is committed first. Then the sink
is asked for progress under the new `app_id`. Older progress is from a time when the table had that id before. Progress
at this version or later was written by another instance. Such an instance may also have moved the progress under the
former `app_id`: then a gap over the change of ids would name versions that were delivered. So that progress is read
again when the transaction under the new id is open, after which nobody commits under the former one.
"""

import logging
import time
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from copy import copy
from typing import Final, Self

import anyio
import pyarrow as pa
import pyarrow.compute as pc

from tailer.engine.look_ahead import AHEAD_BYTES, PrefetchedBatches
from tailer.errors import ChangesUnavailable, CommitUnknown, SinkFenced, SinkRejected, SinkUnavailable
from tailer.events import CHANGE_TYPE, ChangeBatch, ChangeType, Gap, SchemaChange
from tailer.pipeline.policy import Limits
from tailer.pipeline.status import Committed
from tailer.plan import ChangePlan, Position, output_schema
from tailer.schema.changes import describe_changes, former_names
from tailer.schema.columns import dropped_column
from tailer.schema.identity import renewed
from tailer.sink import Progress, Sink, SinkTransaction, app_id_of

__all__ = ["SinkWriter", "TransactionSize"]

_FEW_ROWS: Final = 1000
# Change types of batches that have several: those that updates give come first.
_BY_FREQUENCY: Final = (ChangeType.UPDATE_POSTIMAGE, ChangeType.UPDATE_PREIMAGE, ChangeType.INSERT, ChangeType.DELETE)

_log = logging.getLogger(__name__)


class SinkWriter:
    """The writer of the pipeline `name` to `sink`, which continues from `progress`.

    `confirm`: called before a commit; may raise to prevent it. `committed`: called after each commit. `table_id`: the
    id under which progress was committed last; None: no progress yet. `schema`: the schema of rows that the sink knows
    of at this point (as in `ChangeTask.schema`); None: none yet. `types`: as in `Policy`.
    """

    def __init__(
        self,
        name: str,
        sink: Sink,
        progress: Progress | None,
        limits: Limits,
        confirm: Callable[[Position | None], Awaitable[None]],
        committed: Callable[[Committed], None],
        types: frozenset[str] = frozenset(),
    ) -> None:
        self._name = name
        self._sink = sink
        self._limits = limits
        self._confirm = confirm
        self._committed = committed
        self._types = types
        self._delivered = None if progress is None else progress.position
        self.table_id = None if progress is None else progress.app_id.removeprefix(f"{name}/")
        self._stack = AsyncExitStack()
        self._transaction: SinkTransaction | None = None
        self._position: Position | None = None
        self._held = TransactionSize(limits, 0)
        self._refused_up_to = -1  # the last version of a step that a sink without transactions refused
        self.schema: pa.Schema | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.__aexit__(*error)  # type: ignore[arg-type]

    async def next_batches(self, rows: PrefetchedBatches) -> Sequence[ChangeBatch]:
        """Return the next batches that are there, none at the end. If they are slow, commit the open transaction."""
        with anyio.move_on_after(self._limits.max_quiet_s):
            return await rows.take()
        await self._commit_if_possible()
        return await rows.take()

    async def _commit_if_possible(self) -> None:
        if self.may_commit:
            await self.commit()

    async def write(
        self,
        batches: Sequence[ChangeBatch],
        plans: Sequence[ChangePlan],
        may_end: Callable[[], bool] = lambda: False,
    ) -> tuple[Sequence[ChangeBatch], Sequence[ChangePlan]]:
        """Write consecutive batches of `plans`, and close each version with rows of a later one behind its own.

        A plan may lack its tasks where all rows have its columns. Batches of several versions are written in one step
        if the sink can take them, and no transaction ends at another place than if they came one by one. Commit where
        it is due, if the sink can store the position.

        Return the plans that are not closed, and the batches left where `may_end` says so between two versions.
        """
        if self._types:  # what a position leaves open behind these rows is left out again later
            batches = [chosen for batch in batches if len(chosen := batch.of_types(self._types))]
        ends = False  # whether it is between two versions
        while batches and not (ends and may_end()):
            plan = plans[0]
            if ends := plan.version < batches[0].version:
                await self.close_version(plan)
                plans = plans[1:]
                continue
            schema = plan.schema_of(batches[0].task)
            transaction = await self._turn_to(schema, plan)
            one_by_one = plan.version <= self._refused_up_to or not transaction.writes_together or may_end()
            held, kinds, before = copy(self._held), self._held.kinds.copy(), self._position
            count, closed = self._fitting(batches, schema, plans[:1] if one_by_one else plans)
            self._position = None  # while the sink may have a part of the rows, nothing can be committed
            last = _end_of(batches[count - 1])
            try:
                await transaction.write_all(batches[:count])
            except SinkRejected as error:
                if is_one := batches[0].version == last.version:
                    self._held.versions = held.versions  # no other version is aborted with it
                if self._sink.aborts or is_one:
                    raise
                # Nothing is aborted there: record what was delivered, and deliver what precedes the refused version.
                held.kinds = kinds
                self._held, self._position, self._refused_up_to = held, before, last.version
                _log.debug("%s: %s; going on one version at a time up to that one", self._name, error)
                await self._commit_if_possible()
                continue
            ends = closed > 0 and plans[closed - 1].version >= last.version
            self._position = Position.end(plans[closed - 1].version) if ends else last
            if self._held.is_due:
                await self._commit_if_possible()
            batches, plans = batches[count:], plans[closed:]
        return batches, plans

    def _fitting(
        self, batches: Sequence[ChangeBatch], schema: pa.Schema, plans: Sequence[ChangePlan]
    ) -> tuple[int, int]:
        """Add the batches to write in one step to the transaction's size. Return their number, at least 1.

        Return also how many plans they close.
        """
        total, closed = 0, 0
        for count, batch in enumerate(batches):
            size = batch.size_bytes
            total += size
            if count > 0:
                ends = self._held.is_due and self._stores(_end_of(batches[count - 1]))
                if ends or total > AHEAD_BYTES:
                    return count, closed
                while plans[closed].version < batch.version:
                    if closed + 1 == len(plans) or not plans[closed].schema.equals(schema, check_metadata=True):
                        return count, closed
                    self._held.versions += 1  # if one is refused, the others are aborted with it
                    closed += 1
                    if self._held.is_due:
                        return count, closed
                if not plans[closed].schema_of(batch.task).equals(schema, check_metadata=True):
                    return count, closed
            self._held.add(batch)
        return len(batches), closed

    async def close_version(self, plan: ChangePlan) -> None:
        """Note that the plan's version is complete. Commit if the transaction is due."""
        await self._turn_to(plan.schema, plan)
        self._held.versions += 1
        self._position = Position.end(plan.version)
        if self._held.is_due or plan.version <= self._refused_up_to:
            await self.commit()

    async def skip(self, gap: Gap, schema: pa.Schema, *, at_once: bool) -> None:
        """Announce `gap`, after which rows have `schema`.

        Commits the rows before the gap, and the gap `at_once` or else with the first rows after it.
        """
        await self.commit()
        former, self.schema = self.progress, schema
        transaction = await self._open(gap.table_id, gap.first_version, schema)
        if former is not None and former.app_id != app_id_of(self._name, gap.table_id):
            await self._check_unmoved(former)
        await transaction.announce(gap)
        if at_once:
            self._position = Position.end(gap.version)
            await self.commit()

    async def salvage(self) -> bool:
        """Commit what can be committed before an error ends the session. Return False if whole versions are aborted."""
        if self.may_commit:
            await self.commit()
        return self._transaction is None or self._held.versions == 0

    async def commit(self) -> None:
        """Commit the open transaction with its progress. Not cancelled once begun; a late outcome counts as unknown."""
        if self._transaction is None or self._position is None or self.table_id is None:
            return
        await self._confirm(self._delivered)
        progress = Progress(app_id_of(self._name, self.table_id), self._position)
        try:
            with anyio.CancelScope(shield=True), anyio.fail_after(self._limits.commit_deadline_s):
                await self._transaction.commit(progress)
        except TimeoutError as error:
            reason = f"no answer within {self._limits.commit_deadline_s:g} s"
            raise CommitUnknown(self._sink.name, reason) from error
        self._transaction = None
        self._delivered = self._position
        held = self._held
        self._committed(Committed(self._position, held.kinds, held.size_bytes, held.age_s, held.first))
        await self._stack.aclose()
        _log.debug("%s: delivered up to version %d (%d rows)", self._name, self._position.version, held.rows)
        self._position = None

    @property
    def progress(self) -> Progress | None:
        """The progress that is committed; None: none."""
        if self._delivered is None or self.table_id is None:
            return None
        return Progress(app_id_of(self._name, self.table_id), self._delivered)

    @property
    def holds_versions(self) -> bool:
        """Return whether the open transaction holds whole versions, which would be aborted with it."""
        return self._transaction is not None and self._held.versions > 0 and self._sink.aborts

    @property
    def may_commit(self) -> bool:
        """Return whether the sink can store the current position."""
        return self._position is not None and self._stores(self._position)

    def _stores(self, position: Position) -> bool:
        return position.closes_version or (
            self._sink.splits_snapshots if position.in_snapshot else self._sink.splits_versions
        )

    async def _turn_to(self, schema: pa.Schema, plan: ChangePlan) -> SinkTransaction:
        """Return the transaction for rows of `schema`, which is announced to the sink if it is new."""
        before = schema if self.schema is None else self.schema
        changes = () if schema is before else describe_changes(before, schema)
        if changes and self._position is not None and self._position.closes_version:
            # The versions before the change are delivered even if the sink refuses it.
            await self.commit()
        if changes and self._sink.demands.whole:
            _check_restored(plan, before, schema)
        transaction = await self._open(plan.table_id, plan.version, before)
        self.schema = schema
        if changes:
            _log.info("%s: version %d changes the schema: %s", self._name, plan.version, "; ".join(changes))
            await transaction.announce(_schema_change(plan, before, schema, changes))
        return transaction

    async def _open(self, table_id: str, version: int, schema: pa.Schema) -> SinkTransaction:
        """Return the open transaction of the table's app_id, or begin one with rows of `schema`."""
        app_id = app_id_of(self._name, table_id)
        if table_id != self.table_id:
            await self.commit()
            if self.table_id is not None:
                await self._take_over(app_id, version, schema)
            self.table_id = table_id
        if self._transaction is None:
            self._held = TransactionSize(self._limits, version)
            begun = self._sink.begin(app_id, output_schema(schema))
            self._transaction = await self._stack.enter_async_context(begun)
        return self._transaction

    async def _take_over(self, app_id: str, version: int, schema: pa.Schema) -> None:
        """Continue under `app_id` from `version` on."""
        progress = await self._sink.progress(app_id)
        if progress is not None and progress.position.version >= version:
            raise SinkFenced(self._sink.name, f"{app_id} is at version {progress.position.version} already")
        if self._sink.distributes:
            # Begin first, to own the stream: another attempt at the same shard may be about to reset it.
            async with self._sink.begin(app_id, output_schema(schema)):
                if self.progress is not None:
                    await self._check_unmoved(self.progress)
        if self._sink.distributes or progress is not None:
            await self._sink.reset(Progress(app_id, Position.end(version - 1)))
        _log.info("%s: version %d replaces the table; continuing as %s", self._name, version, app_id)

    async def _check_unmoved(self, former: Progress) -> None:
        """Raise `SinkUnavailable` if another instance has delivered more under the id that the table had before."""
        progress = await self._sink.progress(former.app_id)
        if progress != former:
            position = None if progress is None else progress.position
            reason = f"{former.app_id} is at {position} now, and this instance had seen {former.position}"
            raise SinkUnavailable(self._sink.name, reason)


def _schema_change(plan: ChangePlan, before: pa.Schema, after: pa.Schema, changes: tuple[str, ...]) -> SchemaChange:
    return SchemaChange(
        plan.table_id,
        plan.version,
        plan.timestamp_ms,
        output_schema(before),
        output_schema(after),
        changes,
        former_names(before, after),
        renewed(before, after)[0],
    )


def _check_restored(plan: ChangePlan, before: pa.Schema, after: pa.Schema) -> None:
    """Raise `ChangesUnavailable` where RESTORE brings a column back: no change reports its values in unchanged rows."""
    if plan.operation == "RESTORE" and (column := dropped_column(after, before)) is not None:
        reason = f"RESTORE brought column {column} back, with values that no change reports"
        raise ChangesUnavailable(plan.table, plan.version, reason)


def _end_of(batch: ChangeBatch) -> Position:
    return Position(batch.version, batch.task, batch.last_row)


class TransactionSize:
    """The size of an open transaction. `first`: its first version."""

    def __init__(self, limits: Limits, first: int) -> None:
        self._limits = limits
        self._since_s = time.monotonic()
        self.first: Final = first
        self.versions = self.rows = self.size_bytes = 0
        self.kinds: Tally[str] = Tally()

    @property
    def age_s(self) -> float:
        """The seconds since it was opened."""
        return time.monotonic() - self._since_s

    @property
    def is_due(self) -> bool:
        """Return whether the transaction has reached a limit of size or age."""
        limits = self._limits
        is_full = self.rows >= limits.max_rows or self.size_bytes >= limits.max_bytes
        return is_full or self.versions >= limits.max_versions or self.age_s >= limits.max_seconds

    def add(self, batch: ChangeBatch) -> None:
        self.rows += len(batch)
        self.size_bytes += batch.size_bytes
        kinds = _counts(batch.rows.column(CHANGE_TYPE)) if batch.kind is None else {batch.kind.value: len(batch)}
        self.kinds.update(kinds)


def _counts(types: pa.Array) -> dict[str, int]:
    counts, left = {}, len(types)
    # To look for one text takes a tenth of the time of finding out which there are.
    for kind in _BY_FREQUENCY if left > _FEW_ROWS else ():
        counts[kind.value] = int(pc.equal(types, pa.scalar(kind.value)).true_count)
        left -= counts[kind.value]
        if left == 0:
            return counts
    return {count["values"].as_py(): count["counts"].as_py() for count in pc.value_counts(types)}
