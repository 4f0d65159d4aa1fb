"""Micro-batch admission: the extent of each batch of a Spark source, and its splits, over any `TableLog`.

A place is a `Position` and the table's identity there. `advance` returns the end of the next batch (admission control),
`work` returns what it contains. Both read the plans in between (`tailer.spark.source.plan_cache`). Planning is
deterministic (invariant 4), so another process gets the same splits for the same two places.

A batch ends where any limit is reached: between two tasks if files are counted, inside a file that has more rows or
bytes than the limits allow. Some rows are always admitted, however low the limits. A version whose rows must be
compared is never cut. An error, be it corrupt data or a schema that the reader cannot take, is raised after everything
before it is delivered.
"""

from collections.abc import Hashable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import accumulate

from tailer.changelog.rules import PairingRules, check_reading, concerns, renumbered
from tailer.errors import ConfigError, TableReplaced, TailerError, VersionAhead
from tailer.events import SchemaChange
from tailer.formats.rows import file_of, row_groups
from tailer.plan import END, ChangePlan, Position, TaskKind, output_schema
from tailer.read.data_files import LOCAL, DataFiles
from tailer.schema.changes import describe_changes
from tailer.spark.source.plan_cache import Place, PlanCache, Step, View
from tailer.spark.splits import FileSlice, NetChangesSplit, Split, diff_splits, file_slices, file_splits
from tailer.start import StartPoint
from tailer.stores.port import in_thread
from tailer.table_log import TableLog

