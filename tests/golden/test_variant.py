"""Variants of other projects' writers. Expectations are our own: those of the collection lose digits."""

import json
import subprocess
import sys
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.variant import InvalidVariant, Variant, json_texts, unshred
from tests.support.tables.golden import golden

EXPECTED: Final = {
    "array_empty": "[]",
    "array_nested": '[{"id":1,"thing":{"names":["Contrarian","Spider"]}},null,'
    '{"id":2,"names":["Apple","Ray",null],"type":"if"}]',
    "array_primitive": "[2,1,5,9]",
    "long_string": '"This string is for sure and certainly longer than 64 bytes and it also includes several non ascii '
    'characters such as 🐢, 💖, ♥️, 🎣 and 🤦!!"',
    "object_empty": "{}",
    "object_nested": '{"id":1,"observation":{"location":"In the Volcano","time":"12:34:56","value":{"humidity":456,'
    '"temperature":123}},"species":{"name":"lava monster","population":6789}}',
    "object_primitive": '{"boolean_false_field":false,"boolean_true_field":true,"double_field":"1.23456789",'
    '"int_field":1,"null_field":null,"string_field":"Apache Parquet","timestamp_field":"2025-04-16T12:34:56.78"}',
    "primitive_binary": '"AxM33q2+78r+"',
    "primitive_boolean_false": "false",
    "primitive_boolean_true": "true",
    "primitive_date": '"2025-04-16"',
    "primitive_decimal16": '"12345678912345678.90"',
    "primitive_decimal4": '"12.34"',
    "primitive_decimal8": '"12345678.90"',
    "primitive_double": "1234567890.1234",
    "primitive_float": "1234568000.0",
    "primitive_int16": "1234",
    "primitive_int32": "123456",
    "primitive_int64": "1234567890123456789",
    "primitive_int8": "42",
    "primitive_null": "null",
    "primitive_string": '"This string is longer than 64 bytes and therefore does not fit in a short_string and it also '
    'includes several non ascii characters such as 🐢, 💖, ♥️, 🎣 and 🤦!!"',
    "primitive_time": '"12:33:54.123456"',
    "primitive_timestamp": '"2025-04-16T16:34:56.780000Z"',
    "primitive_timestamp_nanos": '"2024-11-07T12:33:54.123456789Z"',
    "primitive_timestampntz": '"2025-04-16T12:34:56.780000"',
    "primitive_timestampntz_nanos": '"2024-11-07T12:33:54.123456789"',
    "primitive_uuid": '"f24f9b64-81fa-49d1-b74e-8c09a6e31c56"',
    "short_string": '"Less than 64 bytes (❤️ with utf8)"',
}
# Cases that must not be read, and those that may be, with what we give.
REFUSED: Final = {40, 42, 43, 87, 125, 127, 128, 137}
LENIENT: Final = {84: ['{"a":34,"b":"iceberg"}']}


def test_primitives() -> None:
    found = {}
    for path in sorted(golden("variant", "primitives").glob("*.metadata")):
        variant = Variant(path.read_bytes(), path.with_suffix(".value").read_bytes())
        found[path.stem] = variant.to_json()
    assert found == EXPECTED


def cases() -> list[dict[str, Any]]:
    """Return the cases whose file is in the collection."""
    listed = json.loads(golden("variant", "shredded", "cases.json").read_text())
    return [case for case in listed if "parquet_file" in case]


def expected(case: dict[str, Any]) -> list[str | None]:
    """Return the JSON of the unshredded values of a case."""
    texts: list[str | None] = []
    for name in case.get("variant_files") or [case["variant_file"]]:
        if name is None:
            texts.append(None)
            continue
        data = golden("variant", "shredded", name).read_bytes()
        size = (data[0] >> 6) + 1
        names = int.from_bytes(data[1 : 1 + size], "little")
        last = 1 + size * (names + 1)
        end = last + size + int.from_bytes(data[last : last + size], "little")
        texts.append(Variant(data[:end], data[end:]).to_json())
    return texts


def test_shredded() -> None:
    read = 0
    for case in cases():
        number = case["case_number"]
        column = pq.read_table(golden("variant", "shredded", case["parquet_file"]))["var"]
        if number in REFUSED:
            with pytest.raises(InvalidVariant):
                json_texts(column)
        else:
            plain = pa.chunked_array(map(unshred, column.chunks))
            assert json_texts(column) == json_texts(plain) == (LENIENT.get(number) or expected(case)), case["test"]
            read += 1
    assert read >= 96


def test_the_command_prints_a_line_for_each_value() -> None:
    path = golden("variant", "shredded", "case-083.parquet")
    done = subprocess.run(
        [sys.executable, "-m", "tailer.variant", path, "var"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == ["", *filter(None, json_texts(pq.read_table(path)["var"]))]
