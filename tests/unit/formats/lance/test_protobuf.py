"""Tests for `tailer.formats.lance.protobuf`."""

import pytest

from tailer.formats.lance.protobuf import InvalidMessage, Message
from tests.support.tables.lance_files import field, varint

LARGEST = 2**64 - 1


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**32, 2**63, LARGEST])
def test_numbers_of_every_length(number: int) -> None:
    assert Message(field(1, number)).number(1) == number


@pytest.mark.parametrize("number", [0, -1, -2, 2**31 - 1, -(2**31)])
def test_negative_numbers_are_twos_complement_of_64_bits(number: int) -> None:
    assert Message(field(3, number)).signed(3) == number


def test_packed_and_separate_numbers_are_the_same() -> None:
    packed = Message(field(2, varint(3) + varint(LARGEST) + varint(300)))
    separate = Message(field(2, 3) + field(2, -1) + field(2, 300))
    assert packed.all_signed(2) == separate.all_signed(2) == (3, -1, 300)


def test_missing_fields_have_the_defaults_of_proto3() -> None:
    message = Message(b"")
    assert (message.number(1), message.signed(1), message.flag(1), message.text(1), message.data(1)) == (
        0,
        0,
        0,
        "",
        b"",
    )
    assert (message.optional_number(1), message.optional_text(1), message.optional_data(1)) == (None, None, None)
    assert message.optional_message(1) is None
    assert (message.all_signed(1), list(message.messages(1)), message.text_by_key(1)) == ((), [], {})


def test_an_optional_field_may_hold_the_default() -> None:
    assert Message(field(1, 0)).optional_number(1) == 0
    assert Message(field(1, "")).optional_text(1) == ""


def test_the_last_of_several_values_counts() -> None:
    assert Message(field(1, 3) + field(1, 5)).number(1) == 5
    assert Message(field(1, "a") + field(1, "b")).text(1) == "b"


def test_several_occurrences_of_a_message_are_merged() -> None:
    merged = Message(field(1, field(1, 3)) + field(1, field(2, 4))).optional_message(1)
    assert merged is not None
    assert (merged.number(1), merged.number(2)) == (3, 4)


def test_maps_may_lack_key_or_value() -> None:
    entries = [field(1, "k") + field(2, "v"), field(2, "no key"), field(1, "no value")]
    message = Message(b"".join(field(5, each) for each in entries))
    assert message.text_by_key(5) == {"k": "v", "": "no key", "no value": ""}
    assert message.data_by_key(5) == {"k": b"v", "": b"no key", "no value": b""}


def test_unknown_fields_of_every_wire_type_are_skipped() -> None:
    unknown = field(900, 1) + field(901, b"\xff") + varint(902 << 3 | 1) + bytes(8) + varint(903 << 3 | 5) + bytes(4)
    assert Message(unknown + field(1, 7)).number(1) == 7


def test_one_of_several_fields() -> None:
    assert Message(field(5, b"x")).one_of(5, 6) == 5
    assert Message(b"").one_of(5, 6) is None
    with pytest.raises(InvalidMessage, match="fields 5 and 6 exclude each other"):
        Message(field(5, b"x") + field(6, b"x")).one_of(5, 6)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x08", "ends within a number"),
        (b"\x08\x80", "ends within a number"),
        (b"\x08" + b"\x80" * 10 + b"\x01", "more than 10 bytes"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (b"\x0a\x05ab", "field 1 has 5 bytes, 3 more than there are"),
        (b"\x0a" + varint(2**62), "more than there are"),
        (b"\x09\x00", "field 1 has 8 bytes, 7 more than there are"),
        (b"\x0b", "field 1 has the wire type 3"),
        (b"\x0f", "field 1 has the wire type 7"),
        (b"\x00\x00", "0 is not the number of a field"),
        (varint(2**29 << 3) + b"\x00", "is not the number of a field"),
    ],
)
def test_malformed_bytes_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        Message(data)


def test_values_of_another_type_are_refused() -> None:
    message = Message(field(1, 2**40) + field(2, b"\xff") + field(3, -(2**40)))
    with pytest.raises(InvalidMessage, match="holds a number, not bytes"):
        message.data(1)
    with pytest.raises(InvalidMessage, match="holds bytes, not a number"):
        message.number(2)
    with pytest.raises(InvalidMessage, match="not UTF-8"):
        message.text(2)
    with pytest.raises(InvalidMessage, match="does not fit into 32 bits"):
        message.number(1, 32)
    with pytest.raises(InvalidMessage, match="does not fit into 1 bits"):
        message.flag(1)
    with pytest.raises(InvalidMessage, match="does not fit into 32 bits"):
        message.signed(3)
