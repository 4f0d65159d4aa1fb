"""Commits that contradict the state: from any checkpoint the same, and nothing that the protocol allows."""

from pathlib import Path
from typing import Any

import pytest

from tailer.formats.delta.checkpoints import contradictions as module
from tailer.formats.delta.inspection import DeltaInspector
from tailer.formats.delta.log.listing import LOG
from tailer.stores.local import LocalStore
from tests.support.tables.log_files import (
    add,
    cdc,
    checkpoint,
    commit_info,
    inline_vector,
    metadata,
    protocol,
    remove,
    write_commit,
)

pytestmark = pytest.mark.anyio

Action = dict[str, Any]
A, B = inline_vector([1]), inline_vector([2])
HEAD = [protocol(), metadata()]
REMOVES = "it removes a file that was not in the table, or was with another deletion vector"
ADDS = "it adds a file that was in the table already"


async def contradictions(table: Path) -> list[tuple[int, str, str]]:
    found = await DeltaInspector(LocalStore(table)).contradictions()
    return [(each.version, Path(each.path).name, each.reason) for each in found]


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        ([remove("f", A), add("f", B)], None),
        ([remove("f", A), add("f", A)], None),
        ([remove("f", A)], None),
        ([add("f", A, data_change=False)], None),
        ([remove("f", A), remove("f", B), add("f")], None),
        ([remove("f"), remove("f", B)], None),
        ([cdc("c"), remove("f", A), add("g")], None),
        ([remove("f"), add("f", B)], REMOVES),
        ([remove("f", B), add("f", A)], REMOVES),
        ([remove("g")], REMOVES),
        ([remove("g", data_change=False), add("h", data_change=False)], REMOVES),
        ([cdc("c"), remove("f"), add("g")], REMOVES),
        ([add("f", A)], ADDS),
        ([add("f", A), add("g")], ADDS),
    ],
)
@pytest.mark.parametrize("checkpointed", [False, True])
async def test_one_commit_after_the_file_f_with_a_vector(
    tmp_path: Path, actions: list[Action], reason: str | None, checkpointed: bool
) -> None:
    write_commit(tmp_path, 0, *HEAD, add("f", A), add("i"))
    if checkpointed:
        checkpoint(tmp_path / LOG / f"{0:020d}.checkpoint.parquet", *HEAD, add("f", A), add("i"))
    write_commit(tmp_path, 1, *actions)
    write_commit(tmp_path, 2, remove("i"))
    found = [(version, why) for version, _, why in await contradictions(tmp_path)]
    assert found == ([(1, reason)] if reason else [])


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_entries_of_commits_are_bounded_as_those_of_the_checkpoint(tmp_path: Path, checkpointed: bool) -> None:
    write_commit(tmp_path, 0, *HEAD, add("f"), add("g"))
    if checkpointed:
        checkpoint(tmp_path / LOG / f"{0:020d}.checkpoint.parquet", *HEAD, add("f"), add("g"))
    write_commit(tmp_path, 1, remove("h"))
    inspector = DeltaInspector(LocalStore(tmp_path))
    assert [len(await inspector.contradictions(most)) for most in (0, 2, 3, None)] == [0, 0, 1, 1]


async def test_each_version_once_and_what_comes_after(tmp_path: Path) -> None:
    write_commit(tmp_path, 0, *HEAD, add("f"))
    write_commit(tmp_path, 1, remove("x"), remove("y"))
    write_commit(tmp_path, 2, remove("f"))
    write_commit(tmp_path, 3, remove("f"))
    assert await contradictions(tmp_path) == [(1, "x", REMOVES), (3, "f", REMOVES)]


async def test_where_the_state_is_not_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_COMMITS", 2)
    write_commit(tmp_path, 1, remove("f"))
    assert await contradictions(tmp_path) == []
    write_commit(tmp_path, 0, *HEAD)
    assert await contradictions(tmp_path) == [(1, "f", REMOVES)]
    write_commit(tmp_path, 2, commit_info())
    assert await contradictions(tmp_path) == []
