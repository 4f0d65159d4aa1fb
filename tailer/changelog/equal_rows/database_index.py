"""Index of row fingerprints in a DuckDB database, to compare many rows in bounded memory.

`tailer.changelog.equal_rows.fingerprints` says what a fingerprint is; here the salt is secret to the process. One or
two int64 values are their own fingerprint.

The index stores only the address and the fingerprint of each row. DuckDB spills what does not fit into memory to disk,
below the folder that `TMPDIR` names, and deletes it afterwards. Results do not depend on the salt, the memory or the
number of threads.

The first `DatabaseIndex` imports DuckDB, which takes 0.1 s and 40 MB.
"""

import os
import secrets
import shutil
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tailer.changelog.equal_rows.comparable_values import LEADING_COLUMNS, add_addresses
from tailer.changelog.equal_rows.fingerprints import fingerprint_sql
from tailer.changelog.equal_rows.port import Stopped
from tailer.changelog.spill import MEMORY_BYTES, open_database, scratch_folder, spill_failure
from tailer.files.row_bitmaps import Bitmaps

if TYPE_CHECKING:
    import duckdb

__all__ = ["DatabaseIndex"]

_RESULT_ROWS: Final = 65536
_MANY_ROWS: Final = 200_000
_TABLES: Final = {
    "rows": "address BIGINT, deleted BOOLEAN, fingerprint UHUGEINT",
    "partners": "deleted BIGINT, inserted BIGINT",  # addresses
}
# Most rows cancel out within their bucket: if both sides have equally many rows with equal sums of both halves of their
# fingerprints, no row of the bucket is left. Only rows of other buckets need counting.
_UNEVEN: Final = """
CREATE OR REPLACE TABLE uneven AS
WITH sides AS (
    SELECT (fingerprint & 65535)::USMALLINT AS bucket, CASE WHEN deleted THEN 1 ELSE -1 END AS side,
        (fingerprint >> 64)::UBIGINT::HUGEINT AS high, (fingerprint & 18446744073709551615)::UBIGINT::HUGEINT AS low
    FROM rows
), buckets AS (
    SELECT bucket FROM sides GROUP BY bucket HAVING sum(side) <> 0 OR sum(side * high) <> 0 OR sum(side * low) <> 0
)
SELECT * FROM rows WHERE (fingerprint & 65535)::USMALLINT IN (SELECT bucket FROM buckets)
"""
# Counts of the deleted and the inserted rows of each fingerprint.
_COUNTED: Final = """
SELECT fingerprint, count(*) FILTER (deleted) AS deleted_rows, count(*) FILTER (NOT deleted) AS inserted_rows
FROM {rows} GROUP BY fingerprint HAVING {having}
"""
# Rows with a counted fingerprint: all where `{whole}` holds, else the n-th of each side for which `{nth}` holds.
_FOUND: Final = """
SELECT address FROM {rows} JOIN counted USING (fingerprint) WHERE {whole}
UNION ALL
SELECT address FROM (
    SELECT *, row_number() OVER (PARTITION BY fingerprint, deleted ORDER BY address) AS nth
    FROM {rows} JOIN counted USING (fingerprint) WHERE NOT ({whole})
) WHERE {nth}
"""
# Partners: the only row of each side, or the n-th of both.
_PAIRED: Final = """
CREATE OR REPLACE TABLE paired AS
SELECT one.address AS deleted, other.address AS inserted
FROM counted JOIN rows AS one USING (fingerprint) JOIN rows AS other USING (fingerprint)
WHERE {single} AND one.deleted AND NOT other.deleted
UNION ALL
SELECT max(address) FILTER (deleted), max(address) FILTER (NOT deleted) FROM (
    SELECT *, row_number() OVER (PARTITION BY fingerprint, deleted ORDER BY address) AS nth
    FROM rows JOIN counted USING (fingerprint) WHERE NOT ({single})
) WHERE nth <= least(deleted_rows, inserted_rows) GROUP BY fingerprint, nth
"""
# Partners across versions: a deleted row and the next row of its fingerprint, if that is inserted.
_PAIRED_IN_TURN: Final = """
CREATE OR REPLACE TABLE paired AS
SELECT address AS deleted, next AS inserted FROM (
    SELECT address, deleted, lead(address) OVER turns AS next, lead(deleted) OVER turns AS deleted_again
    FROM rows JOIN counted USING (fingerprint) WINDOW turns AS (PARTITION BY fingerprint ORDER BY address)
) WHERE deleted AND NOT deleted_again
"""
_EQUALS: Final = """
CREATE OR REPLACE TABLE equals AS
SELECT partners.deleted, partners.inserted FROM partners
JOIN rows AS one ON one.address = partners.deleted AND one.deleted
JOIN rows AS other ON other.address = partners.inserted AND NOT other.deleted
WHERE one.fingerprint = other.fingerprint
"""
_RANKS: Final = """
SELECT rank - 1 AS rank
FROM (SELECT deleted, row_number() OVER (ORDER BY inserted) AS rank FROM partners) ORDER BY deleted
"""


