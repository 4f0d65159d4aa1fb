"""Rows as they are compared: each with an address, whether it is deleted, and the values of the compared columns.

Addresses order rows as their versions deliver them. Values have types in which they are equal if, and only if, no
reader can distinguish them.

Rows of such values are compared as bytes (`row_bytes`), for few rows, in memory. A row is the concatenation of its
values. Whoever reads it from the left knows where each value ends, so different rows have different bytes:

- In a column with nulls, each value begins with a byte that says whether it is null.
- A value of fixed width is its bytes, a text or binary its length and its bytes. A null has neither.
- A struct is the concatenation of its fields, a list its length and the concatenation of its elements.

Only bytes that were made by the same call can be compared.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.errors import DataCorrupt
from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch, ChangeType, is_variant
from tailer.files.row_bitmaps import Bitmaps, bitmap_of
from tailer.variant import InvalidVariant, compare_keys

__all__ = [
    "LEADING_COLUMNS",
    "MAX_ROWS",
    "Wanted",
    "add_addresses",
    "comparable",
    "has_bytes",
    "most_bytes",
    "row_bytes",
]

_FIXED_WIDTH: Final = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_temporal,
    pa.types.is_decimal,
    pa.types.is_fixed_size_binary,
)
_LISTS: Final = (pa.types.is_list, pa.types.is_large_list)
_TEXTS: Final = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
_BYTE_BITS: Final = 8
_LENGTH_BYTES: Final = 4
_BITS: Final = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}
_NAN: Final = {pa.float16(): 0x7E00, pa.float32(): 0x7FC00000, pa.float64(): 0x7FF8000000000000}


def comparable(values: pa.Array, maps_in_order: bool = False) -> pa.Array:
    """Convert `values` to types that DuckDB accepts and whose sort keys and bytes are equal only for equal values.

    Floating point numbers become their bits, Variants the texts that compare their values. Times become numbers, but
    for the types that Delta has: DuckDB rounds durations, and dates of milliseconds. Maps become lists of their
    entries, sorted by key, because a map has no order: Spark groups by maps in the same way. Entries with equal keys
    stay in their order. `maps_in_order`: leave all entries in their order.
    """
    kind = values.type
    if is_variant(kind):
        return compare_keys(values)
    if pa.types.is_dictionary(kind):
        return comparable(values.dictionary_decode(), maps_in_order)
    if values.offset and pa.types.is_nested(kind):
        values = values.take(pa.array(range(len(values)), pa.int64()))  # nested values of a slice may begin anywhere
    if not _needs_conversion(kind):
        return values
    if pa.types.is_floating(kind):
        is_nan = pc.is_nan(values.cast(pa.float32()) if pa.types.is_float16(kind) else values)
        return pc.if_else(is_nan, pa.scalar(_NAN[kind], _BITS[kind]), values.view(_BITS[kind]))
    if _is_counted(kind):
        return values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_struct(kind):
        children = [comparable(child, maps_in_order) for child in values.flatten()]
        names = [f"f{index}" for index in range(len(children))]
        return pa.StructArray.from_arrays(children, names, mask=values.is_null())
    if pa.types.is_fixed_size_list(kind):
        offsets = pa.array([kind.list_size * index for index in range(len(values) + 1)], pa.int32())
        return pa.ListArray.from_arrays(offsets, comparable(values.values, maps_in_order), mask=values.is_null())
    if pa.types.is_map(kind):
        return _entries(values, maps_in_order)
    list_type = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return list_type.from_arrays(values.offsets, comparable(values.values, maps_in_order), mask=values.is_null())


def _entries(maps: pa.MapArray, maps_in_order: bool) -> pa.ListArray:
    parts = [comparable(part, maps_in_order) for part in (maps.keys, maps.items)]
    offsets, entries = maps.offsets, pa.StructArray.from_arrays(parts, ["k", "v"])
    if not maps_in_order and has_bytes(parts[0].type):
        offsets, entries = _by_key(offsets, entries)
    return pa.ListArray.from_arrays(offsets, entries, mask=maps.is_null())


def _by_key(offsets: pa.Array, entries: pa.StructArray) -> tuple[pa.Array, pa.Array]:
    """Sort the entries of each map by the bytes of their keys; return the offsets of maps, and the entries.

    Bytes of other batches may differ, but sort in the same order.
    """
    lists = pa.ListArray.from_arrays(offsets, entries)
    entries = lists.flatten()
    keys = row_bytes([entries.field("k")], len(entries))
    columns = [pc.list_parent_indices(lists), keys, pa.array(range(len(entries)), pa.int64())]
    rows = pa.RecordBatch.from_arrays(columns, ["map", "key", "nth"])
    order = pc.sort_indices(rows, [(name, "ascending") for name in rows.schema.names])
    return pc.subtract(offsets, offsets[0]), entries.take(order)


def _is_counted(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are counts of a unit of time that are compared as numbers."""
    as_in_delta = pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us")
    return bool(pa.types.is_temporal(kind) and not as_in_delta)


