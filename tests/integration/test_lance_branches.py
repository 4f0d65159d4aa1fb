"""Branches and tags of Lance datasets: the real commands and pipelines on branches that pylance makes."""

import json
import random
from functools import partial
from pathlib import Path

import anyio
import lance
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import tailer
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.tables import TableRef
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError, LogCorrupt, LogRewritten, TableReplaced
from tailer.pipeline.policy import Limits
from tailer.pipeline.row_delivery import row_pipeline
from tailer.sink import table_of
from tailer.start import Start
from tailer.stores.wakeup import TimerWake
from tests.support.daemon.commands import background
from tests.support.daemon.commands import tailer as command
from tests.support.s3.server import S3Server
from tests.support.seeds import seeds
from tests.support.streams import Destination
from tests.support.tables.lance_histories import LanceHistory, changes_of
from tests.support.waiting import until

BRANCH = [(4, "delete", 1), (5, "insert", 7)]
MAIN = [(1, "insert", 1), (1, "insert", 2), (1, "insert", 3), (2, "delete", 2), (3, "insert", 4), (4, "insert", 5)]


def numbers(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def append(dataset: str | Path | lance.LanceDataset, number: int) -> None:
    lance.write_dataset(numbers(number), dataset, mode="append")


def grown(path: Path) -> Path:
    """Write a dataset of four versions, of which the third is the parent of the branch `dev`, with tags of both."""
    lance.write_dataset(numbers(1, 2, 3), path)
    lance.dataset(path).delete("id = 2")
    append(path, 4)
    branch = lance.dataset(path).create_branch("dev")
    branch.delete("id = 1")
    append(branch, 7)
    append(path, 5)
    lance.dataset(path).tags.create("clean", 2)
    lance.dataset(path).tags.create("dev-clean", ("dev", 4))
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return grown(tmp_path / "orders")


def read(path: Path, **options: object) -> list[tuple[int, str, int]]:
    rows = (row for batch in tailer.changes(path, **options) for row in batch.to_pylist())  # type: ignore[arg-type]
    return [(row["_commit_version"], row["_change_type"], row["id"]) for row in rows]


async def deliver(path: Path, there: Destination, branch: str | None = None, start: str = "earliest") -> None:
    begin, end = Start.parse(start), Start.parse("latest")
    log = TableRef(str(path), branch=branch).open()
    await row_pipeline("p", log, there.sink(), LocalEngine(), TimerWake(), begin, end).run()


def again(path: Path, version: int) -> None:
    """Delete the branch and make it again from a version of the main history."""
    dataset = lance.dataset(path)
    dataset.tags.delete("dev-clean")
    dataset.branches.delete("dev")
    dataset.create_branch("dev", version)


def test_a_branch_has_its_own_changes(path: Path) -> None:
    """Its first version has the rows of its parent, and changes none."""
    assert read(path) == read(path, branch="main") == MAIN
    assert read(path, branch="dev") == read(path, branch="dev", start=3) == BRANCH
    assert read(path, branch="dev", start=3, end=3) == []
    assert sorted(read(path, branch="dev", start="snapshot")) == [(5, "insert", each) for each in (3, 4, 7)]


def test_a_branch_of_the_first_version_has_none_of_its_rows(tmp_path: Path) -> None:
    lance.write_dataset(numbers(1), path := tmp_path / "t")
    append(lance.dataset(path).create_branch("a/b"), 2)
    lance.dataset(path).checkout_version(("a/b", None)).create_branch("c")
    append(lance.dataset(path).checkout_version(("c", None)), 3)
    assert read(path, branch="a/b") == read(path, branch="a/b", start=0) == [(2, "insert", 2)]
    assert read(path, branch="c") == [(3, "insert", 3)]


def test_the_commands_follow_a_branch(path: Path) -> None:
    choice = ("--branch", "dev", "--format", "jsonl")
    done = command("tail", path, *choice, "--from", "earliest", "--to", "latest")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["_commit_version"], row["_change_type"], row["id"]) for row in rows] == BRANCH
    planned = command("plan", path, 4, "--json", "--branch", "dev")
    assert json.loads(planned.stdout)["table"] == str(path / "tree/dev")
    wrong = command("tail", path, "--branch", "dex")
    assert f"--branch: {path} has no 'dex' among its branches" in wrong.stderr
    assert "Did you mean 'dev'?" in wrong.stderr


