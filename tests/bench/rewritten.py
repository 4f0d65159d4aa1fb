"""The main carry-over benchmark: a version that rewrites files of a million rows for a few changed ones, without a
feed.

An UPDATE rewrites `FILES` files of `ROWS` rows to change `CHANGED` rows in all. `write_by_hand` makes such tables in
seconds; `SPARK_COLUMNS` and `CONDITION` make the same with Spark. `pass_rewrite` reads it as a pipeline would and keeps
no rows, so that the memory of the process is lake-tailer's.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pyarrow.compute as pc

from tailer.engine import Engine
from tailer.events import ChangeBatch
from tailer.formats.delta.table import DeltaTableLog
from tailer.stores.local import LocalStore
from tests.bench.spark_files import write_as_spark
from tests.support.tables.log_files import add, commit_info, metadata, protocol, remove, schema_string, write_commit

__all__ = [
    "CHANGED",
    "CONDITION",
    "DELTA_TYPES",
    "FILES",
    "REWRITE",
    "ROWS",
    "SPARK_COLUMNS",
    "changed_ids",
    "pass_rewrite",
    "shop_rows",
    "write_by_hand",
]

FILES: Final = 2
ROWS: Final = 1_000_000
CHANGED: Final = 10
REWRITE: Final = 1  # the version that rewrites the files of the previous one

_STEP: Final = FILES * ROWS // CHANGED
_OFFSET: Final = 77_777
CONDITION: Final = f"id % {_STEP} = {_OFFSET}"
SPARK_COLUMNS: Final = (
    "id",
    "timestamp_micros(id * 1001) AS at",
    "CAST(id % 1000 AS INT) AS count",
    "id * 7 AS total",
    "id / 7 AS share",
    "CAST(id AS DOUBLE) AS ratio",
    "concat('customer ', id % 5000) AS name",
    "concat('order ', id) AS key",
    "CAST(id % 100000 AS DECIMAL(12, 2)) AS price",
    "named_struct('street', concat('street ', id % 1000), 'number', CAST(id % 100 AS INT)) AS place",
    "array(CAST(id % 10 AS INT), CAST(id % 7 AS INT)) AS tags",
    "id % 2 = 0 AS paid",
)
_ID_COLUMN: Final = "_row-id-col-5c0e1f4e-7b7e-4f61-8a53-0d2f5f0c1f3a"
_VERSION_COLUMN: Final = "_row-commit-version-col-9a7d4f2c-62a0-4c0c-b1c5-3f6f3a5f8f10"
_PLACE: Final = {"street": "string", "number": "integer"}
DELTA_TYPES: Final[dict[str, Any]] = {
    "id": "long",
    "at": "timestamp",
    "count": "integer",
    "total": "long",
    "share": "double",
    "ratio": "double",
    "name": "string",
    "key": "string",
    "price": "decimal(12,2)",
    "place": {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in _PLACE.items()],
    },
    "tags": {"type": "array", "elementType": "integer", "containsNull": True},
    "paid": "boolean",
}


def changed_ids() -> list[int]:
    """Return the ids of the changed rows, as many in each file."""
    return list(range(_OFFSET, FILES * ROWS, _STEP))


def pass_rewrite(path: Path, engine: Engine, take: Callable[[ChangeBatch], None]) -> None:
    """Read the version that rewrites, batch by batch."""

    async def run() -> None:
        log = DeltaTableLog(LocalStore(path))
        await log.seek(REWRITE)
        plan = await log.next_plan()
        assert plan is not None
        assert len(plan.tasks) == 2 * FILES
        async with engine.run([plan]) as batches:
            async for batch in batches:
                take(batch)

    anyio.run(run)


def write_by_hand(tracked: Path, plain: Path) -> None:
    """Write two tables with the same rows, of which the first tracks them, as Spark does, with a row group per file."""
    names = [(f"before-{number}.parquet", f"after-{number}.parquet") for number in range(FILES)]
    tracked.mkdir()
    for number, (before, after) in enumerate(names):
        rows = shop_rows(pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()))
        write_as_spark(rows, tracked / before)
        # Columns outside the schema are ignored, so the table without row tracking may have them.
        write_as_spark(_updated(rows), tracked / after)
    shutil.copytree(tracked, plain, copy_function=os.link)
    for path in (tracked, plain):
        for version, actions in enumerate(_commits(path, names, path == tracked)):
            write_commit(path, version, *actions)


def _commits(path: Path, names: list[tuple[str, str]], tracked: bool) -> Iterator[list[dict[str, Any]]]:
    features = ["rowTracking", "domainMetadata"] if tracked else []
    gate = protocol(1, features)
    gate["protocol"].pop("readerFeatures")
    columns = {"IdColumnName": _ID_COLUMN, "CommitVersionColumnName": _VERSION_COLUMN}
    properties = {f"delta.rowTracking.materializedRow{name}": column for name, column in columns.items()}
    properties |= {"delta.enableRowTracking": "true"}
    table = metadata(schema_string(**DELTA_TYPES), **(properties if tracked else {}))

    def described(number: int, version: int) -> dict[str, Any]:
        ids = {"baseRowId": (version * FILES + number) * ROWS, "defaultRowCommitVersion": version} if tracked else {}
        return {"size": (path / names[number][version]).stat().st_size, **ids}

    added = [[add(name, **described(number, at)) for at, name in enumerate(names[number])] for number in range(FILES)]
    removed = [remove(before, **described(number, 0)) for number, (before, _) in enumerate(names)]
    yield [commit_info(operation="WRITE"), gate, table, *(before for before, _ in added)]
    yield [commit_info(operation="UPDATE"), *(after for _, after in added), *removed]


def shop_rows(ids: pa.Array) -> pa.Table:
    """Make the rows with these ids, in the types of `DELTA_TYPES`."""
    text = {size: _remainder(ids, size).cast(pa.string()) for size in (1000, 5000)}
    streets = pc.binary_join_element_wise("street", text[1000], " ")
    places = pa.array(range(2 * len(ids)), pa.int64())
    twice = pc.multiply(ids.take(pc.divide(places, 2)), 2)
    flat = _remainder(pc.add(twice, _remainder(places, 2)), 10).cast(pa.int32())
    columns = [
        ids,
        pc.multiply(ids, 1001).cast(pa.timestamp("us", "UTC")),
        _remainder(ids, 1000).cast(pa.int32()),
        pc.multiply(ids, 7),
        pc.divide(ids.cast(pa.float64()), 7.0),
        ids.cast(pa.float64()),
        pc.binary_join_element_wise("customer", text[5000], " "),
        pc.binary_join_element_wise("order", ids.cast(pa.string()), " "),
        _remainder(ids, 100_000).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
        pa.StructArray.from_arrays([streets, _remainder(ids, 100).cast(pa.int32())], list(_PLACE)),
        pa.ListArray.from_arrays(pa.array(range(0, 2 * len(ids) + 1, 2), pa.int32()), flat),
        pc.equal(_remainder(ids, 2), 0),
    ]
    return pa.table(columns, list(DELTA_TYPES))


def _updated(rows: pa.Table) -> pa.Table:
    """Return the rows after the update, with their ids and commit versions."""
    changed = pc.is_in(rows["id"], value_set=pa.array(changed_ids(), pa.int64()))
    total = rows.schema.get_field_index("total")
    rows = rows.set_column(total, "total", pc.if_else(changed, pa.scalar(-1, pa.int64()), rows["total"]))
    # As Spark writes it: null if the version is that of the commit.
    versions = pc.if_else(changed, pa.scalar(None, pa.int64()), pa.scalar(0, pa.int64()))
    return rows.append_column(_ID_COLUMN, rows["id"]).append_column(_VERSION_COLUMN, versions)


def _remainder(values: pa.Array, divisor: int) -> pa.Array:
    return pc.subtract(values, pc.multiply(pc.divide(values, divisor), divisor))
