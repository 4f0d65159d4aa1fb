"""A mirror without a key in its options takes the primary key that its source names: in Lance, the unenforced one."""

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

import anyio
import lance
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailer.config.tables import TableRef
from tailer.engine.local import LocalEngine
from tailer.errors import LogCorrupt, SinkRejected
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.sink import Sink
from tailer.start import Start
from tailer.stores.wakeup import TimerWake
from tailer_sinks.sql.sink import SqlSink
from tests.support.daemon.commands import tailer
from tests.support.mirrors.databases import SqliteDatabase, rows_in
from tests.support.mirrors.delta import make_mirror, mirror_rows
from tests.support.mirrors.planted import configured
from tests.support.streams import Growing

POSITION: Final = b"lance-schema:unenforced-primary-key:position"
COUNTRIES: Final = ("de", "fr", "de")
NUMBERS: Final = (1, 1, 2)
WANTED: Final = [("de", 1, "c"), ("fr", 1, "b")]


def write(path: Path, key: Sequence[str]) -> None:
    """Write a dataset of three versions: rows, one row less, another value."""
    positions = {name: {POSITION: str(at).encode()} for at, name in enumerate(key, 1)}
    fields = [("country", pa.string()), ("number", pa.int64()), ("name", pa.string())]
    schema = pa.schema([pa.field(name, kind, False, positions.get(name)) for name, kind in fields])
    lance.write_dataset(pa.table([COUNTRIES, NUMBERS, ("a", "b", "x")], schema=schema), path)
    lance.dataset(path).delete("name = 'x'")
    lance.dataset(path).update({"name": "'c'"}, where="country = 'de'")


async def mirror(path: Path, sink: Sink, policy: Policy | None = None) -> None:
    table, begin, end = TableRef(str(path)).open(), Start.parse("earliest"), Start.parse("latest")
    async with aclosing(sink):
        await row_pipeline("orders", table, sink, LocalEngine(), TimerWake(), begin, end, policy).run()


@pytest.mark.anyio
async def test_the_key_of_a_lance_dataset(tmp_path: Path) -> None:
    write(tmp_path / "t", ["number", "country"])
    assert await TableRef(str(tmp_path / "t")).open().key(1) == ("number", "country")
    database = SqliteDatabase(tmp_path / "mirror.db")
    await mirror(tmp_path / "t", SqlSink.configure("orders", database.options))
    assert sorted(tuple(row.values()) for row in rows_in(database, "orders")) == WANTED
    assert database.query("SELECT name FROM pragma_table_info('orders') WHERE pk > 0 ORDER BY pk") == [
        ("number",),
        ("country",),
    ]
    await mirror(tmp_path / "t", make_mirror(tmp_path / "delta", key=[]))
    assert sorted(tuple(row.values()) for row in mirror_rows(tmp_path / "delta").to_pylist()) == WANTED


@pytest.mark.anyio
async def test_the_options_come_first(tmp_path: Path) -> None:
    write(tmp_path / "t", ["number"])  # which is no key: two rows share it
    database = SqliteDatabase(tmp_path / "mirror.db")
    await mirror(tmp_path / "t", SqlSink.configure("orders", {**database.options, "key": ["country", "number"]}))
    assert sorted(tuple(row.values()) for row in rows_in(database, "orders")) == WANTED


@pytest.mark.anyio
async def test_a_key_that_is_none_stops_the_mirror(tmp_path: Path) -> None:
    write(tmp_path / "t", ["number"])
    for sink in (
        SqlSink.configure("orders", SqliteDatabase(tmp_path / "mirror.db").options),
        make_mirror(tmp_path / "delta", key=[]),
    ):
        with pytest.raises(SinkRejected, match="key"):
            await mirror(tmp_path / "t", sink)
    assert rows_in(SqliteDatabase(tmp_path / "mirror.db"), "orders") == []


@pytest.mark.anyio
async def test_a_key_of_which_a_column_is_left_out_is_none(tmp_path: Path) -> None:
    write(tmp_path / "t", ["number", "country"])
    for sink in (
        SqlSink.configure("orders", SqliteDatabase(tmp_path / "mirror.db").options),
        make_mirror(tmp_path / "delta", key=[]),
    ):
        with pytest.raises(SinkRejected, match="has no key"):
            await mirror(tmp_path / "t", sink, Policy(select="number, name"))


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["drop", "rename"])
async def test_a_key_that_loses_a_column_stops_before_that(tmp_path: Path, how: str) -> None:
    """The versions before are delivered by the former key, also after a restart."""
    path, copy = tmp_path / "t", tmp_path / "delta"
    write(path, ["number", "country"])
    await mirror(path, make_mirror(copy, key=[]))
    lance.dataset(path).update({"name": "'d'"}, where="country = 'de'")
    if how == "drop":
        lance.dataset(path).drop_columns(["number"])
    else:
        lance.dataset(path).alter_columns({"path": "number", "name": "no"})  # type: ignore[dict-item]
    lance.dataset(path).update({"name": "'e'"}, where="country = 'de'")
    for _ in range(2):
        with pytest.raises(SinkRejected, match=r"the key column number of .* is dropped or renamed in version 5"):
            await mirror(path, make_mirror(copy, key=[]))
        assert sorted(tuple(row.values()) for row in mirror_rows(copy).to_pylist()) == [("de", 1, "d"), ("fr", 1, "b")]


@pytest.mark.anyio
async def test_a_damaged_version_stops_no_earlier_one(tmp_path: Path) -> None:
    for number, key in enumerate(([], ["country", "number"])):
        path, copy = tmp_path / f"t{number}", tmp_path / f"delta{number}"
        write(path, ["number", "country"])
        await mirror(path, make_mirror(copy, key=key))
        lance.dataset(path).delete("country = 'fr'")
        lance.dataset(path).delete("country = 'de'")
        newest = min((path / "_versions").glob("*.manifest"))  # their names count down
        newest.write_bytes(newest.read_bytes()[:100])
        with pytest.raises(LogCorrupt, match="version"):
            await mirror(path, make_mirror(copy, key=key))
        assert [tuple(row.values()) for row in mirror_rows(copy).to_pylist()] == [("de", 1, "c")]


def test_the_command_verifies_and_repairs_a_mirror_with_the_key_of_its_source(tmp_path: Path) -> None:
    path, copy = tmp_path / "orders", tmp_path / "copy"
    write(path, ["number", "country"])
    anyio.run(mirror, path, make_mirror(copy, key=[]))
    lance.dataset(path).drop_columns(["number"])  # after the version where the mirror is
    config = configured(tmp_path, f'kind = "delta"\npath = "{copy}"\nmode = "mirror"')
    done = tailer("verify", "orders", "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    DeltaTable(copy).update({"name": "'x'"}, predicate="country = 'fr'")
    done = tailer("verify", "orders", "--config", config, "--repair")
    assert (done.returncode, done.stderr) == (0, "")
    assert 'different: number = "1", country = "fr": name' in done.stdout
    assert sorted(tuple(row.values()) for row in mirror_rows(copy).to_pylist()) == WANTED


@pytest.mark.anyio
async def test_a_delta_table_names_no_key(tmp_path: Path) -> None:
    assert await TableRef(str(Growing(tmp_path / "t").path)).open().key(0) == ()
