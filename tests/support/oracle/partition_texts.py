"""Texts that the log may have as partition values, and the values that Spark with Delta reads for them.

`partition_texts.json` has them by the column's type: numbers as they are, days and microseconds since 1970, binary as
hexadecimal digits, decimals as text. A live test asks Spark again (`tests.property.test_types`).
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.tables.log_files import add, metadata, protocol, schema_string, write_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Answers", "ask_spark", "spark_answers"]

Answers = dict[str, dict[str, Any]]
"""By the type of a column: for each text the value that Spark reads, None for null."""

_RECORDED: Final = Path(__file__).with_suffix(".json")
_PLAIN: Final = {
    "binary": "hex({})",
    "float": "CAST({} AS DOUBLE)",
    "decimal(10,2)": "CAST({} AS STRING)",
    "decimal(38,0)": "CAST({} AS STRING)",
    "date": "unix_date({})",
    "timestamp": "unix_micros({})",
    "timestamp_ntz": "unix_micros(CAST({} AS TIMESTAMP))",
}


def spark_answers() -> Answers:
    """Return the texts and what Spark has read for them."""
    answers: Answers = json.loads(_RECORDED.read_text())
    return answers


def ask_spark(spark: "SparkSession", path: Path, texts: dict[str, list[str]]) -> Answers:
    """Have Spark read a table with one partition column of each type, and with one file for each text."""
    names = {kind: f"p{number}" for number, kind in enumerate(texts)}
    schema = schema_string(id="long", **{name: kind for kind, name in names.items()})
    actions = [protocol(3, ["timestampNtz"]), metadata(schema, names.values())]
    actions[1]["metaData"]["format"]["options"] = {}
    path.mkdir()
    for row in range(max(map(len, texts.values()))):
        file = path / f"{row}.parquet"
        pq.write_table(pa.table({"id": [row]}), file)
        values = {names[kind]: asked[row] if row < len(asked) else None for kind, asked in texts.items()}
        actions.append(add(file.name, partitionValues=values, size=file.stat().st_size))
    write_commit(path, 0, *actions)
    shown = [f"{_PLAIN.get(kind, '{}').format(name)} AS {name}" for kind, name in names.items()]
    rows = {row["id"]: row for row in spark.read.format("delta").load(str(path)).selectExpr("id", *shown).collect()}
    return {kind: {text: rows[at][names[kind]] for at, text in enumerate(asked)} for kind, asked in texts.items()}
