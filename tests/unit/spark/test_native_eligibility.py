"""Files that Spark's own reader may read: it would give a CHAR as it is stored."""

from pathlib import Path

import pyarrow as pa

from tailer.read.data_files import LOCAL
from tailer.schema.text_types import with_chars
from tailer.spark.native.native_eligibility import ExecutedTask, NativeTask, choose_reader
from tests.support.tables.log_files import parquet, task


def test_a_char_in_a_file_is_left_to_execute(tmp_path: Path) -> None:
    path = parquet(tmp_path / "f", pa.table({"a": [{"x": "1"}], "b": ["2"]}))
    struct, text = pa.field("a", pa.struct([("x", pa.string())])), pa.field("b", pa.string())
    noted = with_chars(struct, "struct<x:char(3)>")
    found = choose_reader(task(path, pa.schema([noted, text])), LOCAL)
    assert isinstance(found, ExecutedTask)
    assert "CHAR" in found.reason
    given = with_chars(pa.field("p", pa.string()), "char(3)")
    for schema in ([struct, with_chars(text, "varchar(3)")], [text, given]):
        assert isinstance(choose_reader(task(path, pa.schema(schema), partition_values=[("p", "")]), LOCAL), NativeTask)
