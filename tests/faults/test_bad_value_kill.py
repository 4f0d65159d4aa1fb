"""SIGKILL of the daemon in the middle of versions with values that the database cannot hold, which are dead letters.

At each version that a reader sees, each bad row is a dead letter, once, and each good one is in the table, once.
"""

import json
import random
import re
import time
from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon.process import SmallDaemon
from tests.support.histories.long_history import Change, LongHistory
from tests.support.mirrors.databases import Database, DuckDbDatabase, PostgresDatabase, SqliteDatabase
from tests.support.servers.postgres import Postgres
from tests.support.waiting import until

KILLS: Final = 4
MANY_KILLS: Final = 20
LONG, NO_TEXT, FIT = b"limit", b"\xff", b"fit"
LOGGED: Final = re.compile(r"column text of orders has a text .*: (\d+) values? up to version")
MIRROR, LOG = "CAST(id AS VARCHAR)", "_commit_version || '/' || _change_type || '/' || id"


def text_of(one: int) -> bytes:
    return NO_TEXT if one % 7 == 3 else LONG if one % 5 == 2 else FIT


class Rows:
    """The rows and the dead letters of a table, and the check that they are those of a version.

    `bad`: the texts that the table cannot hold. `is_log`: the table has all changes, and not the rows of a version.
    """

    def __init__(self, database: Database, history: LongHistory, bad: Collection[bytes], *, is_log: bool) -> None:
        self._database = database
        self._identity = LOG if is_log else MIRROR
        self._states: list[tuple[Counter[str], Counter[str]]] = []
        self.counted = 0
        changes: list[list[tuple[Change, int]]] = [[] for _ in range(history.length)]
        for change, number in history.changes.items():
            changes[change[0]].append((change, number))
        rows, letters = Counter[str](), Counter[str]()
        for each in changes:
            for (version, kind, one), number in each:
                is_bad, is_added = text_of(one) in bad, is_log or kind in ("insert", "update_postimage")
                name = f"{version}/{kind}/{one}" if is_log else str(one)
                (letters if is_bad else rows)[name] += number if is_added else -number
                self.counted += number * (is_bad and is_added)
            self._states.append((+rows, +letters))

    def check(self) -> int:
        """Check that the table is at the version that it says. Return that; -1: none."""
        if not self._database.has("lake_tailer_dead_letters"):
            return -1
        version = "SELECT (SELECT max(version) FROM lake_tailer_mirrors)"
        query = f"{version}, {self._identity}, '' FROM orders UNION ALL {version}, '', row_json "
        found = self._database.query(f"{query} FROM lake_tailer_dead_letters")  # one statement sees one state
        rows = Counter(name for _, name, letter in found if not letter)
        letters = Counter(self._name(json.loads(letter)) for _, _, letter in found if letter)
        assert (rows, letters) == self._states[found[0][0]], f"not version {found[0][0]}"
        return int(found[0][0])

    def waits(self) -> bool:
        """Return whether a part of a version waits for its end."""
        if not self._database.has("lake_tailer_progress"):
            return False
        return bool(self._database.query("SELECT 1 FROM lake_tailer_progress WHERE parts IS NOT NULL"))

    def _name(self, row: dict[str, object]) -> str:
        return (
            f"{row['_commit_version']}/{row['_change_type']}/{row['id']}" if self._identity == LOG else f"{row['id']}"
        )


@pytest.mark.parametrize("kills", [KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", ["sqlite", "duckdb", pytest.param("postgresql", marks=pytest.mark.stores)])
def test_each_bad_row_is_one_dead_letter(
    request: pytest.FixtureRequest, tmp_path: Path, started: list[SmallDaemon], kind: str, kills: int
) -> None:
    history = LongHistory(tmp_path / "source", seed=5, length=3 * kills + 3, text_of=text_of)
    bad, options = [NO_TEXT], 'mode = "append"'
    database: Database = SqliteDatabase(tmp_path / "mirror.db")
    if kind == "duckdb":
        database, options = DuckDbDatabase(tmp_path / "mirror.duckdb"), 'key = ["id"]'
    if kind == "postgresql":  # whose columns have limits
        server: Postgres = request.getfixturevalue("postgres")
        database, bad, options = PostgresDatabase(server), [NO_TEXT, LONG], 'key = ["id"]\nadopt = true'
        database.query("CREATE TABLE orders (id bigint PRIMARY KEY, text varchar(3))")
    rows = Rows(database, history, bad, is_log=kind == "sqlite")
    options += "".join(f'\n{name} = "{value}"' for name, value in database.options.items())
    config = tmp_path / "tailer.toml"
    pipeline = f'[pipelines.orders]\ntable = "{history.path}"\npoll_interval_s = 0.05\n'
    sink = f'[pipelines.orders.sink]\nkind = "sql"\non_bad_value = "dead_letter"\n{options}\n'
    config.write_text(pipeline + sink)
    moments, said, reached, inside = random.Random(5), "", list[int](), 0

    def is_inside(after: int) -> bool:
        """Return whether a part of a version waits. One that comes too late to be seen is followed by another one."""
        if (version := rows.check()) == history.published - 1:
            history.publish()
        return history.published == history.length or (version > after and rows.waits())

    for number in range(kills):
        history.publish(2)
        started.append(SmallDaemon(config))
        started[-1].wait_until_running()
        until(partial(is_inside, reached[-1] if number % 2 else -2), rows.check, lambda: started[-1].said, look_s=0.002)
        time.sleep(moments.uniform(0, 0.05))
        started[-1].kill()
        said += started[-1].said
        reached.append(rows.check())
        inside += rows.waits()
    assert inside, "no kill inside a version"
    history.publish(history.length)
    started.append(SmallDaemon(config))
    until(lambda: rows.check() == history.last, rows.check, lambda: started[-1].said)
    assert started[-1].terminate() == 0, started[-1].said
    logged = sum(map(int, LOGGED.findall(said + started[-1].said)))
    assert rows.counted // 2 < logged <= rows.counted  # a kill may come between a commit and its line
    own = ["lake_tailer_dead_letters", "lake_tailer_mirrors", "lake_tailer_progress"]
    assert sorted(database.tables()) == [*own, "orders"]  # no rows wait
    print(f"killed at versions {reached}, {inside} times inside one; {logged} of {rows.counted} bad values logged")
