"""Rows packed for their shards, and put together again: the same rows, types and places."""

import math
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailer.changelog.carryovers import ChangelogCounts
from tailer.events import METADATA_FIELDS, VARIANT, ChangeBatch
from tailer.plan import TASKS, ChangePlan, Regime
from tailer.shards import packed_rows
from tailer.shards.packed_rows import PARTS, lone_rows, note_part, parts_of, unpacked

SEEDS: Final = range(4)
NOW: Final = datetime(2024, 3, 10, 2, 30, tzinfo=UTC)

# Two values of each type that a table of Delta or Lance may have.
VALUES: Final[dict[pa.DataType, list[Any]]] = {
    **{kind: [1, 0] for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{kind: [1, 255] for kind in (pa.uint8(), pa.uint16(), pa.uint32())},
    pa.uint64(): [2**64 - 1, 0],
    pa.float16(): [1.5, math.inf],
    pa.float32(): [-0.0, 1.5],
    pa.float64(): [-0.0, 1e300],
    pa.bool_(): [True, False],
    pa.string(): ["ü", ""],
    pa.large_string(): ["ü", ""],
    pa.binary(): [b"\xff", b""],
    pa.large_binary(): [b"\xff", b""],
    pa.binary(3): [b"abc", b"xyz"],
    pa.date32(): [date(1, 1, 1), date(9999, 12, 31)],
    pa.date64(): [date(1970, 1, 2), date(2024, 2, 29)],
    pa.time32("s"): [time(1), time(23, 59, 59)],
    pa.time64("ns"): [time(1), time(23, 59, 59, 999_999)],
    pa.duration("ns"): [timedelta(1), timedelta(-1)],
    pa.timestamp("ns"): [datetime(2024, 3, 10, 2, 30), datetime(1677, 10, 1)],  # noqa: DTZ001
    pa.timestamp("us", "UTC"): [NOW, datetime(1, 1, 1, tzinfo=UTC)],
    pa.timestamp("us"): [datetime(1850, 3, 10, 2, 30), datetime(2024, 3, 10, 2, 30)],  # noqa: DTZ001
    pa.timestamp("ms", "America/New_York"): [NOW, NOW],
    pa.decimal128(38, 10): [Decimal("1.5"), Decimal(-1)],
    pa.decimal256(50, 2): [Decimal(10) ** 40, Decimal(0)],
    pa.list_(pa.float16(), 2): [[1.0, 2.0], [0.0, -1.0]],
    pa.list_(pa.field("element", pa.timestamp("ns"))): [[None], []],
    pa.large_list(pa.string()): [["a"], [None, "b"]],
    pa.map_(pa.decimal256(50, 2), VARIANT): [[(Decimal(1), {"metadata": b"m", "value": b"v"})], []],
    pa.dictionary(pa.int16(), pa.string()): ["a", "b"],
    pa.struct([("a", pa.dictionary(pa.int8(), pa.large_string())), ("A", pa.uint64())]): [{"a": "x", "A": 1}, {}],
    VARIANT: [{"metadata": b"m", "value": b"v"}, None],
}


def batch(rows: pa.RecordBatch, index: Sequence[int], version: int = 1, task: int = 0) -> ChangeBatch:
    """Return a batch with these rows at these positions."""
    return ChangeBatch("t", version, task, rows, pa.array(index, pa.int64()))


def in_shards(parts: Sequence[pa.RecordBatch], shards: int, lone: pa.Schema | None = None) -> list[list[ChangeBatch]]:
    """Return the batches of each shard, in the order of Spark's exchange. Rows may come in any record batches."""
    places = [(name, "ascending") for name in ("_version", "_task", "_row", "_kind")]
    ordered = pa.Table.from_batches(parts, PARTS).sort_by(places)
    schemas = {} if lone is None else {1: lone}
    return [
        list(unpacked(iter(own.to_batches(3)), shard, "t", schemas, lambda *_: None))
        for shard in range(shards)
        for own in [ordered.filter(pc.equal(ordered["_shard"], shard))]
    ]


@pytest.mark.parametrize("key", [(), ("id",)], ids=["tasks", "key"])
def test_types_and_names_are_kept(key: Sequence[str]) -> None:
    """Names that differ in case, and those of our own columns, too."""
    for kind in VALUES:
        check_kept(kind, key)


def check_kept(kind: pa.DataType, key: Sequence[str]) -> None:
    """Check the values of a type."""
    values = pa.array([*VALUES[kind], None], kind)
    names = ["id", "ID", "_row", "_shard", *(field.name for field in METADATA_FIELDS)]
    ids, more = pa.array([1, 2, 3]), [pa.nulls(3, field.type) for field in METADATA_FIELDS]
    rows = pa.RecordBatch.from_arrays([ids, values, values, ids, *more], names=names)
    found = in_shards([parts_of(batch(rows, [4, 7, 9]), key, 2)], 2)
    if not key:
        (only,) = found[0]
        assert only.rows.equals(rows, check_metadata=True)
        assert only.row_index.to_pylist() == [4, 7, 9]
    for own in (each for shard in found for each in shard):
        assert own.rows.schema.equals(rows.schema, check_metadata=True)
        for row, place in zip(own.rows.to_pylist(), own.row_index.to_pylist(), strict=True):
            assert row == rows.slice([4, 7, 9].index(place), 1).to_pylist()[0]
    assert sum(len(each) for shard in found for each in shard) == 3


def test_rows_without_a_key_belong_to_tasks() -> None:
    rows = pa.record_batch({"id": [1, 2]})
    for task in (0, 1, 5, TASKS * 7 + 4):
        (number,) = parts_of(batch(rows, [0, 1], task=task), (), 3).column("_shard").to_pylist()
        assert number == task % TASKS % 3


def updates(rng: random.Random) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the rows of the batches of a task, and those among them that have a preimage."""
    first = 0
    for _ in range(rng.randint(1, 6)):
        rows = sorted(rng.sample(range(first, first + 40), rng.randint(1, 20)))
        yield rows, sorted(rng.sample(rows, rng.randint(0, len(rows))))
        first = rows[-1] + 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("key", [(), ("id",)], ids=["tasks", "key"])
@pytest.mark.parametrize("most", [1, 3, packed_rows.MOST_LONE])
def test_lone_rows_are_put_where_they_belong(
    seed: int, key: Sequence[str], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preimages come before their postimages, in one batch with them; with another key, in another shard."""
    monkeypatch.setattr(packed_rows, "MOST_LONE", most)
    rng, parts, wanted, shards = random.Random(seed), [], [], 2
    schema = pa.schema([("id", pa.int64()), ("kind", pa.string())])

    def rows_at(rows: Sequence[int], kind: str, moves: bool) -> pa.RecordBatch:
        ids = [row + (rng.randint(0, 3) if moves else 0) for row in rows]
        return pa.record_batch({"id": pa.array(ids, pa.int64()), "kind": [kind] * len(rows)}, schema=schema)

    for task in range(3):
        for rows, paired in updates(rng):
            post, pre = rows_at(rows, "post", False), rows_at(paired, "pre", rng.random() < 0.3)
            parts.append(parts_of(batch(post, rows, task=task), key, shards))
            lone = lone_rows(batch(pre, paired, task=task), key, shards)
            numbers = lone.column("_shard") if key else pa.array([task % shards] * len(lone), pa.int32())
            parts.append(pa.RecordBatch.from_arrays([numbers, *lone.columns[1:]], schema=PARTS))
            for kind, some, index in (("pre", pre, paired), ("post", post, rows)):
                ids = some.column("id").to_pylist()
                wanted += [(task, row, kind, number) for row, number in zip(index, ids, strict=True)]
    found = in_shards(parts, shards, schema)
    seen = []
    for own in found:
        flat = []
        for each in own:
            assert each.row_index.to_pylist() == sorted(each.row_index.to_pylist())
            places = zip(each.row_index.to_pylist(), each.rows.to_pylist(), strict=True)
            flat += [(each.task, row, values["kind"], values["id"]) for row, values in places]
        assert [place[:2] for place in flat] == sorted(place[:2] for place in flat)
        for _, images in groupby(flat, lambda place: place[:2]):
            assert [image[2] for image in images] in (["pre"], ["post"], ["pre", "post"])
        ends = [(each.task, each.row_index[-1].as_py()) for each in own]
        assert len(set(ends)) == len(ends), "both images of an update are in one batch"
        seen += flat
    assert sorted(seen) == sorted(wanted)


def test_what_comparing_found_is_told_to_the_first_shard() -> None:
    plan = ChangePlan("table", "t", 1, 0, None, Regime.FILES, pa.schema([("id", pa.int64())]), ())
    counts, told = ChangelogCounts(carryovers=3), []
    parts = [parts_of(batch(pa.record_batch({"id": [1]}), [0]), (), 1), note_part(plan, counts)]
    rows = list(unpacked(iter(parts), 0, "t", {}, lambda *found: told.append(found)))
    assert [len(each) for each in rows] == [1]
    assert told == [(plan, counts)]


def test_parts_of_another_shard_are_refused() -> None:
    part = parts_of(batch(pa.record_batch({"id": [1]}), [0]), (), 1)
    with pytest.raises(AssertionError, match="the parts of its shard"):
        list(unpacked(iter([part]), 1, "t", {}, lambda *_: None))
