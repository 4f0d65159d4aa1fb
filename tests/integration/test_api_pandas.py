"""`tailer.changes(...).to_pandas()`, with pandas installed."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import tailer


@pytest.mark.spark_connect
def test_pandas(tmp_path: Path) -> None:
    path = str(tmp_path / "orders")
    write_deltalake(path, pa.table({"id": [1, None]}))
    frame = tailer.changes(path).to_pandas()
    assert list(frame.columns) == ["id", "_change_type", "_commit_version", "_commit_timestamp"]
    assert str(frame["id"].dtype) == "int64[pyarrow]"
    assert frame["id"].isna().tolist() == [False, True]
