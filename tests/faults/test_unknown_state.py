"""Losses after which the log does not define the state: waiting, recovery, and the content of the sink.

A pipeline that waits may be killed at any time; the destination is judged as a whole.
"""

import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.errors import StateUnknown, TailerError, VersionGone
from tailer.events import ChangeBatch, Gap
from tailer.pipeline.policy import OnDataLoss, Policy
from tailer.plan import Position
from tailer.sink import Sink
from tests.support.seeds import repeats
from tests.support.streams import APP, Destination, Growing, WholeVersions, become, pipeline

pytestmark = pytest.mark.anyio

SKIP: Final = Policy(on_data_loss=OnDataLoss.SKIP)
RESNAPSHOT: Final = Policy(on_data_loss=OnDataLoss.RESNAPSHOT)
POLICIES: Final = pytest.mark.parametrize("policy", [SKIP, RESNAPSHOT], ids=["skip", "resnapshot"])
DAMAGE: Final = pytest.mark.parametrize("damage", ["missing", "garbage"])


@pytest.fixture
def table(tmp_path: Path) -> Growing:
    """A table whose versions 1 to 6 insert a row each."""
    return with_rows(tmp_path / "t", 6)


@pytest.fixture(params=[False, True], ids=["splitting", "whole"])
def whole(request: pytest.FixtureRequest) -> bool:
    """True if the sink cannot store a position inside a version."""
    return bool(request.param)


def with_rows(path: Path, versions: int) -> Growing:
    """Write a table whose versions insert a row each, with the version as its id."""
    table = Growing(path)
    for version in range(1, versions + 1):
        table.insert([version])
    return table


def lose(table: Growing, version: int, damage: str = "missing") -> Callable[[], object]:
    """Damage a commit; return a function that restores it."""
    commit = table.commit_file(version)
    content = commit.read_bytes()
    if damage == "missing":
        commit.unlink()
    else:
        commit.write_bytes(content[:-20])

    def restore() -> None:
        part = table.path / f".{commit.name}"
        part.write_bytes(content)
        part.rename(commit)

    return restore


def checkpoint(table: Growing, version: int) -> None:
    """Write a JSON checkpoint of `version`, as a writer that knows the table would."""
    name = f"{version:020d}.checkpoint.{'0' * 8}-0000-0000-0000-{version:012d}.json"
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["v2Checkpoint"]}
    lines = [{"checkpointMetadata": {"version": version}}, {"metaData": table.metadata}]
    lines += [{"protocol": {**protocol, "writerFeatures": ["v2Checkpoint"]}}]
    lines += [table.add(f"{each}-0.parquet", dataChange=False) for each in range(1, version + 1)]
    part = table.path / f".{name}"
    part.write_text("".join(json.dumps(line) + "\n" for line in lines))
    part.rename(table.path / "_delta_log" / name)


def head(table: Growing) -> list[dict[str, Any]]:
    """Make actions that set protocol and metadata again."""
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}
    return [{"protocol": {**protocol, "writerFeatures": ["deletionVectors"]}}, {"metaData": table.metadata}]


def story(there: Destination) -> list[Any]:
    """Return the content of the destination, in order: (version, id) of rows, and the gaps."""
    entries: list[Any] = []
    for item in there.log.get(APP, []):
        if isinstance(item, Gap):
            entries.append(("gap", item.first_version, item.version, item.snapshot))
        elif isinstance(item, ChangeBatch):
            entries += [(row["_commit_version"], row["id"]) for row in item.rows.to_pylist()]
    return entries


@asynccontextmanager
async def following(
    table: Growing, there: Destination, policy: Policy, *, whole: bool = False, start: str = "earliest", **limits: Any
) -> AsyncIterator[list[TailerError]]:
    """Run a pipeline beside the block; yield the errors it stops with."""
    found: list[TailerError] = []
    sink: Sink = WholeVersions(there.sink()) if whole else there.sink()
    running = pipeline(table, sink, start, policy=policy, **limits)

    async def run() -> None:
        try:
            await running.run()
        except TailerError as error:
            found.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        yield found
        running.stop()