def test_the_daemon_follows_a_branch_from_a_tag(path: Path) -> None:
    config = path.parent / "tailer.toml"
    text = f'table = "{path}"\nbranch = "dev"\nstart = "tag:dev-clean"\nsink = {{kind = "delta", path = "copy"}}\n'
    config.write_text(f"[pipelines.p]\n{text}")
    assert "from tag dev-clean" in command("check", "--config", config).stdout
    copy = path.parent / "copy"
    with background("run", "--config", config) as daemon:
        until(lambda: DeltaTable.is_deltatable(str(copy)))
        append(lance.dataset(path).checkout_version(("dev", None)), 8)
        until(lambda: len(DeltaTable(copy).to_pyarrow_table()) == 2)
        daemon.terminate()
        daemon.communicate(timeout=300)
    assert sorted(DeltaTable(copy).to_pyarrow_table()["id"].to_pylist()) == [7, 8]


def test_a_tag_is_a_place_between_two_versions(path: Path) -> None:
    """The changes after it begin with the next version; those up to it end with its own."""
    assert read(path, start="tag:clean") == MAIN[4:]
    assert read(path, end="tag:clean") == MAIN[:4]
    assert read(path, start="tag:clean", end="tag:clean") == []
    assert read(path, branch="dev", start="tag:dev-clean") == BRANCH[1:]
    lance.dataset(path).tags.create("newest", 4)
    assert read(path, start="tag:newest") == []
    assert read(path, start="tag:clean", end="tag:newest", net=True) == MAIN[4:]


def test_wrong_names_are_told_with_the_next_step(path: Path) -> None:
    write_deltalake(delta := path.parent / "delta", numbers(1))
    for table, options, reason, hint in (
        (path, {"start": "tag:cleen"}, "start: .* has no 'cleen' among its tags", "Did you mean 'clean'?"),
        (path, {"end": "tag:?"}, r"end: .* has no '\?' among its tags", "Its tags: clean, dev-clean."),
        (path, {"start": "tag:dev-clean"}, "'dev-clean' is a tag of the branch dev", "branch = 'dev'"),
        (path, {"branch": "dev", "start": "tag:clean"}, "'clean' is a tag of the branch main", "branch = 'main'"),
        (path, {"branch": "no"}, "branch: .* has no 'no' among its branches", "Its branches: dev."),
        (path, {"branch": "../x"}, "branch: '../x' is not the name of a branch", "Names have letters"),
        (
            path,
            {"branch": "dev", "table_format": "delta"},
            "branch: is given, but a Delta table has no branches",
            "Leave out one",
        ),
        (delta, {"branch": "dev"}, "branch: is given, but a Delta table has no branches", "Leave out one"),
        (delta, {"start": "tag:x"}, "start: .* is a Delta table, which has no tags", "Give a version"),
        (delta, {"end": "tag:x"}, "end: .* is a Delta table, which has no tags", "Give a version"),
        (path, {"start": "tag:"}, "start: 'tag:' is not a version", "tag:NAME"),
    ):
        with pytest.raises(ConfigError, match=reason) as found:
            read(table, **options)
        assert hint in found.value.hint


@pytest.mark.parametrize(
    "text", ["", "[]", '{"parentVersion": "3"}', '{"parentVersion": 0}', '{"parentVersion": true}']
)
def test_a_damaged_file_of_a_branch_is_named(path: Path, text: str) -> None:
    (path / "_refs/branches/dev.json").write_text(text)
    with pytest.raises(LogCorrupt, match="dev"):
        read(path, branch="dev")


@pytest.mark.parametrize("text", ['{"version": 2, "branch": 7}', '{"version": -2, "branch": null}', "{"])
def test_a_damaged_file_of_a_tag_is_named(path: Path, text: str) -> None:
    (path / "_refs/tags/clean.json").write_text(text)
    with pytest.raises(LogCorrupt, match="clean"):
        read(path, start="tag:clean")


@pytest.mark.anyio
async def test_progress_of_one_branch_is_none_of_another(path: Path) -> None:
    """A pipeline whose branch is changed stops; it continues nowhere."""
    there = Destination()
    await deliver(path, there)
    with pytest.raises(TableReplaced):
        await deliver(path, there, "dev")
    (main,) = there.progress
    assert [(row["_commit_version"], row["_change_type"], row["id"]) for row in there.rows(main)] == MAIN
    other = Destination()
    await deliver(path, other, "dev")
    with pytest.raises(TableReplaced):
        await deliver(path, other)
    assert table_of(main) != table_of(*other.progress)


