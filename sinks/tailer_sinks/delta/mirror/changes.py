"""The changes of one transaction, reduced to one for each key, in bounded memory.

Rows wait in a spool, those that are deleted with nothing but their key. DuckDB has the key of each row, and spills it
to disk, below the folder that `TMPDIR` names.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changelog.spill import open_database, scratch_folder
from tailer.errors import SinkUnavailable, TailerError
from tailer_sinks.delta.mirror.columns import reshaped
from tailer_sinks.delta.mirror.past import DELETE, DELETED, GONE, INSERT, LATER, NOTHING, UPDATE, Past, Times
from tailer_sinks.delta.spool import Spool

if TYPE_CHECKING:
    import duckdb

__all__ = ["CHANGE", "Changes", "Contradiction"]

# The column of reduced rows that says what becomes of their key.
CHANGE: Final = "lake_tailer_change"
_NONE, _TWICE = 0, -1

_MEMORY_BYTES: Final = 128 * 10**6
_RESULT_ROWS: Final = 65536
_CHANGE: Final = pa.schema([("change", pa.int8())])
_CHANGE_AND_VERSIONS: Final = pa.schema([*_CHANGE, ("version", pa.int64()), ("ended", pa.int64())])
# Of each row, what becomes of its key, and the version that ends the row. Only the last row of a key says that, and of
# a key that is gone its last inserted row, or each inserted row in a history.
_REDUCED: Final = """
CREATE TABLE reduced AS
SELECT {key}, number, version, CASE WHEN before = inserted THEN {twice} {cases} ELSE {none} END::TINYINT AS change,
    {ended} AS ended
FROM (
    SELECT {key}, number, version, inserted, lag(inserted) OVER of_key AS before, lead(inserted) OVER of_key AS after,
        lead(version) OVER of_key AS next, lead(inserted, 2) OVER of_key AS second,
        first_value(inserted) OVER of_key AS was_new
    FROM changes WINDOW of_key AS (PARTITION BY {key} ORDER BY version, inserted, number)
)
"""
_LAST: Final = f"""
WHEN after IS NOT NULL THEN {_NONE}
WHEN inserted AND was_new THEN {INSERT}
WHEN inserted THEN {UPDATE}
WHEN was_new THEN {GONE}
WHEN TRUE THEN {DELETE}
"""
_LAST_INSERTED: Final = f"""
WHEN inserted AND second IS NULL THEN CASE WHEN was_new THEN {INSERT} ELSE {UPDATE} END
WHEN NOT inserted AND before IS NULL AND after IS NULL THEN {DELETE}
"""
_EACH: Final = f"""
WHEN before IS NULL THEN CASE WHEN inserted THEN {INSERT} ELSE {DELETE} END
WHEN inserted THEN {LATER}
"""
_ENDED: Final = "CASE WHEN inserted THEN next ELSE version END"
_BOUNDS: Final = "SELECT {bounds} FROM reduced WHERE change > {none}"
_MET: Final = f"""
SELECT place, change, ended, {{same}} AS same FROM there JOIN reduced USING ({{key}}) {{more}}
WHERE change > {_NONE} AND change < {LATER}
"""
_SAME: Final = (
    "INSERT INTO same SELECT number FROM there JOIN reduced USING ({key}) JOIN digests USING (number, digest)"
)


class Contradiction(ValueError):
    """The error for a key that `version` inserts or deletes twice in succession."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version}")
        self.version = version


