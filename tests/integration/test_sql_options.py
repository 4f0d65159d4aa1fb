"""Mirrors and logs in databases whose options change between two runs, the first of which ends inside a version.

No table says yet how the rows that wait are stored, so the rows themselves must.
"""

from itertools import permutations
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.errors import SinkRejected
from tailer.events import ChangeBatch, Gap
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer.sink import Progress, app_id_of, backfill_name, table_of
from tailer_sinks.sql.sink import SqlSink
from tests.support.mirrors.databases import APP, Database, batch, full, opened, rows_in

pytestmark = pytest.mark.anyio

SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string())])
MODES: Final[dict[str, dict[str, Any]]] = {
    "mirror": {},
    "mark": {"deletes": "mark"},
    "history": {"mode": "history"},
    "append": {"mode": "append", "key": []},
}
STORED_ALIKE: Final = ("mark", "history")


async def send(sink: SqlSink, app_id: str, at: Position, *batches: ChangeBatch) -> None:
    async with sink.begin(app_id, full(SCHEMA)) as transaction:
        for rows in batches:
            await transaction.write(rows)
        await transaction.commit(Progress(app_id, at))


def rows_of(*keys: int, task: int) -> ChangeBatch:
    return batch(0, "insert", SCHEMA, [{"id": key, "name": f"n{key}"} for key in keys], task)


def names(database: Database, table: str) -> list[tuple[int, str]]:
    return sorted((row["id"], row["name"]) for row in rows_in(database, table))


@pytest.mark.parametrize("rest", [True, False], ids=["more rows", "no more rows"])
@pytest.mark.parametrize("task", [0, SNAPSHOT_TASKS], ids=["changes", "snapshot"])
async def test_another_mode_inside_the_first_version(database: Database, task: int, *, rest: bool) -> None:
    """Rows that are stored alike go on in the other mode, from the beginning of the table."""
    last = [rows_of(3, task=task + 1)] if rest else []
    whole = [(1, "n1"), (2, "n2"), *([(3, "n3")] if rest else [])]
    for first, then in permutations(MODES, 2):
        table, app_id = f"{first}_{then}", f"{first}_{then}/5f0c6a1e"
        async with opened(database, table=table, **MODES[first]) as sink:
            await send(sink, app_id, Position(0, task, 1), rows_of(1, 2, task=task))
        async with opened(database, table=table, **MODES[then]) as sink:
            if {first, then} != set(STORED_ALIKE):
                with pytest.raises(SinkRejected, match=f"a part of version 0 .* is for {table} in another") as refused:
                    await send(sink, app_id, Position.end(0), *last)
                assert refused.value.remedy.startswith("Set mode and deletes to what they were.")
        back = then if {first, then} == set(STORED_ALIKE) else first
        async with opened(database, table=table, **MODES[back]) as sink:
            await send(sink, app_id, Position.end(0), *last)
        assert names(database, table) == whole
        times = {str(row[column]) for row in rows_in(database, table) for column in row if column == "_valid_from"}
        assert times <= {"2026-03-01T00:00:00.000000Z"}


@pytest.mark.parametrize("mode", ["mirror", "mark", "history"])
async def test_no_progress_is_set_without_rows(database: Database, mode: str) -> None:
    """Neither before the first version, nor inside it, nor afterwards."""
    async with opened(database, **MODES[mode]) as sink:
        for key, at in enumerate((Position(0, 0, 0), Position(0, 0, 1), Position.end(0))):
            for version in (-1, 0, 3):
                with pytest.raises(SinkRejected, match=f"orders would not be a mirror of version {version}"):
                    await sink.reset(Progress(APP, Position.end(version)))
            await send(sink, APP, at, rows_of(key, task=0))
        assert await sink.progress(APP) == Progress(APP, Position.end(0))
    assert len(rows_in(database, "orders")) == 3


@pytest.mark.parametrize("mode", ["mirror", "mark", "history"])
async def test_another_table_of_the_same_pipeline_needs_a_snapshot(database: Database, mode: str) -> None:
    """It lacks what the first one has. So does the first one, when the pipeline comes back to it."""
    whole = Gap("t", 0, 0, 0, "ordered", snapshot=True, command="20260301T115001-1f3a5c7e")
    app_id = app_id_of(backfill_name("orders", "20260301T115001-1f3a5c7e"), table_of(APP))
    new = batch(1, "insert", SCHEMA, [{"id": 3, "name": "n3"}])
    async with opened(database, **MODES[mode]) as sink:
        await send(sink, APP, Position.end(0), rows_of(1, 2, task=0))
    async with opened(database, table="other", **MODES[mode]) as sink:
        for batches in ([new], []):
            with pytest.raises(SinkRejected, match="filled the table orders until now, and other lacks") as refused:
                await send(sink, APP, Position.end(1), *batches)
            assert refused.value.remedy == "Set table to orders again. Or fill other: `tailer resnapshot PIPELINE`."
        async with sink.begin(app_id, full(SCHEMA)) as transaction:
            await transaction.announce(whole)
            await transaction.write(rows_of(1, 2, task=SNAPSHOT_TASKS))
            await transaction.commit(Progress(app_id, Position.end(0)))
        await send(sink, APP, Position.end(1), new)
    async with opened(database, **MODES[mode]) as sink:
        with pytest.raises(SinkRejected, match="filled the table other until now, and orders lacks"):
            await send(sink, APP, Position.end(2), batch(2, "insert", SCHEMA, [{"id": 4, "name": "n4"}]))
    assert names(database, "other") == [(1, "n1"), (2, "n2"), (3, "n3")]


async def test_a_log_may_go_on_in_another_table(database: Database) -> None:
    for version, table in enumerate(("log", "later")):
        async with opened(database, table=table, **MODES["append"]) as sink:
            await send(sink, APP, Position.end(version), batch(version, "insert", SCHEMA, [{"id": version}]))
        assert [row["id"] for row in rows_in(database, table)] == [version]
