"""`tailer verify --repair` beside a daemon that delivers, and killed in the middle: no row is lost or doubled.

Mirrors are in databases, and in Delta.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from tests.support.daemon.commands import Orders, tailer
from tests.support.daemon.process import Daemon
from tests.support.histories.long_history import LongHistory
from tests.support.mirrors.databases import Database, PostgresDatabase, SqliteDatabase
from tests.support.servers.postgres import Postgres
from tests.support.waiting import until

SUPERFLUOUS: Final = 10**9  # ids from here on are not in the source
KINDS: Final = ["sqlite", pytest.param("postgresql", marks=pytest.mark.stores)]
# The process is killed when it has removed rows, and is about to add others.
KILLED: Final = """
import os, signal, sys
from tailer.__main__ import main
from tailer_sinks.sql.databases import postgresql, sqlite

def killing(execute):
    def run(self, statement, parameters=()):
        if statement.startswith("INSERT INTO") and "lake_tailer_added" in statement:
            os.kill(os.getpid(), signal.SIGKILL)
        return execute(self, statement, parameters)
    return run

for kind in (sqlite._SqliteConnection, postgresql._PostgreSqlConnection):
    kind.execute = killing(kind.execute)
main()
"""


def database_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Database:
    if kind == "sqlite":
        return SqliteDatabase(folder / "mirror.db")
    server: Postgres = request.getfixturevalue("postgres")
    return PostgresDatabase(server)


class InDatabase:
    """A mirror in a database."""

    pace = (100, 20, 0.1)  # commits, how many come in a row, and seconds between two of them

    def __init__(self, database: Database) -> None:
        self.database = database
        options = {"kind": "sql", **database.options}
        self.options = "".join(f'{name} = "{value}"\n' for name, value in options.items())

    def version(self, _app_id: str) -> int:
        if not self.database.has("lake_tailer_mirrors"):
            return -1
        found = self.database.query("SELECT version FROM lake_tailer_mirrors")
        return int(found[0][0]) if found else -1

    def rows(self) -> list[tuple[int, int]]:
        return sorted(self.database.query("SELECT id, twice FROM orders"))

    def damage(self, number: int, _chance: random.Random, lost: list[int]) -> None:
        query = self.database.query
        query("UPDATE orders SET twice = -1 WHERE id IN (SELECT id FROM orders ORDER BY id DESC LIMIT 5)")
        query(f"INSERT INTO orders (id, twice) VALUES ({SUPERFLUOUS + number}, 0)")
        if lost:
            query(f"DELETE FROM orders WHERE id IN ({', '.join(map(str, lost))})")


class InDelta:
    """A mirror in a Delta table."""

    pace = (45, 10, 0.2)

    def __init__(self, path: Path) -> None:
        self._path = path
        self.options = f'kind = "delta"\npath = "{path}"\nmode = "mirror"\n'

    def version(self, app_id: str) -> int:
        try:
            found = DeltaTable(self._path).transaction_version(app_id)
        except TableNotFoundError:
            return -1
        return -1 if found is None else found

    def rows(self) -> list[tuple[int, int]]:
        return sorted((row["id"], row["twice"]) for row in DeltaTable(self._path).to_pyarrow_table().to_pylist())

    def damage(self, number: int, chance: random.Random, lost: list[int]) -> None:
        """Lose some rows, change one and add one, unless the daemon commits at the same time."""
        try:
            if lost:
                DeltaTable(self._path).delete(f"id IN ({', '.join(map(str, lost))})")
            changed, _ = chance.choice(self.rows() or [(0, 0)])
            DeltaTable(self._path).update(updates={"twice": "-1"}, predicate=f"id = {changed}")
            write_deltalake(self._path, pa.table({"id": [SUPERFLUOUS + number], "twice": [0]}), mode="append")
        except CommitFailedError as error:
            print(f"not all damage: {error}")


def configured(folder: Path, options: str, table: Path, more: str = "") -> Path:
    config = folder / "tailer.toml"
    config.write_text(
        f'[pipelines.orders]\ntable = "{table}"\npoll_interval_s = 0.05\n{more}\n'
        f'[pipelines.orders.sink]\nkey = ["id"]\n{options}'
    )
    return config


@pytest.mark.parametrize("kind", [*KINDS, "delta"])
def test_a_mirror_is_repaired_while_the_daemon_delivers(
    request: pytest.FixtureRequest, tmp_path: Path, started: list[Daemon], kind: str
) -> None:
    mirror: InDatabase | InDelta = InDelta(tmp_path / "mirror")
    if kind != "delta":
        mirror = InDatabase(database_of(kind, request, tmp_path))
    commits, burst, every_s = mirror.pace
    history = LongHistory(tmp_path / "source", seed=11, length=commits)
    app_id = f"orders/{history.table_id}"
    events = Counter(one for _, _, one in history.changes.elements())
    # Rows that are inserted and never touched again: the pipeline would stop at a change of one that is lost.
    stays = {one: version for version, kind, one in history.changes if events[one] == 1 and kind == "insert"}
    config = configured(tmp_path, mirror.options, history.path, 'select = "id, id * 2 AS twice"')
    chance = random.Random(11)
    started.append(Daemon(config))
    history.publish(5)
    until(lambda: mirror.version(app_id) >= 1, lambda: mirror.version(app_id), lambda: started[-1].said)

    outcomes: Counter[str] = Counter()

    def await_repair() -> None:
        """Return after a repair that succeeds, while the daemon has nothing to do."""
        wanted = outcomes["exit 0"] + 1
        until(lambda: outcomes["exit 0"] >= wanted)

    def publish() -> None:
        while history.published < history.length:
            for _ in range(burst):
                history.publish()
                time.sleep(every_s)
            await_repair()

    publishing = threading.Thread(target=publish, daemon=True)
    publishing.start()
    number = 0
    while publishing.is_alive():
        number += 1
        version = mirror.version(app_id)
        some = [one for one, inserted in stays.items() if inserted <= version]
        mirror.damage(number, chance, chance.sample(some, min(len(some), 3)))
        done = tailer("verify", "orders", "--config", config, "--repair")
        outcomes[f"exit {done.returncode}"] += 1
        assert done.returncode == 0 or "nothing was rewritten" in done.stdout, (done.stdout, done.stderr)
        outcomes["went on"] += done.stderr.count("was changed meanwhile")
    publishing.join()
    until(lambda: mirror.version(app_id) == history.last, lambda: mirror.version(app_id), lambda: started[-1].said)
    done = tailer("verify", "orders", "--config", config, "--repair")
    assert (done.returncode, done.stderr) == (0, "")
    assert started[-1].terminate() == 0, started[-1].said
    assert mirror.rows() == [(one, 2 * one) for one in sorted(history.states[-1])]
    print(dict(outcomes))


@pytest.mark.parametrize("kind", KINDS)
def test_a_repair_that_is_killed_changes_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, started: list[Daemon], kind: str
) -> None:
    orders = Orders(tmp_path / "orders")
    orders.insert(1, 2, 3)
    database = database_of(kind, request, tmp_path)
    mirror = InDatabase(database)
    config = configured(tmp_path, mirror.options, orders.path)
    started.append(Daemon(config))
    until(lambda: mirror.version("") == 0, said=lambda: started[-1].said)
    database.query("UPDATE orders SET amount = 9.5 WHERE id = 1")
    database.query("DELETE FROM orders WHERE id = 2")
    damaged = [(1, 9.5), (3, 4.5)]
    command = [sys.executable, "-c", KILLED, "verify", "orders", "--config", str(config), "--repair"]
    killed = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert database.query("SELECT * FROM orders ORDER BY id") == damaged
    orders.insert(4)
    until(lambda: mirror.version("") == 1, said=lambda: started[-1].said)
    assert database.query("SELECT * FROM orders ORDER BY id") == [*damaged, (4, 6.0)]
    done = tailer("verify", "orders", "--config", config, "--repair")
    assert (done.returncode, done.stderr) == (0, "")
    assert database.query("SELECT * FROM orders ORDER BY id") == [(1, 1.5), (2, 3.0), (3, 4.5), (4, 6.0)]
    assert started[-1].terminate() == 0, started[-1].said