class DatabaseIndex:
    """Compares rows as `tailer.changelog.equal_rows.port.TaskIndex` says. Not thread-safe, except `stop`.

    Methods raise `ScratchUnavailable` where spilling to disk fails, and `Stopped`.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._folder = str(scratch_folder())
        self._salt = secrets.token_hex(16)
        self._stopped = False
        self._rows = self._rows_so_far = 0
        self._hashed = True  # whether all fingerprints are hashes
        self._failure: Exception | None = None  # of the rows that were added last
        self._used = set(_TABLES)
        # A connection that outlives the interpreter's other objects, as in a traceback, causes a warning at exit.
        self._connections = [open_database(self._folder, memory_bytes)]
        self._release = weakref.finalize(self, _release, self._connections, self._folder, os.getpid())

    @property
    def _database(self) -> "duckdb.DuckDBPyConnection":
        return self._connections[0]

    @property
    def has_grown(self) -> bool:
        """Return whether freeing the memory is worth the cost of creating another index."""
        return self._rows_so_far > _MANY_ROWS

    @property
    def closed(self) -> bool:
        """Return whether the index can no longer be used."""
        return self._stopped or not self._release.alive or not Path(self._folder).is_dir()

    def close(self) -> None:
        """Free memory and disk space."""
        self._release()

    def stop(self) -> None:
        """Interrupt the running query and refuse later ones. May be called from another thread."""
        import duckdb  # noqa: PLC0415 - see the module's docstring

        self._stopped = True
        for connection in self._connections:
            with suppress(duckdb.Error):  # it was closed meanwhile
                connection.interrupt()

    def begin(self) -> None:
        """Remove all rows and partners."""
        self.clear()
        self._recreate("partners")

    def clear(self) -> None:
        """Remove all rows, but keep the partners."""
        self._recreate("rows")
        self._rows, self._hashed = 0, True

    def add(self, batches: Iterator[pa.RecordBatch], nulls_differ: bool = False) -> None:
        """Add rows as `Wanted.of` returns them; raise what `batches` raises.

        `nulls_differ`: whether they were chosen so that no compared column has a null.
        """
        # A statement takes longer than a few rows, so there is one for all rows of the same types.
        for schema, alike in groupby(batches, attrgetter("schema")):
            self._used.add("rows")
            with self._translated():
                reader = pa.RecordBatchReader.from_batches(schema, self._streamed(alike))
                self._database.register("batches", reader)
                try:
                    fingerprint = self._fingerprint_sql(list(schema)[len(LEADING_COLUMNS) :], nulls_differ)
                    self._database.execute(f"INSERT INTO rows SELECT address, deleted, {fingerprint} FROM batches")
                finally:
                    self._database.unregister("batches")

    def unmatched(self) -> Bitmaps:
        """See `TaskIndex.unmatched`."""
        rows = "rows"
        left = "CASE WHEN deleted THEN nth <= deleted_rows - inserted_rows ELSE nth > deleted_rows END"
        with self._translated():
            if self._rows > _MANY_ROWS and self._hashed:
                self._database.execute(_UNEVEN)
                rows = "uneven"
            counted = _COUNTED.format(rows=rows, having="deleted_rows <> inserted_rows")
            query = _FOUND.format(rows=rows, whole="least(deleted_rows, inserted_rows) = 0", nth=left)
            return self._collected(f"WITH counted AS MATERIALIZED ({counted}) {query}")

    def unmatched_singles(self) -> Bitmaps:
        """See `TaskIndex.unmatched_singles`."""
        counted = _COUNTED.format(rows="rows", having="NOT (deleted_rows = 1 AND inserted_rows = 1)")
        with self._translated():
            return self._collected(f"SELECT address FROM rows JOIN ({counted}) USING (fingerprint)")

    def pair(self, in_turn: bool = False) -> tuple[Bitmaps, Bitmaps, int]:
        """See `TaskIndex.pair`."""
        single = "deleted_rows = 1 AND inserted_rows = 1"
        counted = _COUNTED.format(rows="rows", having="deleted_rows > 0 AND inserted_rows > 0")
        self._used.add("partners")
        with self._translated():
            self._database.execute(f"CREATE OR REPLACE TABLE counted AS {counted}")
            self._database.execute(_PAIRED_IN_TURN if in_turn else _PAIRED.format(single=single))
            query = f"SELECT coalesce(sum(deleted_rows + inserted_rows), 0)::BIGINT FROM counted WHERE NOT ({single})"
            ambiguous = int(self._database.sql(query).fetchall()[0][0])
            self._database.execute("INSERT INTO partners SELECT * FROM paired")
            sides = ("deleted", "inserted")
            deleted, inserted = (self._collected(f"SELECT {side} AS address FROM paired") for side in sides)
            return deleted, inserted, ambiguous

    def unpair_equal(self) -> Bitmaps:
        """See `TaskIndex.unpair_equal`."""
        with self._translated():
            self._database.execute(_EQUALS)
            self._database.execute("DELETE FROM partners USING equals WHERE partners.inserted = equals.inserted")
            return self._collected("SELECT unnest([deleted, inserted]) AS address FROM equals")

    def add_partners(self, partners: pa.Table) -> None:
        """See `RowIndex.add_partners`."""
        self._used.add("partners")
        with self._translated():
            self._database.register("found", partners)
            try:
                self._database.execute("INSERT INTO partners SELECT deleted, inserted FROM found")
            finally:
                self._database.unregister("found")

    def partners(self) -> pa.Table:
        """See `RowIndex.partners`."""
        with self._translated():
            return self._database.sql("SELECT deleted, inserted FROM partners").to_arrow_table()

    def partner_ranks(self) -> Generator[pa.RecordBatch, None, None]:
        """See `TaskIndex.partner_ranks`."""
        with self._translated():
            yield from self._database.sql(_RANKS).to_arrow_reader(_RESULT_ROWS)

    def _streamed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches to the database. It turns our errors into text, so keep the error."""
        self._failure = None
        try:
            for batch in batches:
                self._check()
                self._rows += batch.num_rows
                self._rows_so_far += batch.num_rows
                yield batch
        except Exception as error:
            self._failure = error
            raise

    def _fingerprint_sql(self, columns: Sequence[pa.Field], no_nulls: bool) -> str:
        """Return SQL for the fingerprint of a row. One or two int64 values are their own fingerprint."""
        if no_nulls and len(columns) <= 2 and all(field.type.equals(pa.int64()) for field in columns):
            self._hashed = False
            return " | ".join(
                f"(({field.name}::HUGEINT + {2**63})::UHUGEINT << {64 * number})"
                for number, field in enumerate(columns)
            )
        return fingerprint_sql([field.name for field in columns], self._salt)

    def _recreate(self, table: str) -> None:
        with self._translated():
            if table in self._used:
                self._database.execute(f"CREATE OR REPLACE TABLE {table} ({_TABLES[table]})")
                self._used.discard(table)

    def _collected(self, query: str) -> Bitmaps:
        bitmaps: Bitmaps = {}
        for batch in self._database.sql(query).to_arrow_reader(_RESULT_ROWS):
            self._check()
            add_addresses(bitmaps, batch["address"])
        return bitmaps

    def _check(self) -> None:
        if self._stopped:
            raise Stopped

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import duckdb  # noqa: PLC0415 - see the module's docstring

        try:
            self._check()
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if self._stopped:
                raise Stopped from None
            if self._failure is not None:
                raise self._failure from None
            # Arrow reports every error while fetching results as OSError.
            if isinstance(error, duckdb.OutOfMemoryException | duckdb.IOException | OSError):
                raise spill_failure(self._folder, error) from error
            raise
        finally:
            self._failure = None


def _release(connections: "list[duckdb.DuckDBPyConnection]", folder: str, owner: int) -> None:
    if os.getpid() != owner:  # a forked child has neither the database's threads nor its folder
        return
    connections.pop().close()
    shutil.rmtree(folder, ignore_errors=True)
