"""Golden tables that cannot be followed: each is refused with an error that names the reason, and gives no row."""

import json
import shutil
from pathlib import Path
from typing import Final

import pytest

from tailer.errors import FileVacuumed, LogCorrupt, NotATable, TailerError, UnsupportedFeature, VersionGone
from tests.support.follow import follow_until_error, snapshot
from tests.support.tables.golden import golden_delta

UNQUALIFIED: Final = "/some/unqualified/with%20space/p@%23h"
# table: (versions that come before, the error, its text)
REFUSED: Final[dict[str, tuple[int, type[TailerError], dict[str, object]]]] = {
    "deltalog-invalid-protocol-version": (0, UnsupportedFeature, {"feature": "reader version 99", "version": 0}),
    "simple_table_features": (
        0,
        UnsupportedFeature,
        {"feature": "reader version 5 and reader features blahabl", "version": 0},
    ),
    "catalog-owned-preview": (0, UnsupportedFeature, {"feature": "reader feature catalogManaged", "version": 0}),
    "versions-not-contiguous": (0, LogCorrupt, {"version": 0, "reason": "foo belongs to a table that has no columns"}),
    "canonicalized-paths-special-a": (
        0,
        LogCorrupt,
        {"version": 0, "reason": f"{UNQUALIFIED} belongs to a table that has no columns"},
    ),
    "data-reader-absolute-paths-escaped-chars": (0, LogCorrupt, {"version": 0}),
    "crc-malformed": (0, NotATable, {}),
}
# table: (versions that come before, the missing file)
VACUUMED: Final = {
    "app-txn-with-last-updated": (0, "part-00001-63bc815a-54ba-4614-8260-a7ed44382395-c000.snappy.parquet"),
    "delete-re-add-same-file-different-transactions": (0, "foo"),
    "deltalog-getChanges": (0, "fake/path/1"),
    "log-replay-special-characters": (0, "special p@#h"),
    "log-replay-special-characters-a": (0, "special p@#h"),
    "table-with-dv-large": (1, "deletion_vector_44ccbf3f-b223-4581-9cd8-a7e569120ada.bin"),
}
# The protocol, not the history, forbids reading any rows of these.
NO_SNAPSHOT: Final = (
    "deltalog-invalid-protocol-version",
    "simple_table_features",
    "catalog-owned-preview",
    "versions-not-contiguous",
)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    before, kind, facts = REFUSED[name]
    versions, error = follow_until_error(golden_delta(name))
    assert len(versions) == before
    assert type(error) is kind, error
    assert {fact: error.fields[fact] for fact in facts} == facts
    assert error.exit_code == 3
    assert error.hint


@pytest.mark.parametrize("name", VACUUMED)
def test_missing_files_are_named(name: str) -> None:
    before, file = VACUUMED[name]
    path = golden_delta(name)
    versions, error = follow_until_error(path)
    assert len(versions) == before
    assert isinstance(error, FileVacuumed), error
    assert error.path == f"{path}/{file}"
    assert error.version == before


def test_a_gap_is_found_where_it_is(tmp_path: Path) -> None:
    """The writer of this table gave it no schema. Without its file, which is missing, version 1 is the gap."""
    path = tmp_path / "versions-not-contiguous"
    shutil.copytree(golden_delta(path.name), path)
    commit = path / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    kept = [action for action in actions if "add" not in action]
    commit.write_text("".join(json.dumps(action) + "\n" for action in kept))
    versions, error = follow_until_error(path)
    assert [version.plan.version for version in versions] == [0]
    assert isinstance(error, VersionGone)
    assert error.fields["version"] == 1
    assert error.hint


@pytest.mark.parametrize("name", NO_SNAPSHOT)
def test_refused_as_a_snapshot_too(name: str) -> None:
    with pytest.raises((UnsupportedFeature, VersionGone)):
        snapshot(golden_delta(name))
