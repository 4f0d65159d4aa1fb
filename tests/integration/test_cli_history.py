"""`tailer history`: what each commit did, as far as its log knows."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon.commands import in_terminal, tailer
from tests.support.tables.log_files import (
    add,
    cdc,
    commit_info,
    inline_vector,
    metadata,
    protocol,
    remove,
    write_commit,
)

HISTORIES = Path(__file__).resolve().parents[1] / "lance_histories_data"
HOUR_MS = 3_600_000


def counted(rows: int) -> str:
    """Return the statistics of a file."""
    return json.dumps({"numRecords": rows})


# The actions of a commit, and the rows that it inserted, updated and deleted; None: not known.
COMMITS: list[tuple[list[Any], tuple[int | None, int | None, int | None]]] = [
    ([protocol(), metadata(), commit_info(operation="CREATE TABLE")], (0, 0, 0)),
    ([commit_info(operation="WRITE"), add("a", stats=counted(10))], (10, 0, 0)),
    ([commit_info(operation="WRITE", operationMetrics={"numOutputRows": "7"}), add("b")], (7, 0, 0)),
    ([commit_info(operation="WRITE"), add("c")], (None, 0, 0)),
    ([commit_info(operation="DELETE", operationMetrics={"numDeletedRows": "3"}), add("d"), remove("a")], (0, 0, 3)),
    ([commit_info(operation="UPDATE", operationMetrics={"num_updated_rows": 4}), add("e"), remove("d")], (0, 4, 0)),
    ([commit_info(operation="MERGE", operationMetrics={"numTargetRowsInserted": "1"}), add("f")], (1, None, None)),
    ([commit_info(operation="UPDATE"), add("g"), remove("f")], (None, None, None)),
    ([commit_info(operation="UPDATE"), cdc("h"), add("i"), remove("g")], (None, None, None)),
    ([commit_info(operation="MERGE"), add("b", vector=inline_vector([3])), remove("b")], (None, None, None)),
    ([commit_info(operation="OPTIMIZE"), add("j", data_change=False), remove("i", data_change=False)], (0, 0, 0)),
    ([add("b", vector=inline_vector([1, 2])), remove("b")], (0, 0, 2)),
    ([add("b", vector=inline_vector([1])), remove("b", vector=inline_vector([1, 2]))], (None, 0, None)),
    ([commit_info(operation="WRITE"), add("k", stats=counted(5)), remove("j", stats=counted(6))], (5, 0, 6)),
    ([remove("k", stats="not JSON")], (0, 0, None)),
    (
        [commit_info(operation="DELETE", operationMetrics={"numDeletedRows": "x"}), remove("c", stats=counted(2))],
        (0, 0, 2),
    ),
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with a commit each half hour."""
    for version, (actions, _) in enumerate(COMMITS):
        write_commit(tmp_path / "t", version, *actions, modified_ms=1_764_000_000_000 + version * HOUR_MS // 2)
    return tmp_path / "t"


def lines(*arguments: object) -> list[dict[str, Any]]:
    """Return the lines of a history as JSON."""
    done = tailer("history", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)["lines"]
    return found


def test_rows_are_those_that_the_log_knows(table: Path) -> None:
    found = [(each["inserted"], each["updated"], each["deleted"]) for each in lines(table)]
    assert found == [rows for _, rows in COMMITS]


def test_lines_for_programs(table: Path) -> None:
    done = tailer("history", table, "--limit", 2)
    assert done.returncode == 0
    heading, first, last = (line.split("\t") for line in done.stdout.splitlines())
    assert heading == ["version", "time", "operation", "who", "inserted", "updated", "deleted", "bytes"]
    assert first == ["14", "2025-11-24 23:00:00", "unnamed", "unknown", "0", "0", "unknown", "0 bytes"]
    assert last[:3] == ["15", "2025-11-24 23:30:00", "DELETE"]


@pytest.mark.parametrize(
    ("options", "versions"),
    [
        ((), range(16)),
        (("--limit", 3), range(13, 16)),
        (("--from", 2, "--to", 4), range(2, 5)),
        (("--from", "2025-11-24T22:00:00Z"), range(12, 16)),
        (("--to", 4, "--limit", 2), range(3, 5)),
    ],
)
def test_it_begins_and_ends_as_requested(table: Path, options: tuple[Any, ...], versions: range) -> None:
    assert [each["first_version"] for each in lines(table, *options)] == list(versions)


def test_versions_that_the_log_lacks_are_named(table: Path) -> None:
    for version in (0, 5, 6, 9):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    said = "versions left out, because the log does not have them: "
    for options, missing in (
        ((), "5 to 6, 9"),
        (("--limit", 8), "9"),
        (("--from", 5, "--to", 8), "5 to 6"),
        (("--limit", 3), None),
    ):
        done = tailer("history", table, *options)
        assert (done.returncode, done.stderr) == (0, "" if missing is None else f"{said}{missing}\n")


def test_a_log_cannot_control_the_terminal(tmp_path: Path) -> None:
    info = commit_info(operation="WRITE\x1b[2J", userName="me\x1b]0;owned\x07")
    write_commit(tmp_path / "t", 0, protocol(), metadata(), info)
    for command in ("history", "doctor"):
        shown = tailer(command, tmp_path / "t").stdout
        assert "\x1b" not in shown
        assert "WRITE\\x1b[2J" in shown


def test_commits_of_an_hour_are_added_up(table: Path) -> None:
    found = lines(table, "--by", "hour")
    assert [(each["first_version"], each["last_version"], each["commits"]) for each in found][:3] == [
        (0, 1, 2),
        (2, 3, 2),
        (4, 5, 2),
    ]
    assert (found[1]["inserted"], found[1]["commits_with_unknown_rows"]) == (7, 1)
    (day,) = lines(table, "--by", "day")
    assert (day["commits"], day["operations"]["WRITE"]) == (16, 4)


def test_hours_without_a_commit_have_a_line(tmp_path: Path) -> None:
    write_commit(tmp_path / "t", 0, protocol(), metadata(), modified_ms=0)
    write_commit(tmp_path / "t", 1, add("a"), modified_ms=3 * HOUR_MS)
    assert [each["commits"] for each in lines(tmp_path / "t", "--by", "hour")] == [1, 0, 0, 1]


def test_lance_versions_have_the_rows_that_manifests_know(tmp_path: Path) -> None:
    with tarfile.open(HISTORIES / "00.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    found = {each["first_version"]: each for each in lines(tmp_path / "t", "--from", 19, "--to", 24)}
    assert {version: (each["inserted"], each["updated"], each["deleted"]) for version, each in found.items()} == {
        19: (0, 0, 9),
        20: (None, None, None),
        21: (None, None, None),
        22: (0, 0, 0),
        23: (25, 0, 0),
        24: (21, 0, 0),
    }
    deleted, inserted = (tailer("tail", tmp_path / "t", "--from", v, "--to", v).stdout.count("\n") for v in (19, 23))
    assert (deleted, inserted) == (9, 25)


def test_wrong_input_is_named(table: Path) -> None:
    for arguments, code in (
        ((table.parent / "nothing",), 3),
        ((table, "--from", "snapshot"), 2),
        ((table, "--from", 99), 3),
    ):
        done = tailer("history", *arguments)
        assert (done.returncode, done.stderr.startswith("error: ")) == (code, True), done.stderr


def test_a_terminal_shows_bars(table: Path) -> None:
    code, shown = in_terminal("history", table)
    assert code == 0
    assert "█" in shown
    assert "the log does not say how many rows" in shown
