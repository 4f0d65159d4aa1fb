"""The rules of the change feed for one commit: the files to read, their rows, and the order."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tailer.errors import ChangesUnavailable, ConfigError, FileOutsideTable, LogCorrupt, UnsupportedFeature
from tailer.formats.delta.changes import plan_changes, plan_snapshot
from tailer.formats.delta.log.actions import parse_commit
from tailer.formats.delta.log.paths import locate
from tailer.formats.delta.snapshot import Snapshot
from tailer.plan import SNAPSHOT_TASKS, ChangePlan, ChangeTask, DeletionVectorRef, Regime, RowTracking, TaskKind
from tailer.stores.location import parse_location
from tests.support.cases import cases
from tests.support.tables.log_files import (
    add,
    cdc,
    commit_info,
    inline_vector,
    marked,
    metadata,
    protocol,
    remove,
    schema_string,
)

SCHEMA = schema_string(a="long", p="string")
A, R = [1, 2], [2, 3]


def state(*partitioned_by: str, schema: str = SCHEMA) -> Snapshot:
    head = [json.dumps(action) for action in (protocol(), metadata(schema, partitioned_by))]
    commit = parse_commit("\n".join(head).encode(), "t", "0.json", 0, 1)
    return Snapshot.begin("t", 0, commit.protocol, commit.metadata, [1])


def plan(*actions: dict[str, Any], before: Snapshot | None = None, roots: tuple[str, ...] = ()) -> ChangePlan:
    lines = [json.dumps(action) for action in (*actions, commit_info(operation="TEST"))]
    commit = parse_commit("\n".join(lines).encode(), "t", "1.json", 1, 2)
    before = before or state()
    return plan_changes(commit, before, before.advance(commit), "/lake", roots)


def rows(vector: DeletionVectorRef | None) -> list[int] | None:
    return None if vector is None else next(rows for rows in (A, R) if marked(rows) == vector)


def summary(plan: ChangePlan) -> list[tuple[str, str, Any, Any]]:
    return [(task.kind.value, task.uri, rows(task.include), rows(task.exclude)) for task in plan.tasks]


def vector(rows: list[int] | None) -> dict[str, Any] | None:
    return None if rows is None else inline_vector(rows)


NONE = "none"


@cases(
    ("removed", "added", "deleted_rows", "inserted_rows"),
    [
        (None, NONE, (None, None), None),
        (R, NONE, (None, R), None),
        (NONE, None, None, (None, None)),
        (NONE, A, None, (None, A)),
        (None, A, (A, None), None),
        (R, None, None, (R, None)),
        (R, A, (A, R), (R, A)),
        (None, None, None, None),
        (A, A, None, None),
    ],
)
def test_one_file_before_and_after(removed: Any, added: Any, deleted_rows: Any, inserted_rows: Any) -> None:
    """Both actions have the same path; (include, exclude) are the vectors that select the rows of the file."""
    actions = [] if added == NONE else [add("f", vector(added))]
    actions += [] if removed == NONE else [remove("f", vector(removed))]
    expected = [("delete", "/lake/f", *deleted_rows)] if deleted_rows else []
    expected += [("insert", "/lake/f", *inserted_rows)] if inserted_rows else []
    assert summary(plan(*actions)) == summary(plan(*reversed(actions))) == expected


def test_a_vector_of_no_rows_is_none() -> None:
    empty = inline_vector([]) | {"pathOrInlineDv": "not even read"}
    assert summary(plan(add("f", empty), remove("f"))) == []
    assert summary(plan(add("f", empty))) == [("insert", "/lake/f", None, None)]


def test_deletes_before_inserts_each_in_the_order_of_the_log() -> None:
    found = plan(add("c"), remove("b"), add("a"), remove("d"), add("b", vector(A)))
    kinds = [(task.index, task.kind.value, task.uri[-1]) for task in found.tasks]
    assert kinds == [(0, "delete", "b"), (1, "delete", "d"), (2, "insert", "c"), (3, "insert", "a")]
    assert found.regime is Regime.FILES


def test_change_files_are_the_only_source_of_changes() -> None:
    found = plan(cdc("_change_data/x"), add("f"), remove("g"), cdc("y"))
    assert [(task.kind, task.uri) for task in found.tasks] == [
        (TaskKind.CDC_DELETES, "/lake/_change_data/x"),
        (TaskKind.CDC_DELETES, "/lake/y"),
        (TaskKind.CDC_OTHERS, "/lake/_change_data/x"),
        (TaskKind.CDC_OTHERS, "/lake/y"),
    ]
    assert found.regime is Regime.CDC


@pytest.mark.parametrize(
    "actions",
    [
        [],
        [{"txn": {"appId": "a", "version": 1}}],
        [add("f", data_change=False), remove("g", data_change=False)],
        [add("f", vector(A), data_change=False), remove("f", data_change=False)],
        [metadata(SCHEMA, **{"delta.enableChangeDataFeed": "true"})],
    ],
)
def test_commits_that_change_no_row(actions: list[dict[str, Any]]) -> None:
    found = plan(*actions)
    assert (found.tasks, found.regime, found.operation) == ((), Regime.NONE, "TEST")


@cases(
    ("metrics", "skipped"),
    [
        ({"numTargetRowsInserted": "0", "numTargetRowsUpdated": "0", "numTargetRowsDeleted": "0"}, True),
        ({"numTargetRowsInserted": "0", "numTargetRowsUpdated": "0", "numTargetRowsDeleted": "1"}, False),
        ({"numTargetRowsInserted": "0", "numTargetRowsUpdated": "0"}, False),
        ({"numTargetRowsInserted": 0, "numTargetRowsUpdated": 0, "numTargetRowsDeleted": 0}, False),
        ({}, False),
        (None, False),
        ("text", False),
    ],
)
def test_a_merge_that_changed_nothing(metrics: Any, skipped: bool) -> None:
    def planned(operation: Any, *, compare: bool = False) -> int:
        info = json.dumps(commit_info(operation=operation, operationMetrics=metrics))
        files = [json.dumps(action) for action in (add("f"), remove("g"))]
        commit = parse_commit("\n".join([info, *files]).encode(), "t", "1.json", 1, 2)
        return len(plan_changes(commit, state(), state().advance(commit), "/lake", compare=compare).tasks)

    assert planned("MERGE") == (0 if skipped else 2)
    assert planned("WRITE") == 2
    assert planned(["MERGE"]) == 2
    assert planned("MERGE", compare=True) == 2, "what the writer says is not believed there"


@pytest.mark.parametrize(
    "actions",
    [
        [add("f"), add("f", vector(A))],
        [remove("f", vector(A)), remove("f", vector(A))],
        [cdc("f"), cdc("f")],
        [add("f", inline_vector(A) | {"storageType": "u", "pathOrInlineDv": "short"})],
    ],
)
def test_actions_that_violate_the_protocol(actions: list[dict[str, Any]]) -> None:
    with pytest.raises(LogCorrupt) as caught:
        plan(*actions)
    assert caught.value.version == 1


def test_a_vector_of_a_newer_form_asks_for_an_upgrade() -> None:
    with pytest.raises(UnsupportedFeature, match="version 1 needs deletion vectors of storage type 'r'") as caught:
        plan(add("f", inline_vector(A) | {"storageType": "r"}))
    assert caught.value.hint.startswith("Upgrade lake-tailer")


def test_names_of_other_columns_unless_all_rows_go() -> None:
    """REPLACE TABLE removes all rows, and so does a write that overwrites all of them; an ALTER TABLE does not."""

    def mapped(stored: str, table_id: str = "id") -> dict[str, Any]:
        metadata_of = {"delta.columnMapping.physicalName": stored}
        fields = [{"name": "a", "type": "long", "nullable": True, "metadata": metadata_of}]
        text = json.dumps({"type": "struct", "fields": fields})
        return metadata(text, table_id=table_id, **{"delta.columnMapping.mode": "name"})

    def names(*actions: dict[str, Any], operation: str = "ALTER", **written: Any) -> tuple[tuple[str, ...], ...]:
        head = parse_commit("\n".join(map(json.dumps, (protocol(2), mapped("a1")))).encode(), "t", "0.json", 0, 1)
        before = Snapshot.begin("t", 0, head.protocol, head.metadata, [1])
        parameters = {"mode": "Overwrite", "partitionBy": "[]", **written}
        lines = map(json.dumps, (*actions, commit_info(operation=operation, operationParameters=parameters)))
        commit = parse_commit("\n".join(lines).encode(), "t", "1.json", 1, 2)
        return plan_changes(commit, before, before.advance(commit), "/lake").replaced

    assert names(mapped("a2")) == (("a",),)
    assert names(mapped("a1")) == ()
    assert names(mapped("a2"), operation="WRITE") == (("a",),)
    assert names(mapped("a2"), remove("f"), add("g")) == (("a",),)
    assert names(mapped("a2"), remove("f"), add("g"), operation="WRITE") == ()
    assert names(mapped("a2"), remove("f"), add("g"), operation="WRITE", canOverwriteSchema=True, predicate=None) == ()
    for part in ({"predicate": "p = 2"}, {"isDynamicPartitionOverwrite": True}, {"replaceUsingCols": "(id)"}):
        assert names(mapped("a2"), remove("f"), add("g"), operation="WRITE", **part) == (("a",),)
    assert names(mapped("a2", table_id="another"), remove("f")) == ()


def test_errors_about_partition_values_name_columns_as_users_do() -> None:
    def begun(*partitions: str) -> Snapshot:
        stored = {name: {"delta.columnMapping.physicalName": f"col-{name}"} for name in ("a", "p")}
        fields = [{"name": name, "type": "long", "nullable": True, "metadata": each} for name, each in stored.items()]
        text = json.dumps({"type": "struct", "fields": fields})
        described = metadata(text, partitions, **{"delta.columnMapping.mode": "name"})
        head = parse_commit("\n".join(map(json.dumps, (protocol(2), described))).encode(), "t", "0.json", 0, 1)
        return Snapshot.begin("t", 0, head.protocol, head.metadata, [1])

    def planned(before: Snapshot, *actions: dict[str, Any]) -> None:
        commit = parse_commit("\n".join(map(json.dumps, actions)).encode(), "t", "1.json", 1, 2)
        plan_changes(commit, before, before.advance(commit), "/lake")

    with pytest.raises(ChangesUnavailable, match="remove of f has no value of p, and"):
        planned(begun("p"), remove("f"))
    with pytest.raises(LogCorrupt, match="f has a value for a, which is not a partition column"):
        planned(begun("p"), add("f", partitionValues={"col-p": "1", "col-a": "1"}))


def test_one_path_twice_but_once_with_a_change() -> None:
    assert summary(plan(add("f", vector(A)), add("f", data_change=False))) == [("insert", "/lake/f", None, A)]
    # Actions are paired by the path as written: another spelling is another file, deleted and inserted in full.
    assert [kind for kind, *_ in summary(plan(add("a b", vector(A)), remove("a%20b")))] == ["delete", "insert"]


@pytest.mark.parametrize(("first", "second"), [(R, A), (A, R)])
def test_of_two_removes_of_a_path_the_first_goes_with_the_add(first: list[int], second: list[int]) -> None:
    found = plan(remove("f", vector(first)), remove("f", vector(second)), add("f"))
    assert summary(found) == [("delete", "/lake/f", None, second), ("insert", "/lake/f", first, None)]


@pytest.mark.parametrize("action", [add("f"), cdc("f")])
def test_a_partition_value_that_is_left_out_is_null(action: dict[str, Any]) -> None:
    for task in plan(action, before=state("p")).tasks:
        assert dict(task.partition_values)["p"] is None


def test_a_value_for_what_is_no_partition_column_is_refused() -> None:
    with pytest.raises(LogCorrupt, match="f has a value for other, which is not a partition column"):
        plan(add("f", partitionValues={"other": "1"}), before=state("p"))


@pytest.mark.parametrize(("values", "missing"), [(None, "a"), ({}, "a"), ({"a": "1"}, "p")])
def test_a_removed_file_of_which_a_partition_value_is_not_known(values: dict[str, str] | None, missing: str) -> None:
    with pytest.raises(ChangesUnavailable, match=f"remove of f has no value of {missing}, and no add of it is in"):
        plan(remove("f", partitionValues=values), before=state("a", "p"))


def test_partition_values_come_from_the_action() -> None:
    found = plan(add("p=9/f", partitionValues={"p": None}), remove("g", partitionValues={"p": ""}), before=state("p"))
    assert [task.partition_values for task in found.tasks] == [(("p", ""),), (("p", None),)]
    assert plan(remove("f", partitionValues=None)).tasks[0].partition_values == ()


def test_a_file_written_before_its_table_was_partitioned() -> None:
    found = plan(metadata(SCHEMA, ["p"]), remove("f"), add("g", partitionValues={"p": "1"}))
    assert [task.partition_values for task in found.tasks] == [(), (("p", "1"),)]


def test_deleted_rows_have_the_schema_of_before_and_others_that_of_after() -> None:
    found = plan(metadata(schema_string(a="string", q="date")), add("g"), remove("f"), before=state())
    assert [(task.kind, task.schema.names) for task in found.tasks] == [
        (TaskKind.DELETE, state().schema.names),
        (TaskKind.INSERT, ["a", "q"]),
    ]
    assert found.schema.names == ["a", "q"]
    again = plan(metadata(schema_string(a="string", q="date")), add("f", vector(A)), remove("f", vector(R)))
    assert [task.schema.names for task in again.tasks] == [state().schema.names, ["a", "q"]]


def test_change_files_have_the_schema_of_after_and_must_not_have_lost_a_column() -> None:
    wider = plan(metadata(schema_string(a="long", p="string", q="string")), cdc("f"))
    assert [task.schema.names for task in wider.tasks] == [["a", "p", "q"]] * 2
    with pytest.raises(ChangesUnavailable, match="drops column p, which its change files may still have") as caught:
        plan(metadata(schema_string(a="long", q="string")), cdc("f"))
    assert caught.value.version == 1


def test_removed_files_have_the_partitioning_of_before() -> None:
    repartitioned = metadata(schema_string(a="long", p="string"), ["a"])
    gone = remove("f", partitionValues={"p": None})
    found = plan(repartitioned, gone, add("g", partitionValues={"a": "1"}), before=state("p"))
    assert [task.partition_values for task in found.tasks] == [(("p", None),), (("a", "1"),)]


def test_another_table_from_this_version_on() -> None:
    found = plan(metadata(table_id="other"), remove("f"), add("g"))
    assert found.table_id == "other"
    assert {task.table_id for task in found.tasks} == {"other"}


@pytest.mark.parametrize("enabled", [True, False])
def test_row_tracking_of_files(enabled: bool) -> None:
    properties = {
        "delta.enableRowTracking": str(enabled).lower(),
        "delta.rowTracking.materializedRowIdColumnName": "_id",
        "delta.rowTracking.materializedRowCommitVersionColumnName": "_version",
    }
    tracked: dict[str, Any] = {"baseRowId": 100, "defaultRowCommitVersion": 7}
    found = plan(metadata(SCHEMA, **properties), remove("f", **tracked), add("g", **tracked))
    expected = RowTracking(100, 7, "_id", "_version") if enabled else None
    assert [task.tracking for task in found.tasks] == [None, expected]
    assert all(task.tracking is None for task in plan(metadata(SCHEMA, **properties), cdc("f")).tasks)


def test_the_feed_is_visible_in_the_plan() -> None:
    on = plan(metadata(SCHEMA, **{"delta.enableChangeDataFeed": "true"}), add("f"), remove("g"))
    off = plan(metadata(SCHEMA, **{"delta.enableChangeDataFeed": "false"}), add("f"), remove("g"))
    assert [(found.feed, found.regime) for found in (on, off)] == [(True, Regime.FILES), (False, Regime.FILES)]


@cases(
    ("path", "uri"),
    [
        ("f", "/lake/f"),
        ("a%20b+c/x%2525", "/lake/a b+c/x%25"),
        ("p=é/%C3%A9", "/lake/p=é/é"),
        ("p=x%3Ay/f", "/lake/p=x:y/f"),
        ("p=q#?&/f", "/lake/p=q#?&/f"),
        ("/abs/a%20b", "/abs/a b"),
        ("file:/abs/a%20b", "/abs/a b"),
        ("file:///abs/f", "/abs/f"),
        ("file://localhost/abs/a%20b", "/abs/a b"),
        ("FILE:///abs/f", "/abs/f"),
        ("File://LocalHost/abs/f", "/abs/f"),
        ("file://elsewhere/abs/f", "file://elsewhere/abs/f"),
        ("file:f.parquet", "/lake/file:f.parquet"),
        ("s3://bucket/a%20b", "s3://bucket/a b"),
        ("s3a://bucket/x/../a%2520b", "s3://bucket/a%20b"),
        ("S3A:/bucket/f", "S3A:/bucket/f"),
        ("gs://bucket/x/../a%20b", "gs://bucket/a b"),
        ("abfs://c@Shop.dfs.core.windows.net/a%2520b", "abfss://c@shop.dfs.core.windows.net/a%20b"),
        ("anything://bucket/f", "anything://bucket/f"),
        ("1:f", "/lake/1:f"),
        ("x:y.parquet", "/lake/x:y.parquet"),
        ("x:/y.parquet", "/lake/x:/y.parquet"),
        ("p=x:y/f", "/lake/p=x:y/f"),
        ("s3:f", "/lake/s3:f"),
        ("file%3A///f", "/lake/file:///f"),
        ("a/../b/./f", "/lake/b/f"),
        ("./f", "/lake/f"),
        ("../f", "/f"),
        ("a/../../other/f", "/other/f"),
        ("a..b/...", "/lake/a..b/..."),
        ("/abs/../f", "/f"),
        ("/../f", "/f"),
        ("file:///abs/../f", "/f"),
    ],
)
def test_resolution_of_paths(path: str, uri: str) -> None:
    assert locate(path, "/lake") == uri
    roots = (uri.rpartition("/")[0],)
    assert plan(add(path), roots=roots).tasks[0].uri == uri
    assert plan(cdc(path), roots=roots).tasks[0].uri == uri
    vector = {"storageType": "p", "pathOrInlineDv": path, "offset": 1, "sizeInBytes": 36, "cardinality": 2}
    (task,) = plan(add("f", vector), roots=roots).tasks
    assert task.exclude is not None
    assert task.exclude.uri == uri


@cases(
    ("path", "location"),
    [
        ("/lakes/f", "/lakes/f"),
        ("../other/f", "/other/f"),
        ("a/../../lak/f", "/lak/f"),
        ("..%2fother/f", "/other/f"),
        ("a/%2e%2e/%2E./other/f", "/other/f"),
        ("file:///lake/%2e%2e/etc/f", "/etc/f"),
        ("/lake/%2e%2e/etc/f", "/etc/f"),
        ("s3a://raw/clone/%2e%2e/f", "s3://raw/f"),
        ("file:///etc/passwd", "/etc/passwd"),
        ("file:///lake/../etc/f", "/etc/f"),
        ("/origin2/f", "/origin2/f"),
        ("s3a://raw/clone", "s3://raw/clone"),
        ("s3://raw/clone/../f", "s3://raw/f"),
        ("s3://raw/clones/f", "s3://raw/clones/f"),
    ],
)
def test_a_file_outside_of_the_allowed_folders_is_refused(path: str, location: str) -> None:
    roots = ("/origin", "s3://raw/clone")
    vector = {"storageType": "p", "pathOrInlineDv": path, "offset": 1, "sizeInBytes": 36, "cardinality": 2}
    for action in (add(path), remove(path), cdc(path), add("f", vector)):
        with pytest.raises(FileOutsideTable) as caught:
            plan(action, roots=roots)
        assert (caught.value.version, caught.value.path) == (1, location)
        assert "add its folder to allowed_roots" in caught.value.hint
    assert plan(add("/origin/f"), add("s3a://raw/clone/f"), roots=roots).size_bytes >= 0


@pytest.mark.parametrize("scheme", ["hdfs", "http", "dbfs", "custom+x"])
def test_a_file_that_cannot_be_read_at_all_is_not_to_be_allowed(scheme: str) -> None:
    path = f"{scheme}://raw/clone/f"
    with pytest.raises(FileOutsideTable, match=re.escape(path)) as caught:
        plan(add(path), roots=("/origin",))
    assert f"cannot read {scheme} locations" in caught.value.hint
    with pytest.raises(ConfigError):
        parse_location(path, Path("/"), "allowed_roots")


def test_a_snapshot_has_no_files_outside_of_the_allowed_folders() -> None:
    commit = parse_commit(json.dumps(add("/origin/f")).encode(), "t", "1.json", 1, 2)
    assert len(plan_snapshot(commit.adds, 0, state(), "/lake", ("/origin",)).tasks) == 1
    with pytest.raises(FileOutsideTable):
        plan_snapshot(commit.adds, 0, state(), "/lake")


@cases("path", ["", ".", "..", "a/", "a/..", "%2e", "a/%2E%2E", "../..", "/", "file:///lake/"])
def test_a_path_that_names_no_file_is_refused(path: str) -> None:
    with pytest.raises(LogCorrupt, match=f"_delta_log/.*json.*path {path!r}: it does not name a file"):
        plan(add(path))


def test_a_task_is_self_contained() -> None:
    (task,) = plan(add("f", inline_vector(A), size=77, partitionValues={"p": "x"}), before=state("p")).tasks
    assert task == ChangeTask(
        "t", "id", 1, 2, 0, TaskKind.INSERT, "/lake/f", 77, state().schema, (("p", "x"),), None, marked(A)
    )


def test_pages_of_a_snapshot_are_numbered_on() -> None:
    actions = [add("a", inline_vector(A)), add("b", size=5)]
    files = [parse_commit(json.dumps(action).encode(), "t", "p", 0, 0).adds[0] for action in actions]
    for first in (0, 4096):
        found = plan_snapshot(files, first, state(), "/lake")
        assert found.regime is Regime.SNAPSHOT
        assert [(task.index - SNAPSHOT_TASKS, task.uri[-1], rows(task.exclude)) for task in found.tasks] == [
            (first, "a", A),
            (first + 1, "b", None),
        ]
