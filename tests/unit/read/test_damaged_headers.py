"""Footers and page headers that are damaged or odd: the rows that Arrow reads, or an error that names the file."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.errors import DataCorrupt, UnsupportedFeature
from tailer.read.execute import execute
from tailer.read.parquet.batch_sizes import BATCH_BYTES
from tailer.read.parquet.thrift import I32, LIST, STRUCT, list_size, number, offsets, skip, zigzag
from tests.support.tables.log_files import parquet, task

RAW, KIND = pa.binary(12), pa.timestamp("us", "UTC")
DAY_US: Final = 86_400_000_000
EPOCH_DAY: Final = 2_440_588
MINUS_FIVE: Final = b"\x09"
ROWS = 400


def encoded(micros: int) -> bytes:
    """Return the 96 bits of a timestamp."""
    day, rest = divmod(micros, DAY_US)
    return struct.pack("<qi", rest * 1000, day + EPOCH_DAY)


NEAR: Final = [row % 30 for row in range(ROWS)]
FAR: Final = [row % 3 - 2 * EPOCH_DAY * DAY_US for row in range(ROWS)]  # Arrow wraps these


def int96(path: Path, columns: dict[str, list[int]], **options: Any) -> Path:
    """Write a file with columns of timestamps of 96 bits."""
    table = pa.table({name: pa.array(map(encoded, values), RAW) for name, values in columns.items()})
    parquet(path, table, store_schema=False, **options)
    return patched(path, (b"\x15\x0e\x15\x18", b"\x15\x06\x15\x18"), (b"\x1c\x15\x0e", b"\x1c\x15\x06"))


def patched(path: Path, *changes: tuple[bytes, bytes]) -> Path:
    """Replace bytes in the footer."""
    content = path.read_bytes()
    begin = footer_begin(content)
    footer = content[begin:-8]
    for old, new in changes:
        assert old in footer
        footer = footer.replace(old, new)
    path.write_bytes(content[:begin] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return path


def footer_begin(content: bytes) -> int:
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def micros(path: Path, column: str = "a") -> list[int]:
    """Return the timestamps of a column."""
    batches = execute(task(path, pa.schema([(column, KIND)])))
    return [value for batch in batches for value in batch.rows.column(0).cast(pa.int64()).to_pylist()]


def pages(path: Path, column: int) -> tuple[int, int]:
    """Return the offsets of the first data page and of the dictionary."""
    chunk = pq.read_metadata(path).row_group(0).column(column)
    return chunk.data_page_offset, chunk.dictionary_page_offset


def moved(path: Path, column: int, data: int, dictionary: bytes) -> Path:
    """Let the footer name other places of the first data page and of the dictionary."""
    before, after = pages(path, column)
    old = b"\x26" + zigzag(before) + b"\x26" + zigzag(after)
    return patched(path, (old, b"\x26" + zigzag(data) + b"\x26" + dictionary))


PLACES: Final = {
    "nowhere": zigzag(0),
    "negative": MINUS_FIVE,
    "behind the end": zigzag(2**40),
    "last": zigzag(2**63 - 1),
}


@pytest.mark.parametrize("place", PLACES)
def test_texts_with_a_dictionary_where_data_pages_should_begin(tmp_path: Path, place: str) -> None:
    texts = [f"{row % 30}" * 50_000 for row in range(ROWS)]
    path = parquet(tmp_path / "f", pa.table({"a": texts}))
    moved(path, 0, pages(path, 0)[1], PLACES[place])
    batches = execute(task(path, pa.schema([("a", pa.string())])))
    assert [value for batch in batches for value in batch.rows.column(0).to_pylist()] == texts


def flips(content: bytes, part: range) -> Iterator[bytes]:
    """Yield the content with each bit of a part changed."""
    for place in part:
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            yield bytes(changed)


def outcome(path: Path) -> list[int] | str:
    try:
        return micros(path)
    except DataCorrupt as error:
        return f"corrupt: {error.path}"
    except UnsupportedFeature as error:  # the annotation of the timestamps is gone
        return f"corrupt: {path}" if f"({path})" in error.reason else error.reason


def test_each_bit_of_the_footer(tmp_path: Path) -> None:
    """Each ends in rows, or in an error that names the file."""
    path = int96(tmp_path / "f", {"a": NEAR})
    content = path.read_bytes()
    found = []
    for damaged in flips(content, range(footer_begin(content), len(content) - 4)):
        path.write_bytes(damaged)
        found.append(outcome(path))
    assert NEAR in found
    corrupt = f"corrupt: {path}"
    assert {rows for rows in found if isinstance(rows, str)} == {corrupt}


@pytest.mark.parametrize("changed", ["texts", "pages"])
def test_negative_sizes_are_unknown_ones(tmp_path: Path, changed: str) -> None:
    texts = [f"{row % 30}" * 50_000 for row in range(ROWS)]
    path = parquet(tmp_path / "f", pa.table({"a": texts}))
    size = pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size
    noted = zigzag(sum(map(len, texts)) if changed == "texts" else size)
    patched(path, (b"\x16" + noted, b"\x16" + MINUS_FIVE))
    batches = list(execute(task(path, pa.schema([("a", pa.string())]))))
    assert [value for batch in batches for value in batch.rows.column(0).to_pylist()] == texts
    assert max(batch.rows.column(0).get_total_buffer_size() for batch in batches) < 2 * BATCH_BYTES


def test_a_file_is_opened_anew_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of its columns and row groups have timestamps of 96 bits: each time costs a copy of the footer."""
    columns = {"a": FAR, "b": NEAR}
    path = int96(tmp_path / "f", columns, row_group_size=100)
    opened, read = [], pq.read_metadata

    def noted(source: pa.NativeFile) -> pq.FileMetaData:
        opened.append(source)
        return read(source)

    monkeypatch.setattr(pq, "read_metadata", noted)
    rows = [batch.rows for batch in execute(task(path, pa.schema([(name, KIND) for name in columns])))]
    for name, values in columns.items():
        assert [value for batch in rows for value in batch.column(name).cast(pa.int64()).to_pylist()] == values
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\xf1" + b"\xff" * 5 + b"\x7f", LIST),  # booleans
        (b"\xf3" + b"\xff" * 5 + b"\x7f", LIST),  # bytes
        (b"\xf7" + b"\xff" * 5 + b"\x7f", LIST),  # floating-point numbers
        (b"\x29\xf1\xff\xff\xff\xff\x7f\0", STRUCT),
    ],
)
def test_a_list_longer_than_the_data(data: bytes, kind: int) -> None:
    with pytest.raises(IndexError):
        skip(data, 0, kind)


def test_numbers_of_more_than_64_bits() -> None:
    assert number(b"\xff" * 9 + b"\1", 0) == (2**64 - 1, 10)
    for data in (b"\xff" * 9 + b"\2", b"\x80" * 10 + b"\0"):
        with pytest.raises(ValueError, match=r"\d"):
            number(data, 0)


def test_fields_by_number_and_type() -> None:
    assert offsets(b"\x15\2\6\2\4\0", 0) == ({1 << 4 | 5: 1, 1 << 4 | 6: 4}, 6)
    with pytest.raises(ValueError, match="1"):
        offsets(b"\x15\2\5\2\4\0", 0)


def test_the_elements_of_a_list() -> None:
    assert list_size(b"\x25\2\4", 0, I32) == (2, 1)
    assert list_size(b"\xf5\x10", 0, I32) == (16, 2)
    assert list_size(b"\0", 0, I32) == (0, 1)
    with pytest.raises(ValueError, match="38"):
        list_size(b"\x26\2\4", 0, I32)
