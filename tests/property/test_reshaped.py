"""Change rows of tables whose columns change (`tests.support.tables.schema_changes`): rows that cancel out, and others.

Rows cancel out if they are equal in all columns of either. This holds within a version, for any division into splits,
and for the net changes of any range of versions. The remaining rows, applied version by version, turn each snapshot
into the next.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.net_changes import net_changes
from tailer.changelog.rules import PairingRules, concerns, renumbered
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError, SchemaChanged
from tailer.events import CHANGE_TYPE, ChangeBatch
from tailer.formats.delta.table import DeltaTableLog
from tailer.plan import ChangePlan, Position
from tailer.spark.source.admission import Admission
from tailer.spark.source.views import TypedView
from tailer.spark.splits import NetChangesSplit, diff_splits, read_split
from tailer.start import StartPoint
from tailer.stores.local import LocalStore
from tests.support.follow import follow, plans
from tests.support.oracle.rows import GONE
from tests.support.seeds import seeds
from tests.support.spark.batches import placed
from tests.support.tables.schema_changes import Change, Named, Reshaped, named_row

SEEDS: Final = seeds(11)  # so many for every change of columns to be there
VERSIONS: Final = 9
RANGES: Final = 3
DROP: Final = PairingRules()
Sides = tuple[Counter[Any], Counter[Any]]


def by_key(table: Reshaped, version: int) -> PairingRules:
    """Pair updates by the column k."""
    columns = table.changes[version].columns
    assert not columns or any(name == "k" for name, *_ in columns)
    return PairingRules(compute_updates=True, key=("k",))


def replaces_key(table: Reshaped, versions: range) -> bool:
    """Return whether a version gives the name of the column k to another column."""
    return any(path[0] == "k" for plan in plans(table.path, versions.start, versions[-1]) for path in plan.replaced)


def sides(batches: Iterable[ChangeBatch], columns: Callable[[int, bool], Named]) -> Sides:
    """Return the deleted and the inserted rows; `columns`: those of a version's rows, by their change."""
    found: Sides = Counter(), Counter()
    for batch in batches:
        for row in batch.rows.to_pylist():
            gone = row[CHANGE_TYPE] in GONE
            found[not gone][named_row(row, columns(batch.version, gone))] += 1
    return found


def happened(table: Reshaped, versions: range) -> Sides:
    """Return all rows that the versions of a range delete, and all that they insert."""
    gone, come = Counter[Any](), Counter[Any]()
    for version in versions:
        gone += table.changes[version].gone
        come += table.changes[version].come
    return gone, come


def left(gone: Counter[Any], come: Counter[Any]) -> Sides:
    """Return the rows that do not cancel out."""
    return gone - come, come - gone


def kept(rows: Counter[Any], columns: Named) -> Counter[Any]:
    """Return the rows in these columns."""
    found: Counter[Any] = Counter()
    for row, many in rows.items():
        found[_kept(row, columns)] += many
    return found


def _kept(row: Any, columns: Named) -> Any:
    inner = {key: fields for _, key, fields in columns}
    return frozenset(
        (key, _kept(value, inner[key]) if inner[key] and isinstance(value, frozenset) else value)
        for key, value in row
        if key in inner
    )


def fold(before: Counter[Any], found: dict[int, Sides], changes: list[Change], versions: range) -> Counter[Any]:
    """Apply the changes of each version to `before`, in the columns of the last one."""
    rows = before
    for version in versions:
        gone, come = found.get(version, (Counter(), Counter()))
        assert not gone - rows, f"version {version} deletes what is not there"
        rows = kept(rows - gone, changes[version].columns) + come
    return rows


def net(path: Path, versions: range, rules: PairingRules) -> list[ChangeBatch]:
    """Return the net changes as the command line prints them."""
    return anyio.run(_net, path, plans(path, versions.start, versions[-1]), rules)


async def _net(path: Path, work: list[ChangePlan], rules: PairingRules) -> list[ChangeBatch]:
    versions = range(work[0].version, work[-1].version + 1)
    log, found = DeltaTableLog(LocalStore(path)), []
    async with net_changes(log, versions, LocalEngine(), rules, lambda plan: plan, lambda *_: None) as engine:
        for plan in work:
            async with engine.run([plan]) as batches:
                found += [batch async for batch in batches]
    return found


async def typed(path: Path, versions: range, view: TypedView) -> list[ChangeBatch]:
    """Return the net changes as a Spark query reads them."""
    admission = Admission(DeltaTableLog(LocalStore(path)), view, DROP, net=True)
    after = await admission.start(StartPoint(versions.start))
    work = (await admission.work(after, Position.end(versions[-1]))).splits()
    return [batch for split in work if isinstance(split, NetChangesSplit) for batch in read_split(split)]


def describe(table: Reshaped, version: int) -> str:
    """Return the text of a failure."""
    story = "\n".join(f"  {at}: {change.story}" for at, change in enumerate(table.changes[: version + 1]))
    return f"version {version} of {table.path}\n{story}"


def own(table: Reshaped) -> Callable[[int, bool], Named]:
    """Return the columns of a row: deleted rows have those of the previous version."""
    return lambda version, gone: table.changes[max(version - gone, 0)].columns


