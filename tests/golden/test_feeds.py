"""Every golden table with a known change feed: lake-tailer gives exactly those rows, version by version."""

import json
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from tests.follow import Followed, follow
from tests.oracle import Rows, assert_same, from_spark_json, rows_of, type_name
from tests.tables import expected_feed, golden, golden_delta

TABLES = (
    "cdc_ict_table",
    "cdf-column-mapping-id-mode",
    "cdf-column-mapping-name-mode",
    "cdf-table",
    "cdf-table-backtick-column-names",
    "cdf-table-data-change",
    "cdf-table-delete-conditional-all-rows",
    "cdf-table-delete-unconditional",
    "cdf-table-non-partitioned",
    "cdf-table-simple",
    "cdf-table-update-ops",
    "cdf-table-with-cdc-and-dvs",
    "cdf-table-with-dv",
    "cdf-table",
    "simple_table_with_cdc",
)

# Spark wraps the overflow of an inline vector that is padded as the Rust crate z85 does it, and loses two events.
SPARK_LOSES: dict[str, list[tuple[str, int, int]]] = {"cdf-table-with-dv": [("delete", 5, 3), ("insert", 6, 3)]}


def expected_table(name: str) -> pa.Table:
    """The change rows of a golden table, typed."""
    feed = expected_feed(name)
    lost = [
        {CHANGE_TYPE: kind, COMMIT_VERSION: version, "value": value}
        for kind, version, value in SPARK_LOSES.get(name, [])
    ]
    return from_spark_json([*feed.rows, *lost], feed.schema)


def rows(table: pa.Table) -> Rows:
    """Change rows without their time of commit, which a copied table does not keep."""
    return rows_of(table, [COMMIT_TIMESTAMP])


def in_range(name: str) -> list[Followed]:
    """Our versions of a golden table in the range its answer covers."""
    feed = expected_feed(name)
    return [version for version in follow(golden_delta(name)) if feed.first <= version.plan.version <= feed.last]


@pytest.mark.parametrize("name", sorted(set(TABLES)))
def test_feed_is_the_expected_one(name: str) -> None:
    expected = expected_table(name)
    found = in_range(name)
    feed = expected_feed(name)
    assert [version.plan.version for version in found] == list(range(feed.first, feed.last + 1))
    for version in found:
        at = version.plan.version
        answer = expected.filter(pc.equal(expected.column(COMMIT_VERSION), at))
        assert_same(rows(version.table), rows(answer), f"{name} version {at}")
        assert [(field.name, type_name(field.type)) for field in version.table.schema] == [
            (field.name, type_name(field.type)) for field in expected.schema
        ]


def test_every_known_feed_is_tested() -> None:
    answers = {path.name.removesuffix(".expected.json") for path in golden("delta").glob("*.expected.json")}
    assert answers == set(TABLES)


def test_vectors_padded_by_the_rust_crate_lose_no_row() -> None:
    assert sum(len(version.table) for version in follow(golden_delta("cdf-table-with-dv"))) == 24


def test_in_commit_timestamps_are_used_as_they_are() -> None:
    answer = json.loads(golden("delta", "cdc_ict_table.expected.json").read_bytes())
    expected = {int(version): int(micros) for version, micros in answer["commit_timestamps_utc"].items()}
    found: Counter[tuple[int, int]] = Counter()
    for version in follow(golden_delta("cdc_ict_table")):
        for micros in version.table.column(COMMIT_TIMESTAMP).cast(pa.int64()).to_pylist():
            found[version.plan.version, micros] += 1
    assert set(found) == set(expected.items())
    assert found.total() == len(expected_feed("cdc_ict_table").rows)
