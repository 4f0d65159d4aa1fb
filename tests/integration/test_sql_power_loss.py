"""A file of SQLite after a loss of power: the end of its log is gone, and with it the last commits, as a whole.

Rows and progress are lost together, so a pipeline delivers those versions again and the mirror has nothing twice.
"""

import random
import shutil
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from tailer.events import ChangeBatch
from tests.support.mirrors.databases import APP, SqliteDatabase, batch, deliver, mirrored, opened, rows_in
from tests.support.seeds import repeats

pytestmark = pytest.mark.anyio

SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string())])
VERSIONS: Final = 12


def version(number: int) -> list[ChangeBatch]:
    """Return the rows of a version, which inserts a row and replaces the one before."""
    new = batch(number, "insert", SCHEMA, [{"id": each, "name": f"at {number}"} for each in (number - 1, number)])
    if number == 1:
        return [new.slice(1, 1)]
    return [batch(number, "delete", SCHEMA, [{"id": number - 1, "name": ""}]), new]


def rows_at(number: int) -> dict[int, str]:
    return {each: f"at {min(each + 1, number)}" for each in range(1, number + 1)}


def names(database: SqliteDatabase) -> dict[int, str]:
    rows = rows_in(database, "orders")
    assert len(rows) == len({row["id"] for row in rows})
    return {row["id"]: row["name"] for row in rows}


async def test_commits_that_a_loss_of_power_takes_back_come_again(tmp_path: Path) -> None:
    database, chance = SqliteDatabase(tmp_path / "mirror.db"), random.Random(5)
    log = tmp_path / "mirror.db-wal"
    async with opened(database) as sink:
        for number in range(1, VERSIONS + 1):
            await deliver(sink, *version(number))
        size = log.stat().st_size  # while the file is open, the log keeps all commits
        reached = set()
        for cut in [0, size, *(chance.randrange(size) for _ in range(repeats(20)))]:
            left = SqliteDatabase(tmp_path / f"{cut}" / "mirror.db")
            left.path.parent.mkdir()
            shutil.copy(database.path, left.path)
            (left.path.parent / "mirror.db-wal").write_bytes(log.read_bytes()[:cut])
            reached.add(await go_on(left))
    assert {0, VERSIONS} < reached
    print(f"{size} bytes; versions that were left: {sorted(reached)}")


async def go_on(database: SqliteDatabase) -> int:
    """Check that rows and progress are those of one version, and deliver the rest. Return that version; 0: none."""
    there = mirrored(database, "orders") or 0
    assert names(database) == rows_at(there)
    async with opened(database) as sink:
        progress = await sink.progress(APP)
        assert (0 if progress is None else progress.position.version) == there
        for number in range(there + 1, VERSIONS + 1):
            await deliver(sink, *version(number))
    assert names(database) == rows_at(VERSIONS)
    return there
