"""A look back at a few files: found in as few commits as possible, else in the checkpoint."""

from pathlib import Path
from typing import Any

import pytest

from tailer.errors import LogCorrupt, StorageUnavailable
from tailer.formats.delta.checkpoints.live_files import find_files
from tailer.formats.delta.log.actions import parse_commit
from tailer.formats.delta.log.listing import LOG, CommitLog, commit_name
from tailer.formats.delta.log.removes import FileBefore
from tailer.stores.local import LocalStore
from tests.support.tables.log_files import add, checkpoint, inline_vector, metadata, protocol, remove, write_commit

pytestmark = pytest.mark.anyio

Action = dict[str, Any]
ONE, TWO = inline_vector([1]), inline_vector([2])


async def found(table: Path, version: int, *removes: Action) -> list[FileBefore | None]:
    """Return what is found of each removed file."""
    store, path = LocalStore(table), write_commit(table.parent / "asked", 0, *removes)
    wanted = parse_commit(path.read_bytes(), "t", path.name, 0, 0).removes
    files = await find_files(store, wanted, (await CommitLog(store).listing()).segment(version))
    keys = [(each.path, each.deletion_vector.unique_id if each.deletion_vector else "") for each in wanted]
    return [files.get(key) for key in keys]


def said(files: list[FileBefore | None]) -> list[tuple[bool, str | None]]:
    """Return for each file whether it is live, and the partition value that its add has."""
    return [(each.is_live, each.add.partition_values["p"] if each.add else None) for each in files if each is not None]


def of(value: str, path: str = "f", vector: Action | None = None, **more: Any) -> Action:
    return add(path, vector, partitionValues={"p": value}, **more)


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_the_newest_add_of_the_same_file_else_of_its_path(tmp_path: Path, checkpointed: bool) -> None:
    table = tmp_path / "table"
    write_commit(table, 0, of("0"), of("0", "g", ONE), of("0", "a%20b"))
    if checkpointed:
        files = (of("0"), of("0", "g", ONE), of("0", "a%20b"))
        checkpoint(table / LOG / f"{0:020d}.checkpoint.parquet", protocol(), metadata(), *files)
    write_commit(table, 1, remove("f"), of("1", vector=TWO))
    write_commit(table, 2, of("2", "g", TWO, data_change=False))
    asked = [remove("f"), remove("f", TWO), remove("f", ONE), remove("g", ONE), remove("g"), remove("a b"), remove("h")]
    assert said(await found(table, 2, *asked)) == [
        (False, "0"),
        (True, "1"),
        (False, "1"),
        (True, "0"),
        (False, "2"),
        (True, "0"),
        (False, None),
    ]


async def test_adds_of_a_commit_are_newer_than_its_removes(tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_commit(table, 0, of("0"))
    write_commit(table, 1, of("1"), remove("f"))
    assert said(await found(table, 1, remove("f"))) == [(True, "1")]


async def test_older_commits_are_not_read_once_all_is_found(tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_commit(table, 0, "not read")
    write_commit(table, 1, of("1"))
    write_commit(table, 2, of("2", "g"))
    assert said(await found(table, 2, remove("g"), remove("f"))) == [(True, "2"), (True, "1")]
    with pytest.raises(LogCorrupt):
        await found(table, 2, remove("h"))


async def test_a_path_that_is_none_is_not_looked_for(tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_commit(table, 0, of("0"))
    assert await found(table, 0, remove("%ff")) == [None]
    write_commit(table, 1, add("%ff"))
    with pytest.raises(LogCorrupt, match=r"00001\.json.*decode"):
        await found(table, 1, remove("f"))


async def test_a_commit_that_goes_while_it_is_read(tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_commit(table, 0, of("0"))
    store = LocalStore(table)
    segment = (await CommitLog(store).listing()).segment(0)
    (table / commit_name(0)).unlink()
    with pytest.raises(StorageUnavailable, match="removed while"):
        await find_files(store, [], segment)
