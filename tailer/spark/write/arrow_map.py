"""`DataFrame.mapInArrow` without pandas.

PySpark asks for pandas there, and uses nothing of it. So PySpark is pinned, and `tests/integration/test_spark_kafka.py`
runs it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

__all__ = ["map_in_arrow"]

ArrowMap = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(rows: DataFrame, function: ArrowMap, schema: StructType) -> DataFrame:
    """Return what `function` makes of each partition, rows of `schema`."""
    made = UserDefinedFunction(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    columns = (sql.col(f"`{name.replace('`', '``')}`") for name in rows.columns)
    column: Any = made(*columns)
    java: Any = rows._jdf  # noqa: SLF001 - the only way there
    return DataFrame(java.mapInArrow(column._jc, False, None), rows.sparkSession)  # noqa: SLF001
