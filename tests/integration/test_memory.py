"""Memory is bounded by batches in flight, not by a commit (invariant 7): ten million rows through `tailer tail`."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.support.daemon.process import peak_mb

ROWS: Final = 10_000_000
FILES: Final = 2
ROW_GROUP: Final = 1_000_000
LIMIT_MB: Final = 300
TAILER: Final = Path(sys.executable).with_name("tailer")

FIELDS: Final = {
    "id": "long",
    "customer": "string",
    "item": "string",
    "amount": "double",
    "quantity": "integer",
    "at": "timestamp",
}


def row_groups(first: int) -> Iterator[pa.Table]:
    """Yield row groups of distinct rows: dictionaries would hide the cost of strings."""
    for begin in range(first, first + ROWS // FILES, ROW_GROUP):
        ids = pa.array(range(begin, begin + ROW_GROUP), pa.int64())
        text = ids.cast(pa.string())
        yield pa.table(
            {
                "id": ids,
                "customer": pc.binary_join_element_wise("customer number", text, " "),
                "item": pc.binary_join_element_wise("an item with a longer description", text, text, " "),
                "amount": pc.divide(pc.cast(ids, pa.float64()), 7.0),
                "quantity": pc.cast(pc.bit_wise_and(ids, 1023), pa.int32()),
                "at": pc.multiply(ids, 1001).cast(pa.timestamp("us", "UTC")),
            }
        )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose one commit adds ten million rows."""
    path = tmp_path_factory.mktemp("large") / "table"
    (path / "_delta_log").mkdir(parents=True)
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in FIELDS.items()]
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "11111111-2222-3333-4444-555555555555",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": {},
            }
        },
    ]
    for number in range(FILES):
        file = path / f"part-{number}.parquet"
        writer: pq.ParquetWriter | None = None
        for rows in row_groups(number * (ROWS // FILES)):
            writer = writer or pq.ParquetWriter(file, rows.schema, use_dictionary=False)
            writer.write_table(rows, row_group_size=ROW_GROUP)
        assert writer is not None
        writer.close()
        size = file.stat().st_size
        added = {"path": file.name, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
        actions.append({"add": added})
    commit = path / "_delta_log" / f"{0:020d}.json"
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return path


@pytest.mark.long
def test_ten_million_rows_in_bounded_memory(table: Path) -> None:
    command = [str(TAILER), "tail", str(table), "--from", "earliest", "--to", "latest", "--format", "jsonl"]
    started = time.monotonic()
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as tailer,
        subprocess.Popen(["wc", "-l"], stdin=tailer.stdout, stdout=subprocess.PIPE) as counter,
    ):
        resident_mb = peak_mb(tailer)
        assert counter.stdout is not None
        lines = int(counter.stdout.read())
    print(f"{lines} rows in {time.monotonic() - started:.1f} s, {resident_mb:.0f} MB resident at most")
    assert tailer.returncode == 0
    assert lines == ROWS
    assert 0 < resident_mb < LIMIT_MB
