"""The difference of two tables by key, against plain Python, in one pass over equal tables and in two over others."""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing

import pyarrow as pa
import pytest

from tailer.changelog.equal_rows.keyed_difference import Difference, DifferenceKind, KeyedDifference

COLUMNS = ("id", "name", "place")
Row = tuple[str | None, ...]


def batches(rows: list[Row], size: int = 7) -> list[pa.RecordBatch]:
    parts = [rows[at : at + size] for at in range(0, len(rows), size)]
    return [
        pa.record_batch([pa.array(each, pa.large_string()) for each in zip(*part, strict=True)], list(COLUMNS))
        for part in parts
    ]


def compared(
    source: list[Row], mirror: list[Row], key: tuple[str, ...] = ("id",)
) -> tuple[list[int], dict[str, int], list[Difference]]:
    """Return the counts of differences by kind, those by column, and the differences."""
    with closing(KeyedDifference(COLUMNS, key)) as difference:
        for each in batches(source):
            difference.add([each], is_source=True)
        difference.add(batches(mirror), is_source=False)
        if not difference.begin_second_pass():
            return [0, 0, 0], {}, []
        for each in batches(source):
            difference.keep([each], is_source=True)
        difference.keep(batches(mirror), is_source=False)
        counts = difference.pair()
        assert list(counts) == list(DifferenceKind)
        return list(counts.values()), difference.column_counts(), difference.first(1000)


@pytest.mark.parametrize("seed", range(5))
def test_random_tables(seed: int) -> None:
    chance = random.Random(seed)
    source: dict[str, Row] = {str(number): (str(number), f"n{number}", None) for number in range(60)}
    mirror = dict(source)
    for number in chance.sample(range(60), 20):
        kind = chance.choice(["gone", "name", "place", "new"])
        if kind == "gone":
            mirror.pop(str(number))
        elif kind == "new":
            source.pop(str(number))
        else:
            mirror[str(number)] = (str(number), "x", None) if kind == "name" else (str(number), f"n{number}", "")
    counts, columns, found = compared(list(source.values()), list(mirror.values()))
    both = {key for key in source if key in mirror and source[key] != mirror[key]}
    assert counts == [len(source.keys() - mirror.keys()), len(mirror.keys() - source.keys()), len(both)]
    assert columns == dict(
        Counter(
            name
            for key in both
            for name, ours, theirs in zip(COLUMNS, source[key], mirror[key], strict=True)
            if ours != theirs
        )
    )
    keys = [int((each.source or each.mirror or {})["id"] or 0) for each in found]
    assert keys == sorted(map(int, both | (source.keys() ^ mirror.keys())))


def test_the_keys_that_differ_are_listed_and_found() -> None:
    source: list[Row] = [(str(number), f"n{number}", None) for number in range(1000)]
    mirror = [row for row in source if row[0] != "7"] + [("2000", "x", None)]
    mirror[500] = (mirror[500][0], "x", None)
    with closing(KeyedDifference(COLUMNS, ("name", "id"))) as difference:
        difference.add(batches(source), is_source=True)
        difference.add(batches(mirror), is_source=False)
        assert difference.begin_second_pass()
        difference.keep(batches(source), is_source=True)
        difference.keep(batches(mirror), is_source=False)
        difference.pair()
        keys = sorted(tuple(row.values()) for batch in difference.differing_keys() for row in batch.to_pylist())
        assert keys == [("n501", "501"), ("n7", "7"), ("x", "2000"), ("x", "501")]
        given = pa.table({"name": ["n1", "n7", "7", "n501", "x"], "id": ["1", "7", "n7", "501", "2000"]})
        assert difference.find(given).to_pylist() == [1, 3, 4]


def test_equal_tables_in_any_order_need_one_pass() -> None:
    rows: list[Row] = [(str(number), "é\0\n", None) for number in range(100)]
    assert compared(rows, rows[::-1]) == ([0, 0, 0], {}, [])


def test_a_row_that_is_there_twice() -> None:
    rows: list[Row] = [("1", "a", None), ("2", "b", None)]
    assert compared([*rows, rows[0]], rows)[0] == [1, 0, 0]
    assert compared([*rows, ("1", "c", None)], rows)[0] == [1, 0, 0]
    assert compared([*rows, ("1", "c", None)], [*rows, ("1", "d", None)])[0] == [0, 0, 1]


@pytest.mark.parametrize("rows", [1, 8])
def test_rows_with_one_key_are_paired_and_listed_alike_each_time(rows: int) -> None:
    source: list[Row] = [(key, f"s{number}", None) for key in ("1", None) for number in range(rows)]
    mirror: list[Row] = [(key, f"m{number}", None) for key in ("1", None) for number in range(8)]
    counts, _, found = compared(source, mirror)
    assert counts == [0, 2 * (8 - rows), 2 * rows]
    assert [each.kind for each in found[:8]] == [DifferenceKind.DIFFERENT] * rows + [DifferenceKind.UNEXPECTED] * (
        8 - rows
    )
    assert {(each.mirror or {})["name"] for each in found[:8]} == {f"m{number}" for number in range(8)}
    assert compared(source[::-1], mirror[::-1])[2] == found


def test_many_wide_rows_that_differ_need_little_memory() -> None:
    count, size = 40_000, 5_000

    def give(take: Callable[..., None]) -> None:
        for name in ("source", "mirror"):
            for first in range(0, count, size):
                rows: list[Row] = [(str(n), f"{n} {name} {'x' * 400}", None) for n in range(first, first + size)]
                take(batches(rows, size), is_source=name == "source")

    with closing(KeyedDifference(COLUMNS, ("id",), memory_bytes=32 * 2**20)) as difference:
        give(difference.add)
        assert difference.begin_second_pass()
        give(difference.keep)
        assert list(difference.pair().values()) == [0, 0, count]
        assert difference.column_counts() == {"name": count}
        assert [(each.source or {})["id"] for each in difference.first(100)] == [str(n) for n in range(100)]
        assert sum(map(len, difference.differing_keys())) == count


def test_null_and_no_text_and_the_bounds_of_columns_differ() -> None:
    assert compared([("1", None, "")], [("1", "", None)])[:2] == ([0, 0, 1], {"name": 1, "place": 1})
    assert compared([("1", "ab", "c")], [("1", "a", "bc")])[1] == {"name": 1, "place": 1}


def test_a_key_of_several_columns() -> None:
    source: list[Row] = [("1", "a", "x"), ("1", "b", "y")]
    mirror: list[Row] = [("1", "a", "y"), ("1", "b", "x")]
    assert compared(source, mirror, ("id", "name"))[:2] == ([0, 0, 2], {"place": 2})
