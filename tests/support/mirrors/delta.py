"""Mirrors in tests: changes for them, and the rows of one in Delta read without the sink."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from tailer.events import METADATA_FIELDS, ChangeBatch, Gap, SchemaChange
from tailer.plan import Position
from tailer.sink import Progress, Sink
from tailer_sinks.delta.mirror.sink import DeltaMirror
from tailer_sinks.delta.sink import DeltaSink

__all__ = ["APP", "batch", "deliver", "full", "make_mirror", "mirror_rows"]

APP: Final = "orders/5f0c6a1e"

Row = Mapping[str, Any]
_SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string())])


def make_mirror(path: Path | str, **options: Any) -> DeltaMirror:
    sink = DeltaSink.configure("orders", {"path": str(path), "mode": "mirror", "key": ["id"], **options})
    assert isinstance(sink, DeltaMirror)
    return sink


def mirror_rows(path: Path | str, version: int | None = None) -> pa.Table:
    """Return the rows of the table at a version, by default the newest; none where there is no table."""
    if not (Path(path) / "_delta_log").exists():
        return pa.table({})
    return DeltaTable(str(path), version).to_pyarrow_table()


def full(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*schema, *METADATA_FIELDS])


def batch(
    version: int, kinds: str | Sequence[str], schema: pa.Schema, rows: Sequence[Row], task: int = 0
) -> ChangeBatch:
    """Return change rows of one kind, or each of its own kind."""
    each = [kinds] * len(rows) if isinstance(kinds, str) else kinds
    moment = datetime(2026, 3, 1, second=version % 60, tzinfo=UTC)
    values = [
        {**row, "_change_type": kind, "_commit_version": version, "_commit_timestamp": moment}
        for row, kind in zip(rows, each, strict=True)
    ]
    found = pa.RecordBatch.from_pylist(values, schema=full(schema))
    return ChangeBatch("t", version, task, found, pa.array(range(len(rows)), pa.int64()))


async def deliver(
    sink: Sink,
    *items: ChangeBatch | SchemaChange | Gap,
    schema: pa.Schema | None = None,
    at: Position | None = None,
    app_id: str = APP,
) -> None:
    """Run one transaction. `schema`: that of its first rows; None: that of the first item."""
    first = items[0]
    if schema is None:
        schema = first.rows.schema if isinstance(first, ChangeBatch) else getattr(first, "before", full(_SCHEMA))
    async with sink.begin(app_id, schema) as transaction:
        for each in items:
            await (transaction.write(each) if isinstance(each, ChangeBatch) else transaction.announce(each))
        await transaction.commit(Progress(app_id, at or Position.end(items[-1].version)))
