"""Keep a SQLite table equal to a Delta table, exactly once: rows and progress are in one database transaction.

    pip install lake-tailer
    python upsert_into_sqlite.py TABLE DATABASE      # again and again, for instance from cron

The Delta table has the columns `id`, the key, `customer` and `amount`. The first run copies all rows. Each later one
applies the versions after the last one that DATABASE has, in one transaction each: kill it at any time, and a version
is in the database with its number, or not at all. The same recipe works for any database with transactions.

A database follows one table: if another table takes its place, begin with a new database.
"""

import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from itertools import groupby

import pyarrow as pa

import tailer

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT, amount REAL);
CREATE TABLE IF NOT EXISTS progress (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), version INTEGER NOT NULL);
CREATE TEMPORARY TABLE step (change TEXT, id INTEGER, customer TEXT, amount REAL);
"""
# Old images go before new ones come, whatever their order: an update may change the key.
APPLY = """
DELETE FROM orders WHERE id IN (SELECT id FROM step WHERE change IN ('delete', 'update_preimage'));
INSERT INTO orders SELECT id, customer, amount FROM step WHERE change IN ('insert', 'update_postimage');
DELETE FROM step;
"""


def follow(table: str, database: str) -> None:
    """Apply every version of the table that the database does not have."""
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.executescript(SCHEMA)
        applied = db.execute("SELECT version FROM progress").fetchone()
        # The first run begins with all rows of the table.
        changes = tailer.changes(table, start=applied[0] + 1 if applied else "snapshot")
        for version, batches in groupby(changes, key=lambda batch: batch["_commit_version"][0].as_py()):
            apply(db, version, batches)


def apply(db: sqlite3.Connection, version: int, batches: Iterable[pa.RecordBatch]) -> None:
    """Commit the changes of one version, and its number."""
    db.execute("BEGIN IMMEDIATE")
    for batch in batches:
        columns = (batch[name].to_pylist() for name in ("_change_type", "id", "customer", "amount"))
        db.executemany("INSERT INTO step VALUES (?, ?, ?, ?)", zip(*columns, strict=True))
    for statement in APPLY.strip().splitlines():
        db.execute(statement)
    db.execute("REPLACE INTO progress VALUES (1, ?)", (version,))
    db.execute("COMMIT")


if __name__ == "__main__":
    follow(*sys.argv[1:])
