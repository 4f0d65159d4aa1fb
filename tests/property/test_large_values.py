"""Large values in any storage form: batches stay small, and the rows are unchanged (invariant 7)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailer.read.execute import execute
from tailer.read.parquet.batch_sizes import MAX_ROWS
from tests.support.tables.log_files import marked, parquet, task

GIANT: Final = 200_000  # bytes of a value
MOST: Final = 32 * 2**20  # bytes of a batch
ROWS: Final = 300

ENCODINGS: Final[dict[str, dict[str, Any]]] = {
    "dictionary": {},
    "dictionary, zstd": {"compression": "zstd"},
    "dictionary, pages of the second kind": {"data_page_version": "2.0"},
    "many row groups": {"row_group_size": 170},
    "plain": {"use_dictionary": False},
    "lengths apart": {"use_dictionary": False, "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"},
    "prefixes": {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
}
INDEX: Final[dict[str, list[int]]] = {
    "one value": [0] * ROWS,
    "two values": [row % 2 for row in range(ROWS)],
    "small ones first": [2] * 9_000 + [0] * ROWS,
    "small ones last": [0] * ROWS + [2] * 9_000,
    "many small ones": [*range(2, 4_000), *[1] * ROWS],
    "one among many small ones": [*[row * 7 % 2_000 + 2 for row in range(9_000)], *[0] * ROWS],
    "nulls": [0 if row % 3 else -1 for row in range(ROWS)],
}
VALUES: Final = ["x" * GIANT, "y" * GIANT, *(f"value {number}" for number in range(4_000))]


def chosen(name: str, kind: pa.DataType) -> pa.DictionaryArray:
    """Indices into a few values."""
    used = sorted(set(INDEX[name]) - {-1})
    places = {value: place for place, value in enumerate(used)}
    indices = pa.array([places.get(value) for value in INDEX[name]], pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array([VALUES[value] for value in used]).cast(kind))


def in_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)


def in_struct(values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([values], ["v"])


def in_map(values: pa.Array) -> pa.Array:
    keys = pa.repeat(pa.scalar("k"), len(values))
    return pa.MapArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), keys, values)


NESTED: Final[dict[str, Callable[[pa.Array], pa.Array]]] = {
    "column": lambda values: values,
    "element": in_list,
    "field": in_struct,
    "value": in_map,
    "field of element": lambda values: in_list(in_struct(values)),
}
AROUND: Final[dict[str, Callable[[pa.DataType], pa.DataType]]] = {
    "column": lambda kind: kind,
    "element": pa.list_,
    "field": lambda kind: pa.struct([("v", kind)]),
    "value": lambda kind: pa.map_(pa.string(), kind),
    "field of element": lambda kind: pa.list_(pa.struct([("v", kind)])),
}


def lengths(values: pa.Array) -> list[int | None]:
    """The length of each row's value."""
    while pa.types.is_nested(values.type):
        if pa.types.is_struct(values.type):
            values = values.field(0)
        else:
            values = values.items if pa.types.is_map(values.type) else values.flatten()
    found: list[int | None] = pc.binary_length(values).to_pylist()
    return found


def check(
    path: Path,
    name: str,
    kind: pa.DataType,
    place: str = "column",
    exclude: list[int] | None = None,
    most: int = MOST,
) -> None:
    expected = [None if value < 0 else len(VALUES[value]) for value in INDEX[name]]
    kept = [row for row in range(len(expected)) if row not in set(exclude or ())]
    schema = pa.schema([("id", pa.int64()), ("a", AROUND[place](kind))])
    before, found, rows = pa.total_allocated_bytes(), [], []
    for batch in execute(task(path, schema, exclude=None if exclude is None else marked(exclude))):
        assert batch.size_bytes <= most
        assert pa.total_allocated_bytes() - before < 4 * most
        rows += batch.rows.column("id").to_pylist()
        found += lengths(batch.rows.column("a"))
    assert rows == kept
    assert found == [expected[row] for row in kept]


