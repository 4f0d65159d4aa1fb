"""Properties of texts beside their type: the lengths of CHAR(n), and collations.

CHAR(n) is a text that Spark pads with spaces to n characters whenever it reads it, even if the file has it shorter.
Delta stores a CHAR as `string`. If a top-level column has a CHAR on any level, its metadata has its whole type in SQL
(`struct<a:char(3)>`). In our schemas, the metadata of a column or of a struct's field has the lengths of its CHARs, but
not of those in a struct within it, whose own fields have them. It is a JSON object from the path through arrays and
maps to the length, such as `{"": 3}` or `{"element.value": 3}`. VARCHAR is read as it is stored.

A collation is an order of text other than that of its bytes, such as one for which `a` equals `A` (Delta: collations).
If a column or a field of a struct has texts with collations, its metadata in the schema has their names, likewise by
the path to each. In our schemas it has those of other orders than the bytes'. Only conditions and expressions ask for
them, to refuse the column. Everywhere else values are compared as bytes.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tailer.events import is_struct, type_text
from tailer.schema.columns import CHAR, COLLATIONS
from tailer.variant.nested import Change, Changes, changed

__all__ = ["char_lengths", "char_notes", "collations", "collations_from", "padded", "padding", "with_chars"]

T = TypeVar("T")

_BYTES: Final = "UTF8_BINARY"
_HAS_CHAR: Final = re.compile(r"\bchar\s*\(", re.IGNORECASE)
_CHAR: Final = re.compile(r"char\s*\(\s*(\d{1,9})\s*\)(?:\s+collate\s+\w+)?", re.IGNORECASE)
_TOKEN: Final = re.compile(r"((?:`(?:[^`]|``)*`|\([^)]*\)|[^`(<>,:])+|[<>,:])")


def with_chars(field: pa.Field, sql_type: str | None) -> pa.Field:
    """Return a column with the lengths of its CHARs, read from its type in SQL. `sql_type` None: it has no CHAR.

    Raises `ValueError` if `sql_type` is not a type, or not that of the column.
    """
    if sql_type is None or not _HAS_CHAR.search(sql_type):
        return field
    tokens = [token.strip() for token in _TOKEN.split(sql_type) if token.strip()]
    parser = _Parser(tokens[::-1])
    try:
        column = parser.noted(field)
    except _UnfitError:
        column = None
    if column is None or parser.tokens:
        reason = f"column {field.name} is {type_text(field.type)}, and {sql_type} by its note of CHARs"
        raise ValueError(f"{reason}: Spark cannot read it either")
    return column


def char_notes(field: pa.Field) -> dict[str, int]:
    """Return the lengths of the CHARs in a column by the path to each, without those inside a struct."""
    noted = (field.metadata or {}).get(CHAR)
    notes: dict[str, int] = {} if noted is None else json.loads(noted)
    return notes


def char_lengths(field: pa.Field) -> list[int]:
    """Return the lengths of the CHARs in a column, on all levels."""
    return [*char_notes(field).values(), *_within(field.type, char_lengths)]


def collations_from(names: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Return the metadata for the collations that the schema of a table names, as `spark.UTF8_LCASE`; maybe none."""
    others = {path: name for path, name in names.items() if str(name).rpartition(".")[2] != _BYTES}
    return {COLLATIONS: json.dumps(others, sort_keys=True).encode()} if others else {}


def collations(field: pa.Field) -> list[str]:
    """Return the collations in a column, on all levels."""
    own = (field.metadata or {}).get(COLLATIONS)
    return [*([] if own is None else map(str, json.loads(own).values())), *_within(field.type, collations)]


def padding(field: pa.Field) -> Changes | Change:
    """Return what pads the CHARs in a column, for `tailer.variant.nested.changed`."""
    return _padding(field.type, char_notes(field), "")


def padded(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return values of a column with its CHARs padded."""
    return changed(values, padding(field))


def _within(kind: pa.DataType, noted: Callable[[pa.Field], list[T]]) -> list[T]:
    """Return what is `noted` for the fields of structs in a type, on all levels."""
    if is_struct(kind):
        return [note for field in kind for note in noted(field)]
    return [note for _, inner in _inner(kind) for note in _within(inner, noted)]


def _padding(kind: pa.DataType, notes: dict[str, int], way: str) -> Changes | Change:
    if way in notes:
        return partial(pc.utf8_rpad, width=notes[way], padding=" ")
    if is_struct(kind):
        paddings = [padding(field) for field in kind]
    else:
        paddings = [_padding(inner, notes, _step(way, step)) for step, inner in _inner(kind)]
    return {index: changes for index, changes in enumerate(paddings) if changes}


def _inner(kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    if pa.types.is_list(kind):
        return [("element", kind.value_type)]
    return [("key", kind.key_type), ("value", kind.item_type)] if pa.types.is_map(kind) else []


def _step(way: str, step: str) -> str:
    return f"{way}.{step}" if way else step


class _UnfitError(Exception):
    """The type in SQL is not the column's type."""


class _Parser:
    """Reads a type in SQL beside the Arrow type of a column. `tokens`: those not read yet, the next one last.

    Raises `_UnfitError` where the two differ. Fields of structs are matched by their order, as in Spark, because the
    type in SQL keeps the old name of a field that was renamed.
    """

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens

    def noted(self, field: pa.Field) -> pa.Field:
        """Read the type of `field`, and return the field with the lengths of its CHARs, on all levels."""
        notes: dict[str, int] = {}
        column = field.with_type(self._type(field.type, notes, ""))
        return column.with_metadata((field.metadata or {}) | {CHAR: json.dumps(notes)}) if notes else column

    def _type(self, kind: pa.DataType, notes: dict[str, int], way: str) -> pa.DataType:
        name = self._next()
        if (char := _CHAR.fullmatch(name)) is not None:
            self._check(pa.types.is_string(kind) and int(char[1]) > 0)
            notes[way] = int(char[1])
        if not self.tokens or self.tokens[-1] != "<":
            return kind
        self._next("<")
        if name.lower() == "struct":
            self._check(is_struct(kind))
            kind = pa.struct(self._fields(kind))
        elif name.lower() == "array":
            self._check(pa.types.is_list(kind))
            kind = pa.list_(kind.value_field.with_type(self._type(kind.value_type, notes, _step(way, "element"))))
        else:
            self._check(name.lower() == "map" and pa.types.is_map(kind))
            key = self._type(kind.key_type, notes, _step(way, "key"))
            self._next(",")
            value = self._type(kind.item_type, notes, _step(way, "value"))
            kind = pa.map_(key, kind.item_field.with_type(value))
        self._next(">")
        return kind

    def _fields(self, kind: pa.StructType) -> list[pa.Field]:
        fields: list[pa.Field] = []
        for number, field in enumerate(kind):
            if self.tokens[-1:] == [">"]:  # fields were added, and Spark did not add them to the type in SQL
                return [*fields, *list(kind)[number:]]
            if fields:
                self._next(",")
            self._next()  # its name
            self._next(":")
            fields.append(self.noted(field))
        return fields

    def _next(self, expected: str | None = None) -> str:
        self._check(bool(self.tokens) and expected in (None, self.tokens[-1]))
        return self.tokens.pop()

    def _check(self, fits: bool) -> None:
        if not fits:
            raise _UnfitError
