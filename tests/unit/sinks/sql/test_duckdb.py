"""DuckDB as a database of the `sql` sink: types that it lacks, dates that it takes for infinite, and files in use."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pytest

from tailer.errors import SinkRejected, SinkUnavailable
from tailer_sinks.sql.databases.duckdb import DuckDb

HOLD: Final = "import duckdb, sys; file = duckdb.connect(sys.argv[1], read_only=True); print(1, flush=True); input()"


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Let another process have the file open for reading."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield
        process.communicate(b"\n")


@pytest.mark.parametrize(
    "kind",
    [
        pa.decimal256(39, 2),
        pa.decimal128(5, -2),
        pa.timestamp("ns"),
        pa.timestamp("ns", "UTC"),
        pa.time64("ns"),
        pa.duration("us"),
    ],
    ids=str,
)
def test_types_that_it_lacks(tmp_path: Path, kind: pa.DataType) -> None:
    assert DuckDb("sql", tmp_path / "x.duckdb").type_of(kind) is None


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (pa.date32(), 2**31 - 1),
        (pa.date32(), -(2**31)),
        (pa.timestamp("us"), 2**63 - 1),
        (pa.timestamp("us", "UTC"), -(2**63)),
    ],
    ids=str,
)
def test_dates_that_stand_for_infinity_are_refused(tmp_path: Path, kind: pa.DataType, number: int) -> None:
    database = DuckDb("sql", tmp_path / "x.duckdb")
    with closing(database.connect()) as connection:
        connection.execute(f"CREATE TEMP TABLE waiting (v {database.type_of(kind)})")
        integers = pa.int32() if kind == pa.date32() else pa.int64()
        column = pa.array([0, number, None], integers).cast(kind)
        with pytest.raises(SinkRejected, match="column v has a date beyond those of DuckDB"):
            connection.load("waiting", pa.record_batch([column], ["v"]))
        nearest = pa.array([number - 1 if number > 0 else 0], integers).cast(kind)
        connection.load("waiting", pa.record_batch([nearest], ["v"]))
        assert connection.query("SELECT isfinite(v) FROM waiting") == [(True,)]


def test_a_file_that_is_open_elsewhere_is_waited_for(tmp_path: Path) -> None:
    database = DuckDb("sql", tmp_path / "x.duckdb")
    table = database.name_of("t")
    with closing(database.connect()) as connection:
        connection.execute(f"CREATE TABLE {table} (id BIGINT)")
        with held(database.path):
            timer = threading.Timer(0.3, connection.interrupt)
            timer.start()
            # On a busy machine an attempt to open the file may be interrupted, and not the wait for the next one.
            with pytest.raises(SinkUnavailable, match=r"another program has .* open: .*PID|Interrupted"):
                connection.execute(f"INSERT INTO {table} VALUES (1)")
    with closing(database.connect()) as connection, closing(database.connect()) as other:
        with connection.transaction():
            connection.execute(f"INSERT INTO {table} VALUES (1)")
            waits = threading.Thread(target=other.execute, args=(f"INSERT INTO {table} VALUES (2)",))
            waits.start()
            waits.join(0.2)
            assert waits.is_alive()
            # The lock against other processes is still there.
            opened = subprocess.run(
                [sys.executable, "-c", HOLD, database.path], input=b"\n", capture_output=True, check=False
            )
            assert b"Could not set lock" in opened.stderr
        waits.join()
    with closing(duckdb.connect(database.path, read_only=True)) as reader:
        assert reader.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,)]


def test_readers_are_let_in_between_two_transactions(tmp_path: Path) -> None:
    database = DuckDb("sql", tmp_path / "x.duckdb")
    with closing(database.connect()) as connection:
        connection.execute("CREATE TEMP TABLE waiting (id BIGINT)")
        connection.load("waiting", pa.record_batch([pa.array([1, 2])], ["id"]))
        connection.execute(f"CREATE TABLE {database.name_of('t')} (id BIGINT)")
        with held(database.path):
            pass
        with connection.transaction():
            assert connection.execute(f"INSERT INTO {database.name_of('t')} SELECT * FROM waiting") == 2
        assert connection.query(f"SELECT count(*) FROM {database.name_of('t')}") == [(2,)]


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.duckdb").write_text("not a database" * 1000)
    database = DuckDb("sql", tmp_path / "x.duckdb")
    with (
        closing(database.connect()) as connection,
        pytest.raises(SinkRejected, match="not a valid DuckDB database") as refused,
    ):
        database.has_table(connection, "t")
    assert refused.value.remedy


def test_values_are_not_in_errors(tmp_path: Path) -> None:
    with closing(DuckDb("sql", tmp_path / "x.duckdb").connect()) as connection:
        for statement in ("SELECT CAST('hush' AS BIGINT)", "SELECT CAST('{hush' AS JSON)", "SELECT error('hush')"):
            with pytest.raises(SinkRejected) as refused:
                connection.query(statement)
            assert "hush" not in str(refused.value)


def test_zeros_keep_their_sign_and_nan_is_nan(tmp_path: Path) -> None:
    database = DuckDb("sql", tmp_path / "x.duckdb")
    table = database.name_of("t")
    with closing(database.connect()) as connection:
        connection.execute("CREATE TEMP TABLE waiting (f FLOAT, d DOUBLE)")
        values = [0.0, -0.0, float("nan"), 5e-324]
        connection.load("waiting", pa.record_batch([pa.array(values, pa.float32()), pa.array(values)], ["f", "d"]))
        with connection.transaction():
            connection.execute(f"CREATE TABLE {table} (f FLOAT, d DOUBLE)")
            connection.execute(f"INSERT INTO {table} SELECT * FROM waiting")
        found = connection.query(f"SELECT CAST(f AS VARCHAR), CAST(d AS VARCHAR) FROM {table}")
    # The least double is zero as a float.
    assert sorted(found) == [("-0.0", "-0.0"), ("0.0", "0.0"), ("0.0", "5e-324"), ("nan", "nan")]
