"""UUIDs of a Parquet file: Arrow reads them as 16 bytes, and only the file's own schema says which bytes are UUIDs."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["with_uuids"]


def with_uuids(arrow: pa.Schema, file: pq.ParquetSchema) -> pa.Schema:
    """Return the Arrow schema of a file with Arrow's type for UUIDs wherever the file has some, on every level."""
    leaves = [file.column(index).logical_type.type == "UUID" for index in range(len(file))]
    if not any(leaves):
        return arrow
    are_uuids = iter(leaves)
    return pa.schema([_field(field, are_uuids) for field in arrow])


def _field(field: pa.Field, are_uuids: Iterator[bool]) -> pa.Field:
    return field.with_type(_type(field.type, are_uuids))


def _type(kind: pa.DataType, are_uuids: Iterator[bool]) -> pa.DataType:
    """Return `kind` with UUIDs. `are_uuids`: of the leaves from its first on, which Arrow and Parquet order alike."""
    if isinstance(kind, pa.BaseExtensionType):
        _type(kind.storage_type, are_uuids)
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([_field(field, are_uuids) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field, are_uuids), _field(kind.item_field, are_uuids))
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field, are_uuids))
    if pa.types.is_large_list(kind):
        return pa.large_list(_field(kind.value_field, are_uuids))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_field(kind.value_field, are_uuids), kind.list_size)
    is_uuid = next(are_uuids)
    return pa.uuid() if is_uuid and kind == pa.binary(16) else kind
