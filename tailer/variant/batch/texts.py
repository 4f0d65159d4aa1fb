"""The text of each row's value, put together from the texts of its leaves, its names and its punctuation."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailer.variant.batch.leaves import FORMATS, JSON_FORMATS
from tailer.variant.batch.tree import PADDING, Buffer, Flags, Level, Names, Numbers, read_levels
from tailer.variant.decode import decode_at
from tailer.variant.metadata import InvalidVariant, Metadata
from tailer.variant.scalars import Form, JsonForm, primitives

__all__ = ["BatchTexts"]

# Bounds the memory: a value of n bytes takes up to 100 times as much while its structure is known.
_BATCH_BYTES: Final = 1 << 19
_BATCH_TEXT_BYTES: Final = 1 << 26
# Fewer rows are not worth the calls that a batch takes.
_FEWEST_ROWS: Final = 16

# Pieces of text by their number. A value is a prefix, a body and, of some, an end. The first pieces are the prefixes of
# values without a name: by 1 if it is not the first of its container, and by 2 if the body is quoted.
_PUNCTUATION: Final = ["", ",", '"', ',"', "{", "[", "}", "]", "null", "true", "false", 'Z"', ".0"]
_QUOTE, _OBJECT, _ARRAY, _OBJECT_END, _ARRAY_END, _NULL, _UTC_END, _WHOLE_END = 2, 4, 5, 6, 7, 8, 11, 12
_CONSTANTS: Final = 3  # types: null, true and false
_TEXT: Final = 16
_INT64: Final = (6,)
_DECIMALS: Final = (8, 9, 10)
_QUOTED: Final = frozenset({11, 12, 13, 17, 18, 19})
_UTC: Final = frozenset({12, 18})
_KINDS: Final = np.array([(h >> 2, _TEXT, 64, 65)[h & 3] for h in range(256)], np.int64)
_OBJECT_KIND, _ARRAY_KIND = 64, 65
_IS_ESCAPED: Final = np.array([byte < 0x20 or byte in b'"\\' for byte in range(256)])

_NO_NAMES: Final = Metadata.parse(b"\x01\x00\x00")


class BatchTexts:
    """Makes the texts of columns in a form."""

    def __init__(self, form: Form) -> None:
        self._known = primitives(form)
        is_json = isinstance(form, JsonForm)
        self._formats = JSON_FORMATS if is_json else FORMATS
        self._quoted = _QUOTED
        if isinstance(form, JsonForm):
            self._quoted |= {*_DECIMALS * form.quotes_decimals, *_INT64 * form.quotes_int64}

    def read(self, column: pa.StructArray) -> tuple[list[str | None], list[int]]:
        """Return the text of each row, and the rows for the reference, whose text is None as that of SQL NULL is."""
        texts: list[str | None] = []
        odd: list[int] = []
        for first, stop in _batches(column):
            part = column.slice(first, stop - first)
            if len(part) < _FEWEST_ROWS:
                part_texts: list[str | None] = [None] * len(part)
                left = np.flatnonzero(_valid(part))
            else:
                part_texts, left = self._read(part)
            texts += part_texts
            odd += (left + first).tolist()
        return texts, odd

    def _read(self, column: pa.StructArray) -> tuple[list[str | None], Numbers]:
        valid = _valid(column)
        children = dict(zip([field.name for field in column.type], column.flatten(), strict=True))
        values, metadata = children["value"], children["metadata"]
        rows = np.flatnonzero(valid & _valid(values) & _valid(metadata))
        encoded = metadata.take(pa.array(rows)).dictionary_encode()
        dictionaries = [_parse(data) for data in encoded.dictionary.to_pylist()]
        indexes = encoded.indices.to_numpy().astype(np.int64)
        unreadable = np.array([own is None for own in dictionaries] or [False])
        odd = unreadable[indexes] if len(rows) else np.zeros(0, bool)
        chosen = values.take(pa.array(rows)).cast(pa.binary())
        offsets, data = _offsets(chosen), chosen.buffers()[2]
        buffer = Buffer((data.to_pybytes() if data else b"") + bytes(PADDING))
        names = Names.combine(dictionaries, indexes)
        levels = read_levels(buffer, offsets[:-1], offsets[1:], names, odd)
        joined = self._texts(buffer, levels, names, odd)
        if joined is None:
            return [None] * len(column), np.flatnonzero(valid)
        place = np.full(len(column), -1)
        place[rows] = np.where(odd, -1, np.arange(len(rows)))
        texts: list[str | None] = joined.take(pa.array(place, mask=place < 0)).to_pylist()
        return texts, np.flatnonzero(valid & (place < 0))

    def _texts(self, buffer: Buffer, levels: list[Level], names: Names, odd: Flags) -> pa.Array | None:
        """Return the text of each row, of any text where it is odd; None if they are too long together."""
        pieces = _Pieces(names.texts)
        body, end, is_quoted = self._bodies(buffer, levels, pieces, odd)
        name = np.concatenate([level.name for level in levels])
        is_next = ~np.concatenate([level.is_first for level in levels])
        prefix = np.where(name >= 0, len(_PUNCTUATION) + 4 * name, 0) + is_next + 2 * is_quoted
        places, sizes = _places(levels, 2 + (end > 0))
        order = np.empty(int(sizes[: len(odd)].sum()), np.int64)
        order[places] = prefix
        order[places + 1] = body
        closed = np.flatnonzero(end)
        order[(places + sizes - 1)[closed]] = end[closed]
        return pieces.join(order, np.concatenate((places[: len(odd)], [len(order)])))

    def _bodies(
        self, buffer: Buffer, levels: list[Level], pieces: "_Pieces", odd: Flags
    ) -> tuple[Numbers, Numbers, Flags]:
        """Return the pieces for body and end of each value, and which prefixes open a quote."""
        starts, row = (np.concatenate([getattr(level, name) for level in levels]) for name in ("start", "row"))
        kinds = _KINDS[np.concatenate([level.header for level in levels])]
        sizes = np.concatenate([level.size for level in levels])
        body = np.select(
            [kinds < _CONSTANTS, kinds == _OBJECT_KIND, kinds == _ARRAY_KIND], [kinds + _NULL, _OBJECT, _ARRAY]
        )
        end = np.select([kinds == _OBJECT_KIND, kinds == _ARRAY_KIND], [_OBJECT_END, _ARRAY_END])
        is_quoted = np.zeros(len(starts), np.bool_)
        leaves = np.flatnonzero((kinds >= _CONSTANTS) & (kinds < _OBJECT_KIND) & ~odd[row])
        leaves = leaves[np.argsort(kinds[leaves].astype(np.uint8), kind="stable")]
        counts = np.bincount(kinds[leaves])
        groups = np.split(leaves, np.cumsum(counts))
        for kind in np.flatnonzero(counts).tolist():
            places = groups[kind]
            formatted: tuple[pa.Array, Flags, Flags | None] | None = None
            if kind == _TEXT:
                formatted = _texts_of(buffer, starts[places], sizes[places])
            elif kind in self._formats:
                formatted = self._formats[kind](buffer, starts[places])
            rest = places
            if formatted is not None:
                texts, fits, is_whole = formatted
                quoted = kind == _TEXT or kind in self._quoted
                body[places] = pieces.add(texts) + np.arange(len(places))
                is_quoted[places] = quoted
                end[places] = (_UTC_END if kind in _UTC else _QUOTE) if quoted else 0
                if is_whole is not None:
                    end[places] = is_whole * _WHOLE_END
                rest = places[~fits]
            if len(rest):
                is_quoted[rest], end[rest] = False, 0
                body[rest] = self._one_by_one(buffer, starts[rest], sizes[rest], row[rest], pieces, odd)
        return body, end, is_quoted

    def _one_by_one(
        self, buffer: Buffer, starts: Numbers, size: Numbers, row: Numbers, pieces: "_Pieces", odd: Flags
    ) -> Numbers:
        """Return the pieces of leaves that the reference decodes; mark the rows that it refuses."""
        texts = []
        for start, length, owner in zip(starts.tolist(), size.tolist(), row.tolist(), strict=True):
            try:
                value, _ = decode_at(_NO_NAMES, buffer.data, start, start + length, self._known)
                texts.append(_encode(value))
            except InvalidVariant:
                odd[owner] = True
                texts.append(b"")
        return pieces.add(pa.array(texts, pa.binary()).cast(pa.string())) + np.arange(len(texts))


class _Pieces:
    """Pieces of text, by number."""

    def __init__(self, names: list[str]) -> None:
        keys = [_encode(name).decode() for name in names]
        forms = [f"{comma}{key}:{quote}" for key in keys for quote in ("", '"') for comma in ("", ",")]
        self._arrays = [pa.array([*_PUNCTUATION, *forms])]
        self._count = len(self._arrays[0])

    def add(self, texts: pa.Array) -> int:
        """Add texts; return the number of the first."""
        first = self._count
        self._arrays.append(texts)
        self._count += len(texts)
        return first

    def join(self, order: Numbers, rows: Numbers) -> pa.Array | None:
        """Join the pieces of each row: those from its number in `rows` to the next; None if it is too much."""
        pieces = pa.concat_arrays(self._arrays)
        lengths = np.diff(_offsets(pieces))[order]
        ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        if ends[-1] > _BATCH_TEXT_BYTES:
            return None
        data = pieces.take(pa.array(order)).buffers()[2]
        offsets = pa.py_buffer(ends[rows].astype(np.int32))
        return pa.Array.from_buffers(pa.string(), len(rows) - 1, [None, offsets, data])


_encode: Final = msgspec.json.Encoder().encode


def _places(levels: list[Level], own: Numbers) -> tuple[Numbers, Numbers]:
    """Return the place of each value's first piece, and how many it has with its children. `own`: without them."""
    stops = np.cumsum([len(level.start) for level in levels]).tolist()
    sizes = own.copy()
    sums: list[Numbers] = []
    for level, (first, stop) in zip(levels[-2::-1], list(pairwise([0, *stops]))[-2::-1], strict=True):
        below = sizes[stop : stops[stops.index(stop) + 1]]
        sums.append(np.concatenate(([0], np.cumsum(below))))
        last = np.cumsum(level.children)
        sizes[first:stop] += sums[-1][last] - sums[-1][last - level.children]
    places = np.empty(len(own), np.int64)
    places[: stops[0]] = np.cumsum(sizes[: stops[0]]) - sizes[: stops[0]]
    first = 0
    for level, total, (start, stop) in zip(levels, reversed(sums), pairwise(stops), strict=False):
        before = np.cumsum(level.children) - level.children
        shift = places[first:start] + 2 - total[before]
        places[start:stop] = np.repeat(shift, level.children) + total[:-1]
        first = start
    return places, sizes


