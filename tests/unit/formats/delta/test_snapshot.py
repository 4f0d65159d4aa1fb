"""State advanced commit by commit: the protocol check at every version, and timestamps independent of the start."""

import json
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.errors import ConfigError, LogCorrupt, UnsupportedFeature, VersionGone
from tailer.formats.delta.features import READER_FEATURES, check_protocol
from tailer.formats.delta.log.actions import Commit, parse_commit
from tailer.formats.delta.log.clock import CommitClock
from tailer.formats.delta.log.listing import LogListing, commit_name
from tailer.formats.delta.snapshot import CLOCK_WINDOW, Snapshot
from tailer.stores.port import ObjectMeta, StoredObject
from tests.support.cases import cases
from tests.support.cloud.memory_store import MemoryStore
from tests.support.tables.log_files import commit_info, metadata, protocol, schema_string


def commit(version: int, *actions: dict[str, Any], modified_ms: int = 0) -> Commit:
    data = "\n".join(json.dumps(action) for action in (*actions, {"txn": {"appId": "a", "version": 1}}))
    return parse_commit(data.encode(), "t", commit_name(version), version, modified_ms)


def begin(*actions: dict[str, Any]) -> Snapshot:
    first = commit(0, protocol(), metadata(), *actions)
    return Snapshot.begin("t", 0, first.protocol, first.metadata, [0])


@cases(
    ("reader", "features", "refused"),
    [
        (1, None, None),
        (2, None, None),
        (3, [], None),
        (3, sorted(READER_FEATURES), None),
        (3, ["deletionVectors", "teleport"], "reader feature teleport"),
        (3, ["geospatial"], "reader feature geospatial"),
        (2, ["teleport"], None),
        (0, None, "reader version 0"),
        (4, ["deletionVectors", "teleport"], "reader version 4 and reader features teleport"),
    ],
)
def test_the_gate(reader: int, features: list[str] | None, refused: str | None) -> None:
    gate = commit(1, protocol(reader, features)).protocol
    assert gate is not None
    if refused is None:
        check_protocol(gate, "t", 1)
        return
    with pytest.raises(UnsupportedFeature) as caught:
        check_protocol(gate, "t", 1)
    assert (caught.value.feature, caught.value.version) == (refused, 1)


def test_the_protocol_is_checked_at_every_version() -> None:
    state = begin().advance(commit(1, protocol(3, ["deletionVectors"])))
    with pytest.raises(UnsupportedFeature):
        state.advance(commit(2, protocol(3, ["teleport"])))
    assert state.advance(commit(2, protocol(1))).protocol.min_reader_version == 1