class Changes:
    """The changes of a transaction of the sink called `name`. Blocking; one caller at a time.

    `past`: what the mirror keeps. Rows have the columns of the source; `merged` and `rows` add those of `past`.

    `size_bytes`: Arrow memory of all rows so far. `counts`: how many keys have each kind of change, when they are
    reduced.
    """

    def __init__(self, name: str, past: Past = NOTHING) -> None:
        self._name = name
        self._past = past
        self.times = Times()
        self.size_bytes = 0
        self.counts: Counter[int] = Counter()
        self._spool = Spool()
        self._folder: Path | None = None
        self._database: duckdb.DuckDBPyConnection | None = None
        self._count = 0
        self._width = 0
        self._inserted_rows = self._inserted_bytes = 0

    @property
    def row_bytes(self) -> int | None:
        """The mean Arrow memory of a whole row; None: no row is inserted."""
        return self._inserted_bytes // self._inserted_rows if self._inserted_rows else None

    def add(self, rows: pa.RecordBatch, keys: Sequence[pa.Array], versions: pa.Array, *, inserted: bool) -> None:
        """Take rows that are inserted or deleted, with their keys and versions.

        Raises `SinkUnavailable` where the disk is full.
        """
        numbers = pa.array(range(self._count, self._count + len(rows)), pa.int64())
        columns = [*keys, versions, numbers, pa.repeat(pa.scalar(inserted), len(rows))]
        names = [*(f"key_{number}" for number in range(len(keys))), "version", "number", "inserted"]
        self._count, self._width = self._count + len(rows), len(keys)
        size = rows.nbytes
        self.size_bytes += size
        if inserted:
            self._inserted_rows, self._inserted_bytes = self._inserted_rows + len(rows), self._inserted_bytes + size
        try:
            self._spool.add(rows)
            self._insert(pa.table(columns, names))
        except Exception as error:
            raise self.failure(error) from error

    def reshape(self, schema: pa.Schema, after: pa.Schema, origins: Mapping[str, str], key: Sequence[str]) -> None:
        """Give the rows so far, of `schema`, the columns of `after`, see `reshaped`. Raises as `add`, and `Misfit`.

        `key`: of the rows, whose columns may get wider types.
        """
        former, self._spool = self._spool, Spool()
        try:
            for rows in former.reader(self._past.source(schema)):
                self._spool.add(reshaped(rows, self._past.source(after), origins))
        except OSError as error:
            raise self.failure(error) from error
        finally:
            former.close()
        self._widen_keys([after.field(column).type for column in key])

    def reduce(self) -> None:
        """Find what becomes of each key. Raises `Contradiction`."""
        if self._database is None:
            return
        cases, ended = _LAST_INSERTED if self._past is DELETED else _EACH, _ENDED
        if self._past is NOTHING:
            cases, ended = _LAST, "NULL::BIGINT"
        values = {"key": self._key, "twice": _TWICE, "none": _NONE, "cases": cases, "ended": ended}
        try:
            self._database.execute(_REDUCED.format(**values))
            self._database.execute("DROP TABLE changes")
            query = "SELECT change, min(version), count(*) FROM reduced GROUP BY change"
            counts = {change: (version, count) for change, version, count in self._database.execute(query).fetchall()}
        except Exception as error:
            raise self.failure(error) from error
        if _TWICE in counts:
            raise Contradiction(counts[_TWICE][0])
        self.counts = Counter({change: count for change, (_, count) in counts.items() if change != _NONE})

    def bounds(self) -> list[tuple[pa.Scalar, pa.Scalar]]:
        """Return the least and the greatest value in the changed keys, of each column of the key."""
        assert self._database is not None
        ends = ", ".join(f"min(key_{number}), max(key_{number})" for number in range(self._width))
        try:
            row = self._database.sql(_BOUNDS.format(bounds=ends, none=_NONE)).to_arrow_table()
        except Exception as error:
            raise self.failure(error) from error
        values = [column[0] for column in row.columns]
        return list(zip(values[::2], values[1::2], strict=True))

    def met(self, keys: Sequence[pa.Array], texts: pa.RecordBatch | None = None) -> pa.Table:
        """Return what becomes of `keys`, of rows of the table: `change`, `ended` and `same`, all null if nothing does.

        `texts`: of the values of these rows, which are `same` if the first row of their key has them, see `compare`.
        """
        places = pa.array(range(len(keys[0])), pa.int64())
        names = [*(f"key_{number}" for number in range(len(keys))), "place"]
        there = pa.table([*keys, places], names)
        if self._database is None:
            nothing = pa.nulls(len(places), pa.int64())
            return pa.table([nothing.cast(pa.int8()), nothing, nothing.cast(pa.bool_())], ["change", "ended", "same"])
        same, more = "NULL::BOOLEAN", ""
        try:
            if texts is not None:
                there = there.append_column("digest", _digests(self._database, texts))
                same, more = "digests.number IS NOT NULL", "LEFT JOIN digests USING (number, digest)"
            self._database.register("there", there)
            matches = self._database.sql(_MET.format(key=self._key, same=same, more=more)).to_arrow_table()
            if texts is not None:
                self._database.execute(_SAME.format(key=self._key))
        except Exception as error:
            raise self.failure(error) from error
        finally:
            self._database.unregister("there")
        return matches.drop_columns("place").take(pc.index_in(places, value_set=matches["place"].combine_chunks()))

    def compare(self, schema: pa.Schema, as_texts: Callable[[pa.RecordBatch], pa.RecordBatch], version: int) -> None:
        """Prepare `met` to find rows that are the same as those of `version`. `as_texts`: of rows of `schema`."""
        if self._database is None:
            return
        first = 0
        try:
            self._database.execute("CREATE TABLE digests (number BIGINT, digest VARCHAR)")
            self._database.execute("CREATE TABLE same (number BIGINT)")
            for rows in self._spool.reader(schema):
                numbers = pa.array(range(first, first + len(rows)), pa.int64())
                self._database.register(
                    "rows", pa.table([numbers, _digests(self._database, as_texts(rows))], ["n", "d"])
                )
                self._database.execute("INSERT INTO digests SELECT * FROM rows")
                first += len(rows)
            later = f"SELECT number FROM reduced WHERE version <> {version}"
            self._database.execute(f"DELETE FROM digests WHERE number IN ({later})")
        except Exception as error:
            raise self.failure(error) from error
        finally:
            self._database.unregister("rows")

    def leave_same(self) -> None:
        """Leave rows out that were the same as rows of the table."""
        if self._database is not None:
            try:
                self._database.execute(f"UPDATE reduced SET change = {_NONE} WHERE number IN (SELECT number FROM same)")
            except Exception as error:
                raise self.failure(error) from error

    def merged(self, schema: pa.Schema) -> pa.RecordBatchReader:
        """Read a row for each change of a key, with the column `CHANGE`. `schema`: of the table."""
        named = pa.schema([*schema, pa.field(CHANGE, pa.int8())])
        return pa.RecordBatchReader.from_batches(named, self._reduced(schema, named))

    def rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows that come into the table, of those that change."""
        named = pa.schema([*schema, pa.field(CHANGE, pa.int8())])
        for batch in self._reduced(schema, named):
            kept = batch.filter(pc.is_in(batch.column(CHANGE), pa.array([INSERT, UPDATE, LATER], pa.int8())))
            yield pa.RecordBatch.from_arrays(kept.columns[:-1], schema=schema)

    def close(self) -> None:
        """Release memory and files."""
        self._spool.close()
        if self._database is not None:
            self._database.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def failure(self, error: Exception) -> TailerError:
        """Make our error from one of the database, or of the system."""
        if isinstance(error, TailerError):
            return error
        text = str(error).partition("\n")[0]
        return SinkUnavailable(self._name, f"the changes of a transaction cannot wait in TMPDIR: {text}")

    @property
    def _key(self) -> str:
        return ", ".join(f"key_{number}" for number in range(self._width))

    def _insert(self, rows: pa.Table) -> None:
        if self._database is None:
            self._folder = scratch_folder()
            self._database = open_database(str(self._folder), _MEMORY_BYTES)
            self._database.register("rows", rows)
            self._database.execute("CREATE TABLE changes AS SELECT * FROM rows")
        else:
            self._database.register("rows", rows)
            self._database.execute("INSERT INTO changes SELECT * FROM rows")
        self._database.unregister("rows")

    def _widen_keys(self, kinds: Sequence[pa.DataType]) -> None:
        if self._database is None:
            return
        empty = pa.table([pa.array([], kind) for kind in kinds], [f"key_{number}" for number in range(len(kinds))])
        self._database.register("rows", empty)
        try:
            for column, kind, *_ in self._database.execute("DESCRIBE rows").fetchall():
                self._database.execute(f"ALTER TABLE changes ALTER {column} TYPE {kind}")
        except Exception as error:
            raise self.failure(error) from error
        self._database.unregister("rows")

    def _reduced(self, schema: pa.Schema, named: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self._database is None:
            return
        types = _CHANGE if self._past is NOTHING else _CHANGE_AND_VERSIONS
        query = self._database.sql(f"SELECT {', '.join(types.names)} FROM reduced ORDER BY number")
        kinds: Iterator[pa.RecordBatch] = iter(query.to_arrow_reader(_RESULT_ROWS))
        held = types.empty_table()
        for rows in self._spool.reader(self._past.source(schema)):
            while len(held) < len(rows):
                held = pa.concat_tables([held, pa.Table.from_batches([next(kinds)])])
            reduced, held = held.slice(0, len(rows)).combine_chunks(), held.slice(len(rows))
            chosen = pc.greater(reduced["change"].combine_chunks(), _NONE)
            kept = rows.filter(chosen)
            if not len(kept):
                continue
            change, *versions = (column.combine_chunks() for column in reduced.filter(chosen).columns)
            # A history has both versions, deleted rows have the last one.
            began_and_ended = versions[len(versions) - len(self._past.columns) // 2 :]
            columns = [column for numbers in began_and_ended for column in (numbers, self.times.of(numbers))]
            yield pa.RecordBatch.from_arrays([*kept.columns, *columns, change], schema=named)


def _digests(database: "duckdb.DuckDBPyConnection", texts: pa.RecordBatch) -> pa.Array:
    """Return a digest of the texts of each row."""
    names = [f"text_{number}" for number in range(texts.num_columns)]
    places = pa.array(range(len(texts)), pa.int64())
    database.register("texts", pa.table([*texts.columns, places], [*names, "place"]))
    # With the length before each text, the texts of two rows that differ are never the same text.
    parts = ", ".join(f"coalesce(strlen({name}) || ':' || {name}, 'null')" for name in names)
    query = f"SELECT sha256(concat({parts})) AS digest FROM texts ORDER BY place"
    digests = database.sql(query).to_arrow_table()["digest"]
    database.unregister("texts")
    return digests.combine_chunks()
