"""Equality deletes as bitmaps: each key of a delete file is looked up in the data files that it applies to.

Key columns are found by field ids and read in their type of now, so files of before a promotion have the same keys.
Null is equal to null. A column that a file lacks has its default; one that the table has dropped still counts. DuckDB
joins keys with rows: in bounded memory, and beyond it in a folder for temporary files. Both files never change, so
their bitmap is kept, up to a number of them.

Bounds of key columns say whether an equality delete can have keys of a data file. Bounds that are not compared here, or
are missing, leave out no file.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyroaring import BitMap64

from tailer.errors import LogCorrupt, UnsupportedFeature
from tailer.formats.iceberg.files.live import Kept
from tailer.formats.iceberg.files.manifests import FileEntry
from tailer.formats.iceberg.tasks import State
from tailer.read.data_files import DataFiles
from tailer.read.execute import execute
from tailer.schema.columns import FIELD_ID, bare_type
from tailer.stores.port import in_thread

if TYPE_CHECKING:
    import duckdb

__all__ = ["KeyDeletes", "Pair"]


def may_match(file: FileEntry, delete: FileEntry, keys: Iterable[tuple[int, pa.DataType]]) -> bool:
    """Return whether some row of `file` may have a key that `delete` has. `keys`: fields with their types of now."""
    for number, kind in keys:
        if all(entry.nulls.get(number) != 0 for entry in (file, delete)):
            continue  # both may have null
        (low, high), (first, last) = (
            (_value(entry.lower.get(number), kind), _value(entry.upper.get(number), kind)) for entry in (file, delete)
        )
        are_known = low is not None and high is not None and first is not None and last is not None
        if are_known and not (low <= last and first <= high):
            return False
    return True


def limits(file: FileEntry, number: int, kind: pa.DataType) -> tuple[int, int] | tuple[str, str] | None:
    """Return bounds of a column of whole numbers or texts; None where there are none."""
    lower, upper = file.lower.get(number), file.upper.get(number)
    if lower is None or upper is None:
        return None
    if pa.types.is_integer(kind):
        return int.from_bytes(lower, "little", signed=True), int.from_bytes(upper, "little", signed=True)
    try:
        return (lower.decode(), upper.decode()) if pa.types.is_string(kind) else None
    except UnicodeDecodeError:  # cut within a character
        return None


def _value(data: bytes | None, kind: pa.DataType) -> Any:
    """Return a bound as a value that compares as the column does; files have bounds in the types of their time."""
    if data is None:
        return None
    if pa.types.is_timestamp(kind) and len(data) < kind.bit_width // 8:
        return None  # of a date, which the column was
    if pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return int.from_bytes(data, "little", signed=True)
    if pa.types.is_decimal(kind):
        return int.from_bytes(data, "big", signed=True)
    return data if pa.types.is_string(kind) else None


_KEPT_POSITIONS: Final = 4_000_000  # about 30 MB
_PAIR_POSITIONS: Final = 32  # a pair takes as much memory as so many positions
_NONE: Final = BitMap64()
_MEMORY: Final = "96MB"

Pair = tuple[str, str]
"""The paths of a data file and of an equality delete that applies to it."""


class KeyDeletes:
    """Looks up the keys of equality deletes in data files."""

    def __init__(self) -> None:
        self._kept: Kept[Pair, BitMap64] = Kept(_KEPT_POSITIONS)

    async def of(self, pairs: Iterable[tuple[FileEntry, FileEntry]], state: State) -> Mapping[Pair, BitMap64]:
        """Return the positions that each delete file deletes in its data file.

        `pairs`: data files, each with an equality delete.
        Raises `UnsupportedFeature` for keys that cannot be compared, `LogCorrupt` for one that is no column, and as
        `execute`.
        """
        bitmaps, missing = dict[Pair, BitMap64](), list[Pair]()
        by_ids: dict[tuple[int, ...], dict[str, tuple[FileEntry, list[FileEntry]]]] = {}
        for file, delete in pairs:
            key = file.path, delete.path
            if key in bitmaps:
                continue
            kept = self._kept.get(key)
            bitmaps[key] = _NONE if kept is None else kept
            if kept is None:
                missing.append(key)
                by_ids.setdefault(delete.equality_ids, {}).setdefault(file.path, (file, []))[1].append(delete)
        for ids, files in by_ids.items():
            fields = [_key_field(number, state, files) for number in ids]
            kinds = [(number, column.type) for number, column in zip(ids, fields, strict=True)]
            wanted = [
                (file, chosen)
                for file, deletes in files.values()
                if (chosen := [delete for delete in deletes if may_match(file, delete, kinds)])
            ]
            if wanted:
                bitmaps |= await _joined(wanted, pa.schema(fields), state)
        for key in missing:
            self._kept.put(key, bitmaps[key], _PAIR_POSITIONS + len(bitmaps[key]))
        return bitmaps


def _key_field(number: int, state: State, files: Mapping[str, tuple[FileEntry, list[FileEntry]]]) -> pa.Field:
    """Return a key column, in its newest form. Raises as `KeyDeletes.of`."""
    wanted = str(number).encode()
    for schema in state.schemas():
        for column in schema:
            if column.metadata[FIELD_ID] == wanted:
                if pa.types.is_floating(column.type) or pa.types.is_nested(column.type):
                    feature = f"equality deletes by column {column.name}, of type {column.type}"
                    raise UnsupportedFeature(state.places.uri, feature, state.version, "no writer may make them")
                return column
    path = next(iter(files.values()))[1][0].path
    if any(_is_within(column.type, wanted) for schema in state.schemas() for column in schema):
        feature = f"equality deletes by field {number}, which is in a struct"
        raise UnsupportedFeature(state.places.uri, feature, state.version, "lake-tailer cannot look them up")
    raise LogCorrupt(state.places.uri, path, f"its key {number} is no column of the table", state.version)


def _is_within(kind: pa.DataType, number: bytes) -> bool:
    fields = [kind.field(index) for index in range(kind.num_fields)]
    return any((child.metadata or {}).get(FIELD_ID) == number or _is_within(child.type, number) for child in fields)


async def _joined(
    wanted: Sequence[tuple[FileEntry, list[FileEntry]]], schema: pa.Schema, state: State
) -> Mapping[Pair, BitMap64]:
    """Look up keys in data files that may have them. `schema`: the key columns."""
    import duckdb  # noqa: PLC0415 - takes 0.1 s, and most tables have no equality deletes

    deletes = {delete.path: delete for _, chosen in wanted for delete in chosen}
    paths = list(deletes)
    numbers = {path: number for number, path in enumerate(paths)}
    names = [f"k{number}" for number in range(len(schema))]
    bitmaps: dict[Pair, BitMap64] = {}
    none = pa.schema([pa.field(name, bare_type(column.type)) for name, column in zip(names, schema, strict=True)])
    with tempfile.TemporaryDirectory(prefix="lake-tailer-keys-") as folder:
        settings: dict[str, Any] = {"memory_limit": _MEMORY, "threads": 1, "temp_directory": folder}
        with duckdb.connect(":memory:", config=settings) as database:
            database.execute("SET enable_progress_bar = false").fetchall()
            database.register("batch", none.empty_table())
            database.execute("CREATE TABLE keys AS SELECT 0 AS d, * FROM batch").fetchall()
            for path, delete in deletes.items():
                await _scan(delete, schema, state, partial(_insert, database, numbers[path], ", ".join(names)))
            for file, chosen in wanted:
                among = _near(database, schema, file, [numbers[delete.path] for delete in chosen])
                if among:
                    rows = {number: BitMap64() for number in among}
                    await _scan(file, schema, state, partial(_look_up, database, names, rows))
                    bitmaps |= {(file.path, paths[number]): positions for number, positions in rows.items()}
    return bitmaps


def _near(
    database: "duckdb.DuckDBPyConnection", schema: pa.Schema, file: FileEntry, among: Sequence[int]
) -> Sequence[int]:
    """Return which delete files have keys within the bounds of a data file: few, where keys are scattered."""
    conditions, values = [f"d IN ({', '.join(map(str, among))})"], list[int | str]()
    for place, column in enumerate(schema):
        if (bounds := limits(file, int(column.metadata[FIELD_ID]), column.type)) is not None:
            conditions.append(f"(k{place} IS NULL OR k{place} BETWEEN ? AND ?)")
            values += bounds
    if not values:
        return among
    query = f"SELECT DISTINCT d FROM keys WHERE {' AND '.join(conditions)}"
    return [number for (number,) in database.execute(query, values).fetchall()]


async def _scan(entry: FileEntry, schema: pa.Schema, state: State, take: Callable[[pa.RecordBatch], None]) -> None:
    """Pass the key columns of a file, with the position of each row, to `take`, in a thread."""
    task, files = state.task(entry, schema), DataFiles(state.places.ranges)
    names = ["p", *(f"k{number}" for number in range(len(schema)))]

    def work() -> None:
        for batch in execute(task, files=files):
            columns = [batch.row_index.cast(pa.int64()), *batch.rows.columns[: len(schema)]]
            take(pa.RecordBatch.from_arrays(columns, names))

    await in_thread(work)


def _insert(database: "duckdb.DuckDBPyConnection", number: int, columns: str, batch: pa.RecordBatch) -> None:
    """Insert the keys of the delete file `number`."""
    database.register("batch", batch)
    database.execute(f"INSERT INTO keys SELECT {number}, {columns} FROM batch").fetchall()


def _look_up(
    database: "duckdb.DuckDBPyConnection", names: Sequence[str], rows: Mapping[int, BitMap64], batch: pa.RecordBatch
) -> None:
    """Add the rows of a batch that have keys of delete files to those of each file, `rows`."""
    equal = " AND ".join(f"batch.{name} IS NOT DISTINCT FROM keys.{name}" for name in names)
    # The rows of a batch are few, so they are what DuckDB keeps in memory to be looked up.
    query = f"SELECT d, p FROM keys JOIN batch ON {equal} WHERE d IN ({', '.join(map(str, sorted(rows)))})"
    database.register("batch", batch)
    for pairs in database.sql(query).to_arrow_reader():
        for number, position in zip(pairs.column(0).to_pylist(), pairs.column(1).to_pylist(), strict=True):
            rows[number].add(position)
