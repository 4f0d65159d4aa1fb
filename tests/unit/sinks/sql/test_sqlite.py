"""SQLite as a database of the `sql` sink: files that are no databases."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tailer.errors import SinkRejected, SinkUnavailable
from tailer_sinks.sql.databases.sqlite import Sqlite


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_text("not a database" * 1000)
    with pytest.raises(SinkRejected, match="file is not a database"):
        Sqlite("sql", path, 1.0).connect()


def test_a_first_page_that_is_not_written_whole_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a)")
    whole = path.read_bytes()
    path.write_bytes(whole[:16] + bytes(len(whole) - 16))
    with pytest.raises(SinkUnavailable, match=r"x\.db is not written whole"):
        Sqlite("sql", path, 1.0).connect()
    path.write_bytes(whole)
    with closing(Sqlite("sql", path, 1.0).connect()) as opened:
        assert opened.query("SELECT count(*) FROM t", []) == [(0,)]
