"""Change rows in the types of Spark: Variants are VARIANT there, whose two fields come in another order."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType, VariantType

from tailer.events import has_variant, is_variant
from tailer.variant.nested import Change, Changes, changed

__all__ = ["spark_column", "spark_schema"]

_VARIANT: Final = to_arrow_type(VariantType())


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of rows with `schema`."""
    return from_arrow_schema(pa.schema([field.with_type(_spark_type(field.type)) for field in schema]))


def spark_column(column: pa.Array) -> pa.Array:
    """Return a column with its Variants as Spark takes them."""
    return changed(column, _changes(column.type)) if has_variant(column.type) else column


def _spark_type(kind: pa.DataType) -> pa.DataType:
    return changed(pa.array([], kind), _changes(kind)).type if has_variant(kind) else kind


def _changes(kind: pa.DataType) -> Changes | Change:
    if is_variant(kind):
        return _spark_variants
    children = [kind.key_type, kind.item_type] if pa.types.is_map(kind) else _child_types(kind)
    return {index: _changes(child) for index, child in enumerate(children) if has_variant(child)}


def _child_types(kind: pa.DataType) -> list[pa.DataType]:
    return [kind.field(index).type for index in range(kind.num_fields)]


def _spark_variants(column: pa.StructArray) -> pa.StructArray:
    children = [pc.struct_field(column, field.name).cast(field.type) for field in _VARIANT]
    return pa.StructArray.from_arrays(children, fields=list(_VARIANT), mask=column.is_null())