def written(path: Path, name: str, kind: pa.DataType, place: str, stored: str, arrow: bool) -> Path:
    options = dict(ENCODINGS[stored])
    values = chosen(name, kind)
    if "use_dictionary" in options:
        values = pa.concat_arrays([values.slice(first, 500).cast(kind) for first in range(0, len(values), 500)])
    if "column_encoding" in options:
        options["column_encoding"] = {"a": options["column_encoding"]}
    table = pa.table({"id": range(len(values)), "a": NESTED[place](values)})
    # Pages of few values, because a page is decoded as a whole.
    return parquet(path, table, store_schema=arrow, write_batch_size=8, **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stored", ENCODINGS)
@pytest.mark.parametrize("name", INDEX)
def test_every_encoding_in_every_order(tmp_path: Path, stored: str, name: str) -> None:
    # Values stored as often as they occur are never larger than the row group.
    most = 2 * MOST if stored in ("plain", "lengths apart") else MOST
    check(written(tmp_path / "f", name, pa.string(), "column", stored, arrow=False), name, pa.string(), most=most)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("arrow", [False, True], ids=["", "as Arrow's dictionary"])
@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
@pytest.mark.parametrize("place", NESTED)
@pytest.mark.parametrize("name", ["one value", "small ones first"])
def test_on_every_level(tmp_path: Path, arrow: bool, kind: pa.DataType, place: str, name: str) -> None:
    check(written(tmp_path / "f", name, kind, place, "dictionary", arrow), name, kind, place)


@pytest.mark.parametrize("arrow", [False, True], ids=["", "as Arrow's dictionary"])
@pytest.mark.parametrize("exclude", [[0], list(range(1, ROWS, 2)), list(range(ROWS - 1))], ids=len)
def test_with_deletion_vectors(tmp_path: Path, arrow: bool, exclude: list[int]) -> None:
    path = written(tmp_path / "f", "two values", pa.string(), "column", "dictionary", arrow)
    check(path, "two values", pa.string(), exclude=exclude)


def test_lists_of_many_large_values(tmp_path: Path) -> None:
    """A row may be larger than the limit of a batch: it comes alone."""
    values = pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), pa.array(VALUES[:1]))
    lists = pa.ListArray.from_arrays(pa.array(range(0, ROWS + 1, 50), pa.int32()), values)
    path = parquet(tmp_path / "f", pa.table({"a": lists}), store_schema=False)
    sizes = [len(batch) for batch in execute(task(path, pa.schema([("a", pa.list_(pa.string()))])))]
    assert sizes == [1] * (ROWS // 50)


def test_binary_of_a_fixed_size(tmp_path: Path) -> None:
    value = pa.array([b"x" * GIANT], pa.binary(GIANT))
    values = pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), value)
    path = parquet(tmp_path / "f", pa.table({"a": values}), store_schema=False)
    sizes = [batch.size_bytes for batch in execute(task(path, pa.schema([("a", pa.binary())])))]
    assert max(sizes) <= MOST
    assert sum(sizes) >= ROWS * GIANT


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
def test_a_large_value_in_a_dictionary_of_many_small_ones(tmp_path: Path, compression: str, page_version: str) -> None:
    """On average its values are small, and there are as many as rows, but not all are used."""
    small, first = [f"value {number}" for number in range(20_000)], 5_000
    indices = pa.array([*range(first), *[20_000] * ROWS], pa.int32())
    values = pa.DictionaryArray.from_arrays(indices, pa.array([*small, "x" * GIANT]))
    table = pa.table({"a": values})
    options = {"compression": compression, "data_page_version": page_version, "dictionary_pagesize_limit": 2**24}
    path = parquet(tmp_path / "f", table, store_schema=False, write_batch_size=8, **options)
    found: list[int] = []
    for batch in execute(task(path, pa.schema([("a", pa.string())]))):
        assert batch.size_bytes <= MOST
        found += pc.binary_length(batch.rows.column("a")).to_pylist()
    assert found == [*map(len, small[:first]), *[GIANT] * ROWS]


def test_small_values_come_in_large_batches(tmp_path: Path) -> None:
    """With any number of dictionaries of any size."""
    rows = 50_000
    columns = {f"c{step}": [f"value {number * step % 30_000}" for number in range(rows)] for step in range(1, 12)}
    path = parquet(tmp_path / "f", pa.table(columns), store_schema=False)
    sizes = [len(batch) for batch in execute(task(path, pa.schema([(name, pa.string()) for name in columns])))]
    assert sum(sizes) == rows
    assert sizes[:-1] == [MAX_ROWS] * (rows // MAX_ROWS)
