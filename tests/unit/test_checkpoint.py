"""Checkpoints of every kind give the same state; a broken one is named, not guessed around."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.delta.actions import AddFile, DeletionVector
from tailer.delta.checkpoint import read_adds, read_state
from tailer.delta.log import LOG, LogSegment, list_log
from tailer.errors import LogCorrupt, ObjectNotFound, TailerError
from tailer.storage import LocalStore
from tests.logs import add, checkpoint, metadata, protocol

VECTOR = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 34, "cardinality": 2}
FILES = [
    add("p=1/a", partitionValues={"p": "1"}, stats='{"numRecords":1}'),
    add("b", VECTOR, partitionValues={"p": None}),
    add("c", VECTOR | {"storageType": "u", "offset": 7}, modificationTime=2**40),
]
HEAD = [protocol(3, ["v2Checkpoint"]), metadata(**{"delta.x": "1"})]
SIDECAR = "016ae953-37a9-438e-8683-9a9a4a79a395.parquet"

pytestmark = pytest.mark.anyio


def lines(path: Path, *actions: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def make(log: Path, kind: str) -> None:
    """The checkpoint of version 4, in one of its forms."""
    name = f"{4:020d}.checkpoint"
    sidecar = {"sidecar": {"path": SIDECAR, "sizeInBytes": 1, "modificationTime": 1}}
    match kind:
        case "classic":
            checkpoint(log / f"{name}.parquet", *HEAD, *FILES)
        case "multi-part":
            checkpoint(log / f"{name}.{1:010d}.{3:010d}.parquet", FILES[0], HEAD[1])
            checkpoint(log / f"{name}.{2:010d}.{3:010d}.parquet", *FILES[1:])
            checkpoint(log / f"{name}.{3:010d}.{3:010d}.parquet", HEAD[0])
        case "v2 json":
            lines(log / f"{name}.{SIDECAR[:-8]}.json", {"checkpointMetadata": {"version": 4}}, *HEAD, sidecar)
            checkpoint(log / "_sidecars" / SIDECAR, *FILES)
        case "v2 json without sidecars":
            lines(log / f"{name}.{SIDECAR[:-8]}.json", {"checkpointMetadata": {"version": 4}}, *HEAD, *FILES)
        case "v2 parquet":
            checkpoint(log / f"{name}.{SIDECAR[:-8]}.parquet", *HEAD, sidecar)
            checkpoint(log / "_sidecars" / SIDECAR, *FILES)


async def segment(table: Path) -> LogSegment:
    return (await list_log(LocalStore(table))).segment(4)


async def adds(table: Path) -> list[AddFile]:
    found: list[AddFile] = []
    await read_adds(LocalStore(table), await segment(table), found.append)
    return found


@pytest.mark.parametrize("kind", ["classic", "multi-part", "v2 json", "v2 json without sidecars", "v2 parquet"])
async def test_every_kind_holds_the_same(tmp_path: Path, kind: str) -> None:
    make(tmp_path / LOG, kind)
    gate, table = await read_state(LocalStore(tmp_path), await segment(tmp_path))
    assert gate is not None
    assert table is not None
    assert (gate.min_reader_version, gate.reader_features) == (3, ["v2Checkpoint"])
    assert (table.id, table.configuration, table.partition_columns) == ("id", {"delta.x": "1"}, [])
    assert await adds(tmp_path) == [
        AddFile("p=1/a", {"p": "1"}, 1, True, 1),
        AddFile("b", {"p": None}, 1, True, 1, DeletionVector("i", "x", 34, 2)),
        AddFile("c", {}, 1, True, 2**40, DeletionVector("u", "x", 34, 2, 7)),
    ]


async def test_a_missing_sidecar(tmp_path: Path) -> None:
    make(tmp_path / LOG, "v2 json")
    shutil.rmtree(tmp_path / LOG / "_sidecars")
    with pytest.raises(ObjectNotFound, match=SIDECAR):
        await adds(tmp_path)


async def test_a_broken_page_is_corruption_not_a_store_that_may_answer_later(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / LOG / f"{4:020d}.checkpoint.parquet", *FILES)
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    path.write_bytes(data)
    with pytest.raises(LogCorrupt, match="unreadable checkpoint"):
        await adds(tmp_path)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"garbage" * 20])
async def test_a_file_that_is_no_checkpoint(tmp_path: Path, data: bytes) -> None:
    make(tmp_path / LOG, "classic")
    (tmp_path / LOG / f"{4:020d}.checkpoint.parquet").write_bytes(data)
    with pytest.raises(LogCorrupt, match="unreadable checkpoint"):
        await adds(tmp_path)


@pytest.mark.parametrize(
    "columns",
    [
        {"add": pa.array([1])},
        {"add": pa.array(["text"])},
        {"add": pa.array([{"path": 7, "size": "x"}])},
        {"add": pa.array([{"path": "a", "partitionValues": ["p"], "size": 1, "dataChange": True}])},
        {"add": pa.array([{"path": "a", "size": 1, "dataChange": True}])},
        {"sidecar": pa.array([{"path": None}])},
        {"sidecar": pa.array(["x"])},
    ],
)
async def test_columns_of_another_shape(tmp_path: Path, columns: dict[str, pa.Array]) -> None:
    (tmp_path / LOG).mkdir()
    pq.write_table(pa.table(columns), tmp_path / LOG / f"{4:020d}.checkpoint.parquet")
    with pytest.raises(LogCorrupt, match="unreadable checkpoint"):
        await adds(tmp_path)


async def test_a_checkpoint_without_files(tmp_path: Path) -> None:
    (tmp_path / LOG).mkdir()
    pq.write_table(pa.table({"txn": pa.array([{"appId": "a"}])}), tmp_path / LOG / f"{4:020d}.checkpoint.parquet")
    assert await adds(tmp_path) == []
    assert await read_state(LocalStore(tmp_path), await segment(tmp_path)) == (None, None)


async def test_a_malformed_line(tmp_path: Path) -> None:
    make(tmp_path / LOG, "v2 json")
    lines(tmp_path / LOG / f"{4:020d}.checkpoint.{SIDECAR[:-8]}.json", {"add": {"path": "a"}})
    with pytest.raises(TailerError, match="unreadable checkpoint"):
        await adds(tmp_path)
