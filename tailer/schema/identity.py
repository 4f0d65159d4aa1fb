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
from tailer.schema.columns import COLUMN_ID, FIELD_ID, PHYSICAL_NAME, column_id, is_absent, physical_name, source_name

__all__ = ["identified", "is_mapped", "renewed", "united"]

_Path = tuple[str, ...]


def identified(schemas: Iterable[pa.Schema]) -> list[pa.Schema]:
    """Assign an identity to each field on every level, in schemas of consecutive versions, oldest first.

    A field has the identity of the earlier field with the same physical name, unless both have field ids that differ.
    When a table stops mapping columns, its files are rewritten. If names and types stay the same, fields are matched by
    name. Otherwise only fields that never had another physical name keep their identity.
    """
    identities = _Identities()
    found: list[pa.Schema] = []
    for schema in schemas:
        if found and is_mapped(found[-1]) and not is_mapped(schema):
            identities.turn_to_names(found[-1], alike=_plain(found[-1]).equals(_plain(schema)))
        found.append(pa.schema(identities.of(list(schema))))
    return found


def is_mapped(schema: pa.Schema) -> bool:
    """Return whether a table with this schema maps its columns."""
    return any(PHYSICAL_NAME in (each.metadata or {}) and not is_absent(each) for each in schema)


def renewed(before: pa.Schema, after: pa.Schema) -> tuple[tuple[_Path, ...], tuple[_Path, ...]]:
    """Return the names that belong to another column in `after`, and those of columns that were widened.

    `before`: a schema of the version before. Names of fields in structs come as paths. Case does not matter, as in
    expressions. An integer or a decimal that only gets more digits is not among the widened ones: as a text, and in
    arithmetic, its values are what they were.
    """
    old, new = identified([before, after])
    found = list(_renewed(old, new, ()))
    replaced = tuple(path for path, is_another in found if is_another)
    return replaced, tuple(path for path, is_another in found if not is_another)


def united(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Unite the columns and nested fields of all identified `schemas`, oldest first, each in its latest form.

    Where several columns have the same name, a number is appended to it.
    """
    found = pa.struct([])
    for schema in schemas:
        found = _united_type(found, pa.struct(list(schema)))
    return pa.schema(list(found))


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
        return [each if is_absent(each) else self._one(each, (*above, physical_name(each))) for each in fields]

    def _one(self, found: pa.Field, path: _Path) -> pa.Field:
        metadata = found.metadata or {}
        number = metadata.get(FIELD_ID)
        identity, known = self.known.get(path, (b"", None))
        if not identity or (number is not None and known is not None and number != known):
            identity = str(next(self.fresh)).encode()
        self.known[path] = (identity, number or known)
        return found.with_type(self._type(found.type, path)).with_metadata(metadata | {COLUMN_ID: identity})

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
        for each in kind:
            path = (*above, source_name(each))
            if COLUMN_ID in (each.metadata or {}):
                yield path, (each.metadata[COLUMN_ID], None)
            yield from _named(each.type, path)
    elif pa.types.is_list(kind):
        yield from _named(kind.value_type, (*above, "element"))
    elif pa.types.is_map(kind):
        yield from _named(kind.key_type, (*above, "key"))
        yield from _named(kind.item_type, (*above, "value"))


def _plain(schema: pa.Schema) -> pa.DataType:
    """Return the names and types of a schema as a struct, without metadata and nullability."""
    return _plain_type(pa.struct(list(schema)))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if is_struct(kind):
        return pa.struct([pa.field(each.name, _plain_type(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    return kind


def _renewed(before: Iterable[pa.Field], after: Iterable[pa.Field], above: _Path) -> Iterator[tuple[_Path, bool]]:
    old = {each.name.lower(): each for each in before}
    for each in after:
        former, path = old.get(each.name.lower()), (*above, each.name)
        if former is None:
            continue
        if column_id(former) != column_id(each):
            yield path, True
        elif is_struct(former.type) and is_struct(each.type):
            yield from _renewed(former.type, each.type, path)
        elif not (former.type.equals(each.type) or _only_gets_digits(former.type, each.type)):
            yield path, False


def _only_gets_digits(narrow: pa.DataType, wide: pa.DataType) -> bool:
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        return bool(narrow.scale == wide.scale)
    return pa.types.is_null(narrow) or bool(pa.types.is_integer(narrow) and pa.types.is_integer(wide))


def _united_type(older: pa.DataType, newer: pa.DataType) -> pa.DataType:
    if is_struct(older) and is_struct(newer):
        known = {column_id(each): each for each in newer if not is_absent(each)}
        fields: list[pa.Field] = []
        for each in older:
            late = known.pop(column_id(each), None)
            fields.append(each if late is None else late.with_type(_united_type(each.type, late.type)))
        return pa.struct(_distinct_names([*fields, *known.values()]))
    if pa.types.is_list(older) and pa.types.is_list(newer):
        return pa.list_(newer.value_field.with_type(_united_type(older.value_type, newer.value_type)))
    if pa.types.is_map(older) and pa.types.is_map(newer):
        value = newer.item_field.with_type(_united_type(older.item_type, newer.item_type))
        return pa.map_(_united_type(older.key_type, newer.key_type), value)
    return newer


def _distinct_names(fields: Sequence[pa.Field]) -> list[pa.Field]:
    """Rename fields so that all names are distinct, ignoring case."""
    used: set[str] = set()
    found: list[pa.Field] = []
    for each in fields:
        name = each.name
        if name.lower() in used:
            name = next(other for number in count(2) if (other := f"{each.name} {number}").lower() not in used)
        used.add(name.lower())
        metadata = {PHYSICAL_NAME: physical_name(each).encode()} | (each.metadata or {})
        found.append(each if name == each.name else each.with_name(name).with_metadata(metadata))
    return found
