"""Collations: orders of text other than that of its bytes, such as one for which `a` equals `A` (Delta: collations).

If a column or a field of a struct has texts with collations, its metadata in the schema has their names, by the path to
each through arrays and maps. In our schemas it has those of other orders than the bytes'. Only conditions and
expressions ask for them, to refuse the column. Everywhere else values are compared as bytes.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from tailer.events import is_struct
from tailer.schema.columns import COLLATIONS

__all__ = ["collations", "collations_from"]

_BYTES: Final = "UTF8_BINARY"


def collations_from(names: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Return the metadata for the collations that the schema of a table names, as `spark.UTF8_LCASE`; maybe none."""
    others = {path: name for path, name in names.items() if str(name).rpartition(".")[2] != _BYTES}
    return {COLLATIONS: json.dumps(others, sort_keys=True).encode()} if others else {}


def collations(field: pa.Field) -> list[str]:
    """Return the collations in a column, on all levels."""
    own = (field.metadata or {}).get(COLLATIONS)
    return [*([] if own is None else map(str, json.loads(own).values())), *_within(field.type)]


def _within(kind: pa.DataType) -> Iterator[str]:
    if is_struct(kind):
        for field in kind:
            yield from collations(field)
    elif pa.types.is_list(kind):
        yield from _within(kind.value_type)
    elif pa.types.is_map(kind):
        yield from _within(kind.key_type)
        yield from _within(kind.item_type)
