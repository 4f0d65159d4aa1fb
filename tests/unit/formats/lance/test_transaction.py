"""Tests for `tailer.formats.lance.history`."""

import pytest

from tailer.formats.lance.history import OPERATIONS, parse_operation
from tailer.formats.lance.protobuf import InvalidMessage
from tests.support.tables.lance_files import field

HEAD = field(1, 6) + field(2, "0b2a")


def test_operations_by_name() -> None:
    for number, name in OPERATIONS.items():
        assert parse_operation(HEAD + field(number, b"\xff not looked into")) == name


def test_an_operation_that_is_unknown_missing_or_not_alone_has_no_name() -> None:
    for number in (99, 115, 116, 5000):
        assert parse_operation(HEAD + field(number, b"")) is None
    assert parse_operation(HEAD) is None
    assert parse_operation(b"") is None
    for other in (100, 116):
        assert parse_operation(HEAD + field(104, b"") + field(other, b"")) is None


def test_malformed_bytes_are_refused() -> None:
    with pytest.raises(InvalidMessage):
        parse_operation(HEAD + b"\x0a")
