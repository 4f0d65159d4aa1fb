"""The difference of two tables whose rows are identified by a key, in bounded memory.

Rows are texts, and null. Each row is in one of 65,536 buckets, by the fingerprint of its key
(`tailer.changelog.equal_rows.fingerprints`). In a first pass, both tables are reduced to the number of rows of each
bucket and the sums of their fingerprints. Buckets in which these are the same have the same rows. In a second pass, the
rows of all others are kept in a database, which spills to disk, and paired by key.
"""

import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import pyarrow as pa

from tailer.changelog.equal_rows.fingerprints import BUCKETS, fingerprint_sql
from tailer.changelog.spill import MEMORY_BYTES, open_database, scratch_folder, spill_failure

__all__ = ["Difference", "DifferenceKind", "KeyedDifference"]

_MOST_SUMS: Final = 2**20
_LOW: Final = 2**64 - 1
_SUMS: Final = ("side", "high", "low")
_CREATE_SUMS: Final = "CREATE TABLE sums (bucket USMALLINT, side HUGEINT, high HUGEINT, low HUGEINT)"
_ADD: Final = """
INSERT INTO sums SELECT bucket, {side} * count(*), {side} * sum(high), {side} * sum(low) FROM (
    SELECT ({key} & {mask})::USMALLINT AS bucket, (row_print >> 64)::HUGEINT AS high,
        (row_print & {low})::HUGEINT AS low
    FROM (SELECT *, {row} AS row_print FROM chunk)
) GROUP BY bucket
"""
_TOTALS: Final = f"""
SELECT bucket, {", ".join(f"sum({each})::HUGEINT AS {each}" for each in _SUMS)} FROM sums GROUP BY bucket
HAVING {" OR ".join(f"sum({each}) <> 0" for each in _SUMS)}
"""
_KEEP: Final = """
INSERT INTO uneven SELECT {side}, {key}, {row}, {order}, {columns} FROM chunk
WHERE ({key} & {mask})::USMALLINT IN (SELECT bucket FROM sums)
"""
# Equal rows with one key are paired first. The others are paired in an order that depends on their values, and not on
# the salt. Windows and joins hold what they get in memory, so they get the numbers of rows in place of their values.
_PAIR: Final = """
CREATE TABLE pairs AS
WITH counted AS (
    SELECT rowid AS number, side, key_print, order_print,
        count(*) FILTER (side = 1) OVER same - count(*) FILTER (side = -1) OVER same AS surplus,
        row_number() OVER (PARTITION BY key_print, row_print, side) AS copy
    FROM uneven WINDOW same AS (PARTITION BY key_print, row_print)
), left_over AS (
    SELECT *, row_number() OVER (PARTITION BY key_print, side ORDER BY order_print, copy) AS nth
    FROM counted WHERE side * surplus > 0 AND copy <= abs(surplus)
)
SELECT source.number AS source, mirror.number AS mirror, coalesce(source.key_print, mirror.key_print) AS key_print,
    source.order_print AS source_order, mirror.order_print AS mirror_order
FROM (SELECT * FROM left_over WHERE side = 1) AS source
FULL JOIN (SELECT * FROM left_over WHERE side = -1) AS mirror
ON source.key_print = mirror.key_print AND source.nth = mirror.nth
"""
_COUNT: Final = """
SELECT count(*) FROM pairs
JOIN uneven AS ours ON ours.rowid = pairs.source JOIN uneven AS theirs ON theirs.rowid = pairs.mirror
WHERE ours.{column} IS DISTINCT FROM theirs.{column}
"""
_FIRST: Final = """
SELECT source, mirror FROM pairs JOIN uneven ON uneven.rowid = coalesce(source, mirror)
ORDER BY {keys}, source IS NULL, source_order, mirror_order LIMIT {limit}
"""
_FIND: Final = "SELECT number FROM chunk WHERE {key} IN (SELECT key_print FROM pairs) ORDER BY number"
_KEYS_AT_ONCE: Final = 2**16


class DifferenceKind(StrEnum):
    """The kind of a difference."""

    MISSING = "missing"  # the source has the row
    UNEXPECTED = "unexpected"  # the mirror has the row
    DIFFERENT = "different"  # both have a row with this key


@dataclass(frozen=True, slots=True)
class Difference:
    """A row by which the tables differ. `source`, `mirror`: its values by column, also of the key; None: no row."""

    kind: DifferenceKind
    source: dict[str, str | None] | None
    mirror: dict[str, str | None] | None

    @property
    def columns(self) -> list[str]:
        """The columns whose values differ, of a row that both have."""
        source, mirror = self.source, self.mirror
        return [] if source is None or mirror is None else [name for name in source if source[name] != mirror[name]]


