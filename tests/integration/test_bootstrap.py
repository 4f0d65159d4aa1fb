"""Memory is bounded by batches in flight, not by a snapshot (invariant 7): a table of a million files."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tailer.formats.delta.log.listing import LOG
from tests.support.tables.log_files import Action, add, commit_info, metadata, protocol, remove, write_commit

FILES: Final = 1_000_000
STEP: Final = 100_000
REMOVED: Final = 1_000
LIMIT_MB: Final = 250
READER: Final = Path(__file__).with_name("bootstrap_reader.py")

BOUNDS: Final = pa.struct({"id": pa.int64(), "name": pa.string()})
ADD: Final = pa.struct(
    {
        "path": pa.string(),
        "partitionValues": pa.map_(pa.string(), pa.string()),
        "size": pa.int64(),
        "modificationTime": pa.int64(),
        "dataChange": pa.bool_(),
        "stats": pa.string(),
        "partitionValues_parsed": pa.struct({"p": pa.string()}),
        "stats_parsed": pa.struct({"numRecords": pa.int64(), "minValues": BOUNDS, "maxValues": BOUNDS}),
    }
)
HEAD: Final = pa.schema(
    {
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
        "metaData": pa.struct(
            {"id": pa.string(), "schemaString": pa.string(), "partitionColumns": pa.list_(pa.string())}
        ),
    }
)
SCHEMA: Final = pa.schema([*HEAD, pa.field("add", ADD)])


def path(number: int) -> str:
    """Return the path of a file."""
    return f"p=x/part-{number}-016ae953-37a9-438e-8683-9a9a4a79a395.c000.snappy.parquet"


def text(ids: pa.Array, before: str, after: str) -> pa.Array:
    """Make texts with a number in the middle."""
    return pc.binary_join_element_wise(before, ids.cast(pa.string()), after, "")


def adds(first: int) -> pa.StructArray:
    """Make some rows of the checkpoint, with all that Spark writes about a file."""
    ids = pa.array(range(first, first + STEP), pa.int64())
    name = text(ids, "a name of some length ", " and more")
    bounds = pa.StructArray.from_arrays([ids, name], fields=list(BOUNDS))
    one = pa.repeat(pa.scalar("x"), STEP)
    values = {
        "path": text(ids, *path(0).split("0", 1)),
        "partitionValues": pa.MapArray.from_arrays(pa.array(range(STEP + 1), pa.int32()), one, one),
        "size": ids,
        "modificationTime": pc.subtract(pa.scalar(FILES), ids),
        "dataChange": pa.repeat(pa.scalar(True), STEP),
        "stats": text(ids, '{"numRecords":1000,"minValues":{"id":0,"name":"' + "a" * 40, '"},"nullCount":{"id":0}}'),
        "partitionValues_parsed": pa.StructArray.from_arrays([one], ["p"]),
        "stats_parsed": pa.StructArray.from_arrays([ids, bounds, bounds], fields=list(ADD.field("stats_parsed").type)),
    }
    return pa.StructArray.from_arrays(list(values.values()), fields=list(ADD))


def batches() -> Iterator[pa.Table]:
    """Yield the rows of the checkpoint: protocol and metadata, then files, the latest first."""
    head: list[Action] = [protocol(), metadata()]
    yield pa.Table.from_pylist(head, SCHEMA)
    for first in range(0, FILES, STEP):
        columns = [pa.nulls(STEP, field.type) for field in HEAD]
        yield pa.table([*columns, adds(first)], schema=SCHEMA)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with a checkpoint of a million files, in one row group, and some commits after it."""
    root = tmp_path_factory.mktemp("large")
    (root / LOG).mkdir()
    with pq.ParquetWriter(root / LOG / f"{200:020d}.checkpoint.parquet", SCHEMA) as writer:
        writer.write_table(pa.concat_tables(batches()), row_group_size=2 * FILES)
    (root / LOG / "_last_checkpoint").write_text('{"version":200}')
    for version in range(100, 200):
        write_commit(root, version, commit_info())
    write_commit(root, 200, commit_info())
    write_commit(root, 201, *(remove(path(number)) for number in range(REMOVED)))
    write_commit(root, 202, add("again", modificationTime=0))
    return root


@pytest.mark.long
def test_a_million_files_in_bounded_memory(table: Path) -> None:
    done = subprocess.run([sys.executable, READER, table], capture_output=True, check=True, text=True)
    found = json.loads(done.stdout)
    print(found)
    assert found["files"] == FILES - REMOVED + 1
    assert found["ordered"]
    assert found["id"] == "id"
    assert 0 < found["resident_mb"] < LIMIT_MB
