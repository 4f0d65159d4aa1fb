"""A table's changes from one place to another, in pieces for executors: what a Spark source needs, over any `TableLog`.

A place is a `Position` and the identity the table had there. `advance` says how far the next batch goes (admission
control), `work` gives its pieces; both go through the plans on the way (`tailer.spark.source.plan_cache`). Planning is
deterministic (invariant 4), so another process gives the same work for the same two places.

A batch ends where any limit is reached: between two tasks where files are counted, inside of a file where it has more
rows or bytes than are left. At least some rows are admitted, however low the limits. A version whose rows must be
compared is one piece of work and never cut. What stands in the way, be it damage or a schema that the reader cannot
take, is raised when everything before it is delivered.
"""

from contextlib import aclosing
from dataclasses import dataclass
from itertools import accumulate

from tailer.changelog.carryovers import concerns
from tailer.changelog.rules import PairingRules
from tailer.changelog.task_ids import renumbered
from tailer.errors import ConfigError, TableReplaced, TailerError, VersionAhead
from tailer.events import SchemaChange
from tailer.plan import END, ChangePlan, Position, output_schema
from tailer.read.execute import row_groups
from tailer.schema.changes import describe_changes
from tailer.spark.source.plan_cache import Ahead, Place, Step, View
from tailer.spark.splits import Net, Piece, Slice, compared, slices, split
from tailer.start import StartPoint
from tailer.stores.local import in_thread
from tailer.table_log import TableLog

