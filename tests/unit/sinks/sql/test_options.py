"""The options of the `sql` sink: what is refused, and that a password is in no text."""

from pathlib import Path
from typing import Any

import pytest

from tailer.errors import ConfigError
from tailer_sinks.sql.options import file_of, read
from tests.support.cases import cases

SERVER = "postgresql://tailer@db:5432/shop"
FILE = "sqlite:////data/shop.db"


def test_defaults() -> None:
    found = read("orders", {"url": SERVER})
    assert (found.table, found.mode, found.boundary, found.key) == ("orders", "mirror", "version", [])
    assert file_of(found) is None
    assert read("orders", {"url": SERVER, "key": ["Id", "id"]}).key == ["Id", "id"]
    assert read("orders", {"url": SERVER, "key": ["Id"], "names": "lower"}).key == ["id"]
    for url in (FILE, "duckdb:////data/shop.db"):
        assert file_of(read("orders", {"url": url})) == Path("/data/shop.db")


@cases(
    ("options", "where"),
    [
        ({"url": "mysql://db/shop"}, "url"),
        ({"url": "postgresql://db"}, "url"),
        ({"url": "postgresql://db:x/shop"}, "url"),
        ({"url": "postgresql://tailer:hunter2@db/shop"}, "url"),
        ({"url": "postgresql://tailer@db/shop?password=hunter2"}, "url"),
        ({"url": "sqlite:///"}, "url"),
        ({"url": "sqlite:///:memory:"}, "url"),
        ({"url": "duckdb:///"}, "url"),
        ({"url": "duckdb:///shop.db", "password": "hunter2"}, "password"),
        ({"url": FILE, "password": "hunter2"}, "password"),
        ({"url": FILE, "schema": "s"}, "schema"),
        ({"url": SERVER, "password_file": "/hunter2"}, "password_file"),
        ({"url": SERVER, "table": "lake_tailer_progress"}, "table"),
        ({"url": SERVER, "table": "x" * 64}, "table"),
        ({"url": SERVER, "key": ["id", "id"]}, "key"),
        ({"url": SERVER, "key": ["id", "Id"], "names": "lower"}, "key"),
        ({"url": SERVER, "mode": "append", "key": ["id"]}, "key"),
        ({"url": SERVER, "names": "upper"}, "names"),
        ({"url": SERVER, "boundary": "chunk"}, "boundary"),
        ({"url": SERVER, "mode": "history", "boundary": "chunk"}, "boundary"),
        ({"url": SERVER, "mode": "history", "deletes": "mark"}, "deletes"),
        ({"url": SERVER, "mode": "append", "deletes": "mark"}, "deletes"),
        ({"url": SERVER, "deletes": "keep"}, "deletes"),
        ({"url": SERVER, "mode": "append", "adopt": True}, "adopt"),
        ({"url": SERVER, "deletes": "mark", "adopt": True}, "adopt"),
        ({"url": SERVER, "timeout_s": 0.5}, "timeout_s"),
        ({"url": SERVER, "mode": "upsert"}, "mode"),
    ],
)
def test_faults_are_named(options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read("orders", options)
    assert refused.value.where == f"orders.{where}"
    assert refused.value.remedy
    assert "hunter2" not in str(refused.value)


def test_the_password_is_in_no_text(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    given = read("orders", {"url": SERVER, "password": {"file": str(file)}})
    assert given.password.read() == "hunter2"
    assert "hunter2" not in repr(read("orders", {"url": SERVER, "password": "hunter2"}))
