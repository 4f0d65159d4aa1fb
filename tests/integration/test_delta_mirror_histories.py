"""Recorded histories mirrored into Delta: after each transaction, the target has Spark's rows of that version.

A mirror that cannot follow a version says so, and another one begins with a snapshot of that version. One that keeps
the past has, besides, the deleted rows, or the source as of each version.
"""

import json
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.engine.local import LocalEngine
from tailer.errors import ChangesUnavailable, SinkRejected, TailerError
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.policy import Limits
from tailer.pipeline.row_delivery import row_pipeline
from tailer.start import Start, StartKind
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.delta.mirror import table as mirror_table
from tailer_sinks.testing import flat_rows
from tests.support.histories.schema_evolution import EVOLVING
from tests.support.mirrors.delta import make_mirror, mirror_rows
from tests.support.mirrors.histories import counted
from tests.support.oracle.recorded import HISTORIES, RecordedTable, read

pytestmark = pytest.mark.long

WRITTEN: Final = sorted(HISTORIES.glob("*.tar.xz"))
NAMES: Final = [f"{archive.name[:2]} {EVOLVING[int(archive.name[:2])]}" for archive in WRITTEN]
# Why a mirror with a key cannot follow a version.
FOLLOWED_NO_FURTHER: Final = (
    "do not fit",
    "RESTORE brought column",
    "is not a column of",
    "is another column",
    "has another column",
)
MODES: Final[dict[str, dict[str, Any]]] = {"plain": {}, "mark": {"deletes": "mark"}, "history": {"mode": "history"}}


def identifies(column: str, snapshot: pa.Table) -> bool:
    """Return whether the values of a column of whole numbers identify the rows."""
    if column not in snapshot.column_names or not pa.types.is_int64(snapshot.schema.field(column).type):
        return False
    values = snapshot.column(column)
    return values.null_count == 0 and len(values.unique()) == len(values)


def key_of(snapshot: pa.Table) -> str | None:
    return next((name for name in snapshot.column_names if identifies(name, snapshot)), None)


def mirrored_from(
    recorded: RecordedTable, first: int, key: str, target: Path, limits: Limits, mode: str
) -> tuple[set[int], TailerError | None]:
    """Mirror versions from `first` on. Return those that a commit reached, and the error that ended it."""

    async def run() -> None:
        log = DeltaTableLog(LocalStore(recorded.path), allowed_roots=("/",))
        start, end = (Start(StartKind.VERSION, version) for version in (first, recorded.last))
        engine = ChangelogEngine(LocalEngine(), PairingRules())
        async with aclosing(make_mirror(target, key=[key], **MODES[mode])) as sink:
            await row_pipeline("orders", log, sink, engine, TimerWake(), start, end, limits=limits).run()

    error = None
    try:
        anyio.run(run)
    except (SinkRejected, ChangesUnavailable) as caught:
        error = caught
    reached = check(recorded, target)
    if mode == "mark":
        check_marks(recorded, target, first, key)
    if mode == "history" and reached:
        check_states(recorded, target, first, max(reached))
    return reached, error


def check_marks(recorded: RecordedTable, target: Path, first: int, key: str) -> None:
    """Compare the marks of the last version of the target with the versions in which keys were deleted."""
    last = max(check(recorded, target), default=-1)
    deleted, before = dict[Any, int](), set[Any]()
    for version in range(first, last + 1):
        keys = set(recorded.answers[version].snapshot.column(key).to_pylist())
        deleted |= dict.fromkeys(before - keys, version)
        deleted, before = {one: at for one, at in deleted.items() if one not in keys}, keys
    rows = mirror_rows(target).to_pylist() if last >= 0 else []
    assert {row[key]: row["_deleted_version"] for row in rows if row["_deleted_version"] is not None} == deleted


def check_states(recorded: RecordedTable, target: Path, first: int, last: int) -> None:
    """Compare the states that held at each version with Spark's rows of it, by the columns that are the same since."""
    table = mirror_rows(target)
    for version in range(first, last + 1):
        ended = pc.field("_valid_to_version")
        held = table.filter((pc.field("_valid_from_version") <= version) & (ended.is_null() | (ended > version)))
        names = names_since(recorded, version, last)
        snapshot = recorded.answers[version].snapshot.select(list(names)).rename_columns(list(names.values()))
        found, wanted = counted(flat_rows(held.select(list(names.values())))), counted(flat_rows(snapshot))
        assert found == wanted, recorded.where(version, f"as of it, at {last}: {list(found - wanted)[:3]}")


def names_since(recorded: RecordedTable, version: int, last: int) -> dict[str, str]:
    """Return the columns of a version that have the same type at the last one, with their names there."""
    now = {_identity(field): field for field in recorded.schemas[last]["fields"]}
    columns = recorded.schemas[version]["fields"]
    return {
        field["name"]: now[_identity(field)]["name"]
        for field in columns
        if _identity(field) in now and now[_identity(field)]["type"] == field["type"]
    }


def _identity(field: Mapping[str, Any]) -> str:
    return str(field["metadata"].get("delta.columnMapping.physicalName", field["name"]))


def check(recorded: RecordedTable, target: Path) -> set[int]:
    """Compare each version of the target with Spark's rows of the version that it reached. Return these."""
    reached: set[int] = set()
    for commit in sorted((target / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        txns = [action["txn"] for action in actions if "txn" in action]
        version = next((each["version"] for each in txns if "#" not in each["appId"]), None)
        if version is None:
            continue  # the creation of the table
        found = counted(flat_rows(open_rows(mirror_rows(target, int(commit.stem)), recorded.answers[version].snapshot)))
        wanted = counted(flat_rows(recorded.answers[version].snapshot))
        assert not found - wanted, recorded.where(version, f"superfluous: {list(found - wanted)[:3]}")
        assert not wanted - found, recorded.where(version, f"missing: {list(wanted - found)[:3]}")
        reached.add(version)
    return reached


def open_rows(rows: pa.Table, snapshot: pa.Table) -> pa.Table:
    """Return the rows that the source has, of a mirror that may keep others, with its columns."""
    for column in {"_deleted_version", "_valid_to_version"}.intersection(rows.column_names):
        return rows.filter(pc.field(column).is_null()).select(snapshot.column_names)
    return rows


@pytest.mark.sampled(18)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["merge", "rewrite"])
@pytest.mark.parametrize(
    "limits", [Limits(max_versions=1), Limits(max_versions=4)], ids=["each version", "four at once"]
)
@pytest.mark.parametrize("archive", WRITTEN, ids=NAMES)
def test_histories(
    archive: Path, limits: Limits, way: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mirror all versions, with another mirror after each one that has no key, or cannot be followed."""
    if way == "rewrite":
        monkeypatch.setattr(mirror_table, "_MERGE_BYTES", -1)
    recorded = read(archive, tmp_path / "t")
    snapshots = {version: answer.snapshot for version, answer in recorded.answers.items()}
    version, reached = recorded.first, 0
    while version <= recorded.last:
        key = key_of(snapshots[version])
        if key is None:
            version += 1
            continue
        versions, error = mirrored_from(recorded, version, key, tmp_path / f"m{version}", limits, mode)
        reached += len(versions)
        version = max(versions, default=version - 1) + 1
        if error is None:
            break
        assert error.hint
        # A transaction of several versions is refused if one of them has no key.
        span = range(version, version + limits.max_versions + 1)
        near = [at for at in span if at in snapshots and not identifies(key, snapshots[at])]
        assert near or any(reason in str(error) for reason in FOLLOWED_NO_FURTHER), error
        version = max(version, min(near, default=version))
    assert reached > 0, "no version"
