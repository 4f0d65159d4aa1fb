"""Every sequence of changes of a key within a transaction of a mirror, up to five: the result is that of each version
by itself.

The oracle is a dictionary into which one version after the other is folded. What a transaction does to a key depends on
nothing but its changes and on whether the table has it, so transactions of all histories of one key show what any
grouping of versions does. Where a change contradicts the ones before it, the transaction must be refused; then the
pipeline delivers one version at a time, which the second half shows with tables that have such histories.

On every landing: all sequences without null keys in SQLite, and some in each other database, in this module.
"""

import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.engine.local import LocalEngine
from tailer.errors import SinkRejected
from tailer.events import ChangeBatch, Gap
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import Limits
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer.sink import Progress, Sink
from tailer.start import Start, StartKind
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.sql.sink import SqlSink
from tests.support.mirrors.databases import (
    Database,
    DuckDbDatabase,
    PostgresDatabase,
    SqliteDatabase,
    rows_in,
)
from tests.support.mirrors.delta import batch, full, make_mirror, mirror_rows
from tests.support.servers.postgres import Postgres
from tests.support.tables.log_files import cdc, metadata, protocol, schema_string, write_commit

pytestmark = [pytest.mark.anyio, pytest.mark.long]

SCHEMA: Final = pa.schema([("id", pa.int64()), ("part", pa.string()), ("name", pa.string())])
TARGETS: Final = ("sqlite", "duckdb", "postgresql", "delta")
PIPELINE: Final = "orders"
APP: Final = f"{PIPELINE}/5f0c6a1e"
MOST: Final = 5

# The changes of a key in one version, which need no order: a deletion, an insertion, a row whose key is null.
Version = tuple[str, ...]
History = tuple[Version, ...]
Rows = dict[int, str]


def histories(most: int = MOST) -> Iterator[History]:
    """Yield all histories with up to `most` changes."""
    yield ()
    for size in range(1, most + 1):
        for version in combinations_with_replacement("din", size):
            yield from ((version, *rest) for rest in histories(most - size))


HISTORIES: Final = tuple(each for each in histories() if each)
WITHOUT_NULLS: Final = tuple(each for each in HISTORIES if not any("n" in version for version in each))


def fold(rows: Rows, key: int, version: Version, name: str) -> bool:
    """Bring a version into `rows`, deletions first. Return False if it contradicts them, or itself."""
    if "n" in version:
        return False
    for change in sorted(version):
        if (change == "d") != (key in rows):
            return False
        if change == "d":
            del rows[key]
        else:
            rows[key] = name
    return True


def folded(rows: Rows, key: int, history: History, first: int) -> tuple[Rows, int | None]:
    """Fold versions from `first` on. Return the rows of the last one that is right, and the number of the next."""
    rows = dict(rows)
    for number, version in enumerate(history, first):
        after = dict(rows)
        if not fold(after, key, version, f"{key} at {number}"):
            return rows, number
        rows = after
    return rows, None


