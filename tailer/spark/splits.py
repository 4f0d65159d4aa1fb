"""Splits: units of work for executors.

A split survives pickle and is read by one synchronous function, `read_split`, on any machine. That function calls
`tailer.read.execute.execute`, so no engine can disagree with another. Each split yields its rows in position order, and
those of `file_splits`, read one after the other, yield all rows of a plan in that order.

A split brings `files`, which opens its files where it is read. They name stores and profiles and hold no secret: keys
are found by each machine itself.

- `FilesSplit`: slices of files. Large files are divided by row group, small files share a split.
- `DiffSplit`: a version whose rows must be compared with each other to find the changes
  (`tailer.changelog.carryovers`), or only some of its partitions if that is enough. One executor compares them, on its
  own disk.
- `NetChangesSplit`: a range of versions, for the net changes of their rows; compared likewise.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final, TypeVar

from tailer.changelog.rules import PairingRules, check_key, concerns
from tailer.events import ChangeBatch
from tailer.formats.rows import execute, needed_files
from tailer.plan import END, ChangePlan, ChangeTask, Position, remaining
from tailer.read.data_files import LOCAL, DataFiles, Files

if TYPE_CHECKING:
    from tailer.changelog.carryovers import ChangelogCounts

__all__ = [
    "DiffSplit",
    "FileSlice",
    "FilesSplit",
    "NetChangesSplit",
    "Split",
    "diff_splits",
    "file_slices",
    "file_splits",
    "read_split",
]

T = TypeVar("T")

MIN_SPLIT_BYTES: Final = 8 * 2**20
MAX_SPLIT_BYTES: Final = 128 * 2**20
_SPLITS: Final = 32  # the usual number of splits of a plan
# Slices of a cut file: row groups are often as large, and a slice without one is a wasted task.
_PART_BYTES: Final = 64 * 2**20
_MOST_PARTS: Final = 4096
_OPEN_BYTES: Final = 2**20  # the cost of opening a file


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Rows of one task: (`after_row`, `through_row`], in the row groups of the bytes `first_byte` to `end_byte`."""

    task: ChangeTask
    after_row: int = -1
    through_row: int = END
    first_byte: int = 0
    end_byte: int = END

    @property
    def size_bytes(self) -> int:
        """The approximate cost of reading it: bytes of the file, and a fixed cost of opening it."""
        return max(0, min(self.end_byte, self.task.size_bytes) - self.first_byte) + _OPEN_BYTES

    @property
    def needed_files(self) -> Sequence[tuple[str, int]]:
        """The files that `rows` opens, as `RowReader.needed_files` returns them."""
        return needed_files(self.task, self.after_row, self.through_row, self.first_byte, self.end_byte)

    def rows(self, files: Files = LOCAL) -> Iterator[ChangeBatch]:
        """Yield the rows, as `tailer.read.execute.execute` does."""
        return execute(self.task, self.after_row, self.through_row, self.first_byte, self.end_byte, files=files)


@dataclass(frozen=True, slots=True)
class FilesSplit:
    """Slices of files in the order of their positions."""

    slices: tuple[FileSlice, ...]
    files: DataFiles = LOCAL


@dataclass(frozen=True, slots=True)
class DiffSplit:
    """The rows of `plan` that are changes by `rules`."""

    plan: ChangePlan
    rules: PairingRules
    files: DataFiles = LOCAL


@dataclass(frozen=True, slots=True)
class NetChangesSplit:
    """The net changes of the consecutive versions `plans`."""

    plans: tuple[ChangePlan, ...]
    rules: PairingRules
    files: DataFiles = LOCAL


Split = FilesSplit | DiffSplit | NetChangesSplit
Note = Callable[[ChangePlan, "ChangelogCounts"], None]


def read_split(split: Split, note: Note | None = None) -> Iterator[ChangeBatch]:
    """Yield the rows of a split. `note`: called with the result of comparing the rows of a version.

    Raises what `tailer.read.execute.execute` and `tailer.changelog.carryovers.refine` raise.
    """
    match split:
        case FilesSplit():
            yield from _read(split.slices, split.files)
        case DiffSplit():
            yield from _compared(split, note)
        case NetChangesSplit():
            yield from _net(split)


def file_slices(plan: ChangePlan, after: Position | None = None, through: Position | None = None) -> list[FileSlice]:
    """Return the plan's rows after `after` and up to `through` (None: all), one slice for each task that has any."""
    slices = [FileSlice(task, after_row) for task, after_row in remaining(plan, after) if after_row < END]
    if through is None or through >= Position.end(plan.version):
        return slices
    if through.version < plan.version:
        return []
    return [
        replace(part, through_row=through.row) if part.task.index == through.task else part
        for part in slices
        if part.task.index <= through.task
    ]


