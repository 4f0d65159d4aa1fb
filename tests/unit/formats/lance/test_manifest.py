"""Tests for `tailer.formats.lance.manifest` and `tailer.formats.lance.fragment`."""

import struct

import pytest

from tailer.errors import LogCorrupt
from tailer.formats.lance.fragment import DataFile, DeletionFile, DeletionKind, Fragment
from tailer.formats.lance.manifest import Field, parse_manifest
from tailer.formats.lance.protobuf import InvalidMessage
from tests.support.cases import cases
from tests.support.tables.lance_files import FOOTER, field, manifest_file

URI = "s3://bucket/t/_versions/3.manifest"
TRANSACTION = field(1, 2) + field(2, "some-uuid") + field(101, b"")
SECTION = struct.pack("<I", len(TRANSACTION)) + TRANSACTION
INDEXES = b"indexes" * 1000


def small(*fields: bytes) -> bytes:
    """Return the message of a manifest of version 3, with some more fields."""
    return field(3, 3) + b"".join(fields)


def test_every_field() -> None:
    nested = field(2, "x") + field(3, 1) + field(5, "int32") + field(10, field(1, "k") + field(2, b"\xff"))
    column = field(2, "s") + field(4, -1) + field(5, "struct") + field(6, 1) + field(13, 2) + field(9, "ext")
    old = field(2, "d") + field(3, 2) + field(4, -1) + field(7, 3) + field(8, field(1, 40) + field(2, 5)) + field(12, 1)
    message = small(
        *(field(1, each) for each in (column, nested, old)),
        field(5, field(1, "meta") + field(2, b"\x00")),
        field(7, field(1, 1_700_000_000) + field(2, 123_456_789)),
        *(field(9, 3), field(10, 9), field(11, 0), field(12, "2-some-uuid.txn"), field(13, field(2, "14.0.2"))),
        *(field(14, 77), field(15, field(1, "lance") + field(2, "2.1"))),
        *(field(16, field(1, "a") + field(2, "b")), field(19, field(1, "c") + field(2, "d")), field(20, "side")),
        field(18, field(1, 4) + field(2, "tag") + field(3, 1) + field(4, "s3://other")),
        field(18, field(1, 5) + field(4, "s3://files")),
    )
    found = parse_manifest(manifest_file(message), URI)
    assert found.fields == (
        Field(0, -1, "s", "struct", True, {}, "ext", 2),
        Field(1, 0, "x", "int32", False, {"k": b"\xff"}, "", None),
        Field(2, -1, "d", "", False, {}, "", 0),
    )
    assert (found.version, found.timestamp_ns, found.timestamp_ms) == (3, 1_700_000_000_123_456_789, 1_700_000_000_123)
    assert (found.reader_feature_flags, found.writer_feature_flags, found.data_format) == (3, 9, "2.1")
    assert (found.transaction_file, found.transaction, found.writer) == ("2-some-uuid.txn", None, "14.0.2")
    assert (found.config, found.schema_metadata) == ({"a": "b"}, {"meta": b"\x00"})
    assert found.base_paths == {4: "s3://other", 5: "s3://files"}


def test_a_manifest_of_little_more_than_a_version() -> None:
    found = parse_manifest(manifest_file(small()), URI)
    assert (found.fields, found.fragments, found.base_paths) == ((), (), {})
    assert (found.timestamp_ns, found.data_format, found.writer, found.transaction) == (0, "", "", None)


def test_times_before_1970_are_rounded_down() -> None:
    message = small(field(7, field(1, -2) + field(2, 999_999_999)))
    found = parse_manifest(manifest_file(message), URI)
    assert (found.timestamp_ns, found.timestamp_ms) == (-1_000_000_001, -1001)


def test_every_field_of_a_fragment() -> None:
    file = field(1, "a.lance") + field(2, b"\x00\x01") + field(2, -2) + field(3, b"\x00") + field(4, 2) + field(5, 1)
    message = (
        *(field(1, 9), field(2, file + field(6, 100) + field(7, 0)), field(2, field(1, "old.lance"))),
        field(3, field(1, 1) + field(2, 5) + field(3, 2**63) + field(4, 6) + field(7, 4)),
        *(field(4, 50), field(6, field(1, "ids.bin") + field(2, 3) + field(3, 4)), field(9, b"made")),
        field(11, b"an overlay"),
    )
    (found,) = parse_manifest(manifest_file(small(field(2, b"".join(message)))), URI).fragments
    assert found == Fragment(
        id=9,
        files=(
            DataFile("a.lance", (0, 1, -2), (0,), 2, 100, 0),
            DataFile("old.lance", (), (), 0, None, None),
        ),
        deletion=DeletionFile(DeletionKind.BITMAP, 5, 2**63, 6, 4),
        overlays=(b"an overlay",),
        physical_rows=50,
        row_ids_are_apart=True,
    )
    assert found.deletion is not None
    assert found.deletion.path(found.id) == "_deletions/9-5-9223372036854775808.bin"
    assert DeletionFile(DeletionKind.ARROW, 1, 2, None, None).path(0) == "_deletions/0-1-2.arrow"


