"""Partition values: each text is what Spark reads for it, or is refused with an error that names it."""

from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.changelog.equal_rows.compared_columns import by_partition
from tailer.errors import ChangesUnavailable
from tailer.events import type_text
from tailer.files.partition_values import partition_scalar
from tailer.schema.text_types import with_chars
from tests.support.cases import cases
from tests.support.oracle.partition_texts import spark_answers
from tests.support.oracle.rows import ATOMS
from tests.support.tables.log_files import task

TEXT: Final = pa.string()
UTC_MICROS: Final = pa.timestamp("us", tz="UTC")


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@cases(
    ("text", "kind", "value"),
    [
        (None, pa.int64(), None),
        ("", pa.string(), ""),
        ("", pa.binary(), b""),
        ("", pa.int64(), None),
        ("", pa.timestamp("us"), None),
        (" ", pa.string(), " "),
        ("NULL", pa.string(), "NULL"),
        ("-9223372036854775808", pa.int64(), -(2**63)),
        ("-128", pa.int8(), -128),
        ("true", pa.bool_(), True),
        ("false", pa.bool_(), False),
        ("1.5E-3", pa.float64(), 0.0015),
        ("-Infinity", pa.float32(), float("-inf")),
        ("1.5", pa.decimal128(10, 2), Decimal("1.50")),
        ("-" + "9" * 38, pa.decimal128(38, 0), Decimal("-" + "9" * 38)),
        ("1E+3", pa.decimal128(10, 0), Decimal(1000)),
        ("1969-12-31", pa.date32(), date(1969, 12, 31)),
        ("0001-01-01", pa.date32(), date(1, 1, 1)),
        ("1969-12-31 23:59:59.999999", UTC_MICROS, moment("1969-12-31T23:59:59.999999")),
        ("2020-01-01 00:00:00", UTC_MICROS, moment("2020-01-01T00:00:00")),
        ("2020-01-01 00:00:00.5", UTC_MICROS, moment("2020-01-01T00:00:00.500000")),
        ("1970-01-01T00:00:00.123456Z", UTC_MICROS, moment("1970-01-01T00:00:00.123456")),
        ("2020-01-01T02:00:00+02:00", UTC_MICROS, moment("2020-01-01T00:00:00")),
        ("2020-01-01T02:00:00", pa.timestamp("us"), moment("2020-01-01T02:00:00").replace(tzinfo=None)),
        ("\x01\x02", pa.binary(), b"\x01\x02"),
        # The text forms that old files of a widened column have.
        ("-128", pa.int64(), -128),
        ("-2147483648", pa.float64(), -(2.0**31)),
        ("-128", pa.decimal128(38, 28), Decimal(-128)),
        ("9223372036854775807", pa.decimal128(20, 0), Decimal(2**63 - 1)),
        ("1.25", pa.decimal128(38, 18), Decimal("1.25")),
        ("0001-01-01", pa.timestamp("us"), moment("0001-01-01").replace(tzinfo=None)),
        ("9999-12-31", pa.timestamp("us"), moment("9999-12-31").replace(tzinfo=None)),
    ],
)
def test_partition_values(text: str | None, kind: pa.DataType, value: Any) -> None:
    scalar = partition_scalar(text, pa.field("p", kind), "t", 3, "f")
    assert (scalar.type, scalar.as_py()) == (kind, value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x", pa.int64()),
        ("x", pa.null()),
        ("[1]", pa.list_(pa.int64())),
        ("12:34", UTC_MICROS),  # today in Spark
    ],
)
def test_partition_values_of_another_type(text: str, kind: pa.DataType) -> None:
    with pytest.raises(ChangesUnavailable, match="partition value") as caught:
        partition_scalar(text, pa.field("p", kind), "t", 3, "folder/f")
    for fact in ("column p", repr(text), "the log entry of folder/f", type_text(kind)):
        assert fact in str(caught.value)
    assert "Restore" not in caught.value.hint


