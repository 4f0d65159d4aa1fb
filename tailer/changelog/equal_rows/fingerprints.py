"""Fingerprints of rows: equal for equal rows, and only for these.

A fingerprint has 128 bits: the MD5 of a salt and DuckDB's sort key of the row. The sort key encodes every value of
every type uniquely, nested values and nulls included. So equal rows have equal fingerprints, and it is computationally
infeasible to find different rows with equal ones without knowing the salt. Values are equal if no reader can
distinguish them: NaN equals NaN whatever its bits, and zero does not equal minus zero.

Fingerprints with the same salt may be computed in several processes and compared anywhere. Each row has an address, in
the order in which its version delivers rows.

The first `Fingerprints` of a process imports DuckDB, which takes 0.1 s.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changelog.equal_rows.comparable_values import comparable
from tailer.errors import DataCorrupt
from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch, ChangeType
from tailer.variant import InvalidVariant

if TYPE_CHECKING:
    import duckdb

__all__ = ["DELETED_TYPES", "LEADING_COLUMNS", "MAX_ROWS", "Fingerprints", "addressed", "fingerprint_sql"]

DELETED_TYPES: Final = (ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE)
LEADING_COLUMNS: Final = ("address", "deleted")
MAX_ROWS: Final = 2**40
"""An address is the number of a source times this, plus the position of a row."""

_DELETED_VALUES: Final = pa.array([kind.value for kind in DELETED_TYPES])
_HALVES: Final = """
SELECT (fingerprint >> 64)::UBIGINT AS high, (fingerprint & 18446744073709551615)::UBIGINT AS low, address, deleted
FROM (SELECT address, deleted, {fingerprint} AS fingerprint FROM batch)
"""


def addressed(source: int, batch: ChangeBatch) -> pa.RecordBatch:
    """Return the address of each row, whether it is deleted, and its columns as c0, c1 and so on, as DuckDB takes them.

    Raises `DataCorrupt` for a Variant that is not sound.
    """
    columns = batch.rows.columns[: -len(METADATA_FIELDS)]
    deleted = pc.is_in(batch.rows[CHANGE_TYPE], value_set=_DELETED_VALUES)
    try:
        address = pc.add(batch.row_index, pa.scalar(source * MAX_ROWS, pa.int64()))
        arrays = [address, deleted, *map(comparable, columns)]
    except InvalidVariant as error:
        file = f"the file of task {batch.task}"
        raise DataCorrupt(batch.table_id, batch.version, file, f"a Variant is not sound: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, [*LEADING_COLUMNS, *(f"c{index}" for index in range(len(columns)))])


def fingerprint_sql(columns: Sequence[str], salt: str) -> str:
    """Return DuckDB's SQL for the fingerprint of a row."""
    key = ", ".join(f"{name}, 'ASC NULLS LAST'" for name in columns)
    return f"md5_number(create_sort_key('{salt}', 'ASC NULLS LAST', {key}))"


class Fingerprints:
    """Computes fingerprints by a salt, and keeps nothing. It survives pickle. Not thread-safe."""

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._database: duckdb.DuckDBPyConnection | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return the state without the database."""
        return {**self.__dict__, "_database": None}

    def of(self, source: int, batch: ChangeBatch) -> pa.RecordBatch:
        """Return a row for each row: both halves of its fingerprint (int64), its address, and whether it is deleted.

        Raises `DataCorrupt` for a Variant that is not sound.
        """
        rows = addressed(source, batch)
        database = self._opened()
        database.register("batch", pa.Table.from_batches([rows]))
        try:
            query = _HALVES.format(fingerprint=fingerprint_sql(rows.schema.names[len(LEADING_COLUMNS) :], self._salt))
            found = database.sql(query).to_arrow_table()
        finally:
            database.unregister("batch")
        columns = [column.combine_chunks() for column in found.columns]
        columns[:2] = [half.view(pa.int64()) for half in columns[:2]]
        return pa.RecordBatch.from_arrays(columns, found.column_names)

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
