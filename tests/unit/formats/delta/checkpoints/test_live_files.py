"""Live files: the same files in the same order for any layout of the log, and on disk if there are many."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.errors import LogCorrupt, StorageUnavailable
from tailer.formats.delta.checkpoints import checkpoint as checkpoint_module
from tailer.formats.delta.checkpoints import live_files as module
from tailer.formats.delta.checkpoints.add_columns import columns_of
from tailer.formats.delta.checkpoints.live_files import live_files
from tailer.formats.delta.checkpoints.sorted_runs import SpillingSort
from tailer.formats.delta.log.actions import AddFile, DeletionVector
from tailer.formats.delta.log.listing import LOG, CommitLog
from tailer.stores.local import LocalStore
from tests.support.seeds import repeats
from tests.support.tables.log_files import add, checkpoint, commit_info, metadata, protocol, remove, write_commit

pytestmark = pytest.mark.anyio

Action = dict[str, Any]
HEAD = [protocol(), metadata()]
VECTORS = st.builds(
    DeletionVector,
    st.sampled_from("uip"),
    st.text("ab@", max_size=2),
    st.just(1),
    st.just(1),
    st.none() | st.integers(0, 9),
)
VECTOR = {"storageType": "u", "pathOrInlineDv": "x" * 20, "offset": 1, "sizeInBytes": 34, "cardinality": 2}


async def live(table: Path, version: int) -> list[tuple[str, str]]:
    """Return path and deletion vector, if any, of the live files, in order."""
    store = LocalStore(table)
    with await live_files(store, (await CommitLog(store).listing()).segment(version)) as files:
        found = list(files)
        assert list(files) == found
    return [(file.path, file.deletion_vector.path_or_inline_dv if file.deletion_vector else "") for file in found]


def at(path: str, moment_ms: int, vector: Action | None = None) -> Action:
    return add(path, vector, modificationTime=moment_ms)


async def test_order_is_by_time_then_place_then_vector(tmp_path: Path) -> None:
    vectors = [VECTOR | {"pathOrInlineDv": letter * 20} for letter in "ba"]
    write_commit(tmp_path, 0, at("c", 1), at("b%20b", 2, vectors[0]), at("b%20b", 2, vectors[1]), at("b a", 2))
    write_commit(tmp_path, 1, at("z", 1), at("a", 3), at("/0", 1))
    assert await live(tmp_path, 1) == [
        ("/0", ""),
        ("c", ""),
        ("z", ""),
        ("b a", ""),
        ("b%20b", "a" * 20),
        ("b%20b", "b" * 20),
        ("a", ""),
    ]


@pytest.mark.parametrize(
    ("commits", "left"),
    [
        ([[add("a")], [remove("a")]], []),
        ([[add("a")], [remove("a")], [add("a")]], ["a"]),
        ([[add("a"), add("b")], [add("a", VECTOR), remove("a")]], ["a", "b"]),
        ([[add("a")], [remove("a"), add("a", VECTOR)], [remove("a", VECTOR), add("a")]], ["a"]),
        ([[add("a")], [remove("a", VECTOR)]], ["a"]),
        ([[add("a b")], [remove("a%20b")]], []),
        ([[add("a")], [add("a"), remove("a")]], ["a"]),
        ([[add("a")], [add("a")]], ["a"]),
        ([[add("a", data_change=False)], [remove("a", data_change=False)]], []),
    ],
)
@pytest.mark.parametrize("checkpointed", [False, True])
async def test_removes_by_path_and_vector(
    tmp_path: Path, commits: list[list[Action]], left: list[str], checkpointed: bool
) -> None:
    for version, actions in enumerate(commits):
        write_commit(tmp_path, version, *actions)
    if checkpointed:
        checkpoint(tmp_path / LOG / f"{0:020d}.checkpoint.parquet", *HEAD, *commits[0])
    assert [path for path, _ in await live(tmp_path, len(commits) - 1)] == left


async def test_a_file_listed_twice_in_a_checkpoint_comes_once(tmp_path: Path) -> None:
    doubled = [at("a", 5), at("b", 1), at("a", 5), at("a", 3), at("a", 5, VECTOR)]
    checkpoint(tmp_path / LOG / f"{4:020d}.checkpoint.parquet", *HEAD, *doubled)
    assert await live(tmp_path, 4) == [("b", ""), ("a", ""), ("a", "x" * 20)]


@pytest.mark.parametrize("path", ["a%00b", "%ff", "a\0"])
@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_path_that_is_none(tmp_path: Path, path: str, checkpointed: bool) -> None:
    if checkpointed:
        name = checkpoint(tmp_path / LOG / f"{0:020d}.checkpoint.parquet", *HEAD, add(path)).name
    else:
        name = write_commit(tmp_path, 0, remove(path)).name
    with pytest.raises(LogCorrupt) as caught:
        await live(tmp_path, 0)
    assert caught.value.path == f"{LOG}/{name}"


async def test_a_commit_that_goes_while_it_is_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    paths = [write_commit(tmp_path, version, *HEAD) for version in range(3)]
    segment = (await CommitLog(store).listing()).segment(2)
    paths[1].unlink()
    with pytest.raises(StorageUnavailable, match=rf"{paths[1].name}.*removed while"):
        await live_files(store, segment)


def sort_in_runs_of(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every batch that is added to a sort a run of its own, of so many rows and several blocks."""
    block_bytes = 200 * max(rows // 4, 1)
    monkeypatch.setattr(module, "SpillingSort", lambda schema, keys: SpillingSort(schema, keys, 1, block_bytes))
    monkeypatch.setattr(module, "_BATCH_ROWS", rows)
    monkeypatch.setattr(checkpoint_module, "_BATCH_ROWS", rows)


@given(st.lists(st.none() | VECTORS, min_size=1, max_size=4))
def test_vectors_are_named_together_as_one_by_one(vectors: list[DeletionVector | None]) -> None:
    adds = columns_of([AddFile("a", {}, 1, True, deletion_vector=vector) for vector in vectors])
    one_by_one = [vector.unique_id if vector else "" for vector in vectors]
    assert module.unique_ids(adds.field("deletionVector")).to_pylist() == one_by_one


FILES = st.tuples(st.sampled_from("abcd"), st.sampled_from([None, "1", "2"]))


@settings(max_examples=repeats(30))
@given(st.lists(st.lists(st.tuples(st.booleans(), FILES), max_size=5), min_size=1, max_size=6), st.integers(0, 7))
async def test_any_history_from_any_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, history: list[list[tuple[bool, Any]]], seed: int
) -> None:
    """Files and order are those of a plain replay, whichever checkpoint the log begins with."""
    table = tmp_path_factory.mktemp("table")
    state: dict[Any, Action] = {}
    for version, changes in enumerate(history):
        actions = []
        for adds, (path, vector) in sorted(changes, key=lambda change: change[0]):
            value = VECTOR | {"pathOrInlineDv": vector * 20} if vector else None
            action = at(path, (ord(path) * 7 + version + seed) % 5, value) if adds else remove(path, value)
            actions.append(action)
            if adds:
                state[path, vector] = action
            else:
                state.pop((path, vector), None)
        write_commit(table, version, commit_info(), *actions)
        if (seed + version) % 3 == 0:
            checkpoint(table / LOG / f"{version:020d}.checkpoint.parquet", *HEAD, *state.values())
    last = len(history) - 1
    order = sorted(state, key=lambda key: (state[key]["add"]["modificationTime"], key[0], key[1] or ""))
    expected = [(path, (vector or "") * 20) for path, vector in order]
    with pytest.MonkeyPatch.context() as patch:
        assert await live(table, last) == expected
        sort_in_runs_of(2, patch)
        assert await live(table, last) == expected
    for path in sorted((table / LOG).glob("*.checkpoint.parquet"), reverse=True):
        path.unlink()
        assert await live(table, last) == expected


@pytest.fixture
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    sort_in_runs_of(70, monkeypatch)


@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("count", [69, 70, 71, 1000])
async def test_more_files_than_fit_into_memory(tmp_path: Path, count: int) -> None:
    numbers = [number * 7919 % count for number in range(count)]
    removed = [f"f{number:05d}" for number in range(0, count, 10)]
    actions = [at(f"f{number:05d}", number // 100) for number in numbers]
    checkpoint(tmp_path / LOG / f"{0:020d}.checkpoint.parquet", *HEAD, *actions)
    write_commit(tmp_path, 1, *map(remove, removed))
    expected = sorted({f"f{number:05d}" for number in numbers} - set(removed))
    assert [path for path, _ in await live(tmp_path, 1)] == expected


@pytest.mark.usefixtures("small_runs")
async def test_no_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(tmp_path / LOG / f"{0:020d}.checkpoint.parquet", *HEAD, *(add(f"f{number}") for number in range(100)))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(StorageUnavailable, match="No space left") as caught:
        await live(tmp_path, 0)
    assert caught.value.path == tempfile.gettempdir()
