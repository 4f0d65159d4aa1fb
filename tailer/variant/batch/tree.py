"""The structure of many values: where each value inside them begins, and what it belongs to.

All checks of `tailer.variant.decode` are made here but those of the contents of leaves. A row that fails one is odd.
Children are only looked for where their list fits into the container, and a container's children may not take more
bytes than it has, so a level is never larger than the bytes of its values.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tailer.variant.decode import ARRAY, MAX_DEPTH, OBJECT, SHORT_TEXT, SIZES
from tailer.variant.metadata import Metadata

__all__ = ["PADDING", "Buffer", "Flags", "Level", "Names", "Numbers", "read_levels"]

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# A value and what follows it can be read from any place that is in the buffer, before its size is checked.
PADDING: Final = 32
# A level with fewer containers than this is not worth the calls that it takes.
_FEW: Final = 8
_TOO_LONG: Final = 1 << 40
_MASKS: Final = np.array([0, 0xFF, 0xFFFF, 0xFF_FFFF, 0xFFFF_FFFF], np.int64)


def _leaf_sizes() -> Numbers:
    """Return the size of a leaf by its header; 0 for those that name their size, and containers."""
    sizes = np.zeros(256, np.int64)
    for header in range(256):
        number = header >> 2
        if header & 3 == SHORT_TEXT:
            sizes[header] = 1 + number
        elif header & 3 == 0 and number not in (15, 16):
            sizes[header] = 1 + SIZES[number] if number < len(SIZES) else _TOO_LONG
    return sizes


_LEAF_SIZES: Final = _leaf_sizes()


class Buffer:
    """Encoded values, and numbers of each width at any place in them. `data` ends with `PADDING` more bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.bytes = np.frombuffer(data, np.uint8)

    def take(self, layout: str, places: Numbers) -> npt.NDArray[np.generic]:
        """Return the numbers of a layout of numpy at these places."""
        size = np.dtype(layout).itemsize
        view: npt.NDArray[np.generic] = np.ndarray((len(self.data) - size + 1,), layout, self.data, 0, (1,))
        return view[places]

    def unsigned(self, places: Numbers, size: Numbers) -> Numbers:
        """Return the numbers of 0 to 4 bytes at these places."""
        return self.take("<u4", places).astype(np.int64) & _MASKS[size]


@dataclass(frozen=True, slots=True)
class Names:
    """The names in the metadata of all rows. `first`: the index in `ranks` of a row's names; `count`: how many it has.

    `ranks`: the place of each name among all `texts`, which are in order.
    """

    texts: list[str]
    ranks: Numbers
    first: Numbers
    count: Numbers

    @staticmethod
    def combine(dictionaries: list[Metadata | None], indexes: Numbers) -> "Names":
        """Combine the dictionaries; `indexes`: which of them each row has."""
        lists: list[tuple[str, ...]] = [own.names if own is not None else () for own in dictionaries]
        texts = sorted(set().union(*lists))
        ranks = {name: rank for rank, name in enumerate(texts)}
        counts = np.array([len(names) for names in lists], np.int64)
        first = np.cumsum(counts) - counts
        all_ranks = np.array([ranks[name] for names in lists for name in names] or [0], np.int64)
        return Names(texts, all_ranks, first[indexes], counts[indexes])


@dataclass(slots=True)
class Level:
    """The values of one level, in order: first those of the first container of the level above, and so on.

    `name`: the rank of a field's name, -1 for others; `is_first`: among its siblings; `children`: how many it has.
    """

    start: Numbers
    row: Numbers
    name: Numbers
    is_first: Flags
    header: Numbers
    size: Numbers
    children: Numbers


@dataclass(frozen=True, slots=True)
class _Containers:
    """Containers whose children are the next level, by columns. `index`: their place in the level."""

    index: Numbers
    is_object: Flags
    count: Numbers
    id_size: Numbers
    offset_size: Numbers
    ids_at: Numbers
    first: Numbers
    total: Numbers

    def take(self, chosen: Flags) -> "_Containers":
        return _Containers(*(getattr(self, name)[chosen] for name in self.__slots__))