def _texts_of(buffer: Buffer, places: Numbers, size: Numbers) -> tuple[pa.Array, Flags, None] | None:
    """Return texts as they are inside of quotes; None where they are broken or overlap."""
    starts = places + np.where(buffer.bytes[places] & 3, 1, 5)
    ends = places + size
    order = np.argsort(starts, kind="stable")
    bounds = np.column_stack((starts[order], ends[order])).ravel()
    if (bounds[1:] < bounds[:-1]).any():
        return None
    # Each second one is a text, the others are what is between them.
    offsets = pa.py_buffer(np.append(bounds, bounds[-1]).astype(np.int32))
    data = pa.Array.from_buffers(pa.binary(), len(bounds), [None, offsets, pa.py_buffer(buffer.data)])
    chosen = np.empty(len(order), np.int64)
    chosen[order] = np.arange(len(order)) * 2
    try:
        texts = data.take(pa.array(chosen)).cast(pa.string())
    except pa.ArrowInvalid:
        return None
    fits = np.ones(len(places), np.bool_)
    escaped = np.flatnonzero(_IS_ESCAPED[np.frombuffer(texts.buffers()[2], np.uint8)]) if bounds.size else bounds
    fits[np.searchsorted(_offsets(texts), escaped, "right") - 1] = False
    return texts, fits, None


def _batches(column: pa.StructArray) -> Iterator[tuple[int, int]]:
    """Split a column into ranges of rows with a bounded number of bytes."""
    sizes = np.zeros(len(column), np.int64)
    for field in ("metadata", "value"):
        sizes += pc.fill_null(pc.binary_length(pc.struct_field(column, field)), 0).to_numpy()
    ends = np.cumsum(sizes)
    first = 0
    while first < len(column):
        done = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, done + _BATCH_BYTES, "right")))
        yield first, stop
        first = stop


def _offsets(column: pa.Array) -> Numbers:
    offsets: npt.NDArray[Any] = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    return offsets.astype(np.int64)


def _valid(column: pa.Array) -> Flags:
    valid: Flags = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _parse(data: bytes) -> Metadata | None:
    try:
        return Metadata.parse(data)
    except InvalidVariant:
        return None
