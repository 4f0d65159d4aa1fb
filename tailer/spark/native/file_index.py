"""Spark scans over an explicit file list; no directory listing.

For Spark the constants of a file (`tailer.spark.native.file_constants`) are the values of partition columns: the same
for all rows of a file, so they cost nothing for each row, and a query that wants some of them does not open the other
files. Spark finds partition values in the paths of files. Here it asks a Java class of ours, `file_index.java`. Spark's
own compiler of queries (Janino) compiles it, on the driver alone. Python could be called instead, but takes a
millisecond for the nine objects of a file. At Spark 4.3: see `tailer.spark.java`.

Files without rows must not be among them: with the setting `spark.sql.optimizer.metadataOnly`, Spark takes a partition
value for that of a row.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files as files_of
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from tailer.spark.java import Jvm
from tailer.spark.source.spark_types import spark_frame

__all__ = ["indexed"]

_SOURCES: Final = "org.apache.spark.sql.execution.datasources"
_NUMBER: Final = "number"
_JAVA: Final = files_of(__package__).joinpath("file_index.java")


def indexed(
    java: Jvm, stored: StructType, files: Sequence[tuple[str, int]], constants: pa.Table, options: Mapping[str, str]
) -> DataFrame:
    """Return the rows of files: the columns `stored`, then those of `constants`, then the number of each row's file.

    `files`: the path and the size in bytes of each. `constants`: a row for each file. Use columns by their place: names
    of constants are changed where files have a column with such a name. `options`: of Spark's Parquet reader.
    """
    values = constants.append_column(_NUMBER, pa.array(range(len(files)), pa.int32()))
    rows = spark_frame(java.spark, values.rename_columns(_unlike(stored.names, values.column_names)))
    plan: Any = rows._jdf.queryExecution()  # noqa: SLF001 - the only way to rows as Spark has them inside
    schema = plan.analyzed().schema()
    index = java.compile("tailer.Files", _JAVA.read_text("utf-8"))
    lines = "\n".join(f"{size} {path}" for path, size in files)
    relation = java.lookup(f"{_SOURCES}.HadoopFsRelation")(
        java.create(index, java.session, schema, plan.executedPlan().executeCollect(), lines),
        schema,
        java.lookup("org.apache.spark.sql.types.DataType").fromJson(stored.json()).asNullable(),
        java.lookup("scala.None$"),
        java.lookup(f"{_SOURCES}.parquet.ParquetFileFormat")(),
        java.lookup("org.apache.spark.api.python.PythonUtils").toScalaMap(dict(options)),
        java.session,
    )
    return DataFrame(java.session.baseRelationToDataFrame(relation), java.spark)


def _unlike(stored: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names with a prefix that none of `stored` begins with."""
    prefix = "constant_"
    while any(name.lower().startswith(prefix) for name in stored):
        prefix += "_"
    return [f"{prefix}{name}" for name in names]
