"""`tailer tail` as a user runs it: output, start and end, and interruption."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.support.daemon.commands import COMMAND, Orders, background, complaints, in_terminal, tailer
from tests.support.tables.golden import golden_delta


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """Four versions: three inserts and a delete."""
    table = Orders(tmp_path / "orders")
    table.insert(1, 2)
    table.insert(3)
    table.delete(2)
    table.insert(4)
    return table


def rows(lines: Sequence[str]) -> list[tuple[int, str, int]]:
    """Parse JSON Lines as (version, change, id)."""
    found = [json.loads(line) for line in lines]
    return [(row["_commit_version"], row["_change_type"], row["id"]) for row in found]


def test_all_changes_come_as_json_lines_through_a_pipe(orders: Orders) -> None:
    done = tailer("tail", orders.path, "--from", "earliest", "--to", "latest")
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    assert rows(done.stdout.splitlines()) == orders.changes
    assert list(json.loads(done.stdout.splitlines()[0])) == [
        "id",
        "amount",
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
    ]


@pytest.mark.parametrize(
    ("options", "versions"),
    [
        (("--from", "1", "--to", "2"), {1, 2}),
        (("--from", "3", "--to", "latest"), {3}),
        (("--from", "earliest", "--to", "0"), {0}),
        (("--to", "latest"), set()),
    ],
)
def test_it_begins_and_ends_as_requested(orders: Orders, options: tuple[str, ...], versions: set[int]) -> None:
    done = tailer("tail", orders.path, *options)
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    assert rows(done.stdout.splitlines()) == [change for change in orders.changes if change[0] in versions]


def test_a_snapshot_is_all_rows_as_inserts(orders: Orders) -> None:
    done = tailer("tail", orders.path, "--from", "snapshot", "--to", "latest")
    assert done.returncode == 0
    assert sorted(rows(done.stdout.splitlines())) == [(3, "insert", 1), (3, "insert", 3), (3, "insert", 4)]


def test_a_timestamp_is_a_place_too(orders: Orders) -> None:
    done = tailer("tail", orders.path, "--from", "2000-01-01", "--to", "2999-01-01T00:00:00Z")
    assert (done.returncode, rows(done.stdout.splitlines())) == (0, orders.changes)


def test_columns_are_chosen_and_ordered(orders: Orders) -> None:
    done = tailer("tail", orders.path, "--from", "0", "--to", "0", "--columns", "amount,id")
    first = json.loads(done.stdout.splitlines()[0])
    assert list(first)[:3] == ["amount", "id", "_change_type"]


def test_row_ids_that_the_table_does_not_have_are_not_null_in_silence(orders: Orders) -> None:
    done = tailer("tail", orders.path, "--from", "earliest", "--to", "latest", "--row-ids")
    assert done.returncode == 0
    assert {json.loads(line)["_row_id"] for line in done.stdout.splitlines()} == {None}
    assert done.stderr.count("the table does not track rows there") == 1
    assert done.stderr.count("the rows of change files have none") == 1


@pytest.mark.parametrize("start", ["0", "1", "2"])
def test_a_key_that_is_missing_is_the_same_error_at_every_version(orders: Orders, start: str) -> None:
    done = tailer("tail", orders.path, "--from", start, "--to", "3", "--compute-updates", "--key", "Id")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"no column 'Id' at version {start}" in done.stderr
    assert "Did you mean 'id'?" in done.stderr


def test_a_terminal_gets_a_table(orders: Orders) -> None:
    code, shown = in_terminal("tail", orders.path, "--from", "earliest", "--to", "latest")
    assert code == 0
    assert "\x1b[" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "version 0" in plain
    assert re.search(r"^\+ +1 +1\.5", plain, re.MULTILINE)
    assert re.search(r"^- +2 +3\.0", plain, re.MULTILINE)


def test_the_format_can_be_forced(orders: Orders) -> None:
    _, shown = in_terminal("tail", orders.path, "--from", "0", "--to", "0", "--format", "jsonl")
    assert rows([line for line in shown.splitlines() if "_change_type" in line]) == orders.changes[:2]
    done = tailer("tail", orders.path, "--from", "0", "--to", "0", "--format", "table")
    assert "version 0" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("options", "announced"),
    [
        ((), "following changes from version 4 on"),
        (("--from", "2"), "following changes from version 2 on"),
        (("--from", "snapshot"), "all rows of version 3, then the changes"),
        (("--from", "snapshot", "--to", "3"), "all rows of version 3, then the changes up to version 3"),
        (("--from", "earliest", "--to", "latest"), "changes of versions 0 to 3"),
        (("--from", "2", "--to", "2"), "changes of version 2"),
        (("--to", "latest"), "nothing is newer than version 3"),
        (("--from", "4", "--to", "latest"), "nothing is newer than version 3"),
        (("--from", "4", "--to", "latest", "--net-changes"), "nothing is newer than version 3"),
        (("--from", "1", "--to", "3", "--net-changes"), "changes of versions 1 to 3, as net changes"),
    ],
)
def test_the_first_line_names_the_table_and_the_start(orders: Orders, options: tuple[str, ...], announced: str) -> None:
    with background("tail", orders.path, *options) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"{orders.path}: {announced}\n"
        process.terminate()
        assert "".join(process.stderr) == ""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_follows_until_it_is_asked_to_stop(orders: Orders, ending: signal.Signals) -> None:
    with background("tail", orders.path, "--from", "3") as process:
        assert process.stdout is not None
        assert rows([process.stdout.readline()]) == orders.changes[-1:]
        orders.insert(5)
        assert rows([process.stdout.readline()]) == orders.changes[-1:]
        process.send_signal(ending)
        out, errors = process.communicate(timeout=20)
    assert (process.returncode, out, complaints(errors)) == (0, "", [])


def test_it_stops_at_once_without_a_reader_of_its_output(orders: Orders) -> None:
    orders.insert(*range(100, 60_000))
    with background("tail", orders.path, "--from", "earliest") as process:
        assert process.stdout is not None
        assert rows([process.stdout.readline()]) == orders.changes[:1]
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
        assert process.stderr is not None
        assert complaints(process.stderr.read()) == []


def test_a_reader_that_had_enough_is_a_good_end(orders: Orders) -> None:
    orders.insert(*range(100, 20_000))
    command = " ".join([*COMMAND, "tail", str(orders.path), "--from", "earliest"])
    script = f"set -o pipefail; {command} | head -n 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    assert rows(done.stdout.splitlines()) == orders.changes[:1]


@pytest.mark.parametrize(
    ("arguments", "code", "error", "hint"),
    [
        ((), 2, "Missing argument 'TABLE'", "tailer tail --help"),
        (("{table}", "--format", "xml"), 2, "'xml' is not one of", "tailer tail --help"),
        (("{table}", "--from", "yesterday"), 2, "--from: 'yesterday' is not a version, a time", "2026-03-01T12:00:00Z"),
        (("{table}", "--to", "snapshot"), 2, "--to: 'snapshot' is not an end point", "latest, a version"),
        (("{table}", "--from", "3", "--to", "1"), 2, "--from: version 3 comes after the end", "later end"),
        (("{table}", "--columns", "id,,amount"), 2, "--columns: 'id,,amount' contains an empty", "commas"),
        (("{table}", "--columns", "id,total"), 2, "--columns: no column 'total'", "id, amount"),
        (("{table}", "--columns", "total", "--from", "earliest"), 2, "no column 'total'", "id, amount"),
        (("{table}", "--columns", "ID", "--from", "earliest"), 2, "no column 'ID'", "Did you mean 'id'?"),
        (("hdfs://bucket/orders",), 2, "TABLE: hdfs:// is not a store that can be read", "s3://BUCKET/FOLDER"),
        (("{table}-not",), 3, "not: not a Delta table: there is no such folder", "Check the path"),
        (("{table}/nowhere",), 3, "nowhere: not a Delta table: it is a folder in the table", "Give the folder of"),
        (("{table}", "--from", "99"), 3, "version 99 does not exist yet (latest is 3)", "up to 3, or at latest"),
        (("file://elsewhere/orders",), 2, "TABLE: file:// is not a local path", "folder"),
        (("file://localhost{table}-not",), 3, "not: not a Delta table", "Check the path"),
    ],
)
def test_errors_are_two_lines(orders: Orders, arguments: tuple[str, ...], code: int, error: str, hint: str) -> None:
    done = tailer("tail", *(argument.format(table=orders.path) for argument in arguments))
    assert (done.returncode, done.stdout) == (code, "")
    first, second = done.stderr.splitlines()[-2:]
    assert first.startswith("error: ")
    assert error in first
    assert second.startswith("hint: ")
    assert hint in second


def test_links_in_a_circle_are_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    done = tailer("tail", tmp_path / "loop")
    assert (done.returncode, done.stdout) == (4, "")
    assert "Too many levels of symbolic links" in done.stderr
    assert "hint: Check the path, its symbolic links" in done.stderr


def test_a_table_may_be_a_file_uri(orders: Orders) -> None:
    plain = tailer("tail", orders.path, "--from", "0", "--to", "latest")
    assert (plain.returncode, plain.stdout != "") == (0, True)
    for prefix in ("file:", "file://", "FILE://localhost"):
        assert tailer("tail", f"{prefix}{orders.path}", "--from", "0", "--to", "latest").stdout == plain.stdout


def test_errors_are_red_on_a_terminal(orders: Orders) -> None:
    code, shown = in_terminal("tail", orders.path / "nowhere")
    assert code == 3
    assert shown.startswith("\x1b[31m\x1b[1merror:\x1b[0m ")


@pytest.mark.golden
def test_a_table_that_needs_more_than_we_know_is_refused_before_the_first_row() -> None:
    done = tailer("tail", golden_delta("catalog-owned-preview"), "--from", "earliest", "--to", "latest")
    assert (done.returncode, done.stdout) == (3, "")
    assert complaints(done.stderr)[0].startswith("error: ")


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", "http://nosuch.invalid:9000"])
def test_a_wrong_host_is_named_at_once_and_not_retried_for_long(endpoint: str) -> None:
    began_s = time.monotonic()
    with_keys = partial(tailer, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", AWS_ENDPOINT_URL=endpoint)
    done = with_keys("tail", "s3://lake/orders", "--to", "latest")
    assert time.monotonic() - began_s < 30
    lines = done.stderr.splitlines()
    host = endpoint.removeprefix("http://")
    assert any(f"{host} cannot be reached; retrying in" in line for line in lines), done.stderr
    assert f"{host} cannot be reached" in lines[-2]
    assert (done.returncode, done.stdout) == (4, "")
