"""`tailer tail` with `--limit`, `--type`, `--stats`, `--explain` and `--exit-on-idle`."""

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.daemon.commands import Orders, background, tailer
from tests.support.waiting import until


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """Five versions: inserts, and a delete with change files."""
    table = Orders(tmp_path / "orders")
    table.insert(1, 2, 3)
    table.insert(4)
    table.delete(2)
    table.insert(5)
    table.delete(5)
    return table


def shown(text: str) -> list[tuple[int, str, int]]:
    """Parse JSON Lines as (version, change, id)."""
    rows = map(json.loads, text.splitlines())
    return [(row["_commit_version"], row["_change_type"], row["id"]) for row in rows]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6])
def test_it_ends_after_a_number_of_rows(orders: Orders, limit: int) -> None:
    done = tailer("tail", orders.path, "--from", 0, "--limit", limit)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 1
    assert shown(done.stdout) == orders.changes[:limit]


def test_changes_of_some_types(orders: Orders) -> None:
    for types, wanted in (("insert", {"insert"}), ("delete, insert", {"insert", "delete"}), ("update", set())):
        done = tailer("tail", orders.path, "--from", 0, "--to", "latest", "--type", types)
        assert (done.returncode, shown(done.stdout)) == (0, [each for each in orders.changes if each[1] in wanted])
    done = tailer("tail", orders.path, "--type", "insrt")
    assert (done.returncode, done.stderr.splitlines()[1]) == (2, "hint: Did you mean 'insert'?")


def test_types_that_hide_updates_are_said_once(orders: Orders, tmp_path: Path) -> None:
    """Without a feed an update is a delete and an insert, unless updates are computed."""
    plain = tmp_path / "plain"
    write_deltalake(plain, pa.table({"id": [1, 2], "name": ["a", "b"]}))
    for name in ("x", "y"):
        DeltaTable(plain).update(updates={"name": f"'{name}'"}, predicate="id = 2")
    look = "tail", plain, "--from", 0, "--to", "latest", "--type"
    done = tailer(*look, "update")
    _, said = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (0, "")
    assert said.startswith("version 1 deletes and inserts rows, and --type hides")
    assert len(tailer(*look, "insert,update,delete").stderr.splitlines()) == 1
    assert len(tailer(*look, "delete").stderr.splitlines()) == 1
    done = tailer(*look, "update", "--compute-updates", "--key", "id")
    assert (len(done.stdout.splitlines()), len(done.stderr.splitlines())) == (4, 1)
    done = tailer("tail", orders.path, "--from", 0, "--to", "latest", "--type", "update")
    assert len(done.stderr.splitlines()) == 1  # change files tell updates apart


def test_a_limit_does_not_cut_an_update(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"id": [1, 2], "name": ["a", "b"]}))
    DeltaTable(tmp_path / "t").update(updates={"name": "'x'"})
    look = "tail", tmp_path / "t", "--from", 1, "--compute-updates", "--key", "id", "--limit"
    for limit, rows in ((1, 2), (2, 2), (3, 4)):
        assert len(tailer(*look, limit).stdout.splitlines()) == rows


def test_updates_are_shown_and_counted(orders: Orders) -> None:
    DeltaTable(orders.path).update(updates={"amount": "amount + 1"}, predicate="id = 3")
    done = tailer("tail", orders.path, "--from", 4, "--type", "update", "--limit", 2, "--stats")
    kinds = sorted(each[1] for each in shown(done.stdout))  # delta-rs writes them in any order
    assert (done.returncode, kinds) == (0, ["update_postimage", "update_preimage"])
    assert done.stderr.splitlines()[1].startswith("0 inserted, 1 updated, 0 deleted; in 1 version with changes; ")


def test_limit_and_types_go_together(orders: Orders) -> None:
    done = tailer("tail", orders.path, "--from", 0, "--type", "delete", "--limit", 2, "--stats")
    assert shown(done.stdout) == [each for each in orders.changes if each[1] == "delete"]
    assert done.stderr.splitlines()[1].startswith("0 inserted, 0 updated, 2 deleted; in 2 versions with changes; ")


def test_it_ends_when_nothing_comes(orders: Orders) -> None:
    begun = time.monotonic()
    done = tailer("tail", orders.path, "--from", 0, "--exit-on-idle", 1)
    assert (done.returncode, shown(done.stdout)) == (0, orders.changes)
    assert time.monotonic() - begun > 1


def test_a_new_version_makes_it_wait_again(orders: Orders) -> None:
    with background("tail", orders.path, "--from", 4, "--exit-on-idle", 5) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        orders.insert(9)
        second = process.stdout.readline()
        assert [*shown(first), *shown(second)] == orders.changes[-2:]
        until(lambda: process.poll() == 0)


def explained(*arguments: object) -> list[str]:
    """Return the explanations of rows, each without the name of its file."""
    done = tailer("tail", *arguments, "--explain")
    assert done.returncode == 0, done.stderr
    texts = [json.loads(line)["_explain"] for line in done.stdout.splitlines()]
    return [text.partition(".parquet, ")[2] or text for text in texts]


def test_a_column_named_as_the_explanation_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"id": [1], "_explain": ["x"]}))
    look = "tail", tmp_path / "t", "--from", 0, "--to", "latest", "--explain"
    done = tailer(*look)
    assert (done.returncode, done.stderr.splitlines()[-2:]) == (
        2,
        ["error: --explain: the table has a column _explain", "hint: Leave the column out: --columns."],
    )
    assert tailer(*look, "--columns", "id").returncode == 0


def test_rows_are_explained(orders: Orders, tmp_path: Path) -> None:
    assert explained(orders.path, "--from", 1, "--to", 2) == [
        "row 0: the file was added",
        "row 0: from a change file, as the writer wrote it",
    ]
    assert set(explained(orders.path, "--from", "snapshot", "--limit", 2)) == {"row 0: in the table at version 4"}
    plain = tmp_path / "plain"
    write_deltalake(plain, pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}))
    DeltaTable(plain).update(updates={"name": "'x'"}, predicate="id = 2")
    sides = [
        f"row 1: the file was {side}; compared, and no equal row was on the other side" for side in ("removed", "added")
    ]
    assert explained(plain, "--from", 1, "--to", 1) == sides
    # Both images have the place of the new row, in the file that was added.
    images = ["row 1: the row after the update; compared, and paired with the row before the update"] * 2
    assert explained(plain, "--from", 1, "--to", 1, "--compute-updates", "--key", "id") == images
    write_deltalake(plain, pa.table({"id": [3], "name": ["y"]}), mode="overwrite")  # it was the third row
    explanations = explained(plain, "--from", 2, "--to", 2, "--type", "update", "--compute-updates", "--key", "id")
    assert explanations == [images[0].replace("row 1", "row 0")] * 2
