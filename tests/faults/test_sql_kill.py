"""SIGKILL of the real daemon while it mirrors a table: at the end the mirror equals the table, and all along a version.

A reader looks at the mirror all the time, and must never see a part of a version. Where rows of the past are kept, the
live ones are the mirror; at the end all deleted rows are marked, and a history has the rows of every version.
"""

from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon.process import Daemon
from tests.support.histories.long_history import LongHistory
from tests.support.mirrors.databases import Database, DuckDbDatabase, PostgresDatabase, SqliteDatabase
from tests.support.mirrors.long_history import kill_again_and_again
from tests.support.servers.postgres import Postgres

FEW_KILLS: Final = 3
KILLS: Final = 20
COMMITS: Final = 200


class Mirror:
    """The mirror of a history in a database, and the check that it is one. `live`: the condition of its rows."""

    def __init__(self, database: Database, history: LongHistory, live: str) -> None:
        self._database = database
        self._live = live
        self._states = history.states

    def version(self) -> int:
        """Check that the table is at the version that it says. Return that; -1: none."""
        if not self._database.has("lake_tailer_mirrors") or not self._database.has("orders"):
            return -1
        query = f"SELECT (SELECT max(version) FROM lake_tailer_mirrors), id FROM orders WHERE {self._live}"
        rows = self._database.query(query)  # one statement sees one state
        if not rows:
            return -1
        found = [one for _, one in rows]
        assert len(found) == len(set(found))
        assert set(found) == self._states[rows[0][0]], f"not version {rows[0][0]}"
        return int(rows[0][0])

    def check_past(self) -> None:
        """Check all rows of the past, at the end."""
        last = len(self._states) - 1
        if "deleted" in self._live:
            marked = {one for (one,) in self._database.query(f"SELECT id FROM orders WHERE NOT {self._live}")}
            assert marked == set().union(*self._states) - self._states[last]
            return
        table = self._database.query('SELECT id, "_valid_from_version", "_valid_to_version" FROM orders')
        for version, state in enumerate(self._states):
            held = [one for one, first, end in table if first <= version and (end is None or version < end)]
            assert len(held) == len(set(held))
            assert set(held) == state, f"not version {version}"


PAST: Final = {
    "": ("", "1 = 1"),
    "mark": ('deletes = "mark"\n', '"_deleted_version" IS NULL'),
    "history": ('mode = "history"\n', '"_valid_to_version" IS NULL'),
}


@pytest.mark.parametrize("kills", [FEW_KILLS, pytest.param(KILLS, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("kind", "past"),
    [
        ("sqlite", "history"),
        ("duckdb", "mark"),
        pytest.param("postgresql", "", marks=pytest.mark.stores),
        *(
            pytest.param(kind, past, marks=pytest.mark.nightly)
            for kind, past in (("sqlite", ""), ("sqlite", "mark"), ("duckdb", ""), ("duckdb", "history"))
        ),
        *(
            pytest.param("postgresql", past, marks=[pytest.mark.stores, pytest.mark.nightly])
            for past in ("mark", "history")
        ),
    ],
)
def test_a_mirror_is_always_at_a_version(
    request: pytest.FixtureRequest, tmp_path: Path, started: list[Daemon], kind: str, past: str, kills: int
) -> None:
    history = LongHistory(tmp_path / "source", seed=7, length=COMMITS)
    database: Database = SqliteDatabase(tmp_path / "mirror.db")
    if kind == "duckdb":
        database = DuckDbDatabase(tmp_path / "mirror.duckdb")
    if kind == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        database = PostgresDatabase(server)
    mode, live = PAST[past]
    mirror = Mirror(database, history, live)
    config = tmp_path / "tailer.toml"
    options = "".join(f'{name} = "{value}"\n' for name, value in database.options.items())
    pipeline = f'[pipelines.orders]\ntable = "{history.path}"\npoll_interval_s = 0.05\n'
    config.write_text(f'{pipeline}[pipelines.orders.sink]\nkind = "sql"\nkey = ["id"]\n{mode}{options}')
    kill_again_and_again(config, history, mirror, started, kills, look=mirror.version)
    assert sorted(database.tables()) == ["lake_tailer_mirrors", "lake_tailer_progress", "orders"]
    if past:
        mirror.check_past()
