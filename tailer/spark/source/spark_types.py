"""Change rows in the types of Spark.

Variants are VARIANT there, whose two fields come in another order. Types that Spark lacks become the type that has each
of their values (`tailer.schema.exact_types`), if there is one.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import StructField, StructType, VariantType

from tailer.errors import ConfigError
from tailer.events import has_variant, is_variant
from tailer.schema.exact_types import exact_type
from tailer.variant.nested import changed, changes_where

__all__ = ["quoted", "spark_column", "spark_frame", "spark_schema"]

_VARIANT: Final = to_arrow_type(VariantType())
_DIGITS: Final = 38  # of a decimal


def quoted(name: str) -> str:
    """Return the name of a column as SQL has it."""
    return f"`{name.replace('`', '``')}`"


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of rows with `schema`. Raises `ConfigError` for a column of a type that Spark lacks."""
    fields: list[StructField] = []
    for column in schema:
        kind = column.type
        field = column.with_type(spark_column(pa.array([], kind)).type if has_variant(kind) else exact_type(kind))
        remedy = "Name the other columns in the option columns, or read the table with tailer.changes."
        lacking = ConfigError("columns", f"column {field.name} is {field.type}, which Spark lacks", remedy)
        if _has_more(field.type):
            raise lacking
        try:
            fields += from_arrow_schema(pa.schema([field])).fields
        except PySparkTypeError as error:
            raise lacking from error
    return StructType(fields)


def spark_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a table as a DataFrame with the same values.

    Without a schema, Spark would take times without a zone for times of the session's zone, by Arrow's rules of zones.
    """
    return spark.createDataFrame(table, spark_schema(table.schema))


def spark_column(column: pa.Array) -> pa.Array:
    """Return a column with its Variants as Spark takes them."""
    return changed(column, changes_where(column.type, is_variant, _spark_variants))


def _has_more(kind: pa.DataType) -> bool:
    """Return whether values are times in nanoseconds, or have more digits than Spark would keep."""
    if pa.types.is_nested(kind):
        return any(_has_more(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_decimal(kind):
        return bool(kind.precision > _DIGITS)
    is_time: bool = pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind)
    return is_time and kind.unit == "ns"


def _spark_variants(column: pa.StructArray) -> pa.StructArray:
    children = [pc.struct_field(column, field.name).cast(field.type) for field in _VARIANT]
    return pa.StructArray.from_arrays(children, fields=list(_VARIANT), mask=column.is_null())
