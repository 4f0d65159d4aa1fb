"""The changes of one transaction, reduced to one for each key, in bounded memory.

Rows wait in a spool, those that are deleted with nothing but their key. DuckDB has the key of each row, and spills it
to disk, below the folder that `TMPDIR` names.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changelog.spill.directory import scratch_folder
from tailer.errors import SinkUnavailable, TailerError
from tailer_sinks.delta.spool import Spool

if TYPE_CHECKING:
    import duckdb

__all__ = ["CHANGE", "DELETE", "INSERT", "UPDATE", "Changes", "Contradiction"]

# The column of reduced rows that says what becomes of their key.
CHANGE: Final = "lake_tailer_change"
INSERT, UPDATE, DELETE = 1, 2, 3
_NONE, _TWICE = 0, -1

_MEMORY: Final = "128MB"
_THREADS: Final = 2
_RESULT_ROWS: Final = 65536
# Of each row, what becomes of its key: only the last row of a key says that.
_REDUCED: Final = """
CREATE TABLE reduced AS
SELECT number, version, CASE
    WHEN before = inserted THEN {twice}
    WHEN after IS NOT NULL THEN {none}
    WHEN inserted AND was_new THEN {insert}
    WHEN inserted THEN {update}
    WHEN was_new THEN {none}
    ELSE {delete}
END::TINYINT AS change
FROM (
    SELECT number, version, inserted, lag(inserted) OVER of_key AS before, lead(inserted) OVER of_key AS after,
        first_value(inserted) OVER of_key AS was_new
    FROM changes WINDOW of_key AS (PARTITION BY {key} ORDER BY version, inserted, number)
)
"""


class Contradiction(ValueError):
    """The error for a key that `version` inserts or deletes twice in succession."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version}")
        self.version = version


class Changes:
    """The changes of a transaction of the sink called `name`. Blocking; one caller at a time.

    `size_bytes`: Arrow memory of all rows so far.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.size_bytes = 0
        self._spool = Spool()
        self._folder: Path | None = None
        self._database: duckdb.DuckDBPyConnection | None = None
        self._count = 0

    def add(self, rows: pa.RecordBatch, keys: Sequence[pa.Array], versions: pa.Array, *, inserted: bool) -> None:
        """Take rows that are inserted or deleted, with their keys and versions.

        Raises `SinkUnavailable` where the disk is full.
        """
        numbers = pa.array(range(self._count, self._count + len(rows)), pa.int64())
        columns = [*keys, versions, numbers, pa.repeat(pa.scalar(inserted), len(rows))]
        names = [*(f"key_{at}" for at in range(len(keys))), "version", "number", "inserted"]
        self._count += len(rows)
        self.size_bytes += rows.nbytes
        try:
            self._spool.add(rows)
            self._insert(pa.table(columns, names))
        except Exception as error:
            raise self._failure(error) from error

    def reduce(self) -> set[int]:
        """Find what becomes of each key. Return the kinds of changes that there are. Raises `Contradiction`."""
        if self._database is None:
            return set()
        key = ", ".join(f"key_{at}" for at in range(self._width))
        kinds = {"twice": _TWICE, "none": _NONE, "insert": INSERT, "update": UPDATE, "delete": DELETE}
        try:
            self._database.execute(_REDUCED.format(key=key, **kinds))
            self._database.execute("DROP TABLE changes")
            found = self._database.execute("SELECT change, min(version) FROM reduced GROUP BY change").fetchall()
        except Exception as error:
            raise self._failure(error) from error
        first = dict(found)
        if _TWICE in first:
            raise Contradiction(first[_TWICE])
        return set(first) - {_NONE}

    def reader(self, schema: pa.Schema, *, named: bool) -> pa.RecordBatchReader:
        """Read the last row of each key that changes, as rows of `schema`; `named`: with the column `CHANGE`."""
        fields = [*schema, pa.field(CHANGE, pa.int8())] if named else list(schema)
        reduced = pa.schema(fields)
        return pa.RecordBatchReader.from_batches(reduced, self._reduced(schema, reduced))

    def close(self) -> None:
        """Release memory and files."""
        self._spool.close()
        if self._database is not None:
            self._database.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _width(self) -> int:
        assert self._database is not None
        return len(self._database.execute("SELECT * FROM changes LIMIT 0").description or ()) - 3

    def _insert(self, rows: pa.Table) -> None:
        if self._database is None:
            self._database = self._open()
            self._database.register("rows", rows)
            self._database.execute("CREATE TABLE changes AS SELECT * FROM rows")
        else:
            self._database.register("rows", rows)
            self._database.execute("INSERT INTO changes SELECT * FROM rows")
        self._database.unregister("rows")

    def _open(self) -> "duckdb.DuckDBPyConnection":
        import duckdb  # noqa: PLC0415 - takes 0.1 s and 40 MB, which only mirrors need

        self._folder = scratch_folder()
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": _MEMORY,
            "threads": _THREADS,
            "async_threads": 0,  # eight by default, for remote files
            "temp_directory": str(self._folder),
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        database = duckdb.connect(":memory:", config=settings)
        # Otherwise queries over two seconds write to standard output, which may be used for rows.
        database.execute("SET enable_progress_bar = false").fetchall()
        return database

    def _reduced(self, schema: pa.Schema, reduced: pa.Schema) -> Iterator[pa.RecordBatch]:
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
            columns = [*kept.columns, changes.filter(chosen)] if len(reduced) > len(schema) else kept.columns
            yield pa.RecordBatch.from_arrays(columns, schema=reduced)

    def _failure(self, error: Exception) -> TailerError:
        if isinstance(error, TailerError):
            return error
        text = str(error).partition("\n")[0]
        return SinkUnavailable(self._name, f"the changes of a transaction cannot wait in TMPDIR: {text}")