async def settled(there: Destination, position: Position | None) -> None:
    """Return when the destination stays at `position` for a while."""
    await become(lambda: there.position() == position)
    await anyio.sleep(0.3)
    assert there.position() == position


BEFORE: Final = [(1, 1), (2, 2), (3, 3)]
REST: Final = [(5, 5), (6, 6)]
ALL: Final = [(6, each) for each in range(1, 7)]


class TestWaiting:
    @POLICIES
    @DAMAGE
    async def test_nothing_is_lost_where_the_commit_is_restored(
        self, table: Growing, policy: Policy, damage: str, whole: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        restore, there = lose(table, 4, damage), Destination()
        async with following(table, there, policy, whole=whole) as errors:
            await settled(there, Position.end(3))
            restore()
            await become(lambda: there.position() == Position.end(6))
        assert errors == []
        stories: list[list[Any]] = [[(version, version) for version in range(1, 7)]]
        if policy is RESNAPSHOT:  # restored at the moment at which a snapshot is tried
            stories.append([*BEFORE, ("gap", 4, 6, True), *ALL])
        assert story(there) in stories
        assert caplog.text.count("; waiting") == 1
        assert "on_data_loss" not in caplog.text
        assert len(caplog.records) < 8

    @POLICIES
    @DAMAGE
    async def test_a_checkpoint_gets_past_it(self, table: Growing, policy: Policy, damage: str, whole: bool) -> None:
        lose(table, 4, damage)
        there = Destination()
        async with following(table, there, policy, whole=whole) as errors:
            await settled(there, Position.end(3))
            checkpoint(table, 5)
            await become(lambda: there.position() == Position.end(6))
            table.insert([7])
            await become(lambda: there.position() == Position.end(7))
        assert errors == []
        after = [("gap", 4, 6, True), *ALL] if policy is RESNAPSHOT else [("gap", 4, 4, False), *REST]
        assert story(there) == [*BEFORE, *after, (7, 7)]

    async def test_a_pipeline_with_an_end_does_not_wait(self, table: Growing) -> None:
        lose(table, 4)
        for policy in (SKIP, RESNAPSHOT):
            there = Destination()
            with pytest.raises(StateUnknown, match="version 4 is missing") as stopped:
                await pipeline(table, there.sink(), until="latest", policy=policy).run()
            assert "checkpoint of that version" in stopped.value.hint
            assert story(there) == BEFORE

    async def test_without_the_policy_it_stops(self, table: Growing) -> None:
        lose(table, 4)
        with pytest.raises(VersionGone) as stopped:
            await pipeline(table, Destination().sink()).run()
        assert "on_data_loss" in stopped.value.hint

    async def test_stopped_while_it_waits(self, table: Growing) -> None:
        lose(table, 4)
        there = Destination()
        with anyio.fail_after(300):
            async with following(table, there, SKIP, poll_interval_s=3600) as errors:
                await become(lambda: there.position() == Position.end(3))
        assert errors == []


class TestWhatIsThere:
    async def test_a_commit_that_sets_protocol_and_metadata_is_no_checkpoint(self, table: Growing, whole: bool) -> None:
        version = table.commit(*head(table))
        table.insert([8])
        lose(table, 4)
        there = Destination()
        async with following(table, there, SKIP, whole=whole):
            await settled(there, Position.end(3))
            checkpoint(table, version)
            await become(lambda: there.position() == Position.end(8))
        assert story(there) == [*BEFORE, ("gap", 4, version - 1, False), (8, 8)]

    async def test_a_snapshot_from_before_the_next_gap(self, tmp_path: Path, whole: bool) -> None:
        """With a checkpoint between two gaps, a snapshot of the newest readable version comes before the wait."""
        table = with_rows(tmp_path / "t", 10)
        lose(table, 4)
        checkpoint(table, 6)
        lose(table, 9)
        there = Destination()
        async with following(table, there, RESNAPSHOT, whole=whole) as errors:
            await settled(there, Position.end(8))
        assert errors == []
        assert story(there) == [*BEFORE, ("gap", 4, 8, True), *((8, each) for each in range(1, 9))]

    async def test_a_commit_that_can_be_read_but_not_planned(self, table: Growing, whole: bool) -> None:
        """It defines the state, so delivery continues with the next version."""
        name = table.data("7.parquet", [7])
        table.commit(table.add(name), table.add(name))
        table.insert([8])
        there = Destination()
        async with following(table, there, SKIP, whole=whole) as errors:
            await become(lambda: there.position() == Position.end(8))
        assert errors == []
        assert story(there)[6:] == [("gap", 7, 7, False), (8, 8)]


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, dict[int, str], list[int], list[int]]:
    """The number of versions; the lost ones, and how; the ones with a checkpoint; the ones that set protocol and
    metadata.

    The newest is not lost: without a later one, a missing commit has not been written yet.
    """
    versions = draw(st.integers(2, 9))
    some = st.integers(0, versions)
    lost = draw(st.dictionaries(st.integers(0, versions - 1), st.sampled_from(["missing", "garbage"]), max_size=3))
    return versions, lost, draw(st.lists(some, max_size=2)), draw(st.lists(st.integers(1, versions), max_size=2))


