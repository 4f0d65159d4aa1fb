"""Rows of many files compared with each other, in bounded memory: a DuckDB database of one fingerprint for each row.

A row's columns become a fingerprint of 128 bits: MD5 over DuckDB's sort key, which writes every value of every type,
nested ones and nulls included, in one way only, behind a salt that nobody outside of the process knows. So two rows
have one fingerprint if they are equal, and otherwise, for all that can be computed, never. Of one or two numbers the
fingerprint is these numbers. Equal are values that no reader can tell apart: NaN equals NaN whatever its bits, and zero
does not equal minus zero.

Of a row only its place and its fingerprint are kept; what does not fit into memory DuckDB puts on disk, below the
folder that `TMPDIR` names, and takes away again. Answers do not depend on the salt, on the memory or on threads.

DuckDB is imported by the first object: that takes a tenth of a second, and most processes of Spark compare nothing.
"""

import os
import secrets
import shutil
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.changelog.spill.directory import scratch_folder
from tailer.errors import ScratchUnavailable
from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch, ChangeType
from tailer.read.row_bitmaps import Bitmaps, bitmap_of

if TYPE_CHECKING:
    import duckdb

__all__ = ["GONE", "MEMORY_BYTES", "RowMatches", "Stopped"]

MEMORY_BYTES: Final = 96 * 2**20
GONE: Final = (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE)
_THREADS: Final = 2
_RESULT_ROWS: Final = 65536
_MANY_ROWS: Final = 200_000
_SIDE: Final = ("row", "gone")
# A place is the number of a source, and behind it the position of a row, which is smaller than this.
_MAX_ROWS: Final = 2**40
_BITS: Final = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
_NAN: Final = {pa.float32(): 0x7FC00000, pa.float64(): 0x7FF8000000000000}

_TABLES: Final = {
    "rows": "place BIGINT, gone BOOLEAN, print UHUGEINT",
    "partners": "gone BIGINT, come BIGINT",  # places
}
# Most rows cancel out with others in their bucket: where both sides have as many rows, with the same sums of both
# halves of their fingerprints, no row of a bucket is left. Only the rows of other buckets are worth counting.
_UNEVEN: Final = """
CREATE OR REPLACE TABLE uneven AS
WITH sides AS (
    SELECT (print & 65535)::USMALLINT AS bucket, CASE WHEN gone THEN 1 ELSE -1 END AS side,
        (print >> 64)::UBIGINT::HUGEINT AS high, (print & 18446744073709551615)::UBIGINT::HUGEINT AS low
    FROM rows
), buckets AS (
    SELECT bucket FROM sides GROUP BY bucket HAVING sum(side) <> 0 OR sum(side * high) <> 0 OR sum(side * low) <> 0
)
SELECT * FROM rows WHERE (print & 65535)::USMALLINT IN (SELECT bucket FROM buckets)
"""
# How often each fingerprint is gone and has come.
_COUNTED: Final = """
SELECT print, count(*) FILTER (gone) AS gone_rows, count(*) FILTER (NOT gone) AS come_rows
FROM {rows} GROUP BY print HAVING {having}
"""
# Rows whose fingerprint was counted: all where `{whole}` holds, else the n-th of each side of which `{nth}` holds.
_FOUND: Final = """
SELECT place FROM {rows} JOIN counted USING (print) WHERE {whole}
UNION ALL
SELECT place FROM (
    SELECT *, row_number() OVER (PARTITION BY print, gone ORDER BY place) AS nth
    FROM {rows} JOIN counted USING (print) WHERE NOT ({whole})
) WHERE {nth}
"""
# Partners: the only row of each side, or the n-th of both.
_PAIRED: Final = """
CREATE OR REPLACE TABLE paired AS
SELECT one.place AS gone, other.place AS come
FROM counted JOIN rows AS one USING (print) JOIN rows AS other USING (print)
WHERE {single} AND one.gone AND NOT other.gone
UNION ALL
SELECT max(place) FILTER (gone), max(place) FILTER (NOT gone) FROM (
    SELECT *, row_number() OVER (PARTITION BY print, gone ORDER BY place) AS nth
    FROM rows JOIN counted USING (print) WHERE NOT ({single})
) WHERE nth <= least(gone_rows, come_rows) GROUP BY print, nth
"""
# Partners where rows come and go over several versions: one gone, and the next of its fingerprint, if that has come.
_PAIRED_IN_TURN: Final = """
CREATE OR REPLACE TABLE paired AS
SELECT place AS gone, next AS come FROM (
    SELECT place, gone, lead(place) OVER turns AS next, lead(gone) OVER turns AS goes_again
    FROM rows JOIN counted USING (print) WINDOW turns AS (PARTITION BY print ORDER BY place)
) WHERE gone AND NOT goes_again
"""
_EQUALS: Final = """
CREATE OR REPLACE TABLE equals AS
SELECT partners.gone, partners.come FROM partners
JOIN rows AS one ON one.place = partners.gone AND one.gone
JOIN rows AS other ON other.place = partners.come AND NOT other.gone
WHERE one.print = other.print
"""
_RANKS: Final = """
SELECT rank - 1 AS rank FROM (SELECT gone, row_number() OVER (ORDER BY come) AS rank FROM partners) ORDER BY gone
"""


