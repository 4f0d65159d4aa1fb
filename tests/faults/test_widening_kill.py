"""SIGKILL of the real daemon at each step of the widening of a PostgreSQL mirror: nothing is lost, nothing is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from tests.support.daemon.process import Daemon
from tests.support.mirrors.databases import PostgresDatabase, mirrored
from tests.support.servers.postgres import Postgres
from tests.support.tables.log_files import add, metadata, parquet, protocol, schema_string, write_commit
from tests.support.waiting import until

# `tailer` that is killed before a statement of a widening that has a text: the first of these, or a later one.
KILLED: Final = """
import os, signal, sys
from tailer.__main__ import main
from tailer_sinks.sql.databases.postgresql import _PostgreSqlConnection as Connection

text, left = sys.argv.pop(1), int(sys.argv.pop(1))
widening = False

def killing(run):
    def run_or_die(self, statement, parameters=()):
        global left, widening
        widening = widening or statement.startswith("SAVEPOINT")
        left -= widening and text in statement
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return run(self, statement, parameters)
    return run_or_die

Connection.execute, Connection.query = killing(Connection.execute), killing(Connection.query)
main()
"""
# In their order, so each daemon finds what the one before has left.
MOMENTS: Final = (
    ("CREATE VIEW", 1),
    ("ADD COLUMN", 4),
    ("COMMIT", 1),
    ("UPDATE", 1),
    ("COMMENT", 1),
    ("COMMIT", 2),
    ("backend_xmin", 1),
    ("DROP VIEW", 2),
    ("RENAME COLUMN", 1),
    ("ADD CONSTRAINT", 1),
    ("GRANT", 4),
    ("COMMIT", 3),
)
NARROW: Final = [(1, 10), (2, None), (3, 30)]
WIDE: Final = [*NARROW, (2**40, 2**41)]


def write_version(table: Path, version: int, kind: str, rows: list[tuple[int, int | None]]) -> None:
    types = pa.int32() if kind == "integer" else pa.int64()
    columns = {name: pa.array(values, types) for name, values in zip(("id", "n"), zip(*rows, strict=True), strict=True)}
    size = parquet(table / f"{version}.parquet", pa.table(columns)).stat().st_size
    begin = [protocol(3, ["typeWidening"])] if version == 0 else []
    columns_now = metadata(schema_string(id=kind, n=kind))
    write_commit(table, version, *begin, columns_now, add(f"{version}.parquet", size=size))


@pytest.mark.stores
def test_a_widening_goes_on_after_a_kill_at_any_step(tmp_path: Path, postgres: Postgres, started: list[Daemon]) -> None:
    database = PostgresDatabase(postgres)
    config = tmp_path / "tailer.toml"
    options = "".join(f'{name} = "{value}"\n' for name, value in database.options.items())
    pipeline = f'[pipelines.orders]\ntable = "{tmp_path}/orders"\npoll_interval_s = 0.05\n'
    config.write_text(f'{pipeline}[pipelines.orders.sink]\nkind = "sql"\nkey = ["id"]\n{options}')
    write_version(tmp_path / "orders", 0, "integer", NARROW)
    started.append(Daemon(config))
    until(lambda: mirrored(database, "orders") == 0, said=lambda: started[-1].said)
    assert started[-1].terminate() == 0, started[-1].said
    database.query("CREATE VIEW seen AS SELECT id, n FROM orders")
    database.query("GRANT SELECT ON seen TO PUBLIC")

    def rows() -> list[list[tuple[int, int | None]]]:
        return [sorted(database.query(f"SELECT id, n FROM {source}")) for source in ("orders", "seen")]

    write_version(tmp_path / "orders", 1, "long", WIDE[3:])
    for text, number in MOMENTS:
        command = [sys.executable, "-c", KILLED, text, str(number), "run", "--config", str(config)]
        killed = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, timeout=60)
        assert killed.returncode == -signal.SIGKILL, (text, number, killed.stderr)
        assert (mirrored(database, "orders"), rows()) == (0, [NARROW, NARROW]), (text, number)
    started.append(Daemon(config))
    until(lambda: mirrored(database, "orders") == 1, said=lambda: started[-1].said)
    assert started[-1].terminate() == 0, started[-1].said
    assert rows() == [WIDE, WIDE]
    found = "SELECT attname::text, atttypid::regtype::text FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped"
    for source in ("orders", "seen"):
        columns = database.query(f"{found} AND attrelid = '{source}'::regclass ORDER BY attnum")
        assert columns == [("id", "bigint"), ("n", "bigint")]
    assert database.query("SELECT has_table_privilege('public', 'seen', 'SELECT')") == [(True,)]
    assert sorted(database.tables()) == ["lake_tailer_mirrors", "lake_tailer_progress", "orders"]
