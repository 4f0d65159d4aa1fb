"""`ChangelogEngine`: the refined rows after any position, a cancellable comparison, and no remaining files."""

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest

from tailer.changelog import engine as engine_module
from tailer.changelog.carryovers import ChangelogCounts, refine
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.equal_rows.port import Stopped
from tailer.changelog.equal_rows.row_index import RowIndex, close_idle
from tailer.changelog.rules import Carryovers, PairingRules, renumbered
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError, FileVacuumed, StorageUnavailable
from tailer.events import CHANGE_TYPE, ChangeBatch
from tailer.plan import TASKS, ChangePlan, ChangeTask, Position, Regime, TaskKind
from tailer.read.decoded_files import DecodedFiles
from tailer.read.execute import execute
from tests.support.streams import become
from tests.support.tables.log_files import parquet

pytestmark = pytest.mark.anyio

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
DROP = PairingRules()
BY_KEY = PairingRules(compute_updates=True, key=("k",))
Seen = list[tuple[str, int, int, int]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, used from the first row index on."""
    close_idle()
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture(params=[2**10, 2**21], ids=["kept", "read again"])
def plan(tmp_path: Path, request: pytest.FixtureRequest) -> ChangePlan:
    """Two files are rewritten as two: of 2000 rows every tenth is updated, 50 are deleted and 50 are new.

    Rows of files of the smaller size are kept in memory.
    """
    gone = {key: key for key in range(2000)}
    come = {key: -key if key % 10 == 5 else key for key in range(50, 2050)}
    order = sorted(come, key=lambda key: key * 7919 % 2053)
    files = [list(gone)[:900], list(gone)[900:], order[:1300], order[1300:]]
    tasks = []
    for index, keys in enumerate(files):
        values = gone if index < 2 else come
        table = pa.table({"k": keys, "v": [values[key] for key in keys]})
        path = parquet(tmp_path / f"{index}.parquet", table, row_group_size=400)
        kind = TaskKind.DELETE if index < 2 else TaskKind.INSERT
        tasks.append(ChangeTask("t", "id", 7, 1000, index, kind, str(path), request.param, SCHEMA))
    return ChangePlan("t", "id", 7, 1000, "UPDATE", Regime.FILES, SCHEMA, tuple(tasks))


def files_in(folder: Path) -> list[Path]:
    """All files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]


async def run(engine: ChangelogEngine, plan: ChangePlan, after: Position | None = None) -> Seen:
    """Return kind, task, position and key of all delivered rows."""
    seen: Seen = []
    async with engine.run([plan], after) as batches:
        async for batch in batches:
            columns = (batch.rows[CHANGE_TYPE], batch.row_index, batch.rows["k"])
            rows = zip(*(column.to_pylist() for column in columns), strict=True)
            seen += [(kind, batch.task, row, key) for kind, row, key in rows]
    return seen


async def test_without_room_nothing_is_kept(plan: ChangePlan) -> None:
    whole = await run(ChangelogEngine(LocalEngine(1), BY_KEY), plan)
    assert await run(ChangelogEngine(LocalEngine(1, ahead_bytes=0), BY_KEY), plan) == whole


@pytest.mark.parametrize("most_parts", [3, 4])
async def test_rows_from_memory_and_from_files_in_turns(
    plan: ChangePlan, monkeypatch: pytest.MonkeyPatch, most_parts: int
) -> None:
    """All tasks are run by the engine, in one run, where these take turns too often."""
    whole = await run(ChangelogEngine(LocalEngine(1), BY_KEY), plan)
    sizes = [2**10, 2**21] * 2
    mixed = [replace(task, size_bytes=size) for task, size in zip(plan.tasks, sizes, strict=True)]
    plan = replace(plan, tasks=tuple(mixed))
    runs: list[int] = []
    monkeypatch.setattr(engine_module, "_MOST_PARTS", most_parts)
    monkeypatch.setattr(LocalEngine, "run", noting_tasks(LocalEngine.run, runs))
    changelog = ChangelogEngine(LocalEngine(1), BY_KEY)
    assert await run(changelog, plan) == whole
    assert runs == ([4] if most_parts == 3 else [1, 1])
    for place in (whole[10], whole[-10]):
        after = Position(plan.version, place[1], place[2])
        assert await run(changelog, plan, after) == whole[whole.index(place) + 1 + place[0].endswith("preimage") :]


def noting_tasks(run: Callable[..., Any], runs: list[int]) -> Callable[..., Any]:
    """Return `run` of an engine that notes how many tasks it gets."""

    def noting(self: LocalEngine, plans: Sequence[ChangePlan], after: Position | None = None) -> Any:
        runs.append(sum(len(plan.tasks) for plan in plans))
        return run(self, plans, after)

    return noting


