"""Rows with columns that `select` makes, in versions that are compared: equal where the result is equal."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import tailer
from tailer.errors import ConfigError

IMAGES: Final = {"update_preimage": "-", "update_postimage": "+", "delete": "delete", "insert": "insert"}
KEYED: Final[Mapping[str, Any]] = {"compute_updates": True, "key": ["id"]}
WAYS: Final = [{}, KEYED, {"net": True}, {**KEYED, "net": True}]


def written(path: Path, before: pa.Table, after: pa.Table, **options: Any) -> Path:
    """Write a table whose version 1 replaces all rows and, maybe, columns."""
    write_deltalake(path, before, **options)
    write_deltalake(path, after, mode="overwrite", schema_mode="overwrite", **options)
    return path


def changes(path: Path, **options: Any) -> list[tuple[object, ...]]:
    """Return change type and values of the rows that version 1 changes."""
    rows = [row for batch in tailer.changes(path, start=1, end=1, **options) for row in batch.to_pylist()]
    return [(IMAGES[row["_change_type"]], *list(row.values())[:-3]) for row in rows]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("id, upper(country) AS country", [("delete", 2, "FR"), ("insert", 3, "FR")]),
        ("id, length(country) AS country", [("delete", 2, 2), ("insert", 3, 2)]),
        ("id, 'hidden' AS country", [("delete", 2, "hidden"), ("insert", 3, "hidden")]),
        ("id AS country", [("delete", 2), ("insert", 3)]),
        ("id, country AS id2", [("delete", 1, "de"), ("delete", 2, "FR"), ("insert", 1, "DE"), ("insert", 3, "FR")]),
    ],
)
def test_a_computed_column_is_no_partition_column(
    tmp_path: Path, select: str, expected: list[tuple[object, ...]]
) -> None:
    before = pa.table({"id": [1, 2], "country": ["de", "FR"]})
    after = pa.table({"id": [1, 3], "country": ["DE", "FR"]})
    path = written(tmp_path / "t", before, after, partition_by=["country"])
    assert sorted(changes(path, select=select), key=repr) == expected


@pytest.mark.parametrize("way", WAYS)
def test_a_version_that_adds_a_column(tmp_path: Path, way: Mapping[str, Any]) -> None:
    before = pa.table({"id": [1, 2], "x": ["a", "b"]})
    after = pa.table({"id": [1, 2], "x": ["a", "b"], "new": pa.array([None, 5], pa.int64())})
    path = written(tmp_path / "t", before, after)
    for select, x in (("*", "b"), ("* EXCLUDE (x), upper(x) AS x", "B")):
        batches = tailer.changes(path, start=1, end=1, select=select, **way)
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert [(row["id"], row["x"], row.get("new")) for row in rows] == [(2, x, None), (2, x, 5)]


@pytest.mark.parametrize("way", WAYS)
def test_a_version_that_widens_a_column(tmp_path: Path, way: Mapping[str, Any]) -> None:
    before = pa.table({"id": [1, 2], "n": pa.array([1, 2], pa.int32())})
    after = pa.table({"id": [1, 2], "n": pa.array([1, 2**40], pa.int64())})
    path = written(tmp_path / "t", before, after)
    for select, factor in (("id, n", 1), ("id, n AS m", 1), ("id, n * 2 AS n", 2)):
        found = changes(path, select=select, **way)
        assert [row[1:] for row in found] == [(2, 2 * factor), (2, 2**40 * factor)]


@pytest.mark.parametrize("way", WAYS)
def test_a_mask_under_the_name_of_its_column(tmp_path: Path, way: Mapping[str, Any]) -> None:
    """The column leaves, too, under another name: neither is taken for the other."""
    before = pa.table({"id": [1, 2], "a": ["x", "y"]})
    path = written(tmp_path / "t", before, pa.table({"id": [1, 2], "a": ["x", "z"]}))
    found = changes(path, select="id, a AS raw, upper(a) AS a", **way)
    assert [row[1:] for row in found] == [(2, "y", "Y"), (2, "z", "Z")]


def test_types_that_no_text_fits(tmp_path: Path) -> None:
    """The files are not damaged, and a text with CAST fits them all."""
    before = pa.table({"id": [1, 2], "n": ["5", "6"]})
    path = written(tmp_path / "t", before, pa.table({"id": [1, 3], "n": [5, 7]}))
    for options in ({"where": "n > 5"}, {"select": "id, n * 2 AS n"}):
        with pytest.raises(ConfigError, match="deletes, with the types before it"):
            changes(path, **options)
    assert changes(path, where="CAST(n AS BIGINT) > 5") == [("delete", 2, "6"), ("insert", 3, 7)]