def test_unchanged_fragments_are_the_same_objects() -> None:
    files = [manifest_file(small(field(2, field(1, 4) + field(4, 2)), field(9, flags))) for flags in (0, 1)]
    first, second = (parse_manifest(each, URI).fragments[0] for each in files)
    assert first is second


COLUMNS = field(1, field(2, "a") + field(4, -1)) + field(1, field(2, "b") + field(3, 1) + field(4, -1))
TWO = field(2, field(1, 0)) + field(2, field(1, 1) + field(4, 300))
THIRD = field(2, field(1, 2) + field(5, b"i" * 200))


@cases(
    ("after", "is_shared"),
    [
        (COLUMNS + TWO + field(3, 4), True),
        (COLUMNS + TWO + THIRD + field(3, 4), True),
        (COLUMNS + TWO + field(3, 4) + THIRD, True),
        (COLUMNS + TWO + field(1, field(2, "c") + field(3, 2)) + field(3, 4), False),
        (COLUMNS + field(2, field(1, 1) + field(4, 300)) + field(3, 4), False),
        (COLUMNS + field(1, field(2, "c") + field(3, 2)) + TWO + field(3, 4), False),
        (COLUMNS + TWO[:-1] + b"\x00" + field(3, 4), False),
        (field(3, 4) + COLUMNS + TWO, False),
    ],
)
def test_what_a_manifest_has_of_the_one_before_is_not_read_again(after: bytes, is_shared: bool) -> None:
    before = parse_manifest(manifest_file(COLUMNS + TWO + field(3, 3)), URI)
    alone, found = parse_manifest(manifest_file(after), URI), parse_manifest(manifest_file(after), URI, before)
    assert found == alone
    assert (found.fields is before.fields) is is_shared
    later = after + field(12, "later.txn")
    assert parse_manifest(manifest_file(later), URI, found) == parse_manifest(manifest_file(later), URI)


@pytest.mark.parametrize("number", [21, 23])
def test_the_transaction_within_the_file(number: int) -> None:
    file = manifest_file(small(field(number, len(INDEXES))), INDEXES + SECTION)
    assert parse_manifest(file, URI).transaction == TRANSACTION


def test_todays_field_of_the_transaction_wins() -> None:
    file = manifest_file(small(field(21, 0), field(23, len(INDEXES))), INDEXES + SECTION)
    assert parse_manifest(file, URI).transaction == TRANSACTION


def test_two_fragments_with_one_id_are_refused() -> None:
    found = parse_manifest(manifest_file(small(*(field(2, field(1, at) + field(4, 7)) for at in (4, 5, 4)))), URI)
    with pytest.raises(LogCorrupt, match="two fragments have the id 4"):
        found.fragments_by_id("t")
    assert list(parse_manifest(manifest_file(small(field(2, field(1, 4)))), URI).fragments_by_id("t")) == [4]


@cases(
    ("data", "reason"),
    [
        (b"", "0 bytes are too short"),
        (manifest_file(small())[:-1], "it is no manifest, or not complete"),
        (FOOTER.pack(0, 0, 2, b"LANC"), "the manifest cannot begin at byte 0"),
        (manifest_file(small())[:-16] + FOOTER.pack(-1, 0, 2, b"LANC"), "cannot begin at byte -1"),
        (manifest_file(small())[:-16] + FOOTER.pack(2**62, 0, 2, b"LANC"), "cannot begin at byte"),
        (manifest_file(small())[:-16] + FOOTER.pack(0, 1, 0, b"LANC"), r"version 1\.0; only 0\.x is known"),
        (b"\xff\xff\xff\xff" + FOOTER.pack(0, 0, 2, b"LANC"), "a section has 4294967295 bytes"),
        (b"\0\0\0\0\0" + FOOTER.pack(0, 0, 2, b"LANC"), "the footer does not follow"),
        (manifest_file(b""), "it has no version"),
        (manifest_file(small(field(23, 500))), "a section begins at byte 500"),
        (manifest_file(small(field(2, field(2, b"")))), "a data file has no path"),
        (manifest_file(small(field(2, field(3, field(1, 2))))), "a deletion file has the type 2"),
        (manifest_file(small(field(2, field(5, b"") + field(6, b"")))), "exclude each other"),
        (manifest_file(small(field(1, b"\xff"))), "ends within a number"),
    ],
)
def test_what_is_no_manifest_is_refused_by_name(data: bytes, reason: str) -> None:
    with pytest.raises(LogCorrupt, match=reason) as caught:
        parse_manifest(data, URI)
    assert (caught.value.table, caught.value.path) == ("s3://bucket/t", "_versions/3.manifest")
    assert isinstance(caught.value.__cause__, InvalidMessage)