def file_splits(
    work: Sequence[FileSlice], most_bytes: int = MAX_SPLIT_BYTES, files: DataFiles = LOCAL
) -> list[FilesSplit]:
    """Group slices into splits of similar size: few enough to start quickly, many enough to keep executors busy.

    `most_bytes`: the limit of a split, as far as row groups allow.
    """
    wanted = _split_bytes(sum(whole.size_bytes for whole in work), most_bytes)
    part_bytes = min(max(wanted, _PART_BYTES), most_bytes)
    parts = [part for whole in work for part in _cut(whole, part_bytes)]
    groups = _grouped(parts, [part.size_bytes for part in parts], wanted)
    return [FilesSplit(tuple(group), files) for group in groups]


def diff_splits(
    plan: ChangePlan, rules: PairingRules, files: DataFiles = LOCAL
) -> tuple[list[DiffSplit], list[FileSlice]]:
    """Return the splits of a plan whose rows must be compared, and the slices that need no comparison after all.

    See `tailer.changelog.rules.concerns`. The splits have similar sizes where possible.

    Raises `ConfigError` if rows lack a column of the key; `DataCorrupt` for invalid partition values.
    """
    # Only who compares rows needs what compares them, and DuckDB with it.
    from tailer.changelog.carryovers import independent_parts  # noqa: PLC0415

    check_key(plan, rules)
    parts = independent_parts(plan, rules)
    changed = [part for part in parts if concerns(part, rules)]
    sizes = [part.size_bytes for part in changed]
    groups = _grouped(changed, sizes, _split_bytes(sum(sizes), MAX_SPLIT_BYTES))
    alone = [file_slice for part in parts if not concerns(part, rules) for file_slice in file_slices(part)]
    return [DiffSplit(_unite(group), rules, files) for group in groups], alone


def _unite(parts: Sequence[ChangePlan]) -> ChangePlan:
    """Merge parts of one plan, in the order of the plan."""
    tasks = sorted((task for part in parts for task in part.tasks), key=lambda task: task.index)
    return replace(parts[0], tasks=tuple(tasks))


def _split_bytes(total: int, most_bytes: int) -> int:
    return min(max(total // _SPLITS, MIN_SPLIT_BYTES), most_bytes)


def _cut(whole: FileSlice, size_bytes: int) -> Iterator[FileSlice]:
    """Cut the slice by `size_bytes` of its file, or leave it whole if it is not much larger."""
    # A log may claim any size of a file: that costs slices without rows, but only a bounded number of them.
    size = whole.task.size_bytes
    size_bytes = max(size_bytes, size // _MOST_PARTS)
    if size < 2 * size_bytes:
        yield whole
        return
    bounds = [*range(0, size - size_bytes // 2, size_bytes), END]
    for first, end in pairwise(bounds):
        yield replace(whole, first_byte=first, end_byte=end)


def _grouped(parts: Sequence[T], sizes: Sequence[int], size_bytes: int) -> Iterator[list[T]]:
    """Group consecutive parts up to `size_bytes`."""
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


def _read(slices: Sequence[FileSlice], files: DataFiles) -> Iterator[ChangeBatch]:
    with closing(files.in_turn(chain.from_iterable(part.needed_files for part in slices))) as opened:
        for part in slices:
            yield from part.rows(opened)


def _compared(split: DiffSplit, note: Note | None) -> Iterator[ChangeBatch]:
    from tailer.changelog.carryovers import refine  # noqa: PLC0415 - as in `diff_splits`, and so below
    from tailer.changelog.equal_rows.row_index import borrowed_index  # noqa: PLC0415
    from tailer.changelog.spill import SpilledBitmaps, SpilledPreimages  # noqa: PLC0415
    from tailer.read.decoded_files import DecodedFiles, compared_tasks  # noqa: PLC0415

    with SpilledBitmaps() as bitmaps, SpilledPreimages() as preimages:
        rows = DecodedFiles(execute, files=split.files)
        rows.expect(compared_tasks(split.plan))
        with borrowed_index() as row_index:
            plan, counts = refine(split.plan, split.rules, row_index, bitmaps, preimages, rows)
        if note is not None:
            note(plan, counts)
        in_memory = (batch for task in plan.tasks for batch in rows.read(task))
        for batch in in_memory if all(map(rows.has, plan.tasks)) else _read(file_slices(plan), split.files):
            yield from preimages.joined(batch)


def _net(split: NetChangesSplit) -> Iterator[ChangeBatch]:
    from tailer.changelog.carryovers import refine_range  # noqa: PLC0415
    from tailer.changelog.equal_rows.row_index import borrowed_index  # noqa: PLC0415
    from tailer.changelog.spill import SpilledBitmaps  # noqa: PLC0415
    from tailer.read.decoded_files import DecodedFiles, compared_tasks  # noqa: PLC0415

    with SpilledBitmaps() as bitmaps:
        with borrowed_index() as row_index:
            rows = DecodedFiles(execute, files=split.files)
            rows.expect(chain.from_iterable(map(compared_tasks, split.plans)))
            plans, _ = refine_range(split.plans, split.rules, row_index, bitmaps, rows)
        for plan in plans:
            yield from _read(file_slices(plan), split.files)
