"""Identity of columns over the versions of a table (PROTOCOL.md, "Column Mapping").

A column is identified by its physical name, and in id mode also by its field id. Two schemas alone are not enough: a
table that stops mapping columns keeps them under new physical names, and an old name may now be another column. So
identities are assigned through the schemas of consecutive versions, from the oldest on.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa

from tailer.events import is_struct
from tailer.schema.columns import (
    COLUMN_ID,
    FIELD_ID,
    PHYSICAL_NAME,
    bare_type,
    column_id,
    is_absent,
    joined_type,
    physical_name,
    source_name,
)

__all__ = ["identified", "is_mapped", "renewed", "united"]

_Path = tuple[str, ...]


def identified(schemas: Iterable[pa.Schema]) -> list[pa.Schema]:
    """Assign an identity to each field on every level, in schemas of consecutive versions, oldest first.

    A field has the identity of the earlier field with the same physical name, unless both have field ids that differ.
    When a table stops mapping columns, its files are rewritten. If names and types stay the same, fields are matched by
    name. Otherwise only fields that never had another physical name keep their identity.
    """
    identities = _Identities()
    results: list[pa.Schema] = []
    for schema in schemas:
        if results and is_mapped(results[-1]) and not is_mapped(schema):
            before, after = (bare_type(pa.struct(list(one))) for one in (results[-1], schema))
            identities.turn_to_names(results[-1], alike=before.equals(after))
        results.append(pa.schema(identities.of(list(schema))))
    return results


def is_mapped(schema: pa.Schema) -> bool:
    """Return whether a table with this schema maps its columns."""
    return any(PHYSICAL_NAME in (column.metadata or {}) and not is_absent(column) for column in schema)


def renewed(before: pa.Schema, after: pa.Schema) -> tuple[tuple[_Path, ...], tuple[_Path, ...]]:
    """Return the names that belong to another column in `after`, and those of columns that were widened.

    `before`: a schema of the version before. Names of fields in structs come as paths. Case does not matter, as in
    expressions. An integer or a decimal that only gets more digits is not among the widened ones: as a text, and in
    arithmetic, its values are what they were.
    """
    old, new = identified([before, after])
    paths = list(_renewed(old, new, ()))
    replaced = tuple(path for path, is_another in paths if is_another)
    return replaced, tuple(path for path, is_another in paths if not is_another)


def united(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Unite the columns and nested fields of all identified `schemas`, oldest first, each in its latest form.

    Where several columns have the same name, a number is appended to it.
    """
    kind = pa.struct([])
    for schema in schemas:
        kind = _united(kind, pa.struct(list(schema)))
    return pa.schema(list(kind))


@dataclass(slots=True)
class _Identities:
    """Identities of the fields so far. `known`: identity and field id, if any, by path of physical names."""

    known: dict[_Path, tuple[bytes, bytes | None]] = field(default_factory=dict)
    fresh: Iterator[int] = field(default_factory=count)

    def turn_to_names(self, before: pa.Schema, *, alike: bool) -> None:
        """Identify later fields by their logical names in `before`, an identified schema.

        `alike`: whether to do so for all fields, or only for those whose physical name is the same.
        """
        named = dict(_named(pa.struct(list(before))))
        self.known = {path: one for path, one in named.items() if alike or self.known.get(path, (b"",))[0] == one[0]}

    def of(self, fields: Iterable[pa.Field], above: _Path = ()) -> list[pa.Field]:
        """Return the fields with their identities; `above`: the path of the enclosing fields."""
        results: list[pa.Field] = []
        for column in fields:
            if is_absent(column):
                results.append(column)
                continue
            metadata, path = column.metadata or {}, (*above, physical_name(column))
            number = metadata.get(FIELD_ID)
            identity, old_number = self.known.get(path, (b"", None))
            if not identity or (number is not None and old_number is not None and number != old_number):
                identity = str(next(self.fresh)).encode()
            self.known[path] = (identity, number or old_number)
            kind = self._type(column.type, path)
            results.append(column.with_type(kind).with_metadata(metadata | {COLUMN_ID: identity}))
        return results

    def _type(self, kind: pa.DataType, path: _Path) -> pa.DataType:
        if is_struct(kind):
            return pa.struct(self.of(kind, path))
        if pa.types.is_list(kind):
            return pa.list_(kind.value_field.with_type(self._type(kind.value_type, (*path, "element"))))
        if pa.types.is_map(kind):
            value = kind.item_field.with_type(self._type(kind.item_type, (*path, "value")))
            return pa.map_(self._type(kind.key_type, (*path, "key")), value)
        return kind


def _named(kind: pa.DataType, above: _Path = ()) -> Iterator[tuple[_Path, tuple[bytes, None]]]:
    """Yield the identities of all fields of an identified type, by paths of logical names."""
    if is_struct(kind):
        for column in kind:
            path = (*above, source_name(column))
            if COLUMN_ID in (column.metadata or {}):
                yield path, (column.metadata[COLUMN_ID], None)
            yield from _named(column.type, path)
    elif pa.types.is_list(kind):
        yield from _named(kind.value_type, (*above, "element"))
    elif pa.types.is_map(kind):
        yield from _named(kind.key_type, (*above, "key"))
        yield from _named(kind.item_type, (*above, "value"))


def _renewed(before: Iterable[pa.Field], after: Iterable[pa.Field], above: _Path) -> Iterator[tuple[_Path, bool]]:
    old = {column.name.lower(): column for column in before}
    for column in after:
        former, path = old.get(column.name.lower()), (*above, column.name)
        if former is None:
            continue
        if column_id(former) != column_id(column):
            yield path, True
        elif is_struct(former.type) and is_struct(column.type):
            yield from _renewed(former.type, column.type, path)
        elif not (former.type.equals(column.type) or _only_gets_digits(former.type, column.type)):
            yield path, False


def _only_gets_digits(narrow: pa.DataType, wide: pa.DataType) -> bool:
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        return bool(narrow.scale == wide.scale)
    return pa.types.is_null(narrow) or bool(pa.types.is_integer(narrow) and pa.types.is_integer(wide))


def _united(older: pa.StructType, newer: pa.StructType) -> pa.StructType:
    by_id = {column_id(column): column for column in newer if not is_absent(column)}
    fields: list[pa.Field] = []
    for column in older:
        late = by_id.pop(column_id(column), None)
        fields.append(column if late is None else late.with_type(joined_type(column.type, late.type, _united)))
    return pa.struct(_distinct_names([*fields, *by_id.values()]))


def _distinct_names(fields: Sequence[pa.Field]) -> list[pa.Field]:
    """Rename fields so that all names are distinct, ignoring case."""
    used: set[str] = set()
    results: list[pa.Field] = []
    for column in fields:
        name = column.name
        if name.lower() in used:
            name = next(other for number in count(2) if (other := f"{column.name} {number}").lower() not in used)
        used.add(name.lower())
        metadata = {PHYSICAL_NAME: physical_name(column).encode()} | (column.metadata or {})
        results.append(column if name == column.name else column.with_name(name).with_metadata(metadata))
    return results
