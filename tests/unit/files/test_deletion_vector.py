"""Deletion vectors: every storage type gives its rows, every contradiction is named, no bytes crash the process."""

import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from tailer.errors import DataCorrupt
from tailer.files import deletion_vector
from tailer.files.deletion_vector import encode, load, z85_decode
from tailer.formats.delta.changes import resolve
from tailer.formats.delta.log.actions import DeletionVector
from tailer.plan import ChangeTask, DeletionVectorRef
from tests.support.cases import cases
from tests.support.tables.log_files import PORTABLE_MAGIC, marked, task, vector_data, vector_file, z85

NATIVE_MAGIC = 1681511376
# One vector, on disk: the version byte, then size, data and CRC-32.
FILE = bytes.fromhex(
    "01 00000024 d1d33964 0100000000000000 00000000 3a300000 01000000 0000 0100 10000000 0000 0900 2a671846"
)


@pytest.fixture
def of(tmp_path: Path) -> ChangeTask:
    return task(tmp_path / "file.parquet", schema=None)


def read(uri: str, offset: int, length: int) -> bytes:
    return Path(uri).read_bytes()[offset : offset + length]


def inline(text: str, size: int, cardinality: int) -> DeletionVectorRef:
    return DeletionVectorRef(None, text, None, size, cardinality)


def descriptor(kind: str, text: str, offset: int | None = None, size: int = 36, cardinality: int = 2) -> DeletionVector:
    return DeletionVector(kind, text, size, cardinality, offset)


def absolute(path: str) -> str:
    return f"absolute {path}"


@pytest.mark.parametrize("prefix", ["..", "a/../..", "a\0"])
def test_a_prefix_stays_in_the_table(prefix: str) -> None:
    with pytest.raises(ValueError, match="not a folder of the table"):
        resolve(descriptor("u", f"{prefix}^-aqEH.-t@S}}K{{vb[*k^"), "/lake", absolute)


@pytest.mark.parametrize(
    ("text", "size", "rows"),
    [
        ("^Bg9^0rr910000000000iXQKl0rr91000935c8Xg000311onP9", 40, [0, 1, 4, 5]),
        ("^Bg9^0rr910000000000iXQKl0rr91000315c8Xg000f5", 36, [0, 5]),
        ("^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", 44, [3, 4, 7, 11, 18, 29]),
        # Padded as by the Rust crate z85: two missing bytes in the last block are marked by two '#'.
        ("^Bg9^0rr910000000000iXQKl0rr91000005c8Xg##093", 34, [3]),
    ],
)
def test_inline_vectors_of_other_writers(of: ChangeTask, text: str, size: int, rows: list[int]) -> None:
    assert list(load(inline(text, size, len(rows)), of, read)) == rows


@given(st.sets(st.integers(0, 200) | st.integers(0, 2**40)))
def test_our_own_inline_vectors(rows: set[int]) -> None:
    vector = deletion_vector.inline(BitMap64(rows))
    assert set(load(vector, task(Path("file.parquet"), schema=None), read)) == rows
    assert vector.cardinality == len(rows)
    assert vector == inline(z85(vector_data(rows)), len(vector_data(rows)), len(rows))


@given(st.binary(max_size=20))
def test_z85_with_zeros_for_padding(data: bytes) -> None:
    assert z85_decode(z85(data), len(data)) == data


@given(st.binary(min_size=1, max_size=20))
def test_z85_with_counted_padding(data: bytes) -> None:
    padding = -len(data) % 4
    last = z85(b"\0" * padding + data[-(4 - padding) :])
    text = z85(data[: len(data) - (4 - padding)]) + "#" * padding + last[padding:]
    assert z85_decode(text, len(data)) == data


@cases(
    ("text", "size"),
    [
        ("0000", 3),
        ("000000", 4),
        ("", 1),
        ("00000", 5),
        ("0000000000", 4),
        ("0000\N{LATIN SMALL LETTER E WITH ACUTE}", 4),
        ("0000 ", 4),
        ("%nSc1", 4),
        ("#0000" * 2, 8),
        ("#####", 0),
        ("####0", 0),
        ("###33", 1),
        ("##7@@", 3),
    ],
)
def test_invalid_z85(text: str, size: int) -> None:
    with pytest.raises(ValueError, match="Z85"):
        z85_decode(text, size)


