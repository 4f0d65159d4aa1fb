"""Parquet Variant values: decoded, as JSON, and put together again where they are shredded.

A library by itself; it needs nothing else of lake-tailer::

    from tailer.variant import Variant

    payload = Variant(metadata, value)          # the two binary fields of one value
    payload.type                                # VariantType.OBJECT
    payload.get("$.address.city").to_python()   # 'Oslo'
    payload.to_json()                           # '{"address":{"city":"Oslo"},"age":41}'

`json_texts` gives the JSON text of every value of an Arrow column, shredded or not, `unshred` the column without
shredding, `at_path` a column of the values at a path, and `compare_keys` texts that are equal where the values are, in
whatever encoding.
`python -m tailer.variant FILE.parquet` prints a column.

It implements the Variant Binary Encoding and the Variant Shredding of Parquet, version 1, strictly: every offset, size
and text is checked before it is used, and whatever contradicts itself raises `InvalidVariant`. Time and memory are
linear in the size of the value.
"""

from tailer.variant.columns import UNSHREDDED, at_path, compare_keys, json_texts, unshred
from tailer.variant.metadata import InvalidVariant, Metadata
from tailer.variant.scalars import Date, Timestamp
from tailer.variant.value import Variant, VariantType, parse_path

__all__ = [
    "UNSHREDDED",
    "Date",
    "InvalidVariant",
    "Metadata",
    "Timestamp",
    "Variant",
    "VariantType",
    "at_path",
    "compare_keys",
    "json_texts",
    "parse_path",
    "unshred",
]