class KeyedDifference:
    """Compares the rows of two tables with `columns`, identified by `key`. Not thread-safe.

    `add` all rows of both tables. If `begin_second_pass` says so, give all rows to `keep`, and call `pair`. What comes
    below it tells of the differences. The methods raise `ScratchUnavailable` where spilling to disk fails.
    """

    def __init__(self, columns: Sequence[str], key: Sequence[str], memory_bytes: int = MEMORY_BYTES) -> None:
        salt = secrets.token_hex(16)
        self._columns = list(columns)
        self._names = [f"c{number}" for number in range(len(columns))]
        self._key = [self._names[self._columns.index(column)] for column in key]
        self._prints = {
            "key": fingerprint_sql(self._key, salt),
            "row": fingerprint_sql(self._names, salt),
            "order": fingerprint_sql(self._names, ""),
            "mask": str(BUCKETS - 1),
            "low": str(_LOW),
        }
        self._sums = 0
        self._folder = str(scratch_folder())
        self._database = open_database(self._folder, memory_bytes)
        self._database.execute(_CREATE_SUMS)

    def close(self) -> None:
        """Free memory and disk space."""
        self._database.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, rows: Sequence[pa.RecordBatch], *, is_source: bool) -> None:
        """Add rows of a table, at least one batch."""
        with self._chunk(rows):
            self._database.execute(_ADD.format(side=1 if is_source else -1, **self._prints))
            self._sums += min(sum(map(len, rows)), BUCKETS)
            if self._sums > _MOST_SUMS:
                self._total()

    def begin_second_pass(self) -> bool:
        """Return whether the tables differ."""
        with self._translated():
            self._total()
            columns = ", ".join(f"{name} VARCHAR" for name in self._names)
            self._database.execute(
                "CREATE TABLE uneven (side TINYINT, key_print UHUGEINT, row_print UHUGEINT, "
                f"order_print UHUGEINT, {columns})"
            )
            return self._sums > 0

    def keep(self, rows: Sequence[pa.RecordBatch], *, is_source: bool) -> None:
        """Keep those rows, of at least one batch, whose bucket differs."""
        with self._chunk(rows):
            columns = ", ".join(self._names)
            self._database.execute(_KEEP.format(side=1 if is_source else -1, columns=columns, **self._prints))

    def pair(self) -> dict[DifferenceKind, int]:
        """Pair the kept rows by key. Return how many differences there are of each kind."""
        with self._translated():
            self._database.execute(_PAIR)
            conditions = "mirror IS NULL", "source IS NULL", "source IS NOT NULL AND mirror IS NOT NULL"
            counts = ", ".join(f"count(*) FILTER ({condition})" for condition in conditions)
            records = self._database.execute(f"SELECT {counts} FROM pairs").fetchall()
            return dict(zip(DifferenceKind, map(int, records[0]), strict=True))

    def column_counts(self) -> dict[str, int]:
        """Return in how many rows that both tables have each column differs, of those that do."""
        with self._translated():
            counts = [self._database.execute(_COUNT.format(column=column)).fetchall()[0][0] for column in self._names]
            return {name: count for name, count in zip(self._columns, counts, strict=True) if count}

    def first(self, limit: int) -> list[Difference]:
        """Return the first `limit` differences, in the order of their keys: numbers as numbers."""
        with self._translated():
            keys = ", ".join(f"try_cast({column} AS DECIMAL(38, 9)) NULLS LAST, {column}" for column in self._key)
            pairs = self._database.execute(_FIRST.format(keys=keys, limit=limit)).fetchall()
            wanted = ", ".join(str(number) for pair in pairs for number in pair if number is not None)
            names = ", ".join(self._names)
            query = f"SELECT rowid, {names} FROM uneven WHERE rowid IN ({wanted or 'NULL'})"
            rows = {
                number: dict(zip(self._columns, values, strict=True))
                for number, *values in self._database.execute(query).fetchall()
            }
            return [_difference(rows.get(source), rows.get(mirror)) for source, mirror in pairs]

    def differing_keys(self) -> Iterator[pa.RecordBatch]:
        """Yield the keys of all differences, each once. Take all of them before the next call of another method."""
        keys = f"SELECT DISTINCT {', '.join(self._key)} FROM uneven WHERE key_print IN (SELECT key_print FROM pairs)"
        with self._translated():
            yield from self._database.sql(keys).to_arrow_reader(_KEYS_AT_ONCE)

    def find(self, keys: pa.Table) -> pa.Array:
        """Return the indices of those of `keys`, at least one, that differ."""
        numbered = pa.table([*keys.columns, pa.array(range(len(keys)))], [*self._key, "number"])
        with self._registered(numbered):
            records = self._database.execute(_FIND.format(**self._prints)).fetchall()
            return pa.array([number for (number,) in records], pa.int64())

    def _total(self) -> None:
        """Reduce the sums to one for each bucket that differs."""
        self._database.execute(f"CREATE OR REPLACE TABLE sums AS {_TOTALS}")
        self._sums = int(self._database.execute("SELECT count(*) FROM sums").fetchall()[0][0])

    @contextmanager
    def _chunk(self, rows: Sequence[pa.RecordBatch]) -> Iterator[None]:
        """Give rows to the database."""
        named = [pa.record_batch(row.columns, self._names) for row in rows]
        with self._registered(pa.Table.from_batches(named)):
            yield

    @contextmanager
    def _registered(self, table: pa.Table) -> Iterator[None]:
        with self._translated():
            self._database.register("chunk", table)
            try:
                yield
            finally:
                self._database.unregister("chunk")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        import duckdb  # noqa: PLC0415 - as in `scratch_database`

        try:
            yield
        except (duckdb.OutOfMemoryException, duckdb.IOException, OSError) as error:  # OSError: while rows are fetched
            raise spill_failure(self._folder, error) from error


def _difference(source: dict[str, str | None] | None, mirror: dict[str, str | None] | None) -> Difference:
    if source is not None and mirror is not None:
        return Difference(DifferenceKind.DIFFERENT, source, mirror)
    return Difference(DifferenceKind.UNEXPECTED if source is None else DifferenceKind.MISSING, source, mirror)