__all__ = ["Budget", "Feed"]


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that a batch should hold; None: no limit. Bytes are those of files, rows those that files have."""

    max_files: int | None = None
    max_bytes: int | None = None
    max_rows: int | None = None


class Feed:
    """The feed of `table` as `view` shows it, told by `rules`; of net changes, batch by batch, where `net` is set.

    Methods raise what reading the log raises. One at a time.
    """

    def __init__(self, table: TableLog, view: View, rules: PairingRules, *, net: bool = False) -> None:
        self._ahead = Ahead(table, view)
        self._table = table
        self._view = view
        self._rules = rules
        self._net = net

    async def start(self, point: StartPoint) -> Place:
        """The place just before `point`."""
        if point.snapshot:
            return Place(await self._table.table_id(), Position.opening(point.version, snapshot=True))
        await self._table.seek(point.version)
        return Place(self._table.state_id or await self._table.table_id(), Position.end(point.version - 1))

    async def advance(self, after: Place, budget: Budget, last: int | None = None) -> Place:
        """How far a batch behind `after` goes: `after` itself where there is nothing to deliver.

        `last`: the version behind which nothing is delivered, and nothing is looked at.
        """
        self._ahead.forget(after.position)
        place, room = after, _Room(budget)
        try:
            async with aclosing(self._ahead.steps(after)) as steps:
                while not room.closed and (last is None or place.position < Position.end(last)):
                    step = await anext(steps, None)
                    if step is None or (self._net and place != after and self._parts(place.position, step)):
                        break
                    reached = await self._admit(step, place.position, room)
                    if reached > place.position:
                        place = Place(step.plan.table_id, reached)
        except TailerError:
            if place == after:
                raise
        return place

    async def work(self, after: Place, through: Position, table_id: str | None = None) -> list[Piece | SchemaChange]:
        """What lies behind `after` and up to `through`; a `SchemaChange` where a version begins that changes it.

        `table_id`: the identity that the table has at `through`, None where that is not known. Raises `VersionAhead`
        where the log ends before `through`, `TableReplaced` where it is of another table, `ConfigError` where that is
        before `after`.
        """
        if after.position > through:
            reason = f"a batch from {after.position} to {through} goes backwards"
            raise ConfigError("checkpointLocation", reason, "Give the query a new checkpoint folder.")
        found: list[Piece | SchemaChange] = []
        rows: list[Slice] = []
        ranged: list[ChangePlan] = []
        async with aclosing(self._ahead.steps(after)) as steps:
            reached, met = after.position, after.table_id
            while reached < through:
                step = await anext(steps, None)
                if step is None:
                    raise VersionAhead(self._table.uri, through.version, reached.version)
                # To tell which rows are compared takes long where a version has many files.
                await in_thread(self._take, step, after.position, through, found, rows, ranged)
                reached, met = step.end, step.plan.table_id
        if table_id not in (None, met) and after.position < through:
            raise TableReplaced(self._table.uri, through.version, str(table_id), met)
        if any(plan.tasks for plan in ranged):
            found.append(Net(tuple(ranged), self._rules))
        return [*found, *split(rows)]

    def _take(
        self,
        step: Step,
        after: Position,
        through: Position,
        found: list[Piece | SchemaChange],
        rows: list[Slice],
        ranged: list[ChangePlan],
    ) -> None:
        """Put what a step has between two places where it belongs."""
        found += self._announced(step, after)
        if self._is_whole(step):
            _check_whole(step, after, through)
        if self._net and not step.in_snapshot:
            ranged.append(step.plan)
        elif self._is_whole(step):
            work, alone = compared(renumbered(step.plan, self._rules), self._rules)
            found += work
            rows += alone
        else:
            rows += slices(step.plan, after, through)

    def _is_whole(self, step: Step) -> bool:
        """Whether the rows of a step are told by comparing them, so that a batch has all of them or none."""
        return (self._net and not step.in_snapshot) or concerns(step.plan, self._rules)

    def _parts(self, place: Position, step: Step) -> bool:
        """Whether a step has no net changes with what came before it: behind a snapshot, and where columns change."""
        return step.behind_snapshot or bool(self._announced(step, place))

    def _announced(self, step: Step, after: Position) -> list[SchemaChange]:
        plan = step.plan
        if step.before is None or after > step.begin:
            return []
        before = self._view.schema(step.before)
        changes = describe_changes(before, plan.schema)
        if not changes:
            return []
        rows = output_schema(before), output_schema(plan.schema)
        return [SchemaChange(plan.table_id, plan.version, plan.timestamp_ms, *rows, changes)]

    async def _admit(self, step: Step, after: Position, room: "_Room") -> Position:
        """How far the room takes us into a step, from `after` on; it is closed where that is not to the end."""
        plan = step.plan
        if self._is_whole(step):
            _check_whole(step, after, step.end)
            files = {task.uri: task for task in plan.tasks}
            counted = files.values() if room.left_rows is not None else ()
            rows = sum([sum(await in_thread(row_groups, task)) for task in counted])
            if not room.admits(len(files), plan.size_bytes, rows):
                room.closed = True
                return after
            room.take(len(files), plan.size_bytes, rows)
            return step.end
        reached = after
        seen: set[str] = set()
        for part in slices(plan, after):
            try:
                through, rows, size = (part.after_row, 0, 0) if room.full else await self._cut(part, room)
            except TailerError:
                if reached == after:
                    raise
                room.closed = True
                return reached
            if through > part.after_row:
                room.take(int(part.task.uri not in seen), size, rows)
                seen.add(part.task.uri)
                reached = Position(plan.version, part.task.index, through)
            if through < END:
                room.closed = True
                return reached
        return step.end

    async def _cut(self, part: Slice, room: "_Room") -> tuple[int, int, int]:
        """The row up to which the room takes the rest of a task, END for all of it; how many rows and bytes that is."""
        size, begin, include = max(part.task.size_bytes, 1), part.after_row + 1, part.task.include
        if room.left_bytes is None or (begin == 0 and size <= room.left_bytes):
            if room.left_rows is None:
                return END, 0, size
            if include is not None and begin == 0 and include.cardinality <= room.left_rows:
                return END, include.cardinality, size
        groups = await in_thread(row_groups, part.task)
        total = sum(groups)
        if begin >= total:
            return END, 0, 0
        through = total - 1
        if room.left_bytes is not None:
            rows = room.left_bytes * total // size
            through = min(through, _group_end(groups, begin, rows, some=room.empty) - 1)
        if room.left_rows is not None:
            through = min(through, part.after_row + room.left_rows)
        rows = through - part.after_row
        return (END if through == total - 1 else through), rows, size * rows // total


def _check_whole(step: Step, after: Position, through: Position) -> None:
    """Raise `ConfigError` where a batch has a part of a step that is told as a whole: other choices made that part."""
    if after > step.begin or through < step.end:
        reason = f"a part of version {step.plan.version} was delivered with other choices of what to deliver"
        remedy = (
            "Set carryovers, computeUpdates, key and netChanges as they were until the query is past that version, or "
            "give it a new checkpoint folder."
        )
        raise ConfigError("carryovers", reason, remedy)


def _group_end(groups: list[int], begin: int, rows: int, *, some: bool) -> int:
    """Where the last row group ends that ends within `rows` rows from `begin` on; to have `some`, at least the first.

    `begin` where there is none.
    """
    found = begin
    for end in accumulate(groups):
        if end > begin and (end - begin <= rows or (some and found == begin)):
            found = end
    return found


class _Room:
    """What is left of a batch's budget. `closed`: nothing more is to be admitted."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._files = self._bytes = self._rows = 0
        self.closed = False

    @property
    def empty(self) -> bool:
        """Whether nothing was taken yet."""
        return self._files == 0 and self._bytes == 0

    @property
    def left_bytes(self) -> int | None:
        """How many bytes may still come."""
        return None if self._budget.max_bytes is None else max(0, self._budget.max_bytes - self._bytes)

    @property
    def left_rows(self) -> int | None:
        """How many rows may still come."""
        return None if self._budget.max_rows is None else max(0, self._budget.max_rows - self._rows)

    @property
    def full(self) -> bool:
        """Whether any limit is reached."""
        files = self._budget.max_files
        return (files is not None and self._files >= files) or self.left_bytes == 0 or self.left_rows == 0

    def admits(self, files: int, size_bytes: int, rows: int) -> bool:
        """Whether something that cannot be cut fits in, or comes first."""
        most, left, left_rows = self._budget.max_files, self.left_bytes, self.left_rows
        fits = (most is None or self._files + files <= most) and (left is None or size_bytes <= left)
        return self.empty or files == 0 or (fits and (left_rows is None or rows <= left_rows) and not self.full)

    def take(self, files: int, size_bytes: int, rows: int = 0) -> None:
        """Take so much."""
        self._files += files
        self._bytes += size_bytes
        self._rows += rows