async def test_remaining_rows_and_reported_counts(plan: ChangePlan) -> None:
    reports: list[tuple[ChangePlan, ChangelogCounts]] = []
    engine = ChangelogEngine(LocalEngine(2), BY_KEY, lambda *found: reports.append(found))
    seen = await run(engine, plan)
    assert [key for kind, _, _, key in seen if kind == "delete"] == list(range(50))
    assert sorted(key for kind, *_, key in seen if kind == "insert") == list(range(2000, 2050))
    images = [row for row in seen if row[0].startswith("update")]
    assert [row[0] for row in images] == ["update_preimage", "update_postimage"] * 195
    assert [row[1:] for row in images[::2]] == [row[1:] for row in images[1::2]]
    assert [(reported.version, counts) for reported, counts in reports] == [(7, ChangelogCounts(2 * 1755, 195))]
    assert await run(engine, plan) == seen
    assert len(reports) == 2


async def test_reports_are_optional(plan: ChangePlan) -> None:
    seen = await run(ChangelogEngine(LocalEngine(2), DROP), plan)
    assert len(seen) == 100 + 2 * 195


@pytest.mark.parametrize("rules", [DROP, BY_KEY], ids=["drop", "updates"])
async def test_every_place_to_resume(plan: ChangePlan, rules: PairingRules) -> None:
    engine = ChangelogEngine(LocalEngine(1), rules)
    whole = await run(engine, plan)
    first = whole[0][1] // TASKS * TASKS
    places = sorted({row[1:3] for row in whole} | {(first + task, row) for task, row in [(0, 17), (1, 10**6), (3, 0)]})
    for task, row in [*places[::25], *places[-2:]]:
        expected = [each for each in whole if each[1:3] > (task, row)]
        assert await run(engine, plan, Position(7, task, row)) == expected
    assert await run(engine, plan, Position.end(6)) == whole
    assert await run(engine, plan, Position.end(7)) == []