def _needs_conversion(kind: pa.DataType) -> bool:
    children = (kind.field(index).type for index in range(kind.num_fields))
    # Keys of maps are sorted by their bytes, which fixed-size lists do not have (`has_bytes`).
    nested = pa.types.is_map, pa.types.is_fixed_size_list
    tests = *nested, pa.types.is_floating, pa.types.is_dictionary, is_variant, _is_counted
    converted = any(test(kind) for test in tests)
    return bool(converted) or any(map(_needs_conversion, children))


def has_bytes(kind: pa.DataType) -> bool:
    """Return whether `row_bytes` takes columns of a type that `comparable` returns."""
    if pa.types.is_struct(kind):
        return all(has_bytes(field.type) for field in kind)
    if _is_one_of(kind, _LISTS):
        return has_bytes(kind.value_type)
    return pa.types.is_null(kind) or _is_one_of(kind, _TEXTS + _FIXED_WIDTH)


def most_bytes(column: pa.Array) -> int:
    """Return how many bytes the values of a column have at most, also where many share a buffer or need none."""
    kind = column.type
    if pa.types.is_struct(kind):
        return len(column) + sum(most_bytes(column.field(index)) for index in range(kind.num_fields))
    if _is_one_of(kind, _LISTS):
        return len(column) * (1 + _LENGTH_BYTES) + most_bytes(column.values)
    if _is_one_of(kind, _TEXTS):
        return len(column) * (1 + _LENGTH_BYTES) + int(column.nbytes)
    return len(column) * (1 + (0 if pa.types.is_null(kind) else max(kind.bit_width // _BYTE_BITS, 1)))


def row_bytes(columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """Return a binary for each of `rows` rows. By `most_bytes` they must have less than 2 GB together.

    `columns` are as `comparable` returns them, so that equal values of fixed width have equal bytes.
    """
    parts = [part for column in columns for part in _parts(column)]
    if not parts:
        return pa.array([b""], pa.binary()).take(pa.nulls(rows, pa.int8()).fill_null(0))
    return pc.binary_join_element_wise(*parts, b"", null_handling="replace", null_replacement=b"")


def _parts(column: pa.Array) -> list[pa.Array]:
    """Return binaries whose concatenation stands for a value. A null in them is left out."""
    kind = column.type
    if pa.types.is_null(kind):
        return []
    valid = [_fixed(column.is_valid().cast(pa.int8()))] if column.null_count else []
    if _is_one_of(kind, _TEXTS):
        return [*valid, _lengths(pc.binary_length(column)), column.cast(pa.binary())]
    if pa.types.is_struct(kind):
        return [*valid, *(part for field in column.flatten() for part in _parts(field))]
    if _is_one_of(kind, _LISTS):
        return [*valid, _lengths(pc.list_value_length(column)), _elements(column)]
    return [*valid, _fixed(column.cast(pa.int8()) if pa.types.is_boolean(kind) else column)]


def _elements(column: pa.Array) -> pa.Array:
    """Return the concatenated elements of each list: a slice of the bytes of all elements."""
    elements = row_bytes([column.values], len(column.values))
    _, ends, data = elements.buffers()
    bounds = pa.Array.from_buffers(pa.int32(), len(elements) + 1, [None, ends], offset=elements.offset)
    taken = bounds.take(column.offsets)
    lists = pa.Array.from_buffers(pa.binary(), len(column), [None, taken.buffers()[1], data], offset=taken.offset)
    return pc.if_else(column.is_valid(), lists, pa.scalar(None, pa.binary()))


def _lengths(lengths: pa.Array) -> pa.Array:
    return _fixed(lengths.cast(pa.int32()))


def _fixed(column: pa.Array) -> pa.Array:
    return column.view(pa.binary(column.type.bit_width // _BYTE_BITS)).cast(pa.binary())


def _is_one_of(kind: pa.DataType, tests: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    return any(test(kind) for test in tests)


LEADING_COLUMNS: Final = ("address", "deleted")
MAX_ROWS: Final = 2**40
"""An address is the number of a source times this, plus the position of a row."""

_DELETED_VALUES: Final = pa.array([ChangeType.DELETE.value, ChangeType.UPDATE_PREIMAGE.value])


@dataclass(frozen=True, slots=True)
class Wanted:
    """The rows that are compared: those of some change types.

    `nulls_differ`: without rows that have a null in one of the compared columns. `maps_in_order`: as in `TaskIndex`.
    """

    types: tuple[ChangeType, ...]
    nulls_differ: bool = False
    maps_in_order: bool = False

    def of(self, source: int, batch: ChangeBatch) -> tuple[pa.Array, pa.RecordBatch]:
        """Return the positions of the wanted rows, and these rows in the types of `comparable_values`.

        Their columns are the address, whether the row is deleted, and the compared columns as c0, c1 and so on.

        Raises `DataCorrupt` for a Variant that is not sound.
        """
        values = pa.array([kind.value for kind in self.types])
        wanted = pc.is_in(batch.rows[CHANGE_TYPE], value_set=values)
        if self.nulls_differ:
            for column in batch.rows.columns[: -len(METADATA_FIELDS)]:
                wanted = pc.and_(wanted, column.is_valid())
        rows = _with_addresses(source, batch, self.maps_in_order)
        if wanted.true_count == len(batch):
            return batch.row_index, rows
        return batch.row_index.filter(wanted), rows.filter(wanted)

    def of_sources(
        self, sources: Iterable[tuple[int, Iterator[ChangeBatch]]], positions: Bitmaps
    ) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of some sources as `of` does; add their positions to `positions`, by source."""
        for source, batches in sources:
            own = positions.setdefault(source, BitMap64())
            for batch in batches:
                row_index, rows = self.of(source, batch)
                if rows.num_rows > 0:
                    own |= bitmap_of(row_index)
                    yield rows


def add_addresses(bitmaps: Bitmaps, addresses: pa.Array) -> None:
    """Add the positions of addresses to `bitmaps`, by source."""
    sources = pc.shift_right(addresses, MAX_ROWS.bit_length() - 1)
    rows = pc.bit_wise_and(addresses, MAX_ROWS - 1)
    for source in pc.unique(sources):
        bitmaps.setdefault(source.as_py(), BitMap64()).update(bitmap_of(rows.filter(pc.equal(sources, source))))


def _with_addresses(source: int, batch: ChangeBatch, maps_in_order: bool) -> pa.RecordBatch:
    columns = batch.rows.columns[: -len(METADATA_FIELDS)]
    deleted = pc.is_in(batch.rows[CHANGE_TYPE], value_set=_DELETED_VALUES)
    try:
        address = pc.add(batch.row_index, pa.scalar(source * MAX_ROWS, pa.int64()))
        arrays = [address, deleted, *(comparable(column, maps_in_order) for column in columns)]
    except InvalidVariant as error:
        file = f"the file of task {batch.task}"
        raise DataCorrupt(batch.table_id, batch.version, file, f"a Variant is not sound: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, [*LEADING_COLUMNS, *(f"c{index}" for index in range(len(columns)))])
