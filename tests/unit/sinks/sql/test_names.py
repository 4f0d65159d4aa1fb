"""Names in lower case: of rows, whose values are not copied, of columns that change, and of two that would be one."""

import pyarrow as pa
import pytest

from tailer.errors import SinkRejected
from tailer.events import Gap, SchemaChange
from tailer_sinks.sql.sink import Names
from tests.support.mirrors.databases import batch, full

SCHEMA = pa.schema([("Id", pa.int64()), ("Part", pa.struct([("Name", pa.string())])), ("GRÖSSE", pa.string())])
LOWER = pa.schema([("id", pa.int64()), ("part", pa.struct([("Name", pa.string())])), ("grösse", pa.string())])
EXACT, NAMES = Names("orders", lower=False), Names("orders", lower=True)


def change(after: pa.Schema, origins: dict[str, str] | None) -> SchemaChange:
    return SchemaChange("t", 1, 0, full(SCHEMA), full(after), (), origins)


def test_columns_are_in_lower_case_and_fields_are_not() -> None:
    assert NAMES.schema(full(SCHEMA)).equals(full(LOWER))
    assert NAMES.of(("Id", "other")) == ("id", "other")
    assert EXACT.schema(SCHEMA) is SCHEMA


def test_values_are_not_copied() -> None:
    rows = batch(1, "insert", SCHEMA, [{"Id": 1, "Part": {"Name": "a"}, "GRÖSSE": "x"}])
    (renamed,) = NAMES.batches([rows])
    assert renamed.rows.schema.equals(full(LOWER))
    assert renamed == type(rows)(rows.table_id, 1, 0, renamed.rows, rows.row_index)
    for old, new in zip(rows.rows.columns, renamed.rows.columns, strict=True):
        assert [each and each.address for each in old.buffers()] == [each and each.address for each in new.buffers()]
    assert EXACT.batches([rows])[0] is rows


def test_a_column_that_gets_other_letters_does_not_change() -> None:
    after = pa.schema([("ID", pa.int64()), ("Size", pa.string())])
    event = NAMES.event(change(after, {"ID": "Id", "Size": "GRÖSSE"}))
    assert isinstance(event, SchemaChange)
    assert event.after.names[:2] == ["id", "size"]
    assert event.origins == {"id": "id", "size": "grösse"}
    by_name = NAMES.event(change(after, None))
    assert isinstance(by_name, SchemaChange)
    assert by_name.origins is None
    for kept in (change(after, None), Gap("t", 1, 1, 0, "lost", snapshot=False)):
        assert EXACT.event(kept) is kept


def test_columns_that_would_be_one_are_named() -> None:
    twice = pa.schema([(name, pa.int64()) for name in ("Id", "a", "ID", "A", "id", "_CHANGE_TYPE")])
    assert [str(fault) for fault in NAMES.faults(full(twice))] == [
        'sink orders: columns Id and ID and id would all be id, by names = "lower"',
        'sink orders: columns a and A would all be a, by names = "lower"',
        'sink orders: columns _CHANGE_TYPE and _change_type would all be _change_type, by names = "lower"',
    ]
    for refused in (lambda: NAMES.schema(twice), lambda: NAMES.event(change(twice, None))):
        with pytest.raises(SinkRejected, match="Id and ID and id"):
            refused()
    assert not list(EXACT.faults(twice))
