"""Columns of change rows, from the columns of a table."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from tailer.events import METADATA_FIELDS, ROW_COMMIT_VERSION, ROW_ID
from tailer.schema.columns import bare_type

__all__ = ["ROW_IDS", "ROW_TRACKING", "add_row_ids", "output_schema", "select_columns"]

ROW_IDS: Final = (ROW_ID, ROW_COMMIT_VERSION)
# Marks a field of a task's schema that comes from row tracking, not from a column of the table.
ROW_TRACKING: Final = b"tailer.rowTracking"


def select_columns(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the schema of those `columns` that `schema` has, in the order given."""
    return pa.schema([schema.field(column) for column in columns if schema.get_field_index(column) >= 0])


def add_row_ids(schema: pa.Schema) -> pa.Schema:
    """Append the columns of row tracking to `schema`, marked as not the table's own."""
    return pa.schema([*schema, *(pa.field(name, pa.int64(), metadata={ROW_TRACKING: b""}) for name in ROW_IDS)])


def output_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of change rows for a table with `schema`: its fields, then the metadata columns.

    Fields have no Arrow metadata. Nested fields are nullable on every level, because a null struct has null fields.
    """
    columns = [pa.field(column.name, bare_type(column.type), column.nullable) for column in schema]
    return pa.schema([*columns, *METADATA_FIELDS])