@pytest.mark.anyio
@pytest.mark.parametrize("version", [2, 3, 4])
async def test_a_branch_that_was_made_again_is_another(path: Path, version: int) -> None:
    """The old progress is no progress of it, whatever versions it has."""
    there = Destination()
    await deliver(path, there, "dev")
    delivered = there.rows(*there.progress)
    await anyio.to_thread.run_sync(again, path, version)
    for number in range(8, 12):
        dataset = await anyio.to_thread.run_sync(lambda: lance.dataset(path).checkout_version(("dev", None)))
        await anyio.to_thread.run_sync(append, dataset, number)
    with pytest.raises(TableReplaced):
        await deliver(path, there, "dev")
    assert there.rows(*there.progress) == delivered


@pytest.mark.anyio
@pytest.mark.parametrize(("parent", "error"), [(3, LogRewritten), (6, TableReplaced)])
async def test_a_branch_made_again_while_it_is_followed(path: Path, parent: int, error: type[Exception]) -> None:
    """It has the awaited version: as a later one than its first, or as its first."""
    for number in (10, 11):
        await anyio.to_thread.run_sync(append, path, number)
    log = TableRef(str(path), branch="dev").open()
    await log.seek(6)
    await anyio.to_thread.run_sync(again, path, parent)
    for number in range(6 - parent):
        dataset = await anyio.to_thread.run_sync(lambda: lance.dataset(path).checkout_version(("dev", None)))
        await anyio.to_thread.run_sync(append, dataset, number)
    with pytest.raises(error):
        await log.next_plan()


@pytest.mark.anyio
async def test_a_tag_that_moves_does_not_move_the_pipeline(path: Path) -> None:
    """Nothing came after the tag yet, but the place is recorded."""
    lance.dataset(path).tags.create("here", 4)
    there = Destination()
    await deliver(path, there, start="tag:here")
    for number in (8, 9):
        await anyio.to_thread.run_sync(append, path, number)
    lance.dataset(path).tags.update("here", 5)
    await deliver(path, there, start="tag:here")
    assert there.delivered(*there.progress) == [(5, 8), (6, 9)]


@pytest.mark.anyio
@pytest.mark.parametrize("seed", seeds(2))
async def test_it_goes_on_after_any_transaction_on_a_branch(tmp_path: Path, seed: int) -> None:
    """Stopped after each transaction, it delivers what one run delivers."""
    main, there, chance = LanceHistory(tmp_path / "t", 300 + seed, stable=seed > 0), Destination(), random.Random(1)
    await anyio.to_thread.run_sync(main.grow, 3)
    branch = await anyio.to_thread.run_sync(main.fork, "dev", 400 + seed)
    await anyio.to_thread.run_sync(branch.grow, 14)
    await anyio.to_thread.run_sync(main.grow, 6)
    while not there.progress or there.position(*there.progress).version < 14:  # type: ignore[union-attr]
        engine = ChangelogEngine(LocalEngine(), PairingRules())
        log, limits = TableRef(str(main.path), branch="dev").open(), Limits(max_rows=chance.randint(1, 20))
        begin, end = Start.parse("earliest"), Start.parse("latest")
        pipeline = row_pipeline("p", log, there.sink(), engine, TimerWake(), begin, end, limits=limits)
        there.then = pipeline.stop
        await pipeline.run()
    whole = partial(lambda: [row for each in tailer.changes(main.path, branch="dev") for row in each.to_pylist()])
    assert there.rows(*there.progress) == await anyio.to_thread.run_sync(whole)


@pytest.mark.stores
def test_branches_and_tags_in_s3(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{versitygw.new_bucket()}/t.lance"
    login = {"aws_endpoint": versitygw.endpoint, "allow_http": "true", "aws_region": "us-east-1"}
    dataset = lance.write_dataset(numbers(1, 2), uri, storage_options=login)
    dataset.delete("id = 1")
    branch = dataset.create_branch("team/dev")
    branch.delete("id = 2")
    branch.insert(numbers(5))
    branch.tags.create("t", ("team/dev", 3))
    found = changes_of(tailer.changes(uri, branch="team/dev"))
    assert {version: [kind for kind, _ in rows] for version, rows in found.items()} == {3: ["delete"], 4: ["insert"]}
    assert list(changes_of(tailer.changes(uri, branch="team/dev", start="tag:t"))) == [4]