__all__ = ["Admission", "Budget", "Work"]


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a batch; None: no limit. Bytes are those of files, rows those in files."""

    max_files: int | None = None
    max_bytes: int | None = None
    max_rows: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """The place of work in a stream that began after `start`: the rows after `after`, up to `through`.

    `table_ids`: of the table there.
    """

    after: Position
    through: Position
    table_ids: frozenset[str]
    start: Position


@dataclass(frozen=True, slots=True)
class Work:
    """The work between two places: `files` are slices of whole files or of cut ones, `others` all else.

    `span`: where it is; None: not known any more.
    """

    others: tuple[Split | SchemaChange, ...]
    files: tuple[FileSlice, ...]
    opener: DataFiles = LOCAL
    span: Span | None = None

    def in_stream(self, start: Position, after: Place) -> "Work":
        """Return it as work of a stream that began after `start`; it is what comes after `after`."""
        span = self.span
        assert span is not None, "planned here"
        # Before the first row, a place has the newest id of the table.
        ids = span.table_ids if span.after == start else span.table_ids | {after.table_id}
        return replace(self, span=replace(span, start=start, table_ids=ids))

    def splits(self) -> list[Split | SchemaChange]:
        """Return all of it, with the files grouped and divided for executors."""
        return [*self.others, *file_splits(self.files, files=self.opener)]


class Admission:
    """Admission of the changes of `table`, seen through `view` and paired by `rules`.

    `net`: deliver the net changes of each batch. `whole_images`: do not cut change files, so that images of an update
    that are beside each other come in one batch. `files`: opens the table's files, here and where splits are read.
    Methods raise what reading the log raises. Call one at a time.
    """

    def __init__(
        self,
        table: TableLog,
        view: View,
        rules: PairingRules,
        *,
        net: bool = False,
        whole_images: bool = False,
        files: DataFiles = LOCAL,
    ) -> None:
        self._cache = PlanCache(table, view)
        self._table = table
        self._view = view
        self._rules = rules
        self._net = net
        self._whole_images = whole_images
        self._files = files

    async def start(self, point: StartPoint) -> Place:
        """Return the place just before `point`."""
        if point.snapshot:
            return Place(await self._table.table_id(), Position.opening(point.version, snapshot=True))
        await self._table.seek(point.version)
        return Place(self._table.state_id or await self._table.table_id(), Position.end(point.version - 1))

    async def advance(self, after: Place, budget: Budget, last: int | None = None) -> Place:
        """Return the end of a batch that begins after `after`; `after` itself if there is nothing to deliver.

        `last`: the last version to read and deliver.
        """
        self._cache.forget(after.position)
        place, remaining = after, _RemainingBudget(budget)
        try:
            async with aclosing(self._cache.steps(after)) as steps:
                while not remaining.closed and (last is None or place.position < Position.end(last)):
                    step = await anext(steps, None)
                    if step is None:
                        break
                    if self._net and place != after and (step.after_snapshot or self._announced(step, place.position)):
                        break  # net changes cross neither the end of a snapshot, nor a change of columns
                    reached = await self._admit(step, place.position, remaining)
                    if reached > place.position:
                        place = Place(step.plan.table_id, reached)
        except TailerError:
            if place == after:
                raise
        return place

    async def work(self, after: Place, through: Position, table_id: str | None = None) -> Work:
        """Return the work after `after` and up to `through`, with a `SchemaChange` for each version that changes it.

        `table_id`: the table's identity at `through`; None: unknown. Raises `VersionAhead` if the log ends before
        `through`, `TableReplaced` if `through` is of another table, `ConfigError` if it is before `after`.
        """
        if after.position > through:
            reason = f"a batch from {after.position} to {through} goes backwards"
            raise ConfigError("checkpointLocation", reason, "Give the query a new checkpoint folder.")
        others: list[Split | SchemaChange] = []
        rows: list[FileSlice] = []
        ranged: list[ChangePlan] = []
        async with aclosing(self._cache.steps(after)) as steps:
            reached, last_id = after.position, after.table_id
            table_ids = set()
            while reached < through:
                step = await anext(steps, None)
                if step is None:
                    raise VersionAhead(self._table.uri, through.version, reached.version)
                others += self._announced(step, after.position)
                for place in (after.position, through):
                    check_reading(step.plan, place)
                if self._is_whole(step):
                    _check_whole(step, after.position, through)
                if self._net and not step.in_snapshot:
                    ranged.append(step.plan)
                elif self._is_whole(step):  # finding the rows to compare takes long if a version has many files
                    splits, alone = await in_thread(self._compared, step.plan)
                    others += splits
                    rows += alone
                else:
                    rows += file_slices(step.plan, after.position, through)
                reached, last_id = step.end, step.plan.table_id
                table_ids.add(last_id)
        if table_id not in (None, last_id) and after.position < through:
            raise TableReplaced(self._table.uri, through.version, str(table_id), last_id)
        if any(plan.tasks for plan in ranged):
            others.append(NetChangesSplit(tuple(ranged), self._rules, self._files))
        span = Span(after.position, through, frozenset(table_ids or {last_id}), after.position)
        return Work(tuple(others), tuple(rows), self._files, span)

    def _compared(self, plan: ChangePlan) -> tuple[Sequence[Split], Sequence[FileSlice]]:
        return diff_splits(renumbered(plan, self._rules), self._rules, self._files)

    def _is_whole(self, step: Step) -> bool:
        """Return whether the rows of a step must be compared, so that a batch has all of them or none."""
        return (self._net and not step.in_snapshot) or concerns(step.plan, self._rules)

    def _announced(self, step: Step, after: Position) -> list[SchemaChange]:
        plan = step.plan
        if step.before is None or after > step.begin:
            return []
        before = self._view.schema(step.before)
        changes = describe_changes(before, plan.schema)
        if not changes:
            return []
        old, new = output_schema(before), output_schema(plan.schema)
        return [SchemaChange(plan.table_id, plan.version, plan.timestamp_ms, old, new, changes)]

    async def _admit(self, step: Step, after: Position, remaining: "_RemainingBudget") -> Position:
        """Return how far the budget reaches into a step after `after`. It is closed unless that is the end."""
        plan = step.plan
        if self._is_whole(step):
            _check_whole(step, after, step.end)
            files = {file_of(task): task for task in plan.tasks}
            counted = files.values() if remaining.left_rows is not None else ()
            rows = sum([sum(await in_thread(row_groups, task, self._files)) for task in counted])
            if not remaining.admits(len(files), plan.size_bytes, rows):
                remaining.closed = True
                return after
            remaining.take(len(files), plan.size_bytes, rows)
            return step.end
        reached = after
        seen: set[Hashable] = set()
        for part in file_slices(plan, after):
            try:
                through, rows, size = (part.after_row, 0, 0) if remaining.full else await self._cut(part, remaining)
            except TailerError:
                if reached == after:
                    raise
                remaining.closed = True
                return reached
            if through > part.after_row:
                remaining.take(int(file_of(part.task) not in seen), size, rows)
                seen.add(file_of(part.task))
                reached = Position(plan.version, part.task.index, through)
            if through < END:
                remaining.closed = True
                return reached
        return step.end

    async def _cut(self, part: FileSlice, remaining: "_RemainingBudget") -> tuple[int, int, int]:
        """Return the last row of a task within the budget (END: all of the task), and the rows and bytes up to it."""
        size, begin, include = max(part.task.size_bytes, 1), part.after_row + 1, part.task.include
        if self._whole_images and part.task.kind is TaskKind.CDC_OTHERS:
            counted = [] if remaining.left_rows is None else await in_thread(row_groups, part.task, self._files)
            return END, sum(counted), size
        if remaining.left_bytes is None or (begin == 0 and size <= remaining.left_bytes):
            if remaining.left_rows is None:
                return END, 0, size
            if include is not None and begin == 0 and include.cardinality <= remaining.left_rows:
                return END, include.cardinality, size
        groups = await in_thread(row_groups, part.task, self._files)
        total = sum(groups)
        if begin >= total:
            return END, 0, 0
        through = total - 1
        if remaining.left_bytes is not None:
            rows = remaining.left_bytes * total // size
            through = min(through, _group_end(groups, begin, rows, some=remaining.empty) - 1)
        if remaining.left_rows is not None:
            through = min(through, part.after_row + remaining.left_rows)
        rows = through - part.after_row
        return (END if through == total - 1 else through), rows, size * rows // total


def _check_whole(step: Step, after: Position, through: Position) -> None:
    """Raise `ConfigError` if a batch contains a part of a step that must be whole: other options cut it there."""
    if after > step.begin or through < step.end:
        reason = f"a part of version {step.plan.version} was delivered with other options"
        remedy = (
            "Restore changes, carryovers, computeUpdates, skipUnchanged, key and netChanges until the query is past "
            "that version, or give it a new checkpoint folder."
        )
        raise ConfigError("carryovers", reason, remedy)


def _group_end(groups: list[int], begin: int, rows: int, *, some: bool) -> int:
    """Return the end of the last row group that ends within `rows` rows after `begin`.

    `some`: take at least the first row group. Returns `begin` if there is none.
    """
    reached = begin
    for end in accumulate(groups):
        if end > begin and (end - begin <= rows or (some and reached == begin)):
            reached = end
    return reached


class _RemainingBudget:
    """The remaining budget of a batch. `closed`: nothing more is to be admitted."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._files = self._bytes = self._rows = 0
        self.closed = False

    @property
    def empty(self) -> bool:
        """Return whether nothing was admitted yet."""
        return self._files == 0 and self._bytes == 0

    @property
    def left_bytes(self) -> int | None:
        """The number of bytes that may be added."""
        return None if self._budget.max_bytes is None else max(0, self._budget.max_bytes - self._bytes)

    @property
    def left_rows(self) -> int | None:
        """The number of rows that may be added."""
        return None if self._budget.max_rows is None else max(0, self._budget.max_rows - self._rows)

    @property
    def full(self) -> bool:
        """Return whether a limit is reached."""
        files = self._budget.max_files
        return (files is not None and self._files >= files) or self.left_bytes == 0 or self.left_rows == 0

    def admits(self, files: int, size_bytes: int, rows: int) -> bool:
        """Return whether a step that cannot be cut fits in, or comes first."""
        most, left, left_rows = self._budget.max_files, self.left_bytes, self.left_rows
        fits = (most is None or self._files + files <= most) and (left is None or size_bytes <= left)
        return self.empty or files == 0 or (fits and (left_rows is None or rows <= left_rows) and not self.full)

    def take(self, files: int, size_bytes: int, rows: int = 0) -> None:
        """Subtract these amounts."""
        self._files += files
        self._bytes += size_bytes
        self._rows += rows