ANSWERS: Final = spark_answers()
TYPES: Final = {**ATOMS, "decimal(10,2)": pa.decimal128(10, 2), "decimal(38,0)": pa.decimal128(38, 0)}
# Spark's cast takes these and loses a fraction, digits or a time of day, or makes infinity of a number.
LOSSY: Final[dict[str, set[str]]] = {
    "byte": {"7.5"},
    "short": {"7.5"},
    "integer": {"7.9", "-7.9", ".7"},
    "long": {"7.5"},
    "float": {"1e400", "3.4028236e38"},
    "double": {"1e400", "-1e400"},
    "decimal(10,2)": {"1.555", "-1.555", "1.545", "0.001", "1e-3", "1E-99", f"0.{'0' * 60}1"},
    "decimal(38,0)": {"7.5", f"1.5{'0' * 40}", f"15{'0' * 45}e-46", f"0.{'0' * 60}1"},
    "date": {"2024-02-29 12:00:00", "2024-02-29T12:00:00Z"},
    "timestamp": {"2024-02-29 12:34:56.1234567", "2024-02-29 12:34:56.123456789123"},
    "timestamp_ntz": {"2024-02-29 12:34:56.1234567"},
}
# It takes these, too, and nobody writes them; a named zone is what a database of zones says.
ODD: Final[dict[str, set[str]]] = {
    "integer": {"7\x7f"},
    "float": {"-NaN", "0x1p3"},
    "double": {"-NaN", "+NaN", "0x1p3", "0x1.8p1", "0x1p-1"},
    "decimal(10,2)": {"\uff11"},
    "date": {"2024-02-29T", "2024-02-29\x7f"},
    "timestamp": {
        *(f"2024-02-29 12:34:56{zone}" for zone in (" CET", " Europe/Berlin", " GMT+1", "+01:00:30", "+01:5", "  Z")),
        "2024-02-29 12:34:56\x7f",
    },
    "timestamp_ntz": {"2024-02-29 12:34:56 Europe/Berlin"},
}


def value_of(scalar: pa.Scalar) -> Any:
    """Return a value as Spark's answers have it."""
    if pa.types.is_temporal(scalar.type):
        return scalar.value
    value = scalar.as_py()
    if isinstance(value, bytes):
        return value.hex().upper()
    return str(value) if isinstance(value, Decimal) else value


@cases("name", TYPES)
def test_texts_are_what_spark_reads(name: str) -> None:
    """Each text that Spark's cast takes is its value, or refused by name; no other is taken."""
    refused = {text for text, answer in ANSWERS[name].items() if answer is None and text}
    refused |= LOSSY.get(name, set()) | ODD.get(name, set())
    for text, answer in ANSWERS[name].items():
        found: Any = ChangesUnavailable
        with suppress(ChangesUnavailable):
            found = value_of(partition_scalar(text, pa.field("p", TYPES[name]), "t", 3, "f"))
        assert (text, repr(found)) == (text, repr(ChangesUnavailable if text in refused else answer))


NUMBERS = (pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(10, 2), pa.decimal128(38, 38))
OTHERS = (pa.bool_(), pa.string(), pa.binary(), pa.date32(), UTC_MICROS, pa.timestamp("us"), pa.null())
KINDS = st.sampled_from([*NUMBERS, *OTHERS, pa.struct([("a", pa.int64())])])


@given(st.text(max_size=30) | st.text(alphabet="0123456789-+.:eETZ ", max_size=30), KINDS)
def test_any_partition_value_is_of_its_type_or_refused(text: str, kind: pa.DataType) -> None:
    with suppress(ChangesUnavailable):
        assert partition_scalar(text, pa.field("p", kind), "t", 3, "f").type == kind


@given(st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999))
def test_a_timestamp_written_as_the_protocol_has_it_comes_back(micros: int) -> None:
    at = pa.scalar(micros, pa.timestamp("us")).cast(pa.string()).as_py()
    assert partition_scalar(at, pa.field("p", UTC_MICROS), "t", 3, "f").value == micros
    assert partition_scalar(at.replace(" ", "T") + "Z", pa.field("p", UTC_MICROS), "t", 3, "f").value == micros


def test_a_char_is_padded_by_characters() -> None:
    column = with_chars(pa.field("p", TEXT), "char(3)")
    texts = ["", "a", "abc", "abcd", "é", "\U0001f600", " a", None]
    found = [partition_scalar(text, column, "t", 3, "f").as_py() for text in texts]
    assert found == ["   ", "a  ", "abc", "abcd", "é  ", "\U0001f600  ", " a ", None]


def test_a_value_of_several_texts_is_one_partition(tmp_path: Path) -> None:
    """Spark writes the padded text of a CHAR in an UPDATE. Empty text and null are two partitions."""
    char, text = with_chars(pa.field("p", TEXT), "char(3)"), pa.field("p", TEXT)
    for column, texts, groups in (
        (char, ["a", "a  ", "", "   ", None, "b"], [[0, 1], [2, 3], [4], [5]]),
        (text, ["a", "a  ", "", None, ""], [[0], [1], [2, 4], [3]]),
        (pa.field("p", pa.int32()), ["7", " 7 ", "7.0", "", None], [[0, 1, 2], [3, 4]]),
    ):
        schema = pa.schema([column])
        tasks = [task(tmp_path, schema, partition_values=[("p", each)]) for each in texts]
        assert by_partition(tasks, [schema] * len(tasks)) == groups
    schemas = [pa.schema([char]), pa.schema([text])]
    tasks = [task(tmp_path, schema, partition_values=[("p", "a")]) for schema in schemas]
    assert by_partition(tasks, schemas) == [[0], [1]]
