"""Rows of several versions that are decoded together: the same rows, places and errors as when each version reads."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import tailer
from tailer.engine import look_ahead
from tailer.errors import DataCorrupt, TailerError
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, ChangeTask, Regime, RowTracking, TaskKind, add_row_ids
from tailer.read import decoded_files
from tailer.read.decoded_files import Budget, DecodedFiles, compared_tasks
from tailer.read.execute import execute
from tailer.read.parquet.batch_sizes import BatchSizes
from tests.support.tables.log_files import (
    add,
    inline_vector,
    marked,
    metadata,
    parquet,
    protocol,
    remove,
    schema_string,
    write_commit,
)
from tests.support.tables.log_files import task as make_task

SCHEMA: Final = pa.schema([("id", pa.int64()), ("v", pa.string())])
WITH_IDS: Final = add_row_ids(SCHEMA)
ROWS: Final = 90_000
GROUP: Final = 40_000  # rows, so that there are three row groups
MARKED: Final = [
    range(0, 20_000, 50),
    range(0, 40_000, 50),
    range(0, 90_000, 50),
    range(0, 90_000, 25),
    range(0, 60_000, 25),  # restored: rows come back
]
Seen = list[tuple[int, int, int, dict[str, Any]]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    table = pa.table({"id": range(ROWS), "v": [f"row {row}" for row in range(ROWS)]}, schema=SCHEMA)
    return parquet(tmp_path / "a.parquet", table, row_group_size=GROUP, write_page_checksum=True)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row groups that were decoded, in order."""
    found: list[int] = []
    decode = BatchSizes.decode

    def noting(self: BatchSizes, file: Any, group: int) -> Iterator[pa.RecordBatch]:
        found.append(group)
        return decode(self, file, group)

    monkeypatch.setattr(BatchSizes, "decode", noting)
    return found


def plans(file: Path, marks: Sequence[Iterable[int]] = MARKED) -> list[ChangePlan]:
    """Versions from 1 on, each of which replaces the deletion vector of the file by the next of `marks`."""
    vectors = [None, *map(marked, marks)]
    found = []
    for version, (before, after) in enumerate(pairwise(vectors), 1):
        gone = make_task(file, SCHEMA, TaskKind.DELETE, include=after, exclude=before)
        come = [] if before is None else [make_task(file, SCHEMA, include=before, exclude=after)]
        tasks = (replace(each, index=index, version=version) for index, each in enumerate([gone, *come]))
        found.append(ChangePlan("t", "id", version, 1000, None, Regime.FILES, SCHEMA, tuple(tasks)))
    return found


def seen(batches: Iterable[ChangeBatch]) -> Seen:
    return [
        (batch.version, batch.task, position, row)
        for batch in batches
        for position, row in zip(batch.row_index.to_pylist(), batch.rows.to_pylist(), strict=True)
    ]


def tasks_of(versions: Iterable[ChangePlan]) -> list[ChangeTask]:
    return [each for version in versions for each in version.tasks]


def ahead_of(versions: Sequence[ChangePlan], budget: Budget | None = None) -> DecodedFiles:
    ahead = DecodedFiles(execute, budget)
    for version in versions:
        ahead.expect(compared_tasks(version))
    return ahead


def test_each_row_group_is_decoded_once_for_all_versions(file: Path, decoded: list[int]) -> None:
    versions = plans(file)
    ahead = ahead_of(versions)
    found = [seen(ahead.read(each)) for each in tasks_of(versions)]
    assert decoded == [0, 1, 2]
    assert found == [seen(execute(each)) for each in tasks_of(versions)]
    assert [bool(rows) for rows in found] == [True, True, False, True, False, True, False, False, True]


@pytest.mark.parametrize("first", range(len(MARKED)))
def test_any_version_may_be_the_first_to_read(file: Path, decoded: list[int], first: int) -> None:
    versions = plans(file)
    ahead = ahead_of(versions)
    order = [*versions[first:], *versions[:first]]
    found = [seen(ahead.read(each)) for each in tasks_of(order)]
    assert decoded == [0, 1, 2]
    assert found == [seen(execute(each)) for each in tasks_of(order)]


