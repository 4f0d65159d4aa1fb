"""Logs written file by file for measurements: the same bytes in every run, and no writer that takes hours."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.bench.rewritten import DELTA_TYPES, shop_rows
from tests.bench.spark_files import write_as_spark
from tests.support.tables.log_files import metadata, protocol, schema_string

__all__ = ["ROWS", "WIDE", "Columns", "write_adds", "write_checkpoint", "write_commits"]

ROWS: Final = 10  # of a commit's file
_GROUP: Final = 50_000  # files in a row group of a checkpoint
_TIME_MS: Final = 1_700_000_000_000
_FEED: Final = {"delta.enableChangeDataFeed": "true"}


@dataclass(frozen=True)
class Columns:
    """The columns of a table: its Delta schema, and what makes rows from their ids."""

    schema: str
    rows: Callable[[pa.Array], pa.Table]


def _three(ids: pa.Array) -> pa.Table:
    names = pc.binary_join_element_wise("customer", ids.cast(pa.string()), " ")
    return pa.table({"id": ids, "name": names, "amount": pc.divide(ids.cast(pa.float64()), 4.0)})


_FEW: Final = Columns(schema_string(id="long", name="string", amount="double"), _three)
WIDE: Final = Columns(schema_string(**DELTA_TYPES), shop_rows)
"""Twelve columns, those of `rewritten`."""


def write_commits(path: Path, versions: int, columns: Columns = _FEW, *, with_rows: bool = True) -> Path:
    """Write a table of `versions` appends with a file each, as Spark writes them; without rows, the log alone."""
    (path / "_delta_log").mkdir(parents=True)
    for version in range(versions):
        name, size_bytes = f"part-{version:06}.snappy.parquet", 1024
        if with_rows:
            ids = pa.array(range(version * ROWS, (version + 1) * ROWS), pa.int64())
            size_bytes = write_as_spark(columns.rows(ids), path / name)
        lines = [_info(version), _add(version, name, size_bytes)]
        lines += [protocol(), _metadata(columns.schema)] if version == 0 else []
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (path / "_delta_log" / f"{version:020d}.json").write_text(text)
    return path


def write_adds(path: Path, files: int) -> Path:
    """Write a table of one commit that adds so many files of a row each; all are links to one file."""
    (path / "_delta_log").mkdir(parents=True)
    first = path / "part-000000.parquet"
    size_bytes = write_as_spark(_three(pa.array([0], pa.int64())), first)
    names = [f"part-{number:06}.parquet" for number in range(files)]
    for name in names[1:]:
        (path / name).hardlink_to(first)
    adds = [_add(number, name, size_bytes) for number, name in enumerate(names)]
    text = "".join(json.dumps(line) + "\n" for line in (_info(0), protocol(), _metadata(_FEW.schema), *adds))
    (path / "_delta_log" / f"{0:020d}.json").write_text(text)
    return path


def write_checkpoint(path: Path, files: int) -> Path:
    """Write a log of a checkpoint of so many files at version 10, without them, and 100 appends after it."""
    log = path / "_delta_log"
    log.mkdir(parents=True)
    state = [protocol(), _metadata(_FEW.schema)]
    schema = pa.schema({"protocol": _PROTOCOL, "metaData": _METADATA, "add": _ADD})
    with pq.ParquetWriter(log / f"{10:020d}.checkpoint.parquet", schema) as writer:
        writer.write_table(pa.Table.from_pylist(state, schema))
        for begins in range(0, files, _GROUP):
            numbers = range(begins, min(begins + _GROUP, files))
            adds = [_add(number, f"part-{number:09}.parquet", 1024) for number in numbers]
            writer.write_table(pa.Table.from_pylist(adds, schema))
    (log / "_last_checkpoint").write_text(json.dumps({"version": 10, "size": files + 2}))
    for version in range(10, 111):
        lines = [_info(version), _add(version, f"new-{version}.parquet", 1024)]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (log / f"{version:020d}.json").write_text(text)
    return path


def _metadata(schema: str) -> dict[str, object]:
    found = metadata(schema, **_FEED)
    found["metaData"]["format"]["options"] = {}  # delta-rs demands it
    return found


_TEXTS: Final = pa.map_(pa.string(), pa.string())
_PROTOCOL: Final = pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()})
_METADATA: Final = pa.struct(
    {
        "id": pa.string(),
        "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
        "schemaString": pa.string(),
        "partitionColumns": pa.list_(pa.string()),
        "configuration": _TEXTS,
    }
)
_ADD: Final = pa.struct(
    {
        "path": pa.string(),
        "partitionValues": _TEXTS,
        "size": pa.int64(),
        "modificationTime": pa.int64(),
        "dataChange": pa.bool_(),
        "stats": pa.string(),
    }
)


def _info(version: int) -> dict[str, object]:
    return {
        "commitInfo": {
            "timestamp": _TIME_MS + version,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": "[]"},
            "isolationLevel": "Serializable",
            "isBlindAppend": True,
            "operationMetrics": {"numFiles": "1", "numOutputRows": str(ROWS), "numOutputBytes": "1024"},
            "engineInfo": "Apache-Spark/4.0.0 Delta-Lake/4.0.0",
            "txnId": f"00000000-0000-0000-0000-{version:012d}",
        }
    }


def _add(version: int, name: str, size_bytes: int) -> dict[str, object]:
    first, last = version * ROWS, (version + 1) * ROWS - 1
    stats = {"numRecords": ROWS, "minValues": {"id": first}, "maxValues": {"id": last}, "nullCount": {"id": 0}}
    return {
        "add": {
            "path": name,
            "partitionValues": {},
            "size": size_bytes,
            "modificationTime": _TIME_MS + version,
            "dataChange": True,
            "stats": json.dumps(stats),
        }
    }
