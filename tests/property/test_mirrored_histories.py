"""Random histories mirrored while Spark writes them: after each transaction, a mirror has Spark's rows of its version.

The mirrors are in each database and in a Delta table. Each goes on after some of the operations, with transactions of
other sizes. A mirror that cannot follow an operation stops with one of the reasons that `docs/sql.md` and
`docs/delta.md` name, and another one begins with a snapshot.

On every landing: recorded histories (`integration/test_sql_histories.py`, `test_delta_mirror_histories.py`).
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
import pytest
from pyspark.sql import SparkSession

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.engine.local import LocalEngine
from tailer.errors import TailerError, VersionGone
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.limits import Limits
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.sink import Sink
from tailer.start import Start, StartKind
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.sql.sink import SqlSink
from tailer_sinks.testing import flat_rows
from tests.support.histories.keyed_history import KeyedHistory
from tests.support.histories.random_history import Shape
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
from tests.support.mirrors.delta import make_mirror, mirror_rows
from tests.support.mirrors.histories import Judged, counted
from tests.support.seeds import seeds
from tests.support.servers.postgres import Postgres

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(0)]

STEPS: Final = 16
KINDS: Final = ("sqlite", "duckdb", "postgresql", "delta")
FOLLOWED: Final = 0.6  # the share of operations after which a mirror goes on
LIMITS: Final = (Limits(max_versions=1), Limits(max_versions=4), Limits(max_rows=5))
# Why a mirror cannot follow a version.
REASONS: Final = (
    "have another type, and there are rows",
    "RESTORE brought column",
    "do not fit",
    "is not a column of",
    "is another column",
    "is dropped or renamed in version",
    "is missing from the log",
    "another table has replaced it",
    "the log no longer has the schema before it",
)


class Target(Protocol):
    """A place for a mirror."""

    def sink(self, key: str) -> Sink:
        """Make the sink."""
        ...

    def state(self) -> tuple[int, list[dict[str, Any]]] | None:
        """Return the version of the mirror and its rows; None: there is none yet."""
        ...

    def held(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return what the place can hold of rows of the source."""
        ...

    async def verify(self, sink: Sink, log: DeltaTableLog) -> None:
        """Check that `tailer verify` finds no difference, if it compares such mirrors."""
        ...


