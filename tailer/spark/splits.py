"""Pieces of work for executors: what becomes of plans where many machines run them.

A piece survives pickle and is run by one synchronous function, `run`, wherever it lands: it comes down to
`tailer.read.execute.execute`, so no engine can disagree with another. Each gives its rows in position order; those of
`split`, run one after the other, give all rows of a plan in that order.

- `Rows`: parts of tasks. Files much larger than a piece are split by row group, small ones share a piece.
- `Compared`: a version whose rows must be compared with each other before it is known which of them are changes
  (`tailer.changelog.carryovers`), or those of some of its partitions where that is enough. One executor does that, on
  its own disk.
- `Net`: a range of versions, for what became of their rows in the end; likewise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeVar

from tailer.changelog.carryovers import check_key, concerns, independent_parts, refine, refine_range
from tailer.changelog.row_index_pool import borrowed_index
from tailer.changelog.rules import PairingRules
from tailer.changelog.spill.bitmaps import SpilledBitmaps
from tailer.changelog.spill.preimages import SpilledPreimages
from tailer.engine.local import remaining
from tailer.events import ChangeBatch
from tailer.plan import END, ChangePlan, ChangeTask, Position
from tailer.read.execute import execute

__all__ = ["Compared", "Net", "Piece", "Rows", "Slice", "compared", "run", "slices", "split"]

T = TypeVar("T")

MIN_PIECE_BYTES: Final = 8 * 2**20
MAX_PIECE_BYTES: Final = 128 * 2**20
_PIECES: Final = 32  # of work that is neither little nor much
# Of a file that is cut: row groups are often as large, and a part without one is a task for nothing.
_PART_BYTES: Final = 64 * 2**20
_MOST_PARTS: Final = 4096
_OPEN_BYTES: Final = 2**20  # what opening a file counts for


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of one task: those in (`after_row`, `through_row`] of row groups in the bytes `first_byte` to `end_byte`."""

    task: ChangeTask
    after_row: int = -1
    through_row: int = END
    first_byte: int = 0
    end_byte: int = END

    @property
    def size_bytes(self) -> int:
        """What reading it takes, about: bytes of the file, and what opening it counts for."""
        return max(0, min(self.end_byte, self.task.size_bytes) - self.first_byte) + _OPEN_BYTES

    def rows(self) -> Iterator[ChangeBatch]:
        """See `tailer.read.execute.execute`."""
        return execute(self.task, self.after_row, self.through_row, self.first_byte, self.end_byte)


@dataclass(frozen=True, slots=True)
class Rows:
    """Slices in the order of their positions."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """The rows of `plan` that are changes by `rules`."""

    plan: ChangePlan
    rules: PairingRules


@dataclass(frozen=True, slots=True)
class Net:
    """The net changes of the consecutive versions `plans`."""

    plans: tuple[ChangePlan, ...]
    rules: PairingRules


Piece = Rows | Compared | Net


def run(piece: Piece) -> Iterator[ChangeBatch]:
    """The rows of a piece. Raises what `tailer.read.execute.execute` and `tailer.changelog.carryovers.refine` raise."""
    match piece:
        case Rows():
            for part in piece.slices:
                yield from part.rows()
        case Compared():
            yield from _compared(piece)
        case Net():
            yield from _net(piece)


def slices(plan: ChangePlan, after: Position | None = None, through: Position | None = None) -> list[Slice]:
    """The plan's rows behind `after` and up to `through` (None: all), a slice for each task that has any."""
    found = [Slice(task, after_row) for task, after_row in remaining(plan, after) if after_row < END]
    if through is None or through >= Position.end(plan.version):
        return found
    if through.version < plan.version:
        return []
    return [
        replace(each, through_row=through.row) if each.task.index == through.task else each
        for each in found
        if each.task.index <= through.task
    ]


def split(work: Sequence[Slice], most_bytes: int = MAX_PIECE_BYTES) -> list[Rows]:
    """The slices as pieces of like size: not so many that starting them matters, not so few that executors idle.

    `most_bytes`: of a piece, as far as row groups allow.
    """
    wanted = _piece_bytes(sum(each.size_bytes for each in work), most_bytes)
    part_bytes = min(max(wanted, _PART_BYTES), most_bytes)
    parts = [part for each in work for part in _cut(each, part_bytes)]
    return [Rows(tuple(group)) for group in _grouped(parts, [part.size_bytes for part in parts], wanted)]


def compared(plan: ChangePlan, rules: PairingRules) -> tuple[list[Compared], list[Slice]]:
    """The work of a plan whose rows must be compared (`tailer.changelog.carryovers.concerns`), and those that need not
    after all.

    The work is in pieces of like size where it can be.

    Raises `ConfigError` where rows lack a column of the key, `DataCorrupt` for partition values that are none.
    """
    check_key(plan, rules)
    parts = independent_parts(plan, rules)
    rivals = [part for part in parts if concerns(part, rules)]
    sizes = [part.size_bytes for part in rivals]
    groups = _grouped(rivals, sizes, _piece_bytes(sum(sizes), MAX_PIECE_BYTES))
    alone = [each for part in parts if not concerns(part, rules) for each in slices(part)]
    return [Compared(_united(group), rules) for group in groups], alone


def _united(parts: Sequence[ChangePlan]) -> ChangePlan:
    """Parts of one plan as one, in the order of the plan."""
    tasks = sorted((task for part in parts for task in part.tasks), key=lambda task: task.index)
    return replace(parts[0], tasks=tuple(tasks))


def _piece_bytes(total: int, most_bytes: int) -> int:
    return min(max(total // _PIECES, MIN_PIECE_BYTES), most_bytes)


def _cut(whole: Slice, size_bytes: int) -> Iterator[Slice]:
    """The slice in parts of `size_bytes` of its file, or as it is where that is not much more."""
    # A log may say anything of a file's size: that costs parts without rows, but not any number of them.
    size = whole.task.size_bytes
    size_bytes = max(size_bytes, size // _MOST_PARTS)
    if size < 2 * size_bytes:
        yield whole
        return
    bounds = [*range(0, size - size_bytes // 2, size_bytes), END]
    for first, end in pairwise(bounds):
        yield replace(whole, first_byte=first, end_byte=end)


def _grouped(parts: Sequence[T], sizes: Sequence[int], size_bytes: int) -> Iterator[list[T]]:
    """Consecutive parts, as many together as make up `size_bytes`."""
    group: list[T] = []
    size = 0
    for part, part_bytes in zip(parts, sizes, strict=True):
        if group and size + part_bytes > size_bytes:
            yield group
            group, size = [], 0
        group.append(part)
        size += part_bytes
    if group:
        yield group


def _compared(piece: Compared) -> Iterator[ChangeBatch]:
    with SpilledBitmaps() as bitmaps, SpilledPreimages() as preimages:
        with borrowed_index() as row_index:
            plan, _ = refine(piece.plan, piece.rules, row_index, bitmaps, preimages)
        for part in slices(plan):
            for batch in part.rows():
                yield from preimages.joined(batch)


def _net(piece: Net) -> Iterator[ChangeBatch]:
    with SpilledBitmaps() as bitmaps:
        with borrowed_index() as row_index:
            plans, _ = refine_range(piece.plans, piece.rules, row_index, bitmaps)
        for plan in plans:
            for part in slices(plan):
                yield from part.rows()