def check_versions(table: Reshaped) -> None:
    """Check the remaining rows of each version, on one machine and in splits."""
    for found in follow(table.path, engine=ChangelogEngine(LocalEngine(), DROP)):
        change, version = table.changes[found.plan.version], found.plan.version
        assert sides(found.batches, own(table)) == left(change.gone, change.come), describe(table, version)
        if concerns(found.plan, DROP):
            splits, alone = diff_splits(renumbered(found.plan, DROP), DROP)
            batches = [batch for split in splits for batch in read_split(split)]
            batches += [batch for part in alone for batch in part.rows()]
            assert Counter(placed(batches)) == Counter(placed(found.batches)), describe(table, version)


def check_updates(table: Reshaped) -> None:
    """Check that updates have the same rows, with images in the columns of the version."""
    for version, change in enumerate(table.changes):
        engine = ChangelogEngine(LocalEngine(), by_key(table, version))
        if replaces_key(table, range(version, version + 1)):
            with pytest.raises(ConfigError, match="gives the name k to another column"):
                follow(table.path, version, version, engine=engine)
            continue
        gone, come = Counter[Any](), Counter[Any]()
        for batch in follow(table.path, version, version, engine=engine)[0].batches:
            for row in batch.rows.to_pylist():
                columns = own(table)(version, row[CHANGE_TYPE] == "delete")
                (gone if row[CHANGE_TYPE] in GONE else come)[named_row(row, columns)] += 1
        assert (gone, come) == left(change.gone, change.come), describe(table, version)


def check_net(table: Reshaped, versions: range) -> None:
    """Check the net changes of a range."""
    expected = left(*happened(table, versions))
    before = table.changes[versions.start - 1].rows if versions.start else Counter()
    where = f"{versions}: {describe(table, versions[-1])}"
    for rules in (DROP, *([] if replaces_key(table, versions) else [by_key(table, versions[-1])])):
        batches = net(table.path, versions, rules)
        assert sides(batches, own(table)) == expected, where
        found = {
            version: sides([each for each in batches if each.version == version], own(table)) for version in versions
        }
        assert fold(before, found, table.changes, versions) == table.changes[versions[-1]].rows, where
        kinds = Counter(kind for batch in batches for kind in batch.rows[CHANGE_TYPE].to_pylist())
        assert kinds["update_preimage"] == kinds["update_postimage"]
    splits = read_split(NetChangesSplit(tuple(plans(table.path, versions.start, versions[-1])), DROP))
    assert Counter(placed(splits)) == Counter(placed(net(table.path, versions, DROP))), where


def check_typed(table: Reshaped, versions: range, since: int, chosen: bool) -> bool:
    """Check a Spark query that reads the columns of one version and follows from there; return whether it can."""
    (schema,) = (plan.schema for plan in plans(table.path, since, since))
    columns = table.changes[since].columns
    if chosen:
        columns = tuple(each for each in columns if each[0] in ("k", "a"))
    view = TypedView(schema, [name for name, *_ in columns] if chosen else [], since=since, follows=True)
    try:
        found = sides(anyio.run(typed, table.path, versions, view), lambda *_: columns)
    except SchemaChanged:
        return False
    gone, come = happened(table, versions)
    if chosen:
        expected = left(kept(gone, columns), kept(come, columns))
    else:
        gone, come = left(gone, come)
        expected = kept(gone, columns), kept(come, columns)
    assert found == expected, f"{versions}, columns of {since}: {describe(table, versions[-1])}"
    return True


@pytest.mark.parametrize("seed", [*SEEDS[:4], *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[4:])])
def test_tables_whose_columns_change(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    table = Reshaped(tmp_path, chance).run(VERSIONS)
    check_versions(table)
    check_updates(table)
    for _ in range(RANGES):
        first = chance.randrange(VERSIONS)
        versions = range(first, chance.randint(first, VERSIONS) + 1)
        check_net(table, versions)
        for chosen in (False, True):
            check_typed(table, versions, versions[-1], chosen)
            check_typed(table, versions, chance.choice(versions), chosen)


@pytest.mark.parametrize("seed", seeds(2))
def test_a_table_that_loses_all_columns_and_gets_them_back(tmp_path: Path, seed: int) -> None:
    table = Reshaped(tmp_path, random.Random(seed)).run(2).refresh().run(3)
    check_versions(table)
    check_updates(table)
    for first, last in ((1, 7), (3, 3), (3, 4), (2, 5), (4, 7)):
        check_net(table, range(first, last + 1))
        check_typed(table, range(first, last + 1), last, chosen=False)
    (bare,) = plans(table.path, 3, 3)
    assert bare.schema.names == []
    assert len(follow(table.path, 3, 3, LocalEngine())[0].positions) == table.changes[3].gone.total() > 0


def test_everything_is_done_to_columns(tmp_path: Path) -> None:
    stories = {
        change.story.removeprefix("overwrite, ").split(" ")[0]
        for seed in SEEDS
        for change in Reshaped(tmp_path / str(seed), random.Random(seed)).run(VERSIONS).changes
    }
    assert stories >= {"add", "drop", "exchange", "id", "map", "rename", "replace", "unmap", "unmap,", "widen", "write"}
