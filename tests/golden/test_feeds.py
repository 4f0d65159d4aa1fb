"""Golden tables with a known change feed: lake-tailer gives exactly those rows, version by version."""

import json
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailer.events import COMMIT_TIMESTAMP, COMMIT_VERSION
from tests.support.follow import Followed, follow
from tests.support.histories.lying_feeds import checked
from tests.support.oracle.rows import assert_same, type_name
from tests.support.tables.golden import expected_feed, golden, golden_delta
from tests.support.tables.golden_feeds import TABLES, expected_table, rows


def in_range(name: str) -> list[Followed]:
    """Return our versions of a golden table in the range of its expected feed."""
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


# Made by hand: their change files record rows that no data file ever had.
INVENTED = {"cdf-table-simple": {2: 5}, "cdf-table-update-ops": {1: 5, 2: 5}}


@pytest.mark.parametrize("name", sorted(set(TABLES)))
def test_feeds_say_what_the_data_files_say(name: str) -> None:
    check = checked(golden_delta(name))
    assert {fault.version: fault.counts.total() for fault in check.faults} == INVENTED.get(name, {})
    assert check.unread == {}


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
