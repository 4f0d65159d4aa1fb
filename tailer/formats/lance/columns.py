"""Physical names of columns: from field ids, which stay when a column is renamed (Lance format, "Fields").

Overwrite gives all columns new ids, from 0 on. A column with the name and the type that one had before is still that
column, and keeps its physical name. The others get names that no column had, with the version in them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from tailer.formats.lance.schema import FIELD_ID, field_id
from tailer.schema.columns import PHYSICAL_NAME

__all__ = ["ColumnNames"]


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Physical names by field id. An id that is not in `by_id` has `prefix` and its own digits as its name."""

    by_id: Mapping[int, str] = field(default_factory=dict)
    prefix: str = ""

    @property
    def renamed(self) -> tuple[tuple[str, int], ...]:
        """Return physical names that are not the digits of their field id, with that id."""
        return tuple((name, number) for number, name in self.by_id.items() if name != str(number))

    def after_overwrite(self, before: pa.Schema, after: pa.Schema, version: int) -> "ColumnNames":
        """Return the names of the columns `after` an overwrite. Both schemas are as `arrow_schema` returns them."""
        names = {(path, kind): self._name(number) for path, kind, number in _fields(before)}
        fresh = ColumnNames(prefix=f"{version}.")
        kept = {number: names.get((path, kind), fresh._name(number)) for path, kind, number in _fields(after)}
        return ColumnNames(kept, fresh.prefix)

    def extended(self, schema: pa.Schema) -> "ColumnNames":
        """Return the names with those of all fields of `schema`."""
        if not self.prefix:
            return self
        return ColumnNames({number: self._name(number) for _, _, number in _fields(schema)}, self.prefix)

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return a schema from `arrow_schema` with physical names as the only metadata of its fields.

        It is that of rows as tasks deliver them: a dictionary is its values.
        """
        return pa.schema([self._field(column) for column in schema])

    def _name(self, number: int) -> str:
        return self.by_id.get(number, f"{self.prefix}{number}")

    def _field(self, column: pa.Field) -> pa.Field:
        name = self._name(field_id(column)).encode()
        return pa.field(column.name, self._type(column.type), column.nullable, {PHYSICAL_NAME: name})

    def _type(self, kind: pa.DataType) -> pa.DataType:
        if pa.types.is_dictionary(kind):
            return kind.value_type
        if pa.types.is_struct(kind):
            return pa.struct([self._field(column) for column in kind])
        if pa.types.is_list(kind):
            return pa.list_(self._element(kind.value_field))
        if pa.types.is_large_list(kind):
            return pa.large_list(self._element(kind.value_field))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(self._element(kind.value_field), kind.list_size)
        if pa.types.is_map(kind):
            return pa.map_(self._type(kind.key_type), self._element(kind.item_field))
        return kind

    def _element(self, column: pa.Field) -> pa.Field:
        return pa.field(column.name, self._type(column.type), column.nullable)


def _fields(schema: pa.Schema) -> Iterator[tuple[tuple[str, ...], str, int]]:
    """Yield the path of names, the type and the id of each field on every level."""
    yield from _fields_of(pa.struct(list(schema)), ())


def _fields_of(kind: pa.DataType, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, int]]:
    for column in (kind.field(index) for index in range(kind.num_fields)):
        path = (*above, column.name)
        if FIELD_ID in (column.metadata or {}):
            yield path, "struct" if pa.types.is_struct(column.type) else str(column.type), field_id(column)
        yield from _fields_of(column.type, path)
