"""Logs written file by file for measurements: the same bytes in every run, and no writer that takes hours."""

import json
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.tables.log_files import metadata, protocol, schema_string

__all__ = ["ROWS", "write_commits"]

ROWS: Final = 10  # of a commit's file
_TIME_MS: Final = 1_700_000_000_000
_SCHEMA: Final = schema_string(id="long", name="string", amount="double")


def write_commits(path: Path, versions: int, with_rows: bool = True) -> Path:
    """Write a table of `versions` appends with a file each, as Spark writes them; without rows, the log alone."""
    (path / "_delta_log").mkdir(parents=True)
    for version in range(versions):
        name, size_bytes = f"part-{version:06}.snappy.parquet", 1024
        if with_rows:
            pq.write_table(_rows(version), path / name, compression="snappy")
            size_bytes = (path / name).stat().st_size
        lines = [_info(version), _add(version, name, size_bytes)]
        lines += [protocol(), metadata(_SCHEMA)] if version == 0 else []
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (path / "_delta_log" / f"{version:020d}.json").write_text(text)
    return path


def _rows(version: int) -> pa.Table:
    ids = range(version * ROWS, (version + 1) * ROWS)
    names, amounts = [f"customer {number}" for number in ids], [number / 4 for number in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "name": names, "amount": amounts})


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