@pytest.mark.parametrize("most_bytes", [0, 1_000, 20_000, 200_000])
def test_versions_without_room_read_by_themselves(
    file: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    monkeypatch.setattr(decoded_files, "BUDGET_BYTES", most_bytes)
    versions, budget = plans(file), Budget()
    ahead = ahead_of(versions, budget)
    found = [seen(ahead.read(each)) for each in tasks_of(versions)]
    assert len(decoded) > 3
    assert found == [seen(execute(each)) for each in tasks_of(versions)]
    assert budget.used_bytes <= most_bytes
    ahead.release()
    assert budget.used_bytes == 0


def test_no_task_waits_for_others_that_are_not_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = plans(file, [range(0, 1_000 * version, 2) for version in range(1, 41)])
    others: list[int] = []

    def noting(*given: Any, **options: Any) -> Iterator[ChangeBatch]:
        others.append(len(options["others"]))
        return execute(*given, **options)

    monkeypatch.setattr(decoded_files, "execute", noting)
    monkeypatch.setattr(decoded_files, "BUDGET_BYTES", 200_000)
    ahead, tasks = ahead_of(versions), tasks_of(versions)
    assert [seen(ahead.read(each)) for each in tasks] == [seen(execute(each)) for each in tasks]
    assert others == [len(tasks) - 1], "after the first one there is no room"


def test_a_process_without_room_keeps_none(file: Path, decoded: list[int]) -> None:
    versions = plans(file)
    ahead = ahead_of(versions, Budget(lambda: False))
    found = [seen(ahead.read(each)) for each in tasks_of(versions)]
    assert found == [seen(execute(each)) for each in tasks_of(versions)]
    assert len(decoded) > 3


def test_released_versions_leave_nothing(file: Path, decoded: list[int]) -> None:
    versions = plans(file)
    ahead = ahead_of(versions)
    list(ahead.read(versions[0].tasks[0]))
    for version in versions[:4]:
        ahead.release(version.version)
    last = tasks_of(versions[4:])
    assert [seen(ahead.read(each)) for each in last] == [seen(execute(each)) for each in last]
    ahead.release(5)
    decoded.clear()
    assert [seen(ahead.read(each)) for each in tasks_of(versions)] == [
        seen(execute(each)) for each in tasks_of(versions)
    ]
    assert decoded[:8] == [0, 0, 1, 2, 0, 1, 2, 1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"schema": pa.schema([("id", pa.int64())])}),
        ({}, {"partition_values": (("p", "1"),)}),
        ({}, {"tracking": RowTracking(base_row_id=5)}),
        ({"tracking": RowTracking(7, 1), "schema": WITH_IDS}, {"tracking": RowTracking(5, 2), "schema": WITH_IDS}),
    ],
    ids=["columns", "partition", "row ids", "other row ids"],
)
def test_tasks_with_other_values_read_by_themselves(file: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    """The columns of one are not those of the other."""
    first, second = (
        replace(version, tasks=tuple(replace(each, **changed) for each in version.tasks))
        for version, changed in zip(plans(file)[:2], (one, other), strict=True)
    )
    ahead = ahead_of([first, second])
    tasks = tasks_of([first, second])
    assert [seen(ahead.read(each)) for each in tasks] == [seen(execute(each)) for each in tasks]


def test_a_task_that_is_expected_anew_has_its_own_rows(file: Path) -> None:
    (task,) = plans(file)[0].tasks
    other = replace(task, include=marked(range(0, 20_000, 10)))
    ahead = ahead_of(plans(file)[:1])
    assert seen(ahead.read(task)) == seen(execute(task))
    ahead.expect([other])
    assert seen(ahead.read(other)) == seen(execute(other))


def test_versions_are_expected_until_their_rows_are_many(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = plans(file, [range(end) for end in range(1_000, 5_000, 1_000)])
    monkeypatch.setattr(decoded_files, "_EXPECTED_BYTES", 700_000)
    ahead = ahead_of([])
    assert [ahead.expect(compared_tasks(each)) for each in versions] == [True, True, False, False]
    list(ahead.read(versions[0].tasks[0]))
    assert not ahead.expect(compared_tasks(versions[1])), "its rows are there"
    ahead.release(1)
    assert ahead.expect(compared_tasks(versions[3])) is False


def test_nothing_is_expected_of_files_without_vectors(file: Path) -> None:
    (version,) = plans(file, [range(5)])
    whole = replace(version, tasks=(replace(version.tasks[0], include=None),))
    assert not ahead_of([]).expect(compared_tasks(whole))


def outcome(ahead: DecodedFiles | None, each: ChangeTask) -> Seen | str:
    try:
        return seen(execute(each) if ahead is None else ahead.read(each))
    except TailerError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("group", range(3))
def test_damage_stops_the_versions_that_read_it_alone(file: Path, group: int) -> None:
    """Also rows before the damage are those that each version has by itself."""
    content = bytearray(file.read_bytes())
    at = len(content) * (2 * group + 1) // 6
    content[at : at + 4] = bytes(byte ^ 0xFF for byte in content[at : at + 4])
    file.write_bytes(content)
    versions = plans(file)
    ahead = ahead_of(versions)
    found = [outcome(ahead, each) for each in tasks_of(versions)]
    assert found == [outcome(None, each) for each in tasks_of(versions)]
    assert any(isinstance(each, str) for each in found)


def test_a_damaged_vector_stops_its_own_versions(file: Path) -> None:
    versions = plans(file)
    (gone, *_) = versions[3].tasks
    assert gone.include is not None
    broken = replace(gone.include, cardinality=gone.include.cardinality + 1)
    versions[3] = replace(versions[3], tasks=(replace(gone, include=broken),))
    ahead = ahead_of(versions)
    found = [outcome(ahead, each) for each in tasks_of(versions)]
    assert found == [outcome(None, each) for each in tasks_of(versions)]
    assert [isinstance(each, str) for each in found].count(True) == 1


def test_a_reader_that_gives_up_frees_the_file(file: Path) -> None:
    versions = plans(file)
    ahead = ahead_of(versions)
    batches = ahead.read(versions[2].tasks[0])
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    rest = tasks_of([*versions[:2], *versions[3:]])
    assert [seen(ahead.read(each)) for each in rest] == [seen(execute(each)) for each in rest]


def write_vectors(table: Path, vectors: Sequence[range], are_updates: bool = False) -> None:
    """Write a table whose versions from 1 on delete rows of its first file, or update them into a file of their own."""
    rows = pa.table({"id": range(ROWS), "v": ["v" * 40] * ROWS}, schema=SCHEMA)
    size = parquet(table / "a.parquet", rows, row_group_size=GROUP, use_dictionary=False).stat().st_size
    enabled = {"delta.enableDeletionVectors": "true"}
    first = [protocol(3, ["deletionVectors"]), metadata(schema_string(id="long", v="string"), **enabled)]
    write_commit(table, 0, *first, add("a.parquet", size=size))
    before = None
    for version, rows_gone in enumerate(vectors, 1):
        after = inline_vector(rows_gone)
        changes = [remove("a.parquet", before, size=size), add("a.parquet", after, size=size)]
        if are_updates:
            new = sorted(set(rows_gone).difference(vectors[version - 2] if version > 1 else ()))
            name, rows = f"{version}.parquet", pa.table({"id": new, "v": ["w"] * len(new)}, schema=SCHEMA)
            changes.append(add(name, size=parquet(table / name, rows).stat().st_size))
        write_commit(table, version, *changes)
        before = after


def test_versions_of_a_backlog_decode_a_file_once(
    tmp_path: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_ahead, "_MOST_LATER_S", 60)
    vectors = [range(0, 9_000 * version, 9) for version in range(1, 11)]
    write_vectors(tmp_path / "t", vectors)
    found: dict[int, list[int]] = {}
    for batch in tailer.changes(str(tmp_path / "t"), start=1):
        for version, number in zip(batch["_commit_version"].to_pylist(), batch["id"].to_pylist(), strict=True):
            found.setdefault(version, []).append(number)
    gone = [sorted(set(after) - set(before)) for before, after in zip([range(0), *vectors], vectors, strict=False)]
    assert found == dict(enumerate(gone, 1))
    assert len(decoded) <= 6, "three row groups for the first version, and for all others"


def test_a_damaged_version_of_a_backlog_stops_after_the_rows_before_it(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_vectors(table, [range(0, 9_000 * version, 9) for version in range(1, 11)])
    sixth = table / "_delta_log" / f"{6:020d}.json"
    sixth.write_text(sixth.read_text().replace("6000", "6001"))
    versions: list[int] = []
    with pytest.raises(DataCorrupt, match="6001"):
        versions.extend(
            version for batch in tailer.changes(str(table), start=1) for version in batch["_commit_version"].to_pylist()
        )
    assert versions == [version for version in range(1, 6) for _ in range(1000)]


def test_rows_in_memory_beside_a_file_that_is_too_large_for_it(
    tmp_path: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marked rows of all versions are decoded once for their comparison and delivery, which reads added files."""
    monkeypatch.setattr(look_ahead, "_MOST_LATER_S", 60)
    monkeypatch.setattr(decoded_files, "_SMALL_FILE_BYTES", 0)
    vectors = [range(0, 9_000 * version, 9) for version in range(1, 11)]
    write_vectors(tmp_path / "t", vectors, are_updates=True)
    found = [
        (row["_commit_version"], row["_change_type"], row["v"][0], row["id"])
        for batch in tailer.changes(str(tmp_path / "t"), start=1)
        for row in batch.to_pylist()
    ]
    gone = [sorted(set(after).difference(before)) for before, after in pairwise([range(0), *vectors])]
    images = (("delete", "v"), ("insert", "w"))
    assert found == [
        (version, *image, number) for version, ids in enumerate(gone, 1) for image in images for number in ids
    ]
    assert [group for group in decoded if group] == [1, 2], "of the large file"
