"""Tests for `tailer.formats.lance.fragment`."""

import pyarrow as pa
import pytest
from pyroaring import BitMap

from tailer.formats.lance.fragment import DeletionKind, read_deletions
from tailer.formats.lance.protobuf import InvalidMessage
from tests.support.cases import cases

OFFSETS = [7, 0, 4_294_967_295, 3]


def arrow_file(*columns: pa.Array, compression: str | None = None) -> bytes:
    """Return an Arrow file of one batch."""
    batch = pa.record_batch(list(columns), names=[f"column {at}" for at in range(len(columns))])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_offsets_in_an_arrow_file_are_unsorted_and_perhaps_compressed(compression: str | None) -> None:
    data = arrow_file(pa.array(OFFSETS, pa.uint32()), compression=compression)
    assert read_deletions(DeletionKind.ARROW, data) == BitMap(OFFSETS)


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint32(), pa.int64(), pa.uint64()])
def test_offsets_of_any_integer_type(kind: pa.DataType) -> None:
    assert read_deletions(DeletionKind.ARROW, arrow_file(pa.array([5, 1, 5], kind))) == BitMap([1, 5])


def test_a_bitmap() -> None:
    bitmap = BitMap([1, 70_000, *range(200_000, 300_000), 4_294_967_295])
    assert read_deletions(DeletionKind.BITMAP, bitmap.serialize()) == bitmap


@pytest.mark.parametrize("kind", DeletionKind)
def test_no_offset_at_all(kind: DeletionKind) -> None:
    data = BitMap().serialize() if kind is DeletionKind.BITMAP else arrow_file(pa.array([], pa.uint32()))
    assert read_deletions(kind, data) == BitMap()


@cases(
    ("data", "reason"),
    [
        (b"", "not an Arrow file"),
        (b"ARROW1\0\0 and no more ARROW1", "not an Arrow file"),
        (arrow_file(pa.array([1], pa.uint32()))[:-40], "not an Arrow file"),
        (arrow_file(), "it has 0 columns, not one"),
        (arrow_file(pa.array([1], pa.uint32()), pa.array([1], pa.uint32())), "it has 2 columns, not one"),
        (arrow_file(pa.array([1, None], pa.uint32())), "holds uint32 with 1 nulls, not offsets"),
        (arrow_file(pa.array(["1"])), "holds string with 0 nulls, not offsets"),
        (arrow_file(pa.array([-1], pa.int32())), "does not fit into 32 bits"),
        (arrow_file(pa.array([2**32], pa.int64())), "does not fit into 32 bits"),
    ],
)
def test_what_is_no_arrow_file_of_offsets_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        read_deletions(DeletionKind.ARROW, data)


@pytest.mark.parametrize(
    "data",
    [b"", b"no bitmap", BitMap([1, 2]).serialize()[:-1], BitMap([1, 2]).serialize()[:-2] + b"\0\0"],
)
def test_what_is_no_bitmap_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidMessage, match="not a Roaring bitmap"):
        read_deletions(DeletionKind.BITMAP, data)