@pytest.mark.parametrize("policy", [SKIP, RESNAPSHOT], ids=["skip", "resnapshot"])
@settings(
    max_examples=repeats(15),
)
@given(history=histories(), seed=st.integers(0, 2**32), kills=st.booleans())
def test_any_losses(
    tmp_path_factory: pytest.TempPathFactory, history: Any, policy: Policy, seed: int, kills: bool
) -> None:
    """The fold of the sink's rows is the table, except for the versions in gaps; after a restore it is the table."""
    anyio.run(_judge, tmp_path_factory.mktemp("any") / "t", history, policy, random.Random(seed), kills)


async def _judge(path: Path, history: Any, policy: Policy, chance: random.Random, kills: bool) -> None:
    versions, lost, checkpoints, redefining = history
    table = Growing(path)
    for version in range(1, versions + 1):
        more = head(table) if version in redefining else []
        table.commit(*more, table.add(table.data(f"{version}-0.parquet", [version])))
    for version in checkpoints:
        checkpoint(table, version)
    restores = [lose(table, version, damage) for version, damage in lost.items()]
    there = Destination()
    while not await _run_until_it_stands(table, there, policy, versions, chance, kills):
        assert restores  # else nothing stopped the pipeline
        restores.pop(chance.randrange(len(restores)))()
    _check(story(there), versions, lost)


async def _run_until_it_stands(
    table: Growing, there: Destination, policy: Policy, versions: int, chance: random.Random, kills: bool
) -> bool:
    """Deliver with a kill after some transactions; return whether all was delivered, or the pipeline waits."""
    while True:
        with anyio.CancelScope() as scope:
            there.then = scope.cancel if kills and chance.random() < 0.5 else bool
            limits: dict[str, Any] = {"max_rows": 1, "max_versions": 1} if kills else {}
            try:
                await pipeline(table, there.sink(), until=str(versions), policy=policy, **limits).run()
            except StateUnknown:
                return False
            return True


def _check(entries: list[Any], versions: int, lost: dict[int, str]) -> None:
    """Check that rows come once and in order from the first on, except for versions in a gap with a snapshot after it.

    Version v inserts the row v. A log whose beginning is lost begins at a checkpoint.
    """
    rows, skipped, at = set[int](), set[int](), 0
    begun = min((item[1] if item[0] == "gap" else item[0] for item in entries), default=versions + 1)
    for item in entries:
        if item[0] == "gap":
            _, first, last, snapshot = item
            assert at <= first <= last
            assert min(lost) <= last
            at = last if snapshot else last + 1
            rows, skipped, begun = (set(), set(), 0) if snapshot else (rows, {*skipped, *range(first, at)}, begun)
        else:
            version, row = item
            assert version >= at
            assert row not in rows
            rows.add(row)
            at = version
    # A gap may also cover the rest of a version that was begun.
    assert rows - skipped == set(range(max(begun, 1), versions + 1)) - skipped