def test_the_largest_block() -> None:
    assert z85_decode("%nSc0", 4) == b"\xff" * 4


def portable(*bitmaps: tuple[int, Iterable[int]]) -> bytes:
    parts = [struct.pack("<I", key) + BitMap(rows).serialize() for key, rows in bitmaps]
    return struct.pack("<iQ", PORTABLE_MAGIC, len(parts)) + b"".join(parts)


def native(*bitmaps: Iterable[int]) -> bytes:
    parts = [BitMap(rows).serialize() for rows in bitmaps]
    return struct.pack("<ii", NATIVE_MAGIC, len(parts)) + b"".join(struct.pack("<i", len(b)) + b for b in parts)


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (portable(), []),
        (portable((0, [])), []),
        (portable((0, []), (1, [5])), [2**32 + 5]),
        (portable((0, [1]), (1, []), (2, [5])), [1, 2**33 + 5]),
        (native(), []),
        (native([3, 9]), [3, 9]),
        (native([], [0, 7]), [2**32, 2**32 + 7]),
    ],
)
def test_layouts(of: ChangeTask, data: bytes, rows: list[int]) -> None:
    assert list(load(inline(z85(data), len(data), len(rows)), of, read)) == rows


BROKEN = {
    "empty": b"",
    "magic cut": b"\xd1\xd3\x39",
    "magic only": struct.pack("<i", PORTABLE_MAGIC),
    "count cut": struct.pack("<iI", PORTABLE_MAGIC, 1),
    "count beyond": struct.pack("<iQ", PORTABLE_MAGIC, 2**63),
    "bitmap cut": vector_data([1, 2, 3])[:-3],
    "keys descend": portable((1, [1]), (0, [2])),
    "a key twice": portable((0, [1]), (0, [2])),
    "big-endian magic": struct.pack(">i", NATIVE_MAGIC) + b"\0" * 8,
    "other magic": struct.pack("<i", 7) + b"\0" * 8,
    "native count negative": struct.pack("<ii", NATIVE_MAGIC, -1),
    "native count beyond": struct.pack("<ii", NATIVE_MAGIC, 2**31 - 1),
    "native size negative": struct.pack("<iii", NATIVE_MAGIC, 1, -4),
    "native size beyond": struct.pack("<iii", NATIVE_MAGIC, 1, 400),
    "native without count": struct.pack("<i", NATIVE_MAGIC),
}


@pytest.mark.parametrize("name", BROKEN)
def test_bytes_that_are_no_vector(of: ChangeTask, name: str) -> None:
    data = BROKEN[name]
    with pytest.raises(DataCorrupt, match=r"deletion vector of .*file\.parquet") as caught:
        load(inline(z85(data), len(data), 1), of, read)
    assert caught.value.version == 3


@pytest.mark.parametrize("cardinality", [0, 1, 3, 2**62])
def test_another_count_than_the_log_says(of: ChangeTask, cardinality: int) -> None:
    data = vector_data([1, 2])
    with pytest.raises(DataCorrupt, match="holds 2 positions"):
        load(inline(z85(data), len(data), cardinality), of, read)


def test_a_vector_on_disk(tmp_path: Path, of: ChangeTask) -> None:
    ref = resolve(descriptor("u", "vBn[lx{q8@P<9BNH/isA", 1), str(tmp_path), absolute)
    assert ref.uri == f"{tmp_path}/deletion_vector_61d16c75-6994-46b7-a15b-8b538852e50e.bin"
    Path(ref.uri).write_bytes(FILE)
    assert list(load(ref, of, read)) == [0, 9]
    # Without an offset the vector is at the beginning, after the version byte.
    assert list(load(DeletionVectorRef(ref.uri, None, None, 36, 2), of, read)) == [0, 9]


