"""`tailer verify --repair` beside a daemon that delivers, and killed in the middle: no row is lost or doubled."""

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

import pytest

from tests.support.daemon.commands import Orders, tailer
from tests.support.daemon.process import Daemon
from tests.support.histories.long_history import LongHistory
from tests.support.mirrors.databases import Database, PostgresDatabase, SqliteDatabase
from tests.support.servers.postgres import Postgres
from tests.support.waiting import until

COMMITS: Final = 100
BURST: Final = 20
EVERY_S: Final = 0.1
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


def configured(folder: Path, database: Database, table: Path, more: str = "") -> Path:
    options = "".join(f'{name} = "{value}"\n' for name, value in database.options.items())
    config = folder / "tailer.toml"
    config.write_text(
        f'[pipelines.orders]\ntable = "{table}"\npoll_interval_s = 0.05\n{more}\n'
        f'[pipelines.orders.sink]\nkind = "sql"\nkey = ["id"]\n{options}'
    )
    return config


def version_of(database: Database) -> int:
    if not database.has("lake_tailer_mirrors"):
        return -1
    found = database.query("SELECT version FROM lake_tailer_mirrors")
    return int(found[0][0]) if found else -1


def versions_of_rows_that_stay(history: LongHistory) -> dict[int, int]:
    """Return the version of each row that is inserted and never touched again, by id."""
    events = Counter(one for _, _, one in history.changes.elements())
    return {one: version for version, kind, one in history.changes if events[one] == 1 and kind == "insert"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_mirror_is_repaired_while_the_daemon_delivers(
    request: pytest.FixtureRequest, tmp_path: Path, started: list[Daemon], kind: str
) -> None:
    history = LongHistory(tmp_path / "source", seed=11, length=COMMITS)
    stays = versions_of_rows_that_stay(history)
    database = database_of(kind, request, tmp_path)
    config = configured(tmp_path, database, history.path, 'select = "id, id * 2 AS twice"')
    chance = random.Random(11)
    started.append(Daemon(config))
    history.publish(5)
    until(lambda: version_of(database) >= 1, lambda: version_of(database), lambda: started[-1].said)

    outcomes: Counter[str] = Counter()

    def await_repair() -> None:
        """Return after a repair that succeeds, while the daemon has nothing to do."""
        wanted = outcomes["exit 0"] + 1
        until(lambda: outcomes["exit 0"] >= wanted)

    def publish() -> None:
        while history.published < history.length:
            for _ in range(BURST):
                history.publish()
                time.sleep(EVERY_S)
            await_repair()

    publishing = threading.Thread(target=publish, daemon=True)
    publishing.start()
    number = 0
    while publishing.is_alive():
        number += 1
        version = version_of(database)
        some = [one for one, inserted in stays.items() if inserted <= version]
        lost = chance.sample(some, min(len(some), 3))
        database.query("UPDATE orders SET twice = -1 WHERE id IN (SELECT id FROM orders ORDER BY id DESC LIMIT 5)")
        database.query(f"INSERT INTO orders (id, twice) VALUES ({SUPERFLUOUS + number}, 0)")
        if lost:
            database.query(f"DELETE FROM orders WHERE id IN ({', '.join(map(str, lost))})")
        done = tailer("verify", "orders", "--config", config, "--repair")
        outcomes[f"exit {done.returncode}"] += 1
        assert done.returncode == 0 or "nothing was rewritten" in done.stdout, (done.stdout, done.stderr)
        outcomes["went on"] += done.stderr.count("was changed meanwhile")
    publishing.join()
    until(lambda: version_of(database) == history.last, lambda: version_of(database), lambda: started[-1].said)
    done = tailer("verify", "orders", "--config", config, "--repair")
    assert (done.returncode, done.stderr) == (0, "")
    assert started[-1].terminate() == 0, started[-1].said
    ids: Counter[int] = Counter()
    for (_, change, one), times in history.changes.items():
        ids[one] += times if change in ("insert", "update_postimage") else -times
    assert sorted(database.query("SELECT id, twice FROM orders")) == [(one, 2 * one) for one in sorted(+ids)]
    print(dict(outcomes))


@pytest.mark.parametrize("kind", KINDS)
def test_a_repair_that_is_killed_changes_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, started: list[Daemon], kind: str
) -> None:
    orders = Orders(tmp_path / "orders")
    orders.insert(1, 2, 3)
    database = database_of(kind, request, tmp_path)
    config = configured(tmp_path, database, orders.path)
    started.append(Daemon(config))
    until(lambda: version_of(database) == 0, said=lambda: started[-1].said)
    database.query("UPDATE orders SET amount = 9.5 WHERE id = 1")
    database.query("DELETE FROM orders WHERE id = 2")
    damaged = [(1, 9.5), (3, 4.5)]
    command = [sys.executable, "-c", KILLED, "verify", "orders", "--config", str(config), "--repair"]
    killed = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert database.query("SELECT * FROM orders ORDER BY id") == damaged
    orders.insert(4)
    until(lambda: version_of(database) == 1, said=lambda: started[-1].said)
    assert database.query("SELECT * FROM orders ORDER BY id") == [*damaged, (4, 6.0)]
    done = tailer("verify", "orders", "--config", config, "--repair")
    assert (done.returncode, done.stderr) == (0, "")
    assert database.query("SELECT * FROM orders ORDER BY id") == [(1, 1.5), (2, 3.0), (3, 4.5), (4, 6.0)]
    assert started[-1].terminate() == 0, started[-1].said
