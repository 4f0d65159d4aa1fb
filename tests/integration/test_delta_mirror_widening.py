"""A mirror in Delta whose columns are widened: keys, partition columns and others, from each type to each wider one."""

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.events import ChangeBatch, SchemaChange
from tailer.plan import SNAPSHOT_TASKS
from tailer.sink import MirrorRows
from tailer_sinks.delta.mirror import table as mirror_table
from tests.support.mirrors.delta import batch, deliver, full, make_mirror, mirror_rows

pytestmark = [pytest.mark.anyio, pytest.mark.long]

BYTE, SHORT, INT, LONG = pa.int8(), pa.int16(), pa.int32(), pa.int64()
FLOAT, DOUBLE, DATE, LOCAL = pa.float32(), pa.float64(), pa.date32(), pa.timestamp("us")
NOON: Final = datetime(2026, 3, 1, 12)  # noqa: DTZ001 - a moment without a zone
# Narrow and wide type, three values of the narrow one, and two that only the wide one has.
WIDENED: Final[dict[str, tuple[pa.DataType, pa.DataType, list[Any], list[Any]]]] = {
    "byte to short": (BYTE, SHORT, [-128, 0, 127], [-129, 2**15 - 1]),
    "byte to long": (BYTE, LONG, [-128, 0, 127], [2**63 - 1, -(2**63)]),
    "short to int": (SHORT, INT, [-(2**15), 0, 2**15 - 1], [2**31 - 1, -(2**31)]),
    "int to long": (INT, LONG, [-(2**31), 0, 2**31 - 1], [2**31, -(2**63)]),
    "int to decimal": (INT, pa.decimal128(12, 2), [-7, 0, 7], [Decimal("0.01"), Decimal("9999999999.99")]),
    "long to decimal": (LONG, pa.decimal128(22, 2), [-7, 0, 7], [Decimal("7.01"), Decimal(-99999999999999999999)]),
    "decimal of more digits": (
        pa.decimal128(4, 1),
        pa.decimal128(38, 1),
        [Decimal("-999.9"), Decimal("0.0"), Decimal("999.9")],
        [Decimal("1000.0"), Decimal("-9999999999999999999999999999999999999.9")],
    ),
    "decimal of a larger scale": (
        pa.decimal128(4, 1),
        pa.decimal128(38, 20),
        [Decimal("-999.9"), Decimal("0.0"), Decimal("999.9")],
        [Decimal("999.91"), Decimal("1E-20")],
    ),
    "date to timestamp_ntz": (DATE, LOCAL, [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)], [NOON, NOON.max]),
    "byte to double": (BYTE, DOUBLE, [-128, 0, 127], [0.5, 1e300]),
    "int to double": (INT, DOUBLE, [-(2**31), 0, 2**31 - 1], [0.5, 1e300]),
    "float to double": (FLOAT, DOUBLE, [-0.5, 0.0, 3.4e38], [0.1, -1e300]),
}
FLOATS: Final = {"byte to double", "int to double", "float to double"}  # which identify no row
PLACES: Final = [
    (place, name)
    for place in ("key", "second key", "partition", "value")
    for name, (_, wide, _, _) in WIDENED.items()
    if not ("key" in place and name in FLOATS)
    and not (place == "partition" and not (pa.types.is_integer(wide) or wide == DATE))
]

Row = Mapping[str, Any]