def test_several_vectors_in_one_file(tmp_path: Path, of: ChangeTask) -> None:
    rows = [[1], [0, 2**33], list(range(70_000))]
    for expected, action in zip(rows, vector_file(tmp_path, *rows), strict=True):
        ref = resolve(
            DeletionVector("u", action["pathOrInlineDv"], action["sizeInBytes"], len(expected), action["offset"]),
            str(tmp_path),
            absolute,
        )
        assert list(load(ref, of, read)) == expected


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (b"", "version missing"),
        (b"\x02" + FILE[1:], "version 02"),
        (FILE[:-1], "the file ends before"),
        (FILE[:1], "the file ends before"),
        (FILE[:4] + b"\x25" + FILE[5:], "the file says 37 bytes, the log 36"),
        (FILE[:1] + b"\xff\xff\xff\xff" + FILE[5:], "the file says -1 bytes"),
        (FILE[:-5] + b"\x08" + FILE[-4:], "CRC-32"),
        (FILE[:-1] + b"\x47", "CRC-32"),
    ],
)
def test_a_broken_file(tmp_path: Path, of: ChangeTask, changed: bytes, reason: str) -> None:
    (tmp_path / "v.bin").write_bytes(changed)
    with pytest.raises(DataCorrupt, match=reason) as caught:
        load(DeletionVectorRef(str(tmp_path / "v.bin"), None, 1, 36, 2), of, read)
    assert caught.value.path == str(tmp_path / "v.bin")


def test_a_valid_frame_around_nonsense(tmp_path: Path, of: ChangeTask) -> None:
    data = b"nonsense"
    frame = struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    (tmp_path / "v.bin").write_bytes(b"\x01" + frame)
    with pytest.raises(DataCorrupt, match="magic number"):
        load(DeletionVectorRef(str(tmp_path / "v.bin"), None, 1, len(data), 2), of, read)


@pytest.mark.parametrize(
    ("vector", "uri"),
    [
        (descriptor("u", "ab^-aqEH.-t@S}K{vb[*k^"), "/t/ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"),
        (descriptor("u", "^-aqEH.-t@S}K{vb[*k^"), "/t/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"),
        (descriptor("p", "file:/x%20y/v.bin"), "absolute file:/x%20y/v.bin"),
        (descriptor("i", "00000"), None),
    ],
)
def test_location_of_a_vector(vector: DeletionVector, uri: str | None) -> None:
    assert resolve(vector, "/t", absolute).uri == uri


@pytest.mark.parametrize("vector", [descriptor("u", "short"), descriptor("u", "é" * 20)])
def test_a_descriptor_of_no_known_kind(vector: DeletionVector) -> None:
    with pytest.raises(ValueError, match="Z85"):
        resolve(vector, "/t", absolute)


@given(st.sets(st.integers(0, 200_000), max_size=50) | st.sets(st.integers(0, 2**63 - 1), max_size=5))
def test_marked_rows_are_read_back(rows: set[int]) -> None:
    assert load(marked(rows), task("f", schema=None), read) == BitMap64(rows)


def test_a_known_vector_is_written_as_it_is_read() -> None:
    assert encode(BitMap64([0, 9])) == FILE[1:]


@given(st.lists(st.sets(st.integers(0, 200_000), max_size=50) | st.sets(st.integers(0, 2**63 - 1)), max_size=4))
def test_encoded_vectors_are_read_back(several: list[set[int]]) -> None:
    """One after another in a file, which begins with a version byte."""
    content, refs = b"\x01", []
    for rows in several:
        framed = encode(BitMap64(rows))
        refs.append(DeletionVectorRef("v", None, len(content), len(framed) - 8, len(rows)))
        content += framed
    for rows, ref in zip(several, refs, strict=True):
        found = load(ref, task("f", schema=None), lambda _, offset, length: content[offset : offset + length])
        assert found == BitMap64(rows)


@given(st.data())
def test_any_bytes_are_a_vector_or_corrupt(data: st.DataObject) -> None:
    """The checksum finds a changed byte; without a checksum the worst result is an error."""
    wholes = [portable((0, range(0, 400, 2))), portable((0, [1]), (3, [2, 9])), native([1], [2])]
    start = data.draw(st.sampled_from(wholes))
    changed = bytearray(start)
    for _ in range(data.draw(st.integers(1, 5))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    changed = changed[: data.draw(st.integers(0, len(changed)))]
    with suppress(DataCorrupt):
        load(inline(z85(bytes(changed)), len(changed), 2), task("f", schema=None), read)


@given(st.text(max_size=60), st.integers(0, 60))
def test_any_text_is_z85_or_not(text: str, size: int) -> None:
    with suppress(ValueError):
        assert len(z85_decode(text, size)) == size
