"""Tests for `tailer.formats.registry`."""

from pathlib import Path

import pytest

from tailer.formats.registry import no_table


@pytest.mark.parametrize(
    ("path", "reason", "hint"),
    [
        ("order", "there is no such folder", "Check the path. Did you mean 'orders'?"),
        ("a/b/c", "there is no such folder", "Check the path."),
        ("file", "it is a file, not a folder", "Give the folder of a table."),
        ("orders/f.parquet", "it is a file, not a folder", "Give the folder of the table: {root}/orders"),
        ("orders/p=1", "it is a folder in the table {root}/orders", "Give the folder of the table: {root}/orders"),
        ("orders/_delta_log", "it is the log of a table", "Give the folder of the table: {root}/orders"),
        ("orders/_delta_log/0.json", "it is part of the log of a table", "Give the folder of the table: {root}/orders"),
        ("empty", "it has no _delta_log", "Check the path: the folder of a Delta table contains _delta_log"),
        ("orders", "no commit", "Check the path, and whether the table's writer has made it already."),
        ("set", "no commit, but it has _versions", "Check the path, and table_format"),
    ],
)
def test_what_is_no_table_is_named(tmp_path: Path, path: str, reason: str, hint: str) -> None:
    for folder in ("orders/_delta_log", "orders/p=1", "empty", "set/_versions"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("file", "orders/f.parquet", "orders/_delta_log/0.json"):
        (tmp_path / file).touch()
    found = no_table(f"{tmp_path}/{path}", "_delta_log", "no commit", "a Delta table")
    assert str(found) == f"{tmp_path}/{path}: not a Delta table: {reason.format(root=tmp_path)}"
    assert found.hint.startswith(hint.format(root=tmp_path))


def test_in_a_store_only_names_are_looked_at() -> None:
    log, other = (
        no_table(uri, "_delta_log", "no commit", "a Delta table") for uri in ("s3://b/t/_delta_log", "s3://b/t")
    )
    assert log.hint == "Give the folder of the table: s3://b/t"
    assert (other.reason, "in a store the format must be given" in other.hint) == ("no commit", True)