@pytest.fixture(params=["merge", "rewrite"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a transaction into the table: a MERGE, or all rows written again."""
    if request.param == "rewrite":
        monkeypatch.setattr(mirror_table, "_MERGE_BYTES", -1)


class History:
    """A mirror with rows in files of their own, one of whose columns is widened."""

    def __init__(self, folder: Path, place: str, name: str) -> None:
        narrow, wide, old, new = WIDENED[name]
        kinds = {"id": LONG, "k": LONG, "p": LONG, "n": LONG}
        self.column = {"key": "k", "second key": "k", "partition": "p", "value": "n"}[place]
        self.before = pa.schema([(each, narrow if each == self.column else kind) for each, kind in kinds.items()])
        self.after = pa.schema([(each, wide if each == self.column else kind) for each, kind in kinds.items()])
        self._as_wide = {pa.scalar(value, narrow).as_py(): pa.scalar(value, narrow).cast(wide).as_py() for value in old}
        self.old = [self.row(number, pa.scalar(value, narrow).as_py()) for number, value in enumerate(old)]
        self.new = [self.row(number, value) for number, value in enumerate(new, len(old))]
        self.options: dict[str, Any] = {"key": {"key": ["k"], "second key": ["id", "k"]}.get(place, ["id"])}
        self.options |= {"partition_by": ["p"]} if place == "partition" else {}
        self.folder = folder

    def row(self, number: int, value: Any) -> dict[str, Any]:
        return {"id": number, "k": number, "p": number, "n": 0, self.column: value}

    def sink(self) -> Any:
        return make_mirror(self.folder, **self.options)

    def rows(self, version: int, kind: str, *rows: Row, wide: bool, task: int = 0) -> ChangeBatch:
        schema, given = (self.after, self.widened(*rows)) if wide else (self.before, rows)
        return batch(version, kind, schema, given, task)

    def widened(self, *rows: Row) -> list[dict[str, Any]]:
        """Return rows with values of the wider type."""
        return [{**row, self.column: self._as_wide.get(row[self.column], row[self.column])} for row in rows]

    def widening(self, version: int) -> SchemaChange:
        origins = {each: each for each in self.after.names}
        return SchemaChange("t", version, 0, full(self.before), full(self.after), ("widened",), origins)

    async def filled(self) -> Any:
        """Return a sink that has delivered the old rows, each in a version of its own."""
        sink = self.sink()
        for version, row in enumerate(self.old, 1):
            await deliver(sink, self.rows(version, "insert", row, wide=False))
        return sink

    def check(self, *rows: Row) -> None:
        table = mirror_rows(self.folder)
        wanted = pa.Table.from_pylist(self.widened(*rows), self.after).select(table.column_names)
        assert {each.name: each.type for each in table.schema} == {each.name: each.type for each in self.after}
        assert sorted(map(repr, table.to_pylist())) == sorted(map(repr, wanted.to_pylist()))


@pytest.fixture(params=PLACES, ids=[" ".join(each) for each in PLACES])
def history(request: pytest.FixtureRequest, tmp_path: Path) -> History:
    return History(tmp_path / "mirror", *request.param)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("when", ["with the rows", "behind rows", "behind deleted rows", "alone", "before a restart"])
async def test_rows_of_the_wider_type_are_merged(history: History, when: str) -> None:
    sink = await history.filled()
    first, second, third = history.old
    new, newer = history.new
    deleted, inserted = history.rows(6, "delete", first, wide=True), history.rows(6, "insert", new, wide=True)
    if when == "with the rows":
        await deliver(sink, history.widening(6), deleted, inserted)
    elif when == "behind rows":
        # A row of the version before waits in the narrow type.
        removed = history.rows(5, "delete", third, wide=False)
        again = history.rows(5, "insert", third, wide=False)
        await deliver(sink, removed, again, history.widening(6), deleted, inserted)
    elif when == "behind deleted rows":
        # The version that widens the column deletes rows with its former type before.
        await deliver(sink, history.rows(6, "delete", first, wide=False), history.widening(6), inserted)
    else:
        await deliver(sink, history.widening(5))
        sink = history.sink() if when == "before a restart" else sink
        await sink.progress("orders/5f0c6a1e")
        await deliver(sink, deleted, inserted)
    history.check(second, third, new)
    # Files of the narrow type are merged with, and rows of both types are found by their keys.
    kept = [history.rows(7, "delete", each, wide=True) for each in (second, new)]
    await deliver(sink, *kept, history.rows(7, "insert", newer, wide=True), history.rows(7, "insert", new, wide=True))
    history.check(third, new, newer)


@pytest.mark.sampled(8)
async def test_a_widened_mirror_is_verified_and_repaired(history: History) -> None:
    sink = await history.filled()
    first, second, third = history.old
    new, newer = history.new
    await deliver(sink, history.widening(6), history.rows(6, "insert", new, wide=True))
    source = pa.RecordBatch.from_pylist(history.widened(first, second, new, newer), history.after)

    def keys(mirror: MirrorRows, *rows: Row) -> pa.RecordBatch:
        given = pa.RecordBatch.from_pylist(history.widened(*rows), history.after)
        return mirror.stored_keys(given).combine_chunks().to_batches()[0]

    async with sink.open_mirror("orders") as mirror:
        there = [pa.Table.from_batches(mirror.rows()), pa.Table.from_batches(mirror.as_stored(source))]
        mine, wanted = (set(map(repr, each.select(list(mirror.columns)).to_pylist())) for each in there)
        assert (len(mine), len(wanted), len(mine & wanted)) == (4, 4, 3)
        repair = mirror.begin_repair()
        repair.remove(keys(mirror, third, newer, new))
        repair.add(source.slice(2))
        assert repair.commit()
    history.check(first, second, new, newer)


@pytest.mark.sampled(8)
async def test_a_snapshot_widens_a_column(history: History) -> None:
    sink = await history.filled()
    rows = history.rows(9, "insert", *history.old, *history.new, wide=True, task=SNAPSHOT_TASKS)
    await deliver(sink, rows)
    history.check(*history.old, *history.new)
