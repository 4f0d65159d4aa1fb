"""Change rows in the types of Spark: Variants are VARIANT there, whose two fields come in another order."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import StructType, VariantType

from tailer.events import has_variant, is_variant
from tailer.variant.nested import changed, changes_where

__all__ = ["spark_column", "spark_schema"]

_VARIANT: Final = to_arrow_type(VariantType())


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of rows with `schema`."""
    return from_arrow_schema(pa.schema([field.with_type(_spark_type(field.type)) for field in schema]))


def spark_column(column: pa.Array) -> pa.Array:
    """Return a column with its Variants as Spark takes them."""
    return changed(column, changes_where(column.type, is_variant, _spark_variants))


def _spark_type(kind: pa.DataType) -> pa.DataType:
    return spark_column(pa.array([], kind)).type if has_variant(kind) else kind


def _spark_variants(column: pa.StructArray) -> pa.StructArray:
    children = [pc.struct_field(column, field.name).cast(field.type) for field in _VARIANT]
    return pa.StructArray.from_arrays(children, fields=list(_VARIANT), mask=column.is_null())
