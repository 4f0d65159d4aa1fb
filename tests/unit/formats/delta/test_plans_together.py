"""Commits planned in one call of a thread: as many as are whole and follow each other; others come by themselves."""

from pathlib import Path

import pytest

import tailer.formats.delta.commit_plan
from tailer.errors import LogCorrupt, LogRewritten, TableReplaced
from tailer.formats.delta.log.listing import commit_name
from tailer.formats.delta.table import DeltaTableLog
from tailer.stores.local import LocalStore
from tests.support.tables.log_files import add, metadata, protocol, remove, write_commit

pytestmark = pytest.mark.anyio

HEAD = (protocol(), metadata())


def a_log(table: Path, versions: int) -> DeltaTableLog:
    """Make a table with a file added in each version."""
    write_commit(table, 0, *HEAD, add("f0"))
    for version in range(1, versions):
        write_commit(table, version, add(f"f{version}"))
    return DeltaTableLog(LocalStore(table))


async def versions(log: DeltaTableLog, most: int = 100) -> list[int]:
    """Return the versions of the next plans."""
    return [plan.version for plan in await log.next_plans(most)]


async def test_all_that_are_there_come_together(tmp_path: Path) -> None:
    log = a_log(tmp_path, 6)
    await log.seek(0)
    assert await versions(log, 2) == [0, 1]
    assert await versions(log) == [2, 3, 4, 5]
    assert await versions(log) == []
    write_commit(tmp_path, 6, add("f6"))
    assert await versions(log) == [6]
    await log.seek(3)
    assert await versions(log, 1) == [3]
    assert await versions(log, 2) == [4, 5]


async def test_they_end_where_commits_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_log(tmp_path, 4)
    size = (tmp_path / commit_name(1)).stat().st_size
    monkeypatch.setattr(tailer.formats.delta.commit_plan, "_TOGETHER_BYTES", 2 * size)
    await log.seek(1)
    assert [await versions(log) for _ in range(3)] == [[1, 2], [3], []]


async def test_an_error_comes_at_its_version(tmp_path: Path) -> None:
    log = a_log(tmp_path, 5)
    (tmp_path / commit_name(3)).write_text("no JSON\n")
    await log.seek(0)
    assert await versions(log) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(LogCorrupt):
            await log.next_plans(100)
    write_commit(tmp_path, 3, add("f3"))
    assert await versions(log) == [3, 4]


async def test_a_commit_whose_last_line_does_not_end_is_looked_at_alone(tmp_path: Path) -> None:
    log = a_log(tmp_path, 4)
    open_ended = tmp_path / commit_name(2)
    open_ended.write_bytes(open_ended.read_bytes().rstrip())
    await log.seek(0)
    assert [await versions(log) for _ in range(3)] == [[0, 1], [2], [3]]


async def test_a_commit_that_needs_the_state_before_it_is_planned_alone(tmp_path: Path) -> None:
    """Its remove lacks what only the add of the same file says."""
    log = a_log(tmp_path, 3)
    bare = remove("f0")
    for name in ("partitionValues", "size", "extendedFileMetadata"):
        bare["remove"].pop(name, None)
    write_commit(tmp_path, 3, bare)
    write_commit(tmp_path, 4, add("f4"))
    await log.seek(0)
    found = []
    while together := await versions(log):
        found += together
    assert found == [0, 1, 2, 3, 4]


async def test_a_rewritten_commit_stops_the_next_one(tmp_path: Path) -> None:
    log = a_log(tmp_path, 3)
    await log.seek(0)
    assert await versions(log) == [0, 1, 2]
    write_commit(tmp_path, 2, add("another"))
    write_commit(tmp_path, 3, add("f3"))
    with pytest.raises(LogRewritten):
        await log.next_plans(100)


async def test_a_replaced_table_stops_the_next_one(tmp_path: Path) -> None:
    log = a_log(tmp_path, 3)
    await log.seek(0)
    assert await versions(log) == [0, 1, 2]
    other = metadata()
    other["metaData"]["id"] = "another"
    write_commit(tmp_path, 2, add("another"))
    write_commit(tmp_path, 3, other, add("f3"))
    with pytest.raises((TableReplaced, LogRewritten)):
        await log.next_plans(100)
