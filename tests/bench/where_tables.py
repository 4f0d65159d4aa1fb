"""A table of 1,000 files in 100 partitions, and the conditions that are measured over it.

Ten appends of 100 files, one in each partition. `part` is the partition, `n` grows from file to file, `scattered` has
each of its 100 values in all files.
"""

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake

from tests.bench.spark_files import rewrite_as_spark

__all__ = ["CONDITIONS", "FILES", "track_rows", "write_table"]

PARTITIONS: Final = 100
APPENDS: Final = 10
FILES: Final = PARTITIONS * APPENDS
ROWS: Final = 5_000  # of a file

CONDITIONS: Final = {
    "all rows, no condition": None,
    "1 % by a partition": "part = 7",
    "1 % by a clustered column": f"n >= {FILES * ROWS // 2} AND n < {FILES * ROWS // 2 + FILES * ROWS // 100}",
    "1 % by a scattered column": "scattered = 13",
    "half by a scattered column": "scattered < 50",
    "all rows, by a condition": "scattered >= 0",
}


def write_table(path: Path) -> None:
    """Write the table, with a change feed, and files as Spark writes them."""
    for append in range(APPENDS):
        count = PARTITIONS * ROWS
        numbers = pa.array(range(append * count, (append + 1) * count), pa.int64())
        text = numbers.cast(pa.string())
        rows = pa.table(
            {
                "part": pc.divide(pc.subtract(numbers, append * count), ROWS).cast(pa.int32()),
                "n": numbers,
                "scattered": pc.subtract(numbers, pc.multiply(pc.divide(numbers, 100), 100)).cast(pa.int32()),
                **{f"text_{each}": pc.binary_join_element_wise(f"{each}", text, "") for each in range(3)},
                **{f"number_{each}": pc.add(numbers, each) for each in range(3)},
                **{f"ratio_{each}": pc.divide(numbers.cast(pa.float64()), 3.0 + each) for each in range(3)},
            }
        )
        properties = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(path, rows, mode="append", partition_by=["part"], configuration=properties)
    rewrite_as_spark(path)


def track_rows(path: Path) -> None:
    """Rewrite the log so that the table tracks rows, which Spark's `CHANGES` needs, and delta-rs cannot write."""
    rows = 0
    for version, commit in enumerate(sorted((path / "_delta_log").glob("*.json"))):
        actions: list[dict[str, Any]] = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "protocol" in action:
                features = ["appendOnly", "invariants", "changeDataFeed", "domainMetadata", "rowTracking"]
                action["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
            if "metaData" in action:
                columns = {f"delta.rowTracking.materialized{name}ColumnName": f"_{name}" for name in _TRACKED}
                action["metaData"]["configuration"] |= {"delta.enableRowTracking": "true", **columns}
            if "add" in action:
                action["add"] |= {"baseRowId": rows, "defaultRowCommitVersion": version}
                rows += ROWS
        highest = {"domain": "delta.rowTracking", "configuration": json.dumps({"rowIdHighWaterMark": rows - 1})}
        actions.append({"domainMetadata": {**highest, "removed": False}})
        commit.write_text("".join(json.dumps(action) + "\n" for action in actions))


_TRACKED: Final = ("RowId", "RowCommitVersion")
