"""Gaps in the versions of Lance datasets, where the last delivered version still opens: exact net differences."""

import random
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import lance
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sinks.delta.sink import DeltaSink
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.tables import open_table
from tailer.engine.local import LocalEngine
from tailer.errors import ChangesUnavailable, SinkUnavailable, VersionGone
from tailer.events import Gap
from tailer.lance.table import dataset_id
from tailer.pipeline.limits import Limits
from tailer.pipeline.policy import OnDataLoss, Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.status import PipelineStatus
from tailer.plan import Position
from tailer.start import Start
from tailer.stores.wakeup import TimerWake
from tailer.table_log import NetDifferences, net_start
from tests.support.seeds import seeds
from tests.support.streams import Destination
from tests.support.tables.lance_histories import LanceHistory, Row, changes_of

HISTORIES: Final = seeds(3)


def numbers(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "t": pa.array([f"t{each}" for each in ids])})


def manifest(path: Path, version: int) -> Path:
    return path / "_versions" / f"{2**64 - 1 - version:020d}.manifest"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A dataset of two versions: an insert of 1 to 9, a delete of 2."""
    lance.write_dataset(numbers(*range(1, 10)), path := tmp_path / "orders")
    lance.dataset(path).delete("id = 2")
    return path


def cleaned_up(path: Path) -> None:
    """Let versions come after the last one, which has a tag, and clean up all of them but the last two."""
    lance.dataset(path).tags.create("delivered", 2)
    lance.write_dataset(numbers(20, 21, 22), path, mode="append")
    lance.dataset(path).update({"t": "'new'"}, where="id = 3")
    lance.dataset(path).delete("id in (4, 5, 21)")
    lance.dataset(path).update({"t": "'newer'"}, where="id = 6")
    lance.dataset(path).cleanup_old_versions(timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False)
    lance.write_dataset(numbers(30), path, mode="append")
    assert [each["version"] for each in lance.dataset(path).versions()] == [2, 6, 7]


async def deliver(path: Path, there: Destination, reaction: OnDataLoss = OnDataLoss.NET, **options: Any) -> None:
    log, policy = open_table(str(path)), Policy(on_data_loss=reaction)
    begin, end = Start.parse("earliest"), Start.parse(options.pop("end", "latest"))
    engine = ChangelogEngine(LocalEngine(), PairingRules())
    pipeline = row_pipeline("p", log, there.sink(), engine, TimerWake(), begin, end, policy, **options)
    with anyio.CancelScope() as scope:
        there.then = scope.cancel if "limits" in options else bool
        await pipeline.run()


def fold(there: Destination, app_id: str) -> list[tuple[int, str]]:
    found: Counter[tuple[int, str]] = Counter()
    for row in there.rows(app_id):
        found[row["id"], row["t"]] += 1 if row["_change_type"] in ("insert", "update_postimage") else -1
    assert set(found.values()) <= {0, 1}
    return sorted((+found).elements())


def truth(path: Path) -> list[tuple[int, str]]:
    return sorted((row["id"], row["t"]) for row in lance.dataset(path).to_table().to_pylist())


@pytest.mark.anyio
async def test_the_net_difference_bridges_a_gap(path: Path) -> None:
    """It is announced, has the version after the gap, and the versions after it follow."""
    there, app_id = Destination(), f"p/{dataset_id(str(path))}"
    await deliver(path, there)
    before = len(there.rows(app_id))
    await anyio.to_thread.run_sync(cleaned_up, path)
    await deliver(path, there)
    changes = [(row["_commit_version"], row["_change_type"], row["id"]) for row in there.rows(app_id)[before:]]
    deletes = [(6, "delete", each) for each in (3, 4, 5, 6)]
    assert sorted(changes) == sorted([*deletes, *((6, "insert", each) for each in (3, 6, 20, 22)), (7, "insert", 30)])
    assert fold(there, app_id) == truth(path)
    (gap,) = there.events(app_id)
    assert isinstance(gap, Gap)
    assert (gap.first_version, gap.version, gap.snapshot) == (3, 5, False)
    assert gap.reason.endswith("the changes of version 6 are its net difference from version 2")


@pytest.mark.anyio
async def test_a_copy_in_delta_is_right_again(path: Path) -> None:
    """All of the net difference is one transaction, with the gap before its rows."""
    log, sink = partial(open_table, str(path)), partial(DeltaSink, "delta", str(path.parent / "copy"))
    begin, end, policy = Start.parse("earliest"), Start.parse("latest"), Policy(on_data_loss=OnDataLoss.NET)
    status = PipelineStatus("p")
    for change in (lance.dataset, cleaned_up):
        await anyio.to_thread.run_sync(change, path)
        engine = ChangelogEngine(LocalEngine(), PairingRules())
        await row_pipeline("p", log(), sink(), engine, TimerWake(), begin, end, policy, status=status).run()
    changes = DeltaTable(path.parent / "copy").to_pyarrow_table().to_pylist()
    kinds = Counter((row["_commit_version"], row["_change_type"]) for row in changes)
    assert kinds == {
        (1, "insert"): 9,
        (2, "delete"): 1,
        (5, "gap"): 1,
        (6, "delete"): 4,
        (6, "insert"): 4,
        (7, "insert"): 1,
    }
    assert status.gaps == 1


@pytest.mark.anyio
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
async def test_it_goes_on_inside_a_net_difference(path: Path, rows: int) -> None:
    """Cancelled after each transaction, it delivers what one run delivers, and announces the gap once."""
    whole, there, app_id = Destination(), Destination(), f"p/{dataset_id(str(path))}"
    for each in (whole, there):
        await deliver(path, each)
    await anyio.to_thread.run_sync(cleaned_up, path)
    await deliver(path, whole)
    inside = 0
    while (position := there.position(app_id)) is None or position.version < 7:
        await deliver(path, there, limits=Limits(max_rows=rows))
        inside += net_start(there.position(app_id) or Position.end(0)) == 2
    assert inside > 0
    assert there.rows(app_id) == whole.rows(app_id)
    assert len(there.events(app_id)) == 1


@pytest.mark.anyio
async def test_it_goes_on_after_a_fault_inside_a_net_difference(path: Path) -> None:
    there, app_id, status = Destination(), f"p/{dataset_id(str(path))}", PipelineStatus("p")
    await deliver(path, there)
    await anyio.to_thread.run_sync(cleaned_up, path)
    faults = iter([False, True])

    def fail() -> None:
        if next(faults, False):
            raise SinkUnavailable("memory", "no answer after the commit")

    log, policy = open_table(str(path)), Policy(on_data_loss=OnDataLoss.NET)
    engine, limits = ChangelogEngine(LocalEngine(), PairingRules()), Limits(max_rows=2, poll_interval_s=0.01)
    begin, end, there.then = Start.parse("earliest"), Start.parse("latest"), fail
    await row_pipeline("p", log, there.sink(), engine, TimerWake(), begin, end, policy, limits, status=status).run()
    assert fold(there, app_id) == truth(path)
    assert (len(there.events(app_id)), status.gaps) == (1, 1)


@pytest.mark.anyio
async def test_nothing_is_delivered_from_another_version(path: Path) -> None:
    """The pipeline stops if the version before the gap is cleaned up while a part of the difference is delivered."""
    there, app_id = Destination(), f"p/{dataset_id(str(path))}"
    await deliver(path, there)
    await anyio.to_thread.run_sync(cleaned_up, path)
    await deliver(path, there, limits=Limits(max_rows=3))
    delivered = there.rows(app_id)
    assert net_start(there.position(app_id) or Position.end(0)) == 2
    manifest(path, 1).write_bytes(manifest(path, 2).read_bytes())
    manifest(path, 2).unlink()
    for reaction in (OnDataLoss.NET, OnDataLoss.FAIL, OnDataLoss.NET):
        with pytest.raises(ChangesUnavailable, match="version 2, of its net difference, was cleaned up"):
            await deliver(path, there, reaction)
    assert there.rows(app_id) == delivered


@pytest.mark.anyio
@pytest.mark.parametrize(("reaction", "end"), [(OnDataLoss.FAIL, "latest"), (OnDataLoss.NET, "4")])
async def test_it_must_be_asked_for_and_end_in_time(path: Path, reaction: OnDataLoss, end: str) -> None:
    there, app_id = Destination(), f"p/{dataset_id(str(path))}"
    await deliver(path, there)
    await anyio.to_thread.run_sync(cleaned_up, path)
    with pytest.raises(VersionGone):
        await deliver(path, there, reaction, end=end)
    assert there.position(app_id) == Position.end(2)


@pytest.mark.anyio
async def test_without_the_version_before_the_gap_it_stops(path: Path) -> None:
    there, app_id = Destination(), f"p/{dataset_id(str(path))}"
    await deliver(path, there)
    await anyio.to_thread.run_sync(cleaned_up, path)
    manifest(path, 2).unlink()
    with pytest.raises(ChangesUnavailable, match="version 2, of its net difference, was cleaned up"):
        await deliver(path, there)
    assert there.position(app_id) == Position.end(2)


@pytest.mark.anyio
async def test_other_columns_are_no_net_difference(path: Path) -> None:
    there, app_id = Destination(), f"p/{dataset_id(str(path))}"
    await deliver(path, there)
    await anyio.to_thread.run_sync(cleaned_up, path)
    lance.dataset(path).add_columns({"n": "id * 2"})
    for version in (6, 7):
        manifest(path, version).unlink()
    with pytest.raises(ChangesUnavailable, match="it has other columns than version 2"):
        await deliver(path, there)
    assert there.position(app_id) == Position.end(2)


@pytest.mark.anyio
@pytest.mark.parametrize("seed", HISTORIES)
async def test_random_net_differences(tmp_path: Path, seed: int) -> None:
    """Each leads from the rows of its first version to those of its last, whatever lies between."""
    history = LanceHistory(tmp_path / "t", 500 + seed, stable=seed % 2 == 0)
    await anyio.to_thread.run_sync(history.grow, 24)
    log, chance = open_table(str(history.path)), random.Random(seed)
    assert isinstance(log, NetDifferences)
    pairs = [(a, b) for a in history.rows for b in history.rows if a + 1 < b]
    pairs = [(a, b) for a, b in pairs if history.columns[a] == history.columns[b]]
    for before, version in chance.sample(pairs, min(len(pairs), 12)):
        plan = await log.net_plan(before, version)
        async with ChangelogEngine(LocalEngine(), PairingRules()).run(plan) as batches:
            rows = [batch.rows async for batch in batches]
        folded = Counter(history.rows[before])
        changes: list[tuple[str, Row]] = changes_of(rows).get(version, [])
        for kind, row in changes:
            folded[row] += 1 if kind in ("insert", "update_postimage") else -1
        assert {row: count for row, count in folded.items() if count} == history.rows[version], (before, version)
