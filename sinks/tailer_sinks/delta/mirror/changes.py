"""The changes of one transaction, reduced to one for each key, in bounded memory.

Rows wait in a spool, those that are deleted with nothing but their key. DuckDB has the key of each row, and spills it
to disk, below the folder that `TMPDIR` names.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changelog.spill.directory import scratch_folder
from tailer.changelog.spill.scratch_database import open_database
from tailer.errors import SinkUnavailable, TailerError
from tailer_sinks.delta.mirror.columns import reshaped
from tailer_sinks.delta.spool import Spool

if TYPE_CHECKING:
    import duckdb

__all__ = ["CHANGE", "DELETE", "GONE", "INSERT", "UPDATE", "Changes", "Contradiction"]

# The column of reduced rows that says what becomes of their key. `GONE`: it comes and goes, so the table must not have
# it, before or afterwards.
CHANGE: Final = "lake_tailer_change"
INSERT, UPDATE, DELETE, GONE = 1, 2, 3, 4
_NONE, _TWICE = 0, -1

_MEMORY_BYTES: Final = 128 * 10**6
_RESULT_ROWS: Final = 65536
# Of each row, what becomes of its key: only the last row of a key says that.
_REDUCED: Final = """
CREATE TABLE reduced AS
SELECT {key}, number, version, CASE
    WHEN before = inserted THEN {twice}
    WHEN after IS NOT NULL THEN {none}
    WHEN inserted AND was_new THEN {insert}
    WHEN inserted THEN {update}
    WHEN was_new THEN {gone}
    ELSE {delete}
END::TINYINT AS change
FROM (
    SELECT {key}, number, version, inserted, lag(inserted) OVER of_key AS before, lead(inserted) OVER of_key AS after,
        first_value(inserted) OVER of_key AS was_new
    FROM changes WINDOW of_key AS (PARTITION BY {key} ORDER BY version, inserted, number)
)
"""
_BOUNDS: Final = "SELECT {bounds} FROM reduced WHERE change > {none}"
_MET: Final = "SELECT place, change FROM there JOIN reduced USING ({key}) WHERE change > {none}"


class Contradiction(ValueError):
    """The error for a key that `version` inserts or deletes twice in succession."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version}")
        self.version = version


class Changes:
    """The changes of a transaction of the sink called `name`. Blocking; one caller at a time.

    `size_bytes`: Arrow memory of all rows so far. `counts`: how many keys have each kind of change, when they are
    reduced.
    """

    def __init__(self, name: str) -> None:
        self._name = name
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
        names = [*(f"key_{at}" for at in range(len(keys))), "version", "number", "inserted"]
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
            for rows in former.reader(schema):
                self._spool.add(reshaped(rows, after, origins))
        except OSError as error:
            raise self.failure(error) from error
        finally:
            former.close()
        self._widen_keys([after.field(column).type for column in key])

    def reduce(self) -> None:
        """Find what becomes of each key. Raises `Contradiction`."""
        if self._database is None:
            return
        kinds = {"twice": _TWICE, "none": _NONE, "insert": INSERT, "update": UPDATE, "delete": DELETE, "gone": GONE}
        try:
            self._database.execute(_REDUCED.format(key=self._key, **kinds))
            self._database.execute("DROP TABLE changes")
            query = "SELECT change, min(version), count(*) FROM reduced GROUP BY change"
            found = {change: (version, count) for change, version, count in self._database.execute(query).fetchall()}
        except Exception as error:
            raise self.failure(error) from error
        if _TWICE in found:
            raise Contradiction(found[_TWICE][0])
        self.counts = Counter({change: count for change, (_, count) in found.items() if change != _NONE})

    def bounds(self) -> list[tuple[pa.Scalar, pa.Scalar]]:
        """Return the least and the greatest value in the changed keys, of each column of the key."""
        assert self._database is not None
        ends = ", ".join(f"min(key_{at}), max(key_{at})" for at in range(self._width))
        try:
            found = self._database.sql(_BOUNDS.format(bounds=ends, none=_NONE)).to_arrow_table()
        except Exception as error:
            raise self.failure(error) from error
        values = [column[0] for column in found.columns]
        return list(zip(values[::2], values[1::2], strict=True))

    def met(self, keys: Sequence[pa.Array]) -> tuple[pa.Array, Counter[int]]:
        """Return which of `keys`, of rows of the table, change, as Booleans, and how many in each way."""
        places = pa.array(range(len(keys[0])), pa.int64())
        if self._database is None:
            return pc.is_null(places), Counter()
        names = [f"key_{at}" for at in range(len(keys))]
        self._database.register("there", pa.table([*keys, places], [*names, "place"]))
        try:
            found = self._database.sql(_MET.format(key=self._key, none=_NONE)).to_arrow_table()
        except Exception as error:
            raise self.failure(error) from error
        finally:
            self._database.unregister("there")
        return pc.is_in(places, found.column("place").combine_chunks()), Counter(found.column("change").to_pylist())

    def merged(self, schema: pa.Schema) -> pa.RecordBatchReader:
        """Read the last row of each key that changes, with the column `CHANGE`."""
        named = pa.schema([*schema, pa.field(CHANGE, pa.int8())])
        return pa.RecordBatchReader.from_batches(named, self._reduced(schema, named))

    def rows(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the last row of each key that is there afterwards, of those that change."""
        named = pa.schema([*schema, pa.field(CHANGE, pa.int8())])
        for batch in self._reduced(schema, named):
            kept = batch.filter(pc.less(batch.column(CHANGE), DELETE))
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
        return ", ".join(f"key_{at}" for at in range(self._width))

    def _insert(self, rows: pa.Table) -> None:
        if self._database is None:
            self._database = self._open()
            self._database.register("rows", rows)
            self._database.execute("CREATE TABLE changes AS SELECT * FROM rows")
        else:
            self._database.register("rows", rows)
            self._database.execute("INSERT INTO changes SELECT * FROM rows")
        self._database.unregister("rows")

    def _widen_keys(self, kinds: Sequence[pa.DataType]) -> None:
        if self._database is None:
            return
        empty = pa.table([pa.array([], kind) for kind in kinds], [f"key_{at}" for at in range(len(kinds))])
        self._database.register("rows", empty)
        try:
            for column, kind, *_ in self._database.execute("DESCRIBE rows").fetchall():
                self._database.execute(f"ALTER TABLE changes ALTER {column} TYPE {kind}")
        except Exception as error:
            raise self.failure(error) from error
        self._database.unregister("rows")

    def _open(self) -> "duckdb.DuckDBPyConnection":
        self._folder = scratch_folder()
        return open_database(str(self._folder), _MEMORY_BYTES)

    def _reduced(self, schema: pa.Schema, named: pa.Schema) -> Iterator[pa.RecordBatch]:
        if self._database is None:
            return
        query = self._database.sql("SELECT change FROM reduced ORDER BY number")
        kinds: Iterator[pa.RecordBatch] = iter(query.to_arrow_reader(_RESULT_ROWS))
        held = pa.array([], pa.int8())
        for rows in self._spool.reader(schema):
            while len(held) < len(rows):
                held = pa.concat_arrays([held, next(kinds).column(0)])
            changes, held = held.slice(0, len(rows)), held.slice(len(rows))
            chosen = pc.greater(changes, _NONE)
            kept = rows.filter(chosen)
            if not len(kept):
                continue
            yield pa.RecordBatch.from_arrays([*kept.columns, changes.filter(chosen)], schema=named)
