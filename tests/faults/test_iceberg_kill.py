"""SIGKILL of the daemon while it follows an Iceberg table: mirrors are at a version, Kafka has each change once.

Numbers of versions have gaps, because another branch has commits, too. All kinds of deletes of format version 2 occur.
On every landing: three kills, in this module, with mirrors in SQLite and Delta.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

import pytest
from deltalake import DeltaTable

import tailer
from tests.support.daemon.commands import tailer as command
from tests.support.daemon.process import Daemon
from tests.support.iceberg.catalog_writer import CatalogWriter
from tests.support.iceberg.table import File, IcebergTable
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.figures import Figures
from tests.support.kafka.topics import create_topic, read_topic
from tests.support.mirrors.databases import Database, DuckDbDatabase, PostgresDatabase, SqliteDatabase
from tests.support.servers.postgres import Postgres
from tests.support.waiting import until

FEW_KILLS: Final = 3
KILLS: Final = 12
AHEAD: Final = 60  # commits between two kills: a machine that is busy is no reason for a longer history
OFTEN: Final = [
    pytest.param("sqlite", KILLS, marks=pytest.mark.nightly),
    pytest.param("delta", KILLS, marks=pytest.mark.nightly),
    pytest.param("duckdb", KILLS, marks=pytest.mark.nightly),
    pytest.param("postgresql", KILLS, marks=[pytest.mark.stores, pytest.mark.nightly]),
]

Rows = dict[int, str]


class Commits(Protocol):
    """A writer of a table. `states`: the rows of each version, known before a reader can see it."""

    states: dict[int, Rows]

    def commit(self, count: int) -> None:
        """Make some commits of different kinds."""
        ...

    def append(self) -> None:
        """Add some rows."""
        ...


class Writer:
    """A writer of the table at `path`, whose rows it knows at each version."""

    def __init__(self, path: Path, seed: int) -> None:
        self.table = IcebergTable(path)
        self.states: dict[int, Rows] = {}
        self._chance = random.Random(seed)
        self._places: dict[int, tuple[str, int]] = {}
        self._files: dict[str, File] = {}
        self._rows: Rows = {}
        self._next = 0
        self.append()

    @property
    def rows(self) -> Rows:
        """The rows of the newest version."""
        return self.states[max(self.states)]

    def commit(self, count: int) -> None:
        """Make some commits of different kinds."""
        kinds = (self.append, self._delete, self._update, self._upsert, self._rewrite, self._compact, self._elsewhere)
        for _ in range(count):
            self._chance.choice(kinds)()

    def append(self) -> None:
        """Add some rows."""
        self._done([self._file({self._new(): "new" for _ in range(10)})])

    def _delete(self) -> None:
        marks = [self._forget(one) for one in self._some(3)]
        self._done([self.table.positions(marks)] if marks else [])

    def _update(self) -> None:
        changed = {one: f"{self._rows[one]}+" for one in self._some(3)}
        marks = [self._forget(one) for one in changed]
        self._done([self._file(changed), self.table.positions(marks)] if marks else [])

    def _upsert(self) -> None:
        changed = dict.fromkeys((*self._some(3), self._new()), "upsert")
        for one in changed.keys() & self._rows.keys():
            self._forget(one)
        self._done([self.table.equality({"id": list(changed)}, {"id": 1}), self._file(changed)])

    def _rewrite(self, operation: str = "overwrite", mark: str = "*") -> None:
        old = self._chance.choice(list(self._files.values()))
        rows = {one: f"{self._rows[one]}{mark}" for one, (path, _) in self._places.items() if path == old.path}
        del self._files[old.path]
        self._done([self._file(rows)], [old], operation)

    def _compact(self) -> None:
        self._rewrite("replace", "")

    def _elsewhere(self) -> None:
        self.table.commit([], branch="dev")

    def _new(self) -> int:
        self._next += 1
        return self._next

    def _some(self, most: int) -> list[int]:
        return self._chance.sample(sorted(self._rows), min(most, len(self._rows)))

    def _file(self, rows: Rows) -> File:
        file = self.table.data({"id": list(rows), "name": list(rows.values())})
        self._files[file.path] = file
        self._places |= {one: (file.path, position) for position, one in enumerate(rows)}
        self._rows |= rows
        return file

    def _forget(self, one: int) -> tuple[File, int]:
        del self._rows[one]
        path, position = self._places.pop(one)
        return self._files[path], position

    def _done(self, add: list[File], remove: list[File] = [], operation: str = "overwrite") -> None:  # noqa: B006
        state = dict(self._rows)
        self.states[self.table.sequence + 1] = state  # before a reader can see it
        self.table.commit(add, remove, operation)


class Mirror:
    """A mirror, and the check that it is one."""

    def __init__(self, writer: Commits, read: Callable[[], Rows]) -> None:
        self._writer = writer
        self._read = read
        self.looks = 0

    def version(self) -> int:
        """Return the newest version whose rows it has; -1: it is not there yet."""
        rows = self._read()
        self.looks += 1
        if not rows:
            return -1
        versions = [version for version, state in list(self._writer.states.items()) if state == rows]
        assert versions, f"rows of no version: {sorted(rows.items())}"
        return max(versions)


def database_rows(database: Database) -> Rows:
    """Return the rows of a mirror in a database."""
    return dict(database.query("SELECT id, name FROM orders")) if database.has("orders") else {}


def delta_rows(path: Path) -> Rows:
    """Return the rows of a mirror in Delta."""
    if not DeltaTable.is_deltatable(str(path)):
        return {}
    return {row["id"]: row["name"] for row in DeltaTable(path).to_pyarrow_table(columns=["id", "name"]).to_pylist()}


def killed(config: Path, writer: Commits, reached: Callable[[], int], started: list[Daemon], kills: int) -> None:
    """Start and kill daemons while the writer commits, then let one deliver the rest."""
    chance, places = random.Random(5), {reached()}
    for number in range(kills):
        writer.commit(chance.randrange(4))
        started.append(Daemon(config))
        started[-1].wait_until_running()
        # Every other daemon is killed when it has delivered something, the others at any moment.
        newest = max(writer.states)
        ends_at, begun = time.monotonic() + (60 if number % 2 else chance.uniform(0.0, 1.5)), reached()
        while time.monotonic() < ends_at and (number % 2 == 0 or reached() == begun):
            if max(writer.states) < newest + AHEAD:
                writer.commit(chance.randrange(3))
            time.sleep(chance.uniform(0.0, 0.1))
        places.add(reached())
        started[-1].kill()
    writer.append()
    started.append(Daemon(config))
    started[-1].wait_until_running()
    until(lambda: reached() == max(writer.states), reached, lambda: started[-1].said)
    assert started[-1].terminate() == 0, started[-1].said
    assert len(places) > kills // 3, f"the daemon hardly got anywhere between kills: {sorted(places)}"
    print(f"{kills} kills, at versions {sorted(places)}")


def configured(tmp_path: Path, writer: Writer, sink: str, start: str) -> Path:
    """Write the configuration of a daemon that polls often."""
    pipeline = f'[pipelines.orders]\ntable = "{writer.table.path}"\nstart = "{start}"\npoll_interval_s = 0.05\n'
    (config := tmp_path / "tailer.toml").write_text(f"{pipeline}[pipelines.orders.sink]\n{sink}")
    return config


@pytest.mark.parametrize(("kind", "kills"), [("sqlite", FEW_KILLS), ("delta", FEW_KILLS), *OFTEN])
def test_a_mirror_is_always_at_a_version(
    request: pytest.FixtureRequest, tmp_path: Path, started: list[Daemon], kind: str, kills: int
) -> None:
    writer, target = Writer(tmp_path / "orders", 1), tmp_path / "mirror"
    if kind == "delta":
        options = {"kind": "delta", "path": str(target), "mode": "mirror"}
        mirror = Mirror(writer, lambda: delta_rows(target))
    else:
        database = opened(request, target, kind)
        options = {"kind": "sql", **database.options}
        mirror = Mirror(writer, lambda: database_rows(database))
    sink = "".join(f'{name} = "{value}"\n' for name, value in options.items())
    config = configured(tmp_path, writer, f'{sink}key = ["id"]\n', "snapshot")
    killed(config, writer, mirror.version, started, kills)
    done = command("verify", "orders", "--config", config)
    assert done.returncode == 0, (done.stdout, done.stderr)
    print(f"{mirror.looks} looks at {max(writer.states)} versions, each at a version; verified as equal")


@pytest.mark.parametrize("kills", [FEW_KILLS, pytest.param(KILLS, marks=pytest.mark.nightly)])
def test_a_mirror_of_a_table_in_a_catalog(tmp_path: Path, started: list[Daemon], kills: int) -> None:
    writer, database = CatalogWriter(tmp_path, 1), SqliteDatabase(tmp_path / "mirror")
    sink = ", ".join(f'{name} = "{value}"' for name, value in database.options.items())
    (config := tmp_path / "tailer.toml").write_text(
        f"""
        [catalogs.prod]
        type = "sql"
        uri = "{writer.uri}"
        [pipelines.orders]
        table = "iceberg://prod/sales.orders"
        start = "snapshot"
        poll_interval_s = 0.05
        sink = {{kind = "sql", {sink}, key = ["id"]}}
        """
    )
    killed(config, writer, Mirror(writer, lambda: database_rows(database)).version, started, kills)
    done = command("verify", "orders", "--config", config)
    assert done.returncode == 0, (done.stdout, done.stderr)


def opened(request: pytest.FixtureRequest, path: Path, kind: str) -> Database:
    """Open a database of a kind."""
    if kind == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        return PostgresDatabase(server)
    return DuckDbDatabase(path) if kind == "duckdb" else SqliteDatabase(path)


@pytest.mark.parametrize("kills", [FEW_KILLS, pytest.param(KILLS, marks=pytest.mark.nightly)])
def test_killed_while_it_delivers_to_kafka(
    tmp_path: Path, kafka: KafkaCluster, started: list[Daemon], kills: int
) -> None:
    writer, servers = Writer(tmp_path / "orders", 2), kafka.bootstrap_servers
    topic, ends = create_topic(servers), create_topic(servers)
    sink = f'kind = "kafka"\nbootstrap_servers = "{servers}"\ntopic = "{topic}"\nend_topic = "{ends}"\n'

    def reached() -> int:
        ended = (json.loads(message.value) for message in read_topic(servers, ends) if message.value is not None)
        return max((end["commit_version"] for end in ended), default=-1)

    config = configured(tmp_path, writer, f"{sink}create_topics = true\n", "earliest")
    killed(config, writer, reached, started, kills)
    rows = [json.loads(message.value) for message in read_topic(servers, topic) if message.value is not None]
    delivered = [change(row) for row in rows]
    undisturbed = [change(row) for batch in tailer.changes(writer.table.path) for row in batch.to_pylist()]
    seen, wanted, versions = Counter(delivered), Counter(undisturbed), Counter(row[0] for row in delivered)
    folded: Counter[tuple[int, str]] = Counter()
    for _, kind, one, name in delivered:
        folded[one, name] += -1 if kind in ("delete", "update_preimage") else 1
    table = Counter(writer.rows.items())
    said = [json.loads(message.value) for message in read_topic(servers, ends) if message.value is not None]
    counts = Counter((end["commit_version"], end["event_count"]) for end in said)
    # A number in a gap has an END record, too, of no messages.
    expected = Counter((version, versions[version]) for version in range(1, max(writer.states) + 1))
    figures = Figures(
        missing=(wanted - seen).total(),
        doubled=(seen - wanted).total(),
        disordered=sum(row[0] > later[0] for row, later in pairwise(delivered)),
        unfolded=sum(folded[row] != table[row] for row in folded | table),
        miscounted=((counts - expected) + (expected - counts)).total(),
        examples=tuple(map(str, (*(counts - expected), *(expected - counts)))),
    )
    assert figures.all_zero, figures
    print(f"{len(delivered)} changes of {len(writer.states)} versions: {figures}")


def change(row: dict[str, Any]) -> tuple[int, str, int, str]:
    """Return a change as tests compare it."""
    return row["_commit_version"], row["_change_type"], row["id"], row["name"]
