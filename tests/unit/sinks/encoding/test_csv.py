"""CSV, read back by Python's own reader."""

import csv
import io
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.errors import SinkRejected
from tailer_sinks.encoding.csv import CsvEncoder

TEXTS = st.lists(st.text(), min_size=1, max_size=5)


def encoded(table: pa.RecordBatch) -> str:
    return CsvEncoder("stdout", table.schema).lines(table).decode()


@given(TEXTS)
def test_texts_come_back(texts: list[str]) -> None:
    batch = pa.record_batch({"a,b": pa.array(texts), 'q"': pa.array(texts)})
    rows = list(csv.reader(io.StringIO(encoded(batch), newline="")))
    assert rows == [["a,b", 'q"'], *([text, text] for text in texts)]


def test_nulls_and_empty_texts_differ() -> None:
    batch = pa.record_batch({"a": pa.array([None, "", "null"]), "b": pa.array([1, None, 3])})
    assert encoded(batch) == 'a,b\n,1\n"",\nnull,3\n'


def test_nested_values_are_json() -> None:
    batch = pa.record_batch({"a": pa.array([{"x": [1, 2], "y": "z"}])})
    (_, (text,)) = csv.reader(io.StringIO(encoded(batch)))
    assert json.loads(text) == {"x": [1, 2], "y": "z"}


def test_the_heading_comes_once() -> None:
    batch = pa.record_batch({"a": pa.array([1])})
    encoder = CsvEncoder("stdout", batch.schema)
    assert [encoder.lines(batch) for _ in range(2)] == [b"a\n1\n", b"1\n"]


def test_a_column_without_a_text_is_named() -> None:
    with pytest.raises(SinkRejected, match="column v"):
        encoded(pa.record_batch({"v": pa.array([None], pa.month_day_nano_interval())}))