def read_levels(buffer: Buffer, starts: Numbers, ends: Numbers, names: Names, odd: Flags) -> list[Level]:
    """Read the structure of each row's value. Sets `odd` for rows that are left to the reference."""
    start, limit, row = starts, ends, np.arange(len(starts))
    name, is_first = np.full(len(start), -1), np.ones(len(start), np.bool_)
    levels: list[Level] = []
    parents: _Containers | None = None
    while True:
        odd[row[start >= limit]] = True
        start = np.where(start < limit, start, 0)
        header = buffer.bytes[start].astype(np.int64)
        size = _LEAF_SIZES[header]
        sized = np.flatnonzero(size == 0)
        containers = _containers(buffer, start, limit, header, size, sized)
        odd[row[start + size > limit]] = True
        if parents is None:
            odd[row[start + size != limit]] = True
        else:
            last = np.cumsum(parents.count)
            sums = np.concatenate(([0], np.cumsum(size)))
            taken = sums[last] - sums[last - parents.count]
            odd[levels[-1].row[parents.index[taken > parents.total]]] = True
        levels.append(level := Level(start, row, name, is_first, header, size, np.zeros(len(start), np.int64)))
        parents = containers.take((containers.count > 0) & ~odd[row[containers.index]])
        if len(levels) == MAX_DEPTH or (len(levels) > 1 and len(parents.index) < _FEW):
            odd[row[parents.index]] = True
            return levels
        if not len(parents.index):
            return levels
        level.children[parents.index] = parents.count
        start, limit, row, name, is_first = _children(buffer, parents, row, names, odd)


def _containers(
    buffer: Buffer, start: Numbers, limit: Numbers, header: Numbers, size: Numbers, sized: Numbers
) -> _Containers:
    """Return the containers of a level, and set the sizes of those that say them: texts, binaries and containers."""
    kinds = header[sized] & 3
    plain = sized[kinds == 0]
    size[plain] = 5 + buffer.unsigned(start[plain] + 1, np.full(len(plain), 4))
    index = sized[kinds >= OBJECT]
    start, limit, header = start[index], limit[index], header[index]
    is_object = header & 3 != ARRAY
    is_large = np.where(is_object, header >> 6, header >> 4) & 1
    id_size = np.where(is_object, (header >> 4 & 3) + 1, 0)
    offset_size = (header >> 2 & 3) + 1
    count = buffer.unsigned(start + 1, 1 + 3 * is_large)
    ids_at = start + 2 + 3 * is_large
    last = ids_at + count * (id_size + offset_size)
    fits = last + offset_size <= limit
    total = buffer.unsigned(np.where(fits, last, 0), offset_size)
    size[index] = np.where(fits, last + offset_size + total - start, _TOO_LONG)
    return _Containers(index, is_object, count, id_size, offset_size, ids_at, last + offset_size, total)


def _children(
    buffer: Buffer, parents: _Containers, row: Numbers, names: Names, odd: Flags
) -> tuple[Numbers, Numbers, Numbers, Numbers, Flags]:
    """Return the places, limits, rows, names and `is_first` of the children of containers."""
    owner = np.repeat(np.arange(len(parents.index)), parents.count)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(parents.count) - parents.count, parents.count)
    rows, id_size, offset_size = row[parents.index][owner], parents.id_size[owner], parents.offset_size[owner]
    ids_at, is_object = parents.ids_at[owner], parents.is_object[owner]
    numbers = buffer.unsigned(ids_at + nth * id_size, id_size)
    offsets_at = (parents.ids_at + parents.count * parents.id_size)[owner]
    offsets = buffer.unsigned(offsets_at + nth * offset_size, offset_size)
    unknown = is_object & (numbers >= names.count[rows])
    ranks = names.ranks[np.where(is_object & ~unknown, names.first[rows] + numbers, 0)]
    is_first = nth == 0
    unordered = is_object & ~is_first
    unordered[1:] &= ranks[1:] <= ranks[:-1]
    odd[rows[unknown | unordered]] = True
    first = parents.first[owner]
    return first + offsets, first + parents.total[owner], rows, np.where(is_object, ranks, -1), is_first