def change_rows(key: int, version: Version, number: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the kinds of the changes of a version, and their rows. Half of them are images of updates."""
    kinds = ("delete", "insert", "insert") if key % 2 else ("update_preimage", "update_postimage", "delete")
    values = {"d": "old", "i": f"{key} at {number}", "n": None}
    rows = [{"id": None if each == "n" else key, "part": "p", "name": values[each]} for each in version]
    return [kinds["din".index(each)] for each in version], rows


def both(key: int, version: Version, number: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the kinds and rows of a version that also updates the row with the key 0."""
    kinds, rows = change_rows(0, ("d", "i"), number)
    more_kinds, more_rows = change_rows(key, version, number)
    return kinds + more_kinds, rows + more_rows


def version_batch(key: int, version: Version, number: int) -> ChangeBatch:
    kinds, rows = both(key, version, number)
    return batch(number, kinds, SCHEMA, rows)


def inserted(rows: Rows, number: int, task: int = 0) -> ChangeBatch:
    values = [{"id": key, "part": "p", "name": name} for key, name in rows.items()]
    return batch(number, "insert", SCHEMA, values, task)


@dataclass
class Target:
    """A place for a mirror, which `sink` makes, and `read` reads without it."""

    sink: Callable[[], Sink]
    read: Callable[[], list[dict[str, Any]]]

    def rows(self) -> Rows:
        found = self.read()
        rows = {row["id"]: row["name"] for row in found}
        assert len(rows) == len(found), "no key is there twice"
        return rows


def target_of(kind: str, folder: Path, server: Callable[[], Postgres], key: Sequence[str] = ("id",)) -> Target:
    """Return an empty place of a kind. `server`: the PostgreSQL, if it is one in there."""
    if kind == "delta":
        path = folder / "mirror"
        return Target(lambda: make_mirror(path, key=list(key)), lambda: mirror_rows(path).to_pylist())
    makes: dict[str, Callable[[], Database]] = {
        "sqlite": lambda: SqliteDatabase(folder / "mirror.db"),
        "duckdb": lambda: DuckDbDatabase(folder / "mirror.duckdb"),
        "postgresql": lambda: PostgresDatabase(server()),
    }
    database = makes[kind]()
    options = {**database.options, "key": list(key)}
    return Target(lambda: SqlSink.configure(PIPELINE, options), lambda: rows_in(database, PIPELINE))


@asynccontextmanager
async def opened(target: Target) -> AsyncIterator[Sink]:
    async with aclosing(target.sink()) as sink:
        yield sink


async def deliver(sink: Sink, items: Sequence[ChangeBatch | Gap], at: Position, *, together: bool = False) -> None:
    async with sink.begin(APP, full(SCHEMA)) as transaction:
        batches = [each for each in items if isinstance(each, ChangeBatch)]
        for each in items:
            if isinstance(each, Gap):
                await transaction.announce(each)
            elif not together:
                await transaction.write(each)
        if together:
            await transaction.write_all(batches)
        await transaction.commit(Progress(APP, at))


async def is_refused(sink: Sink, items: Sequence[ChangeBatch | Gap], last: int, *, together: bool) -> str | None:
    """Deliver a transaction. Return why it was refused."""
    try:
        await deliver(sink, items, Position.end(last), together=together)
    except SinkRejected as error:
        return error.reason
    return None


async def check_transactions(target: Target, chosen: Sequence[History]) -> None:
    """Deliver each history in a transaction of its own, of a key that the table has, and of one that it has not."""
    keys = range(1, 2 * len(chosen) + 1)
    expected: Rows = {key: f"{key} at 1" for key in keys if key % 4 > 1} | {0: "0 at 1"}
    last = 1
    async with opened(target) as sink:
        await deliver(sink, [inserted(expected, 1)], Position.end(1))
        for key in keys:
            history = chosen[(key - 1) // 2]
            batches = [version_batch(key, version, number) for number, version in enumerate(history, last + 1)]
            after, fault = folded(expected, key, history, last + 1)
            newest = last + len(history)
            refusal = await is_refused(sink, batches, newest, together=key % 3 == 0)
            assert (refusal is None) == (fault is None), f"{history}, was there: {key in expected}, {refusal}"
            if refusal is None:
                last, expected = newest, after | {0: f"0 at {newest}"}
            else:
                assert len(history) > 1 or f"version {fault}" in refusal
        assert await sink.progress(APP) == Progress(APP, Position.end(last))
    assert target.rows() == expected


async def check_snapshots(target: Target, chosen: Sequence[History]) -> None:
    """Deliver each history behind a snapshot in one transaction, whatever the table had before."""
    expected: Rows = {0: "0 at 1", 3: "3 at 1"}
    last = 1
    async with opened(target) as sink:
        await deliver(sink, [inserted(expected, 1)], Position.end(1))
        for history in chosen:
            for is_there in (False, True):
                first, newest = last + 1, last + 1 + len(history)
                rows: Rows = {key: f"{key} at {first}" for key in ((0, 3) if is_there else (0,))}
                changes = [version_batch(3, version, number) for number, version in enumerate(history, first + 1)]
                after, fault = folded(rows, 3, history, first + 1)
                gap = Gap("t", first, first, 0, "lost", snapshot=True)
                items: list[ChangeBatch | Gap] = [gap, inserted(rows, first, SNAPSHOT_TASKS), *changes]
                refusal = await is_refused(sink, items, newest, together=False)
                assert (refusal is None) == (fault is None), f"{history}, in the snapshot: {is_there}, {refusal}"
                if refusal is None:
                    last, expected = newest, after | {0: f"0 at {newest}"}
                    assert target.rows() == expected, f"{history}, in the snapshot: {is_there}"


def some(number: int) -> list[History]:
    """Return some histories of several versions without null keys, and the shortest of which a table must be asked."""
    several = [each for each in WITHOUT_NULLS if len(each) > 1]
    return [(("i",), ("d",)), *random.Random(number).sample(several, number)]


@pytest.mark.parametrize(
    ("kind", "key", "chosen"),
    [
        pytest.param("sqlite", ["id"], [*WITHOUT_NULLS, *HISTORIES[::40]], id="sqlite"),
        pytest.param("sqlite", ["part", "id"], some(100), id="sqlite, two columns"),
        pytest.param("duckdb", ["id"], some(12), id="duckdb"),
        pytest.param("postgresql", ["id"], some(30), id="postgresql", marks=pytest.mark.stores),
        pytest.param("delta", ["id"], some(25), id="delta"),
        *(
            pytest.param(kind, key, HISTORIES, id=f"{kind}, {len(key)}, all", marks=pytest.mark.nightly)
            for kind in TARGETS
            for key in (["id"], ["part", "id"])
        ),
    ],
)
async def test_a_transaction_does_what_its_versions_do(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, key: list[str], chosen: Sequence[History]
) -> None:
    target = target_of(kind, tmp_path, lambda: request.getfixturevalue("postgres"), key)
    await check_transactions(target, chosen)


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [
        pytest.param("sqlite", some(60), id="sqlite"),
        pytest.param("delta", some(12), id="delta"),
        *(pytest.param(kind, WITHOUT_NULLS, id=f"{kind}, all", marks=pytest.mark.nightly) for kind in TARGETS),
    ],
)
async def test_versions_behind_a_snapshot_in_one_transaction(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, chosen: Sequence[History]
) -> None:
    await check_snapshots(target_of(kind, tmp_path, lambda: request.getfixturevalue("postgres")), chosen)


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [
        pytest.param("sqlite", some(40), id="sqlite"),
        *(pytest.param(kind, HISTORIES, id=f"{kind}, all", marks=pytest.mark.nightly) for kind in TARGETS[:3]),
    ],
)
async def test_a_transaction_that_ends_inside_a_version(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, chosen: Sequence[History]
) -> None:
    """The rows of a version that has begun wait, and come with those of later ones."""
    chance = random.Random(1)
    for case, history in enumerate(chosen):
        for is_there in (False, True):
            folder = tmp_path / f"{case} {is_there}"
            folder.mkdir()
            target = target_of(kind, folder, lambda: request.getfixturevalue("postgres"))
            before: Rows = {0: "0 at 1", 3: "3 at 1"} if is_there else {0: "0 at 1"}
            cut = chance.randrange(len(history))
            groups: tuple[list[ChangeBatch], ...] = [inserted(before, 1)], [], []
            for number, version in enumerate(history, 2):
                kinds, rows = both(3, version, number)
                middle = chance.randrange(1, len(rows)) if number == cut + 2 else 0 if number > cut + 2 else len(rows)
                for part, begin, end in ((1, 0, middle), (2, middle, len(rows))):
                    groups[part].extend(
                        [batch(number, kinds[begin:end], SCHEMA, rows[begin:end])] if begin < end else []
                    )
            reached = 0
            async with opened(target) as sink:
                ends = (Position.end(1), Position(cut + 2, 0, 0), Position.end(len(history) + 1))
                try:
                    for at, group in zip(ends, groups, strict=True):
                        await deliver(sink, group, at, together=is_there)
                        reached += 1
                except SinkRejected:
                    pass
            after, fault = folded(before, 3, history, 2)
            assert (reached == 3) == (fault is None), (history, is_there, cut)
            if reached < 3:
                after, _ = folded(before, 3, history[:cut] if reached == 2 else (), 2)
            newest = {1: 1, 2: cut + 1, 3: len(history) + 1}[reached]
            assert target.rows() == after | {0: f"0 at {newest}"}, (history, is_there, cut)


