"""Pipelines into SQLite by a configuration: where a mirror begins, its columns, and how it gets past a loss."""

from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tailer.config.settings import load
from tailer.engine.local import LocalEngine
from tailer.errors import ChangesUnavailable
from tailer.pipeline.row_delivery import row_pipeline
from tailer.sink import Sink
from tailer.start import Start, StartKind
from tailer.stores.wakeup import TimerWake
from tests.support.mirrors.databases import SqliteDatabase, mirrored, rows_in


@pytest.fixture(autouse=True)
def orders(tmp_path: Path) -> None:
    """A table of four versions."""
    for ids in ([1, 2], [3], [4]):
        rows = {"id": ids, "mail": [f"{each}@example.org" for each in ids], "amount": [10.0 * each for each in ids]}
        write_deltalake(tmp_path / "orders", pa.table(rows), mode="append")
    DeltaTable(tmp_path / "orders").update(updates={"amount": "amount + 1"}, predicate="id = 2")


def run(folder: Path, options: str = "", last: int = 3, sink: str = 'key = ["id"]') -> SqliteDatabase:
    """Run the pipeline `orders` with a sink of SQLite up to version `last`. Return the database."""
    config = folder / "tailer.toml"
    config.write_text(
        f'[pipelines.orders]\ntable = "orders"\n{options}\n'
        f'[pipelines.orders.sink]\nkind = "sql"\nurl = "sqlite:///shop.db"\n{sink}\n'
    )
    settings = load(config)
    (pipeline,) = settings.pipelines
    end = Start(StartKind.VERSION, last)

    async def deliver(to: Sink) -> None:
        made = pipeline.open_table(), to, LocalEngine(), TimerWake(), pipeline.start, end, pipeline.policy
        try:
            await row_pipeline("orders", *made).run()
        finally:
            await to.aclose()

    found = settings.open_sink(pipeline)
    assert isinstance(found, Sink)
    anyio.run(deliver, found)
    return SqliteDatabase(folder / "shop.db")


def values(database: SqliteDatabase, column: str) -> list[Any]:
    return sorted(row[column] for row in rows_in(database, "orders"))


@pytest.mark.parametrize("start", ["earliest", "snapshot", "latest", "2", "2026-01-01T00:00:00Z"])
def test_a_mirror_has_all_rows_wherever_it_starts(tmp_path: Path, start: str) -> None:
    database = run(tmp_path, f'start = "{start}"')
    assert values(database, "amount") == [10.0, 21.0, 30.0, 40.0]
    assert mirrored(database, "orders") == 3


def test_a_log_starts_where_it_is_told(tmp_path: Path) -> None:
    database = run(tmp_path, 'start = "2"', sink='mode = "append"')
    assert set(values(database, "_commit_version")) == {2, 3}


def test_columns_and_rows_are_those_of_the_pipeline(tmp_path: Path) -> None:
    options = 'where = "id <> 3"\nselect = "id AS number, sha2(mail, 256) AS mail, amount * 2 AS twice"'
    database = run(tmp_path, options, sink='key = ["number"]')
    assert values(database, "number") == [1, 2, 4]
    assert values(database, "twice") == [20.0, 42.0, 80.0]
    assert [name for _, name, *_ in database.query("PRAGMA table_info(orders)")] == ["number", "mail", "twice"]
    assert b"example.org" not in (tmp_path / "shop.db").read_bytes()


def test_a_column_that_restore_brings_back_is_a_loss(tmp_path: Path) -> None:
    """The table stops to have the column, and RESTORE brings it back with its values."""
    run(tmp_path)
    rows = pa.table({"id": [1], "amount": [1.0]})
    write_deltalake(tmp_path / "orders", rows, mode="overwrite", schema_mode="overwrite")
    assert values(run(tmp_path, last=4), "amount") == [1.0]
    DeltaTable(tmp_path / "orders").restore(3)
    with pytest.raises(ChangesUnavailable, match="RESTORE brought column mail back"):
        run(tmp_path, last=5)
    database = run(tmp_path, 'on_data_loss = "resnapshot"', last=5)
    assert values(database, "mail") == [f"{each}@example.org" for each in (1, 2, 3, 4)]
    assert mirrored(database, "orders") == 5
