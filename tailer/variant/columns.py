"""Whole columns of Variants: as JSON, and as unshredded columns."""

from collections.abc import Iterable
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailer.variant.assemble import BinaryAssembler, DecodedAssembler
from tailer.variant.scalars import JsonForm
from tailer.variant.shredded import SQL_NULL, ColumnReader

__all__ = ["UNSHREDDED", "json_texts", "unshred"]

# The type of a column that is not shredded.
UNSHREDDED: Final = pa.struct(
    [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)


def json_texts(column: pa.Array | pa.ChunkedArray, *, quote_decimals: bool = True) -> list[str | None]:
    """Return the JSON text of each Variant of a column as `Variant.to_json` does; None for SQL NULL.

    Raises `InvalidVariant` naming the row, counted from the start of its chunk.
    """
    reader = ColumnReader(column.type, DecodedAssembler(JsonForm(quote_decimals)))
    chunks: Iterable[pa.Array] = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    encode = msgspec.json.Encoder().encode
    return [None if value is SQL_NULL else encode(value).decode() for chunk in chunks for value in reader.read(chunk)]


def unshred(column: pa.StructArray) -> pa.StructArray:
    """Return a column with the same Variants and without `typed_value`, of the type `UNSHREDDED`.

    Encoded values are taken over without being decoded. Raises `InvalidVariant` naming the row.
    """
    values = ColumnReader(column.type, BinaryAssembler()).read(column)
    found = pa.array([None if data is SQL_NULL else data for data in values], pa.binary())
    is_null = column.is_null()
    metadata = pc.struct_field(column, "metadata")
    return pa.StructArray.from_arrays([metadata.cast(pa.binary()), found], fields=list(UNSHREDDED), mask=is_null)