class InDatabase:
    """A mirror in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def sink(self, key: str) -> Sink:
        return SqlSink.configure("m", {**self._database.options, "key": [key]})

    def state(self) -> tuple[int, list[dict[str, Any]]] | None:
        version = mirrored(self._database, "m")
        return None if version is None else (version, rows_in(self._database, "m"))

    def held(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return _without_nested_sign(rows) if isinstance(self._database, PostgresDatabase) else rows

    async def verify(self, sink: Sink, log: DeltaTableLog) -> None:
        assert isinstance(sink, SqlSink)
        found = await verified(sink, "m", log, Policy())
        assert found.is_equal, found


class InDelta:
    """A mirror that is a Delta table."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sink(self, key: str) -> Sink:
        return make_mirror(self._path, key=[key])

    def state(self) -> tuple[int, list[dict[str, Any]]] | None:
        for commit in sorted((self._path / "_delta_log").glob("[0-9]*.json"), reverse=True):
            actions = [json.loads(line) for line in commit.read_text().splitlines()]
            txns = [action["txn"] for action in actions if "txn" in action]
            if found := [each["version"] for each in txns if "#" not in each["appId"]]:
                return max(found), flat_rows(mirror_rows(self._path))
        return None

    def held(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return rows

    async def verify(self, sink: Sink, log: DeltaTableLog) -> None:
        """Do nothing: its rows were compared with Spark's."""


class LiveMirrors:
    """The mirrors of one kind of a history, one after the other."""

    def __init__(self, history: KeyedHistory, kind: str, targets: Iterator[Target], chance: random.Random) -> None:
        self.kind = kind
        self.versions: list[int] = []
        self.stops: Counter[str] = Counter()
        self._history = history
        self._targets = targets
        self._chance = chance
        self._target: Target | None = None
        self._key = ""

    def __str__(self) -> str:
        """Return what was reached."""
        reached, stops = len(set(self.versions)), dict(self.stops)
        return (
            f"{self.kind}: {reached} of {self._history.latest + 1} versions, {len(self.versions)} transactions, {stops}"
        )

    def follow(self) -> None:
        """Let the mirror go on to the newest version."""
        if self._target is None:
            self._target, self._key = next(self._targets), self._history.key
        error = anyio.run(self._run, self._target)
        if error is None:
            assert self.versions[-1] == self._history.latest, self._history.describe()
            return
        assert error.hint
        reason = next((each for each in REASONS if each in str(error)), None)
        assert reason is not None, f"{error!r}: {error}\n{self._history.describe()}"
        self.stops[reason] += 1
        self._target = None

    async def _run(self, target: Target) -> TailerError | None:
        sink, error = target.sink(self._key), None
        start, end = Start(StartKind.SNAPSHOT), Start(StartKind.VERSION, self._history.latest)
        engine = ChangelogEngine(LocalEngine(), PairingRules())
        judged, limits = Judged(sink, self._judge), self._chance.choice(LIMITS)
        try:
            await row_pipeline("m", self._log(), judged, engine, TimerWake(), start, end, limits=limits).run()
        except TailerError as caught:
            error = caught
        async with aclosing(sink):
            if target.state() is not None:
                with suppress(VersionGone):  # a mirror that has stopped may be at a version that the log has no more
                    await target.verify(sink, self._log())
        return error

    def _log(self) -> DeltaTableLog:
        return DeltaTableLog(LocalStore(self._history.path), allowed_roots=("/",))

    def _judge(self) -> None:
        assert self._target is not None
        state = self._target.state()
        if state is None:
            return
        version, rows = state
        self.versions.append(version)
        snapshot = flat_rows(self._history.answers[version].snapshot)
        found, wanted = counted(rows), counted(self._target.held(snapshot))
        where = self._history.describe(version)
        assert not found - wanted, f"superfluous: {list(found - wanted)[:3]}, {where}"
        assert not wanted - found, f"missing: {list(wanted - found)[:3]}, {where}"


def _without_nested_sign(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with 0.0 for each -0.0 inside JSON: PostgreSQL's `jsonb` has no other."""
    return [
        {name: _unsigned(each) if isinstance(each, dict | list) else each for name, each in row.items()} for row in rows
    ]


def _unsigned(value: Any) -> Any:
    match value:
        case dict():
            return {name: _unsigned(each) for name, each in value.items()}
        case list():
            return [_unsigned(each) for each in value]
        case float():
            return value + 0.0  # -0.0 becomes 0.0
    return value


def targets_of(kind: str, folder: Path, postgres: Postgres) -> Iterator[Target]:
    made: dict[str, Callable[[int], Target]] = {
        "sqlite": lambda number: InDatabase(SqliteDatabase(folder / f"{number}.db")),
        "duckdb": lambda number: InDatabase(DuckDbDatabase(folder / f"{number}.duckdb")),
        "postgresql": lambda _: InDatabase(PostgresDatabase(postgres)),
        "delta": lambda number: InDelta(folder / f"mirror-{number}"),
    }
    return map(made[kind], range(STEPS))


def follow_some(mirrors: Sequence[LiveMirrors], chance: random.Random) -> None:
    for each in mirrors:
        if chance.random() < FOLLOWED:
            each.follow()


@pytest.mark.parametrize("shape", EVOLVING, ids=str)
def test_histories_mirrored_while_they_are_written(
    quick_spark: SparkSession, tmp_path: Path, postgres: Postgres, shape: Shape
) -> None:
    for seed in seeds(1):
        print(f"seed {seed}")
        folder, chance = tmp_path / str(seed), random.Random(seed)
        folder.mkdir()
        history = KeyedHistory(quick_spark, folder / "table", seed, shape)
        mirrors = [LiveMirrors(history, kind, targets_of(kind, folder, postgres), chance) for kind in KINDS]
        history.run(STEPS, partial(follow_some, mirrors, chance))
        for each in mirrors:
            each.follow()
            print(f"{shape}, seed {seed}, {each}")
