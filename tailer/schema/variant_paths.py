"""Paths into Variants as columns: `payload:$.a.b` is the value at `$.a.b` of the VARIANT column `payload`.

Such a column is a VARIANT, called as it is written. It is null where the Variant is null or has nothing at the path;
the Variant null stays itself.

In the schemas of a plan its field has the path in its metadata, the field id of the column that it leads into, and a
physical name that ends in the path. So it is the same column over time as long as that column is
(`tailer.schema.identity`), and comparisons treat it like any other.
"""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from tailer.errors import ConfigError
from tailer.events import VARIANT, is_variant, type_text
from tailer.schema.columns import PHYSICAL_NAME, physical_name
from tailer.variant import parse_path

__all__ = ["check_paths", "path_of", "source_of", "split_path", "with_paths", "with_same_paths"]

_PATH: Final = b"tailer.path"
_MARK: Final = ":$"


def split_path(column: str) -> tuple[str, str] | None:
    """Split `payload:$.a` into `payload` and `$.a`; None for the name of a column."""
    name, mark, path = column.partition(_MARK)
    return (name, f"${path}") if mark and name else None


def check_paths(option: str, columns: Iterable[str]) -> None:
    """Raise `ConfigError` for a column with a path that cannot be read."""
    for column in columns:
        try:
            parse_path((split_path(column) or ("", "$"))[1])
        except ValueError as error:
            remedy = "Write the column and a path, such as payload:$.a.b, payload:$[0] or payload:$['a b']."
            raise ConfigError(option, f"{column!r}: {error}", remedy) from None


def with_paths(schema: pa.Schema, columns: Iterable[str]) -> pa.Schema:
    """Return the schema with those of `columns` that are paths into its columns; a column of that name is none.

    Raises `ConfigError` for a path into a column that is not VARIANT.
    """
    return _with_fields(schema, [parts for parts in map(split_path, columns) if parts is not None])


def with_same_paths(schema: pa.Schema, fields: Iterable[pa.Field]) -> pa.Schema:
    """Return the schema with the paths among `fields`, into the same columns, whatever their names are in it.

    Raises `ConfigError` as `with_paths`.
    """
    paths = [(physical_name(source_of(field)), path) for field in fields if (path := path_of(field))]
    names = {physical_name(column): column.name for column in schema} if paths else {}
    return _with_fields(schema, [(names[source], path) for source, path in paths if source in names])


def _with_fields(schema: pa.Schema, paths: Iterable[tuple[str, str]]) -> pa.Schema:
    """Return the schema with columns for paths, each with the name of the column that it leads into."""
    added = []
    for source, path in paths:
        name = f"{source}:{path}"
        if schema.get_field_index(source) < 0 or schema.get_field_index(name) >= 0:
            continue
        column = schema.field(source)
        if not is_variant(column.type):
            reason = f"{name!r} is a path, and column {column.name} is {type_text(column.type)}, not VARIANT"
            raise ConfigError("columns", reason, "Name the column without a path.")
        metadata = dict(column.metadata or {})
        if PHYSICAL_NAME in metadata:
            metadata[PHYSICAL_NAME] += f":{path}".encode()
        added.append(pa.field(name, VARIANT, metadata={**metadata, _PATH: path.encode()}))
    return pa.schema([*schema, *added]) if added else schema


def path_of(field: pa.Field) -> str | None:
    """Return the path of a field that `with_paths` made; None for a column of the table."""
    path = (field.metadata or {}).get(_PATH)
    return None if path is None else str(path.decode())


def source_of(field: pa.Field) -> pa.Field:
    """Return the column that the path of a field leads into, by name, physical name and field id."""
    path = path_of(field)
    if path is None:
        return field
    end = f":{path}"
    metadata = {key: value for key, value in field.metadata.items() if key != _PATH}
    if PHYSICAL_NAME in metadata:
        metadata[PHYSICAL_NAME] = physical_name(field).removesuffix(end).encode()
    return field.with_name(field.name.removesuffix(end)).with_metadata(metadata or None)