class Table:
    """A Delta table on disk whose change files say whatever a history of some keys says."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        chance = random.Random(seed)
        self.latest = chance.randint(5, 9)
        create = [protocol(), metadata(schema_string(id="long", part="string", name="string"), **_FEED)]
        write_commit(path, 0, *create)
        self.faults: list[int] = []
        rows: Rows = {}
        for number in range(1, self.latest + 1):
            values: list[dict[str, Any]] = []
            kinds: list[str] = []
            for key in chance.sample(range(6), chance.randint(1, 4)):
                right = chance.choice((("d", "i"), ("d",))) if key in rows else ("i",)
                wrong = chance.choice((("d",), ("i",), ("i", "i"), ("n",)))
                version = right if number == 1 or chance.random() < 0.93 else wrong
                if not fold(rows, key, version, f"{key} at {number}"):
                    self.faults.append(number)
                more_kinds, more_values = change_rows(key, version, number)
                kinds, values = kinds + more_kinds, values + more_values
            self._write(number, [{**row, "_change_type": kind} for row, kind in zip(values, kinds, strict=True)])

    def _write(self, number: int, rows: list[dict[str, Any]]) -> None:
        file = self.path / f"cdc-{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, pa.schema([*SCHEMA, ("_change_type", pa.string())])), file)
        write_commit(self.path, number, cdc(file.name, size=file.stat().st_size))


_FEED: Final = {"delta.enableChangeDataFeed": "true"}


async def follow(table: Table, target: Target, ends: Sequence[int], limits: Limits) -> tuple[Any, ...]:
    """Mirror a table up to each of some versions. Return the rows, the last whole version and why it stopped."""
    why = None
    for end in ends:
        async with opened(target) as sink:
            log = DeltaTableLog(LocalStore(table.path), allowed_roots=("/",))
            start, until = Start(StartKind.EARLIEST), Start(StartKind.VERSION, end)
            try:
                await row_pipeline(PIPELINE, log, sink, LocalEngine(), TimerWake(), start, until, limits=limits).run()
            except SinkRejected as error:
                why = error.reason
                break
    async with opened(target) as sink:
        progress = await sink.progress(f"{PIPELINE}/id")
        assert progress is not None
        position = progress.position
        return target.rows(), position.version if position.closes_version else position.version - 1, why


@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        ("sqlite", 6),
        ("duckdb", 2),
        pytest.param("postgresql", 4, marks=pytest.mark.stores),
        ("delta", 3),
        *(pytest.param(kind, 60, marks=pytest.mark.nightly) for kind in TARGETS),
    ],
)
async def test_a_pipeline_ends_where_one_version_at_a_time_does(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, seeds: int
) -> None:
    faults = 0
    for seed in range(seeds):
        table, chance = Table(tmp_path / f"table {seed}", seed), random.Random(seed)
        faults += bool(table.faults)

        some_ends = sorted(chance.sample(range(1, table.latest), 2))
        found = []
        for name, ends, limits in (
            ("one by one", [], Limits(max_versions=1)),
            ("all", [], Limits()),
            ("some", some_ends, Limits()),
            ("three", [], Limits(max_versions=3)),
            ("parts", [], Limits(max_rows=chance.randint(1, 5))),
        ):
            folder = tmp_path / f"{seed} {name}"
            folder.mkdir()
            target = target_of(kind, folder, lambda: request.getfixturevalue("postgres"))
            rows, version, why = await follow(table, target, [*ends, table.latest], limits)
            found.append((rows, version, why and why.replace(str(folder), "")))
        one = found[0]
        assert one[1] == min([*table.faults, table.latest + 1]) - 1, seed
        assert found == [one] * len(found), (seed, table.faults)
    assert faults, "no history is contradictory"
