"""Recorded histories mirrored into databases: after each transaction, the table has Spark's rows of that version.

At the end, `tailer.pipeline.verification.comparison` finds no difference, either.

A mirror that cannot follow a change of the columns says so, and another one begins with a snapshot of that version.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import pyarrow as pa
import pytest

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.engine.local import LocalEngine
from tailer.errors import ChangesUnavailable, SinkRejected, TailerError
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import Limits, Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.verification.comparison import verify
from tailer.start import Start, StartKind
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.sql.sink import SqlSink
from tailer_sinks.testing import flat_rows
from tests.support.histories.schema_evolution import EVOLVING
from tests.support.mirrors.databases import (
    Database,
    DuckDbDatabase,
    PostgresDatabase,
    SqliteDatabase,
    mirrored,
    rows_in,
    verified,
)
from tests.support.mirrors.histories import Judged, counted
from tests.support.oracle.recorded import HISTORIES, RecordedTable, read
from tests.support.servers.postgres import Postgres

pytestmark = pytest.mark.long

RENAMING: Final = re.compile("rename|drop|replace|overwrite schema|restore")
WRITTEN: Final = sorted(HISTORIES.glob("*.tar.xz"))
# Why a mirror of a table with a key cannot follow a version.
FOLLOWED_NO_FURTHER: Final = (
    "have another type, and there are rows",
    "have another type, and it keeps its rows",
    "which were dropped, and others have their names now",
    "RESTORE brought column",
)
NAMES: Final = [f"{archive.name[:2]} {EVOLVING[int(archive.name[:2])]}" for archive in WRITTEN]


def key_of(snapshot: pa.Table) -> str | None:
    """Return a column whose values identify the rows; None: there is none."""
    numbers = [name for name in snapshot.column_names if pa.types.is_int64(snapshot.schema.field(name).type)]
    return next((name for name in numbers if identifies(name, snapshot)), None)


def has_key(key: str, snapshot: pa.Table) -> bool:
    return key in snapshot.column_names and identifies(key, snapshot)


def identifies(column: str, snapshot: pa.Table) -> bool:
    values = snapshot.column(column)
    return values.null_count == 0 and len(values.unique()) == len(values)


def mirror(
    recorded: RecordedTable, new_database: Callable[[], Database], limits: Limits, options: dict[str, str] | None = None
) -> None:
    """Mirror all versions, with another mirror after each one that has no key, or cannot be followed.

    `options`: of mirrors that keep rows of the past, which are verified as of each version that they have.
    """
    snapshots = {version: answer.snapshot for version, answer in recorded.answers.items()}
    version, reached = recorded.first, 0
    while version <= recorded.last:
        key = key_of(snapshots[version])
        if key is None:
            version += 1
            continue
        versions, error = mirrored_from(recorded, version, key, new_database(), limits, options or {})
        reached += len(set(versions))
        version = max(versions, default=version - 1) + 1
        if error is None:
            break
        assert error.hint
        # A transaction that ends inside a version may have whole ones before it, so another one may be refused.
        near = [each for each in range(version, version + 3) if each in snapshots and not has_key(key, snapshots[each])]
        assert near or any(reason in str(error) for reason in FOLLOWED_NO_FURTHER), error
        version = min(near, default=version)
    assert reached > 0, "no version"


def open_log(recorded: RecordedTable) -> DeltaTableLog:
    return DeltaTableLog(LocalStore(recorded.path), allowed_roots=("/",))


def mirrored_from(
    recorded: RecordedTable, first: int, key: str, database: Database, limits: Limits, options: dict[str, str]
) -> tuple[list[int], TailerError | None]:
    """Mirror versions from `first` on. Return those that the table had, and the error that ended it."""

    versions: list[int] = []

    def judge() -> None:
        version = mirrored(database, "m")
        if version is None:
            return
        versions.append(version)
        if options:
            return
        found, wanted = counted(rows_in(database, "m")), counted(flat_rows(recorded.answers[version].snapshot))
        assert not found - wanted, recorded.where(version, f"superfluous: {list(found - wanted)[:3]}")
        assert not wanted - found, recorded.where(version, f"missing: {list(wanted - found)[:3]}")

    inner = SqlSink.configure("m", {**database.options, "key": [key], **options})
    sink = Judged(inner, judge)

    async def run() -> None:
        log = open_log(recorded)
        start, end = (Start(StartKind.VERSION, version) for version in (first, recorded.last))
        engine = ChangelogEngine(LocalEngine(), PairingRules())
        try:
            await row_pipeline("m", log, sink, engine, TimerWake(), start, end, limits=limits).run()
        finally:
            if versions:
                found = await verified(inner, "m", open_log(recorded), Policy())
                assert found.is_equal, recorded.where(found.version, str(found))
            if versions and options.get("mode") == "history":
                await verify_all(inner, recorded)
            await sink.aclose()

    try:
        anyio.run(run)
    except (SinkRejected, ChangesUnavailable) as error:
        return versions, error
    return versions, None


async def verify_all(sink: SqlSink, recorded: RecordedTable) -> None:
    """Verify a history as of all its versions."""
    async with sink.open_mirror("m") as rows:
        versions = range(rows.known_from, rows.version + 1)
    for version in versions:
        async with sink.open_mirror("m", version) as rows:
            found = await verify(rows, open_log(recorded), LocalEngine(), Policy(), 3)
        assert found.is_equal, recorded.where(version, str(found))


def log(recorded: RecordedTable, database: Database) -> None:
    """Log all changes, and verify the log at each version, until it has values under names that are others by then."""

    async def run() -> None:
        sink = SqlSink.configure("m", {**database.options, "mode": "append"})
        engine = ChangelogEngine(LocalEngine(), PairingRules())
        # What a log lacks that was cleaned up is in a snapshot, which is one of the last version.
        start = Start(StartKind.EARLIEST) if recorded.first == 0 else Start(StartKind.SNAPSHOT)
        first = version = 0 if recorded.first == 0 else recorded.last
        try:
            while version <= recorded.last and (version == first or not RENAMING.search(recorded.story[version])):
                made = open_log(recorded), sink, engine, TimerWake()
                end = Start(StartKind.VERSION, version)
                await row_pipeline("m", *made, start, end).run()
                found = await verified(sink, "m", open_log(recorded), Policy(), limit=3)
                assert (found.is_equal, found.version) == (True, version), recorded.where(version, str(found))
                version += 1
        finally:
            await sink.aclose()
        assert version > first
        print(f"compared {version - first} of {recorded.last + 1 - first} versions")

    anyio.run(run)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("archive", WRITTEN, ids=NAMES)
def test_logs_add_up_to_histories(archive: Path, tmp_path: Path) -> None:
    log(read(archive, tmp_path / "t"), SqliteDatabase(tmp_path / "log.db"))


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "limits",
    [Limits(max_versions=1), Limits(max_versions=4), Limits(max_rows=5)],
    ids=["each version", "four at once", "in parts"],
)
@pytest.mark.parametrize("archive", WRITTEN, ids=NAMES)
def test_histories_in_sqlite(archive: Path, limits: Limits, tmp_path: Path) -> None:
    numbers = iter(range(100))
    mirror(read(archive, tmp_path / "t"), lambda: SqliteDatabase(tmp_path / f"{next(numbers)}.db"), limits)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("options", [{"deletes": "mark"}, {"mode": "history"}], ids=["mark", "history"])
@pytest.mark.parametrize("limits", [Limits(max_versions=4), Limits(max_rows=5)], ids=["four at once", "in parts"])
@pytest.mark.parametrize("archive", WRITTEN, ids=NAMES)
def test_histories_with_rows_of_the_past(
    archive: Path, limits: Limits, options: dict[str, str], tmp_path: Path
) -> None:
    numbers = iter(range(100))
    recorded = read(archive, tmp_path / "t")
    mirror(recorded, lambda: SqliteDatabase(tmp_path / f"{next(numbers)}.db"), limits, options)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(Limits(max_versions=1), id="each version", marks=pytest.mark.nightly),
        pytest.param(Limits(max_versions=4), id="four at once"),
        pytest.param(Limits(max_rows=5), id="in parts", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("archive", WRITTEN, ids=NAMES)
def test_histories_in_duckdb(archive: Path, limits: Limits, tmp_path: Path) -> None:
    numbers = iter(range(100))
    mirror(read(archive, tmp_path / "t"), lambda: DuckDbDatabase(tmp_path / f"{next(numbers)}.duckdb"), limits)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "limits",
    [Limits(max_versions=1), Limits(max_versions=4), Limits(max_rows=5)],
    ids=["each version", "four at once", "in parts"],
)
@pytest.mark.parametrize("archive", WRITTEN, ids=NAMES)
def test_histories_in_postgresql(archive: Path, limits: Limits, tmp_path: Path, postgres: Postgres) -> None:
    mirror(read(archive, tmp_path / "t"), lambda: PostgresDatabase(postgres), limits)
