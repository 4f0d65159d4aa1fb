"""Fingerprints of rows: equal for equal rows, and only for these.

A fingerprint has 128 bits: the MD5 of a salt and DuckDB's sort key of the row. The sort key encodes every value of
every type uniquely, nested values and nulls included. So equal rows have equal fingerprints, and it is computationally
infeasible to find different rows with equal ones without knowing the salt. Values are equal if no reader can
distinguish them: NaN equals NaN whatever its bits, and zero does not equal minus zero.

Fingerprints with the same salt may be computed in several processes and compared anywhere. Each row has an address, in
the order in which its version delivers rows.

The first `Fingerprints` of a process imports DuckDB, which takes 0.1 s.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyroaring import BitMap64

from tailer.changelog.equal_rows.comparable_values import LEADING_COLUMNS, Wanted
from tailer.events import ChangeBatch
from tailer.files.row_bitmaps import Bitmaps, bitmap_of

if TYPE_CHECKING:
    import duckdb

__all__ = ["BUCKETS", "SUMS", "Fingerprints", "fingerprint_sql"]

BUCKETS: Final = 2**16
_CHUNK_ROWS: Final = 2**16
_MOST_SUMS: Final = 2**20
# The rest of a fingerprint in parts of 32 bits, so that sums do not overflow: a bucket has fewer than 2**31 rows.
_PARTS: Final = {
    "part_0": "(low >> 16) & 4294967295",
    "part_1": "low >> 48",
    "part_2": "high & 4294967295",
    "part_3": "high >> 32",
}
SUMS: Final = ("side", *_PARTS)
_ROWS: Final = f"""
SELECT (fingerprint >> 64)::UBIGINT AS high, (fingerprint & {2**64 - 1})::UBIGINT AS low, address, deleted
FROM (SELECT address, deleted, {{fingerprint}} AS fingerprint FROM chunk)
"""
_SUMMED: Final = f"""
INSERT INTO sums SELECT (low & {BUCKETS - 1})::INTEGER AS bucket, sum(side)::BIGINT,
    {", ".join(f"sum(side * ({part})::BIGINT)::BIGINT" for part in _PARTS.values())}
FROM (SELECT CASE WHEN deleted THEN 1 ELSE -1 END AS side, high, low FROM hashed) GROUP BY bucket
"""
_TOTALS: Final = f"""
SELECT bucket, {", ".join(f"sum({name})::BIGINT AS {name}" for name in SUMS)} FROM sums GROUP BY bucket
HAVING {" OR ".join(f"sum({name}) <> 0" for name in SUMS)}
"""
_NO_SUMS: Final = f"CREATE OR REPLACE TABLE sums (bucket INTEGER, {', '.join(f'{name} BIGINT' for name in SUMS)})"


def fingerprint_sql(columns: Sequence[str], salt: str) -> str:
    """Return DuckDB's SQL for the fingerprint of a row."""
    key = ", ".join(f"{name}, 'ASC NULLS LAST'" for name in columns)
    return f"md5_number(create_sort_key('{salt}', 'ASC NULLS LAST', {key}))"


class Fingerprints:
    """Computes fingerprints by a salt, and keeps nothing. It survives pickle. Not thread-safe.

    Batches come with the number of their source. Methods raise `DataCorrupt` for a Variant that is not sound.
    """

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._database: duckdb.DuckDBPyConnection | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return the state without the database."""
        return {**self.__dict__, "_database": None}

    def rows(
        self, batches: Iterable[tuple[int, ChangeBatch]], wanted: Wanted, positions: Bitmaps
    ) -> Iterator[pa.RecordBatch]:
        """Yield a row for each wanted row: its fingerprint as two int64 halves, its address, and whether it is deleted.

        Adds the positions of these rows to `positions`, by source, and begins new `sums` with them.
        """
        database = self._opened()
        database.execute(_NO_SUMS)
        count = 0
        for chunk in _chunks(batches, wanted, positions):
            columns = chunk.schema.names[len(LEADING_COLUMNS) :]
            with self._registered(chunk=chunk):
                hashed = database.sql(_ROWS.format(fingerprint=fingerprint_sql(columns, self._salt))).to_arrow_table()
            with self._registered(hashed=hashed):
                database.execute(_SUMMED)
            count += min(chunk.num_rows, BUCKETS)
            if count > _MOST_SUMS:
                database.execute(f"CREATE OR REPLACE TABLE sums AS {_TOTALS}")
                count = BUCKETS
            hashes = [column.combine_chunks() for column in hashed.columns]
            hashes[:2] = [half.view(pa.int64()) for half in hashes[:2]]
            yield pa.RecordBatch.from_arrays(hashes, hashed.column_names)

    def sums(self) -> Iterator[pa.RecordBatch]:
        """Yield the sums of each bucket of the rows that `rows` has yielded; there are none afterwards.

        A bucket is made of some bits of fingerprints. Deleted rows are added, inserted rows subtracted: how many there
        are (`side`), and each of the other bits of their fingerprints, in parts. Buckets of zeros are left out.

        If all sums of a bucket are zero, over all sources, then equally many rows of each fingerprint are deleted and
        inserted. For other rows to have such sums is as unlikely as equal fingerprints of different rows.
        """
        database = self._opened()
        yield from database.sql(_TOTALS).to_arrow_table().combine_chunks().to_batches()
        database.execute(_NO_SUMS)

    @contextmanager
    def _registered(self, **tables: pa.Table) -> Iterator[None]:
        """Give tables to the database."""
        database = self._opened()
        for name, table in tables.items():
            database.register(name, table)
        try:
            yield
        finally:
            for name in tables:
                database.unregister(name)

    def _opened(self) -> "duckdb.DuckDBPyConnection":
        if self._database is None:
            import duckdb  # noqa: PLC0415 - see the module's docstring

            settings: dict[str, str | bool | int | float | list[str]] = {
                "threads": 1,
                "async_threads": 0,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            }
            self._database = duckdb.connect(":memory:", config=settings)
        return self._database


def _chunks(batches: Iterable[tuple[int, ChangeBatch]], wanted: Wanted, positions: Bitmaps) -> Iterator[pa.Table]:
    """Yield the wanted rows in tables of about `_CHUNK_ROWS` rows of one schema: a query takes longer than a few rows.

    Their positions are added to `positions`, by source.
    """
    waiting: list[pa.RecordBatch] = []
    count = 0
    for source, batch in batches:
        row_index, rows = wanted.of(source, batch)
        positions[source] = positions.get(source, BitMap64()) | bitmap_of(row_index)
        if waiting and (count >= _CHUNK_ROWS or waiting[0].schema != rows.schema):
            yield pa.Table.from_batches(waiting)
            waiting, count = [], 0
        if rows.num_rows > 0:
            waiting.append(rows)
            count += rows.num_rows
    if waiting:
        yield pa.Table.from_batches(waiting)
