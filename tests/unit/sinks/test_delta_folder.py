"""`TargetFolder` while another process creates the table."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from tailer.errors import SinkRejected
from tailer_sinks.delta.folder import TargetFolder


@pytest.fixture
def table(tmp_path: Path) -> str:
    write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
    return str(tmp_path / "t")


def missing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let delta-rs find no table so many times."""
    errors = iter([TableNotFoundError("no table")] * times)

    def opened(*arguments: Any, **options: Any) -> DeltaTable:
        for error in errors:
            raise error
        return DeltaTable(*arguments, **options)

    monkeypatch.setattr("tailer_sinks.delta.folder.DeltaTable", opened)


def test_a_table_that_is_created_while_it_is_opened(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look is before its first commit, the second one after it."""
    missing(monkeypatch, 1)
    found = TargetFolder("copy", table).open(None)
    assert found is not None
    assert found.version() == 0


def test_a_log_without_a_table_is_refused(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing(monkeypatch, 2)
    with pytest.raises(SinkRejected, match="no table"):
        TargetFolder("copy", table).open(None)


def test_there_is_no_table_in_an_empty_folder(tmp_path: Path) -> None:
    assert TargetFolder("copy", str(tmp_path)).open(None) is None