class Stopped(Exception):
    """Somebody called `RowMatches.stop`."""


class RowMatches:
    """Compares rows, one question at a time: `clear`, `add` every source, ask. Not for several threads at once.

    `begin` comes first, whenever it is about other rows.

    Rows are gone or have come: those that a version deletes and the images before its updates, or all others. Where
    some of several equal rows are the answer, it is the first of those gone and the last of those that have come, by
    place: source and position.

    Methods raise `ScratchUnavailable` where the disk does not take what memory does not hold, `Stopped`, and what
    reading the rows raises.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        import duckdb  # noqa: PLC0415 - see the module's docstring

        self._folder = str(scratch_folder())
        self._salt = secrets.token_hex(16)
        self._stopped = False
        self._rows = self._rows_so_far = 0
        self._hashed = True  # whether all fingerprints are
        self._used = set(_TABLES)
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{memory_bytes}B",
            "threads": _THREADS,
            "async_threads": 0,  # eight by default, for files in other places
            "temp_directory": self._folder,
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        # A connection that outlives the interpreter's other objects, as one in a traceback may, is complained about.
        self._connections = [duckdb.connect(":memory:", config=settings)]
        # Else DuckDB writes to standard output, where rows may go, when a question takes two seconds.
        self._connections[0].execute("SET enable_progress_bar = false").fetchall()
        self._release = weakref.finalize(self, _release, self._connections, self._folder, os.getpid())

    @property
    def _database(self) -> "duckdb.DuckDBPyConnection":
        return self._connections[0]

    @property
    def has_grown(self) -> bool:
        """Whether there is memory that is worth giving back, at the price of another one of these."""
        return self._rows_so_far > _MANY_ROWS

    @property
    def closed(self) -> bool:
        """Whether it is of no use any more."""
        return self._stopped or not self._release.alive or not Path(self._folder).is_dir()

    def close(self) -> None:
        """Give back memory and disk."""
        self._release()

    def stop(self) -> None:
        """From another thread: end what is under way, and refuse what follows."""
        import duckdb  # noqa: PLC0415 - see the module's docstring

        self._stopped = True
        for connection in self._connections:
            with suppress(duckdb.Error):  # it was closed meanwhile
                connection.interrupt()

    def begin(self) -> None:
        """Forget all rows and partners."""
        self.clear()
        self._empty("partners")

    def clear(self) -> None:
        """Forget all rows, but not which of them are partners."""
        self._empty("rows")
        self._rows, self._hashed = 0, True

    def add(
        self, source: int, batches: Iterator[ChangeBatch], types: tuple[ChangeType, ...], nulls_differ: bool = False
    ) -> BitMap64:
        """Take in the rows of `source` whose change type is one of `types`; returns their positions.

        Columns are compared by their order. `nulls_differ`: leave out rows in which one of them is null.
        """
        reading = _Reading(batches, types, nulls_differ)
        rows = reading.prepared()
        first = next(rows, None)
        if first is None:
            return reading.taken
        columns = list(first.schema)[len(_SIDE) :]
        self._used.add("rows")
        with self._translated(reading):
            self._database.register("batches", pa.RecordBatchReader.from_batches(first.schema, self._all(first, rows)))
            try:
                self._database.execute(
                    f"INSERT INTO rows SELECT {source * _MAX_ROWS} + row, gone, {self._print(columns, nulls_differ)}"
                    " FROM batches"
                )
            finally:
                self._database.unregister("batches")
        self._rows += len(reading.taken)
        self._rows_so_far += len(reading.taken)
        return reading.taken

    def unmatched(self) -> Bitmaps:
        """The rows that are left when equal ones that are gone and have come cancel out, one for one."""
        rows = "rows"
        left = "CASE WHEN gone THEN nth <= gone_rows - come_rows ELSE nth > gone_rows END"
        with self._translated():
            if self._rows > _MANY_ROWS and self._hashed:
                self._database.execute(_UNEVEN)
                rows = "uneven"
            counted = _COUNTED.format(rows=rows, having="gone_rows <> come_rows")
            found = _FOUND.format(rows=rows, whole="least(gone_rows, come_rows) = 0", nth=left)
            return self._collected(f"WITH counted AS MATERIALIZED ({counted}) {found}")

    def unmatched_singles(self) -> Bitmaps:
        """The rows that are left when those cancel out that have exactly one equal, which is on the other side."""
        counted = _COUNTED.format(rows="rows", having="NOT (gone_rows = 1 AND come_rows = 1)")
        with self._translated():
            return self._collected(f"SELECT place FROM rows JOIN ({counted}) USING (print)")

    def pair(self, in_turn: bool = False) -> tuple[Bitmaps, Bitmaps, int]:
        """Make partners of equal rows on both sides, the n-th of those gone and the n-th of those that have come.

        `in_turn`: or of each that is gone and the next of its equals, by place, if that has come.

        Returns the rows gone and those that have come that have a partner now, and how many rows had a choice, or found
        all partners taken.
        """
        single = "gone_rows = 1 AND come_rows = 1"
        counted = _COUNTED.format(rows="rows", having="gone_rows > 0 AND come_rows > 0")
        self._used.add("partners")
        with self._translated():
            self._database.execute(f"CREATE OR REPLACE TABLE counted AS {counted}")
            self._database.execute(_PAIRED_IN_TURN if in_turn else _PAIRED.format(single=single))
            query = f"SELECT coalesce(sum(gone_rows + come_rows), 0)::BIGINT FROM counted WHERE NOT ({single})"
            ambiguous = int(self._database.sql(query).fetchall()[0][0])
            self._database.execute("INSERT INTO partners SELECT * FROM paired")
            gone, come = (self._collected(f"SELECT {side} AS place FROM paired") for side in ("gone", "come"))
            return gone, come, ambiguous

    def part_equals(self) -> Bitmaps:
        """Of the rows taken in, those that are equal to their partner, which are no partners any more."""
        with self._translated():
            self._database.execute(_EQUALS)
            self._database.execute("DELETE FROM partners USING equals WHERE partners.come = equals.come")
            return self._collected("SELECT unnest([gone, come]) AS place FROM equals")

    def partner_ranks(self) -> Generator[pa.RecordBatch, None, None]:
        """A row for each of the rows gone that have a partner, by place: the rank of the partner.

        Ranks count all partners that have come, by place.
        """
        with self._translated():
            yield from self._database.sql(_RANKS).to_arrow_reader(_RESULT_ROWS)

    def _all(self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield first
        for batch in rest:
            if self._stopped:
                raise Stopped
            yield batch

    def _print(self, columns: Sequence[pa.Field], no_nulls: bool) -> str:
        """The fingerprint of a row, in SQL. Of one or two numbers it is these numbers themselves."""
        if no_nulls and len(columns) <= 2 and all(field.type.equals(pa.int64()) for field in columns):
            self._hashed = False
            return " | ".join(
                f"(({field.name}::HUGEINT + {2**63})::UHUGEINT << {64 * place})" for place, field in enumerate(columns)
            )
        key = ", ".join(f"{field.name}, 'ASC NULLS LAST'" for field in columns)
        return f"md5_number(create_sort_key('{self._salt}', 'ASC NULLS LAST', {key}))"

    def _empty(self, table: str) -> None:
        with self._translated():
            if table in self._used:
                self._database.execute(f"CREATE OR REPLACE TABLE {table} ({_TABLES[table]})")
                self._used.discard(table)

    def _collected(self, query: str) -> Bitmaps:
        found: Bitmaps = {}
        for batch in self._database.sql(query).to_arrow_reader(_RESULT_ROWS):
            if self._stopped:
                raise Stopped
            sources = pc.shift_right(batch["place"], _MAX_ROWS.bit_length() - 1)
            rows = pc.bit_wise_and(batch["place"], _MAX_ROWS - 1)
            for source in pc.unique(sources):
                found.setdefault(source.as_py(), BitMap64()).update(bitmap_of(rows.filter(pc.equal(sources, source))))
        return found

    @contextmanager
    def _translated(self, reading: "_Reading | None" = None) -> Iterator[None]:
        import duckdb  # noqa: PLC0415 - see the module's docstring

        try:
            if self._stopped:
                raise Stopped
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if self._stopped:
                raise Stopped from None
            # An error of ours, on its way through DuckDB, became a text.
            if reading is not None and reading.failure is not None:
                raise reading.failure from None
            # Where an answer fails while it is fetched, Arrow knows no other word than OSError.
            if isinstance(error, duckdb.OutOfMemoryException | duckdb.IOException | OSError):
                raise ScratchUnavailable(self._folder, f"comparing rows: {error}") from error
            raise


def _release(connections: "list[duckdb.DuckDBPyConnection]", folder: str, owner: int) -> None:
    if os.getpid() != owner:  # one that forked off has neither the database's threads nor its folder
        return
    connections.pop().close()
    shutil.rmtree(folder, ignore_errors=True)


class _Reading:
    """The rows of one source on their way into the database.

    `taken`: positions of those that went there so far. `failure`: what ended the reading, if anything did.
    """

    def __init__(self, batches: Iterator[ChangeBatch], types: tuple[ChangeType, ...], nulls_differ: bool) -> None:
        self.taken = BitMap64()
        self.failure: Exception | None = None
        self._batches = batches
        self._types = pa.array([kind.value for kind in types])
        self._nulls_differ = nulls_differ

    def prepared(self) -> Iterator[pa.RecordBatch]:
        """Batches of a position, whether the row is gone, and the columns to compare, called c0, c1 and so on."""
        try:
            for batch in self._batches:
                rows = self._wanted(batch)
                if rows.num_rows > 0:
                    self.taken |= bitmap_of(rows["row"])
                    yield rows
        except Exception as error:
            self.failure = error
            raise

    def _wanted(self, batch: ChangeBatch) -> pa.RecordBatch:
        columns = batch.rows.columns[: -len(METADATA_FIELDS)]
        types = batch.rows[CHANGE_TYPE]
        wanted = pc.is_in(types, value_set=self._types)
        if self._nulls_differ:
            for column in columns:
                wanted = pc.and_(wanted, column.is_valid())
        gone = pc.is_in(types, value_set=_GONE_TYPES)
        arrays = [batch.row_index, gone, *map(_comparable, columns)]
        rows = pa.RecordBatch.from_arrays(arrays, [*_SIDE, *(f"c{index}" for index in range(len(columns)))])
        return rows if wanted.true_count == len(batch) else rows.filter(wanted)


_GONE_TYPES: Final = pa.array([kind.value for kind in GONE])


def _comparable(values: pa.Array) -> pa.Array:
    """`values` in a form of which equal sort keys mean equal values, and which DuckDB takes.

    Floating point numbers become their bits, maps lists of their entries: a map may have a key twice.
    """
    kind = values.type
    if values.offset and pa.types.is_nested(kind):
        values = values.take(pa.array(range(len(values))))  # what is nested in a slice may begin anywhere
    if not _is_odd(kind):
        return values
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(values), pa.scalar(_NAN[kind], _BITS[kind]), values.view(_BITS[kind]))
    if pa.types.is_struct(kind):
        children = [_comparable(child) for child in values.flatten()]
        names = [f"f{index}" for index in range(len(children))]
        return pa.StructArray.from_arrays(children, names, mask=values.is_null())
    parts = values.values
    if pa.types.is_map(kind):
        parts = pa.StructArray.from_arrays([values.keys, values.items], ["k", "v"])
    return pa.ListArray.from_arrays(values.offsets, _comparable(parts), mask=values.is_null())


def _is_odd(kind: pa.DataType) -> bool:
    children = (kind.field(index).type for index in range(kind.num_fields))
    return bool(pa.types.is_floating(kind) or pa.types.is_map(kind)) or any(_is_odd(child) for child in children)
