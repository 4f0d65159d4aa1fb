"""Tests for `tailer.formats.lance.transaction`."""

import pytest

from tailer.formats.lance.protobuf import InvalidMessage
from tailer.formats.lance.transaction import OPERATIONS, Transaction, parse_transaction
from tests.support.tables.lance_files import field

HEAD = field(1, 6) + field(2, "0b2a")


@pytest.mark.parametrize(("number", "name"), OPERATIONS.items())
def test_operations_by_name(number: int, name: str) -> None:
    assert parse_transaction(HEAD + field(number, b"\xff not looked into")) == Transaction(6, "0b2a", name)


@pytest.mark.parametrize("number", [99, 115, 116, 5000])
def test_an_unknown_operation_has_no_name(number: int) -> None:
    assert parse_transaction(HEAD + field(number, b"")).operation is None


def test_a_missing_operation_has_no_name() -> None:
    assert parse_transaction(HEAD) == Transaction(6, "0b2a", None)
    assert parse_transaction(b"") == Transaction(0, "", None)


def test_two_operations_have_no_name() -> None:
    assert parse_transaction(HEAD + field(100, b"") + field(104, b"")).operation is None


def test_an_operation_beside_an_unknown_one_has_no_name() -> None:
    assert parse_transaction(HEAD + field(104, b"") + field(116, b"")).operation is None


def test_malformed_bytes_are_refused() -> None:
    with pytest.raises(InvalidMessage):
        parse_transaction(HEAD + b"\x0a")
