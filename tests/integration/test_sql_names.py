"""Columns whose names are in lower case in the database, whatever the source calls them, and what stops that."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from anyio import to_thread

from tailer.engine.local import LocalEngine
from tailer.errors import SinkRejected
from tailer.events import Gap
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.verification.comparison import Verification, repair, verify_all
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer.sink import Progress
from tailer.start import Start, StartKind
from tailer.stores.wakeup import TimerWake
from tests.support.mirrors.databases import APP, Database, batch, deliver, full, mirrored, opened, verified
from tests.support.mirrors.planted import follow, log_of
from tests.support.tables.mapped import MappedTable

pytestmark = pytest.mark.anyio

LAST, PRICE_RENAMED = 7, 5
MODES: Mapping[str, dict[str, Any]] = {
    "mirror": {},
    "mark": {"deletes": "mark"},
    "history": {"mode": "history"},
    "append": {"mode": "append"},
}


def written(path: Path) -> MappedTable:
    """Make a table whose columns come, get names in other letters, get other names, and go."""
    table = MappedTable(path, feed=False, Id="long", Name="string", Gone="integer")
    table.insert(Id=[1, 2], Name=["a", "b"], Gone=[7, 8])
    table.add_column("Price", "integer", Id=[3, 4], Name=["c", "d"], Gone=[9, 10], Price=[30, 40])
    table.rename("Name", "NAME")
    table.delete_oldest()
    table.rename("Price", "Net Price")
    table.drop("Gone")
    table.commit(table.put(None, Id=[1, 5], NAME=["e", "f"], **{"Net Price": [10, 50]}))
    assert table.version == LAST
    return table


@pytest.mark.parametrize("mode", MODES)
async def test_a_target_in_lower_case(database: Database, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "orders"
    await to_thread.run_sync(written, path)
    key = {} if mode == "append" else {"key": ["Id"]}
    async with opened(database, **{**MODES[mode], "names": "lower", "key": [], **key}) as sink:
        for last in range(LAST + 1):
            await follow(sink, path, last, Policy())
            if mode != "append" or last < PRICE_RENAMED:  # a log has both names, and cannot be verified then
                assert (await verified(sink, "orders", log_of(path), Policy())).is_equal, last
        rows = {"mirror": "1 = 1", "mark": "_deleted_version IS NULL", "history": "_valid_to_version IS NULL"}
        condition = rows.get(mode, "_change_type = 'insert' AND id > 2 OR _commit_version = 7")
        price = 'coalesce(price, "net price")' if mode == "append" else '"net price"'
        found = database.query(f"SELECT id, name, {price} FROM orders WHERE {condition} ORDER BY id")
        assert found == [(1, "e", 10), (3, "c", 30), (4, "d", 40), (5, "f", 50)]
        if mode != "history":
            return
        results = verify_all(
            partial(sink.open_mirror, "orders"), log_of(path), LocalEngine(), Policy(), 9, lambda _: None
        )
        outcomes = [outcome async for outcome in results]
        assert [each.version for each in outcomes] == list(range(LAST + 1))
        assert all(isinstance(each, Verification) and each.is_equal for each in outcomes)


@pytest.mark.parametrize("mode", ["mirror", "mark", "history"])
async def test_differences_have_the_names_of_the_mirror(shared_database: Database, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "orders"
    await to_thread.run_sync(written, path)
    async with opened(shared_database, **MODES[mode], names="lower", key=["ID"]) as sink:
        await follow(sink, path, LAST, Policy())
        shared_database.query("UPDATE orders SET name = 'x' WHERE id = 3")
        shared_database.query("DELETE FROM orders WHERE id = 4")
        result = await verified(sink, "orders", log_of(path), Policy())
        assert (result.key, list(result.counts.values()), result.columns) == (("id",), [1, 0, 1], {"name": 1})
        both = repair(partial(sink.open_mirror, "orders"), log_of(path), LocalEngine(), Policy(), 9)
        assert [each.is_equal async for each in both] == [False, True]
        assert shared_database.query("SELECT name FROM orders WHERE id IN (3, 4) AND name <> 'x' ORDER BY id") == [
            ("c",),
            ("d",),
        ]


@pytest.mark.parametrize("mode", MODES)
async def test_two_columns_that_would_be_one_stop_it(shared_database: Database, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "orders"
    table = await to_thread.run_sync(written, path)
    await to_thread.run_sync(partial(table.add_column, "nAME", "string", Id=[6], NAME=["g"], nAME=["h"]))
    key = [] if mode == "append" else ["id"]
    async with opened(shared_database, **{**MODES[mode], "names": "lower", "key": key}) as sink:
        with pytest.raises(SinkRejected, match="columns NAME and nAME would all be name"):
            await follow(sink, path, LAST + 1, Policy())
        assert mirrored(shared_database, "orders") == LAST
        schema = full(pa.schema([("Id", pa.int64()), ("NAME", pa.string()), ("nAME", pa.string()), ("ID", pa.int64())]))
        assert len(await sink.refusals(APP, schema)) == 2
        # The pipeline goes on without the column.
        await follow(sink, path, LAST + 1, Policy(columns=("Id", "NAME", "Net Price")))
        assert mirrored(shared_database, "orders") == LAST + 1


async def test_a_table_of_a_user(shared_database: Database, tmp_path: Path) -> None:
    path = tmp_path / "orders"
    await to_thread.run_sync(written, path)
    shared_database.query('CREATE TABLE orders (id bigint PRIMARY KEY, name text, "net price" integer)')
    async with opened(shared_database, names="lower", key=["Id"], adopt=True) as sink:
        start, end = Start(StartKind.SNAPSHOT), Start(StartKind.VERSION, LAST)
        await row_pipeline("orders", log_of(path), sink, LocalEngine(), TimerWake(), start, end, Policy()).run()
        assert (await verified(sink, "orders", log_of(path), Policy())).is_equal
        assert shared_database.query("SELECT id, name FROM orders ORDER BY id") == [
            (1, "e"),
            (3, "c"),
            (4, "d"),
            (5, "f"),
        ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("before", ["exact", "lower"])
async def test_another_choice_for_a_table_that_is_there(shared_database: Database, mode: str, before: str) -> None:
    """Nothing is lost: the table is as it was, and the pipeline goes on with the former choice."""
    schema = pa.schema([("Id", pa.int64()), ("Name", pa.string())])
    after = "lower" if before == "exact" else "exact"
    options = {**MODES[mode], "key": [] if mode == "append" else ["Id"]}
    first, second = batch(0, "insert", schema, [{"Id": 1, "Name": "a"}]), batch(1, "insert", schema, [{"Id": 2}])
    async with opened(shared_database, **options, names=before) as sink:
        await deliver(sink, first)
    async with opened(shared_database, **options, names=after) as sink:
        await sink.progress(APP)
        if (mode, before) == ("append", "lower"):
            return
        wanted = ("Id, Name", "id, name") if before == "exact" else ("id, name", "Id, Name")
        faults = await sink.refusals(APP, full(schema))
        assert f"orders has {wanted[0]}, not {wanted[1]}" in str(faults[0])
        with pytest.raises(SinkRejected, match=f"orders has {wanted[0]}, not {wanted[1]}"):
            await deliver(sink, second)
        if mode == "mirror":
            gap = Gap("t", 1, 1, 0, "asked for", snapshot=True)
            rows = batch(1, "insert", schema, [{"Id": 2}], SNAPSHOT_TASKS)
            async with sink.begin(APP, full(schema)) as transaction:
                await transaction.announce(gap)
                await transaction.write(rows)
    async with opened(shared_database, **options, names=before) as sink:
        await sink.progress(APP)
        await deliver(sink, second)
    column = "id" if before == "lower" else '"Id"'
    assert shared_database.query(f"SELECT {column} FROM orders ORDER BY 1") == [(1,), (2,)]


async def test_a_version_in_parts(shared_database: Database) -> None:
    """Rows that wait have the names of the table, and another choice meanwhile changes nothing."""
    schema = pa.schema([("Id", pa.int64()), ("Name", pa.string())])
    first = batch(1, "insert", schema, [{"Id": 1, "Name": "a"}])
    rest = batch(1, "insert", schema, [{"Id": 2, "Name": "b"}], task=1)
    async with opened(shared_database, key=["Id"], names="lower") as sink:
        await deliver(sink, batch(0, "insert", schema, [{"Id": 0}]))
        await deliver(sink, first, at=Position(1, 0, 1))
    async with opened(shared_database, key=["Id"]) as sink:
        await sink.progress(APP)
        with pytest.raises(SinkRejected, match="the key column Id is not a column of orders"):
            await deliver(sink, rest)
    async with opened(shared_database, key=["Id"], names="lower") as sink:
        await sink.progress(APP)
        await deliver(sink, rest)
    assert shared_database.query("SELECT id, name FROM orders ORDER BY id") == [(0, None), (1, "a"), (2, "b")]


async def test_a_snapshot_makes_the_table_again(shared_database: Database) -> None:
    schema = pa.schema([("Id", pa.int64()), ("Struct", pa.struct([("A", pa.int64())]))])
    rows = [{"Id": 1, "Struct": {"A": 1}}]
    async with opened(shared_database, key=["Id"]) as sink:
        await deliver(sink, batch(0, "insert", schema, rows))
    async with opened(shared_database, key=["Id"], names="lower") as sink:
        await sink.progress(APP)
        async with sink.begin(APP, full(schema)) as transaction:
            await transaction.announce(Gap("t", 0, 0, 0, "asked for", snapshot=True))
            await transaction.write(batch(0, "insert", schema, rows, SNAPSHOT_TASKS))
            await transaction.commit(Progress(APP, Position.end(1)))
    ((number, value),) = shared_database.query("SELECT id, struct FROM orders")
    # Fields of a nested column keep their names.
    assert (number, json.loads(value) if isinstance(value, str) else value) == (1, {"A": 1})
