"""Whole columns of Variants: as JSON, as keys for comparisons, and as unshredded columns."""

from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailer.variant.assemble import BinaryAssembler, DecodedAssembler
from tailer.variant.errors import InvalidVariant
from tailer.variant.keys import KeyForm
from tailer.variant.scalars import Form, JsonForm
from tailer.variant.shredded import SQL_NULL, ColumnReader
from tailer.variant.value import Variant

if TYPE_CHECKING:
    from tailer.variant.batch import BatchTexts

__all__ = ["UNSHREDDED", "at_path", "compare_keys", "json_texts", "unshred"]

# The type of a column that is not shredded.
UNSHREDDED: Final = pa.struct(
    [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)

# Fewer rows are decoded one by one.
_FEWEST_ROWS: Final = 16


def json_texts(column: pa.Array | pa.ChunkedArray, *, quote_decimals: bool = True) -> list[str | None]:
    """Return the JSON text of each Variant of a column as `Variant.to_json` does; None for SQL NULL.

    Raises `InvalidVariant` naming the row, counted from the start of its chunk.
    """
    chunks: list[pa.Array] = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    reader = _TextReader(column.type, JsonForm(quote_decimals))
    return [text for chunk in chunks for text in reader.read(chunk)]


def compare_keys(column: pa.StructArray) -> pa.LargeStringArray:
    """Return texts that are equal where the decoded Variants are, in any encoding; null for SQL NULL.

    Integers and decimals are equal by their numbers, timestamps of one kind by their moments, objects in any order.
    Everything else is equal only within its type: see `tailer.variant.keys`. Raises `InvalidVariant` naming the row.
    """
    return pa.array(_TextReader(column.type, KeyForm()).read(column), pa.large_string())


def unshred(column: pa.StructArray) -> pa.StructArray:
    """Return a column with the same Variants and without `typed_value`, of the type `UNSHREDDED`.

    Encoded values are taken over without being decoded. Raises `InvalidVariant` naming the row.
    """
    values = ColumnReader(column.type, BinaryAssembler()).read(column)
    found = pa.array([None if data is SQL_NULL else data for data in values], pa.binary())
    is_null = column.is_null()
    metadata = pc.struct_field(column, "metadata")
    return pa.StructArray.from_arrays([metadata.cast(pa.binary()), found], fields=list(UNSHREDDED), mask=is_null)


def at_path(column: pa.StructArray, path: str) -> pa.StructArray:
    """Return the values at a path, such as `$.a.b`, in Variants that are not shredded; null where there is none.

    Only the containers on the way are decoded. Raises `ValueError` for a malformed path, and `InvalidVariant` naming
    the row.
    """
    metadata, values = (pc.struct_field(column, name).cast(pa.binary()) for name in ("metadata", "value"))
    found: list[bytes | None] = []
    for row, (names, data) in enumerate(zip(metadata.to_pylist(), values.to_pylist(), strict=True)):
        try:
            value = None if names is None or data is None else Variant(names, data).get(path)
            found.append(None if value is None else value.encoded)
        except InvalidVariant as error:
            raise InvalidVariant(f"row {row}: {error}") from None
    encoded = pa.array(found, pa.binary())
    return pa.StructArray.from_arrays([metadata, encoded], fields=list(UNSHREDDED), mask=encoded.is_null())


class _TextReader:
    """Reads columns of one type into the texts of a form: many rows at once with numpy, if it is installed."""

    def __init__(self, kind: pa.DataType, form: Form) -> None:
        self._reader = ColumnReader(kind, DecodedAssembler(form))
        self._encode = msgspec.json.Encoder().encode
        self._batches = _batch_texts(form) if _is_batched(kind) else None

    def read(self, column: pa.StructArray) -> list[str | None]:
        """Return the text of each row, None for SQL NULL."""
        if self._batches is None or len(column) < _FEWEST_ROWS:
            return self._read_by_row(column)
        texts, odd = self._batches.read(column)
        if odd:
            try:
                rest = self._read_by_row(column.take(pa.array(odd)))
            except InvalidVariant:
                return self._read_by_row(column)  # names the row
            for row, text in zip(odd, rest, strict=True):
                texts[row] = text
        return texts

    def _read_by_row(self, column: pa.StructArray) -> list[str | None]:
        return [None if value is SQL_NULL else self._encode(value).decode() for value in self._reader.read(column)]


def _is_batched(kind: pa.StructType) -> bool:
    """Return whether the fast path takes columns of this type: not shredded, and not of Arrow's views."""
    types = {field.name: field.type for field in kind}
    return types.keys() == {"metadata", "value"} and {*types.values()} <= {pa.binary(), pa.large_binary()}


def _batch_texts(form: Form) -> "BatchTexts | None":
    """Return the fast path, which needs numpy."""
    try:
        from tailer.variant.batch import BatchTexts  # noqa: PLC0415 - takes numpy in
    except ImportError:
        return None
    return BatchTexts(form)