@pytest.mark.parametrize("missing", ["protocol", "metaData"])
def test_a_table_without_its_first_actions(missing: str) -> None:
    first = commit(0, protocol(), metadata())
    gate, table = (None, first.metadata) if missing == "protocol" else (first.protocol, None)
    with pytest.raises(LogCorrupt, match=f"no {missing} action"):
        Snapshot.begin("t", 0, gate, table, [0])


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (metadata(schema_string(a="geometry")), UnsupportedFeature),
        (metadata("no schema"), LogCorrupt),
        (metadata(**{"delta.columnMapping.mode": "colour"}), LogCorrupt),
        ({"metaData": metadata()["metaData"] | {"format": {"provider": "orc"}}}, LogCorrupt),
    ],
)
def test_metadata_that_cannot_be_followed(action: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        begin().advance(commit(1, action))


@pytest.mark.parametrize(
    ("configuration", "enabled"),
    [
        ({}, False),
        ({"delta.enableChangeDataFeed": "TRUE"}, True),
        ({"delta.enableChangeDataFeed": "false"}, False),
        ({"delta.enableChangeDataCapture": "true"}, True),
        ({"delta.enableChangeDataFeed": "false", "delta.enableChangeDataCapture": "true"}, False),
    ],
)
def test_feed_enabled_property(configuration: dict[str, str], enabled: bool) -> None:
    assert begin().advance(commit(1, metadata(**configuration))).feed_enabled is enabled


def times(modified_ms: list[int], start: int = 0) -> list[int]:
    """Return the timestamps of versions from `start` on, for a reader that begins there."""
    first = commit(0, protocol(), metadata())
    window = modified_ms[max(start - CLOCK_WINDOW - 1, 0) : start]
    state = Snapshot.begin("t", start - 1, first.protocol, first.metadata, window)
    found = []
    for version in range(start, len(modified_ms)):
        state = state.advance(commit(version, modified_ms=modified_ms[version]))
        found.append(state.timestamp_ms)
    return found


def test_times_of_files_become_ascending() -> None:
    assert times([10, 5, 5, 20, 20, 7]) == [10, 11, 12, 20, 21, 22]


def test_the_commits_own_time_is_used_as_it_is() -> None:
    state = begin().advance(commit(1, commit_info(inCommitTimestamp=3), modified_ms=50))
    assert state.timestamp_ms == 3
    assert state.advance(commit(2, modified_ms=50)).timestamp_ms == 51


@given(st.lists(st.integers(0, 300), min_size=1, max_size=260), st.data())
def test_a_versions_time_does_not_depend_on_the_start(modified_ms: list[int], data: st.DataObject) -> None:
    """After a copy or checkout all files have nearly the same time, so corrections add up over the whole history."""
    start = data.draw(st.integers(0, len(modified_ms) - 1))
    assert times(modified_ms)[start:] == times(modified_ms, start)
    if len(modified_ms) <= CLOCK_WINDOW:
        ascending = accumulate(modified_ms, lambda before, ms: max(ms, before + 1))
        assert times(modified_ms) == list(ascending)


def a_clock(
    modified_ms: list[int], own_ms: dict[int, int | None], configuration: dict[str, str], first: int = 0
) -> CommitClock:
    """A history: file times from version `first` on, and in-commit timestamps."""
    store = MemoryStore("t")
    for version, modified in enumerate(modified_ms, start=first):
        name = commit_name(version)
        info = commit_info() if own_ms.get(version) is None else commit_info(inCommitTimestamp=own_ms[version])
        store.objects[name] = StoredObject(ObjectMeta(name, 1, modified), json.dumps(info).encode())
    metas = [stored.meta for stored in store.objects.values()]
    if first:
        metas.append(ObjectMeta(f"_delta_log/{first:020d}.checkpoint.parquet", 1, 0))
    return CommitClock(store, LogListing.of("t", metas), configuration)


ALWAYS = {"delta.enableInCommitTimestamps": "true"}
SINCE_2 = ALWAYS | {
    "delta.inCommitTimestampEnablementVersion": "2",
    "delta.inCommitTimestampEnablementTimestamp": "100",
}
HISTORIES = {
    "files": a_clock([10, 20, 20, 40], {}, {}),
    "commits": a_clock([9, 9, 9, 9], {0: 10, 1: 20, 2: 21, 3: 40}, ALWAYS),
    # File times in the second half resemble the first half's, and the other way round: neither may be used.
    "both": a_clock([10, 90, 15, 16], {0: 500, 2: 100, 3: 140}, SINCE_2),
    "switched off": a_clock([10, 20, 20, 40], {0: 500}, SINCE_2 | {"delta.enableInCommitTimestamps": "false"}),
    "cleaned up": a_clock([10, 20, 20, 40], {}, {}, first=7),
}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("history", "moment_ms", "at_or_after", "at_or_before"),
    [
        ("files", 5, 0, None),
        ("files", 10, 0, 0),
        ("files", 11, 1, 0),
        ("files", 21, 2, 2),
        ("files", 40, 3, 3),
        ("files", 41, None, 3),
        ("commits", 5, 0, None),
        ("commits", 20, 1, 1),
        ("commits", 22, 3, 2),
        ("commits", 41, None, 3),
        ("both", 5, 0, None),
        ("both", 50, 1, 0),
        ("both", 90, 1, 1),
        ("both", 91, 2, 1),
        ("both", 99, 2, 1),
        ("both", 100, 2, 2),
        ("both", 101, 3, 2),
        ("both", 141, None, 3),
        ("switched off", 21, 2, 2),
        ("cleaned up", 5, 7, None),
        ("cleaned up", 21, 9, 9),
    ],
)
async def test_from_a_moment_to_a_version(
    history: str, moment_ms: int, at_or_after: int | None, at_or_before: int | None
) -> None:
    clock = HISTORIES[history]
    for search, expected in ((clock.first_at_or_after, at_or_after), (clock.last_at_or_before, at_or_before)):
        if expected is None:
            with pytest.raises(ConfigError, match="1970-01-01"):
                await search(moment_ms)
        else:
            assert await search(moment_ms) == expected


@pytest.mark.anyio
async def test_a_commit_without_the_time_it_must_have() -> None:
    clock = a_clock([1, 2, 3], {0: 10, 1: None, 2: 30}, ALWAYS)
    with pytest.raises(LogCorrupt, match="inCommitTimestamp"):
        await clock.first_at_or_after(25)


def test_properties_that_are_no_numbers() -> None:
    with pytest.raises(LogCorrupt, match="not a number"):
        a_clock([1], {}, ALWAYS | {"delta.inCommitTimestampEnablementVersion": "two"})


def test_a_log_without_a_first_version() -> None:
    with pytest.raises(VersionGone):
        CommitClock(MemoryStore(), LogListing.of("t", [ObjectMeta(commit_name(3), 1, 0)]), {})