async def test_a_version_begun_with_maps_in_order_is_finished_so(tmp_path: Path) -> None:
    """Before a place that former code reached are rows of which only the entries of maps were moved."""
    schema = pa.schema([("k", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))])
    gone, come = [[("a", 1), ("b", 2)], [("c", 3)], []], [[("b", 2), ("a", 1)], [("c", 4)], []]
    tasks = []
    for index, (kind, maps) in enumerate(((TaskKind.DELETE, gone), (TaskKind.INSERT, come))):
        path = parquet(tmp_path / f"{index}.parquet", pa.table([[1, 2, 3], maps], schema=schema))
        tasks.append(ChangeTask("t", "id", 7, 1000, index, kind, str(path), 2**10, schema))
    plan = ChangePlan("t", "id", 7, 1000, "UPDATE", Regime.FILES, schema, tuple(tasks))
    engine = ChangelogEngine(LocalEngine(1), DROP)
    whole = await run(engine, plan)
    assert [(kind, row) for kind, _, row, _ in whole] == [("delete", 1), ("insert", 1)]
    # The number that former code gave: that of a plan without maps, for the same columns and rules.
    plain = pa.schema([("k", pa.int64()), ("m", pa.int64())])
    former = renumbered(plan.with_schemas(lambda _: plain), DROP)
    first, second = (task.index for task in former.tasks)
    before = [("delete", first, 0, 1), ("delete", first, 1, 2), ("insert", second, 0, 1), ("insert", second, 1, 2)]
    for number, (_, task, row, _) in enumerate(before):
        assert await run(engine, plan, Position(7, task, row)) == before[number + 1 :]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PairingRules(Carryovers.KEEP), DROP),
        (DROP, PairingRules(Carryovers.KEEP)),
        (DROP, BY_KEY),
        (BY_KEY, DROP),
        (BY_KEY, replace(BY_KEY, skip_unchanged=True)),
    ],
)
async def test_a_version_is_not_resumed_with_other_rules(
    plan: ChangePlan, before: PairingRules, after: PairingRules
) -> None:
    """After a position under other rules, rows would be lost or duplicated."""
    whole = await run(ChangelogEngine(LocalEngine(1), before), plan)
    place = Position(7, *whole[len(whole) // 2][1:3])
    with pytest.raises(ConfigError, match="version 7 was delivered in part"):
        await run(ChangelogEngine(LocalEngine(1), after), plan, place)
    if before.carryovers is Carryovers.DROP:
        with pytest.raises(ConfigError, match="version 7 was delivered in part"):
            await run(ChangelogEngine(LocalEngine(1), before), plan.select(["k"]), place)
    assert len(await run(ChangelogEngine(LocalEngine(1), before), plan, place)) < len(whole)


async def test_a_key_that_the_table_does_not_have(plan: ChangePlan) -> None:
    """The error is the same at every version with rows, whether it needs the key or not; versions without rows pass."""
    engine = ChangelogEngine(LocalEngine(1), replace(BY_KEY, key=("K",)))
    inserts = replace(plan, tasks=plan.tasks[2:])
    for version in (inserts, plan):
        with pytest.raises(ConfigError, match="no column 'K' at version 7") as caught:
            await run(engine, version)
        assert "Did you mean 'k'?" in str(caught.value.hint)
    assert await run(engine, replace(plan, tasks=())) == []


async def test_updates_that_nothing_tells(plan: ChangePlan, caplog: pytest.LogCaptureFixture) -> None:
    engine = ChangelogEngine(LocalEngine(1), replace(BY_KEY, key=()))
    for _ in range(2):
        await run(engine, plan)
    assert caplog.text.count("updates cannot be computed") == 1


async def test_plans_without_pairs_pass_unchanged(plan: ChangePlan, folder: Path) -> None:
    reports: list[Any] = []
    engine = ChangelogEngine(LocalEngine(1), DROP, lambda *found: reports.append(found))
    inserts = ChangePlan("t", "id", 7, 0, None, Regime.FILES, SCHEMA, plan.tasks[2:])
    assert len(await run(engine, inserts)) == 2000
    assert (reports, entries(folder)) == ([], [])


async def test_temporary_files_are_gone_afterwards(plan: ChangePlan, folder: Path) -> None:
    """Only the spill folder of the pooled row index remains, until the pool is closed."""
    engine = ChangelogEngine(LocalEngine(1), BY_KEY)
    async with engine.run([plan]) as batches:
        async for _ in batches:
            assert len(files_in(folder)) >= 2
            break
    assert files_in(folder) == []
    await fail_inside(engine, plan)
    assert files_in(folder) == []
    close_idle()
    assert entries(folder) == []


async def fail_inside(engine: ChangelogEngine, plan: ChangePlan) -> None:
    with suppress(KeyError):
        async with engine.run([plan]):
            raise KeyError


def entries(folder: Path) -> list[Path]:
    """Names in this process's spill folder, without its lock."""
    return [path for path in folder.glob("lake-tailer-*/**/*") if path.name != "lock"]


async def test_an_error_while_comparing_comes_out_and_the_engine_goes_on(plan: ChangePlan, folder: Path) -> None:
    engine = ChangelogEngine(LocalEngine(1), BY_KEY)
    whole = await run(engine, plan)
    gone = replace(plan.tasks[3], uri=f"{plan.tasks[3].uri}.gone")
    with pytest.raises(FileVacuumed):
        await run(engine, replace(plan, tasks=(*plan.tasks[:3], gone)))
    assert await run(engine, plan) == whole
    assert files_in(folder) == []


async def test_a_disk_that_fails_in_the_middle_and_has_room_again(
    plan: ChangePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preimages are written while the result that orders them is still being read."""
    engine = ChangelogEngine(LocalEngine(1), BY_KEY)
    with monkeypatch.context() as patch:
        patch.setattr("tailer.changelog.spill.SpilledPreimages.folder", Path("/nowhere"))
        with pytest.raises(StorageUnavailable):
            await run(engine, plan)
    assert len(await run(engine, plan)) == 100 + 2 * 195


async def test_nowhere_to_put_temporary_files(plan: ChangePlan, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ChangelogEngine(LocalEngine(1), BY_KEY)
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "missing"))
    with pytest.raises(StorageUnavailable, match="missing"):
        await run(engine, plan)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert len(await run(engine, plan)) == 100 + 2 * 195


class Endless:
    """A replacement of `execute` that yields rows without an end, from the first task on."""

    def __init__(self) -> None:
        self.reading = threading.Event()

    def __call__(self, task: ChangeTask, *_: object, **__: object) -> Iterator[ChangeBatch]:
        first = next(iter(execute(task)))
        for number in range(2**40):
            rows = pa.array(range(number * len(first), (number + 1) * len(first)), pa.int64())
            yield ChangeBatch("id", 7, task.index, first.rows, rows)
            self.reading.set()


async def test_cancelled_in_the_middle_of_a_comparison(
    plan: ChangePlan, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison would never end by itself. The engine stays usable."""
    endless, reports = Endless(), list[Any]()
    engine = ChangelogEngine(LocalEngine(1), BY_KEY, lambda *found: reports.append(found))
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_rows", DecodedFiles(endless))
        async with anyio.create_task_group() as group:
            group.start_soon(run, engine, plan)
            await become(endless.reading.is_set)
            group.cancel_scope.cancel()
        assert group.cancel_scope.cancelled_caught
    assert files_in(folder) == []
    assert reports == []
    assert len(await run(engine, plan)) == 100 + 2 * 195


@pytest.mark.parametrize("ends", ["returns", "fails"])
async def test_cancelled_when_the_comparison_is_about_to_end(
    plan: ChangePlan, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """It is too late to interrupt the comparison: its result is discarded, and the next comparison starts over."""
    engine, about_to_end = ChangelogEngine(LocalEngine(1), BY_KEY), threading.Event()

    def slow(plan: ChangePlan, rules: PairingRules, matches: RowIndex, *more: Any) -> Any:
        found = refine(plan, rules, matches, *more)
        about_to_end.set()
        with suppress(Stopped):
            while True:
                matches.unmatched()
        if ends == "fails":
            raise FileVacuumed("t", 7, "gone")
        return found

    with monkeypatch.context() as patch:
        patch.setattr("tailer.changelog.engine.refine", slow)
        with suppress(ExceptionGroup):
            async with anyio.create_task_group() as group:
                group.start_soon(run, engine, plan)
                await become(about_to_end.is_set)
                group.cancel_scope.cancel()
    assert len(await run(engine, plan)) == 100 + 2 * 195
