"""Plans survive pickling, JSON and a selection of columns; positions are ordered and readable."""

import json
import pickle
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.errors import ConfigError
from tailer.events import METADATA_FIELDS
from tailer.plan import (
    END,
    SNAPSHOT_TASKS,
    ChangePlan,
    ChangeTask,
    DeletionVectorRef,
    Position,
    Refinement,
    Regime,
    RowTracking,
    TaskKind,
    output_schema,
)
from tailer.schema.columns import FIELD_ID, PHYSICAL_NAME
from tailer.start import Start, StartKind
from tests.support.cases import cases

INNER = pa.field("x", pa.int64(), metadata={PHYSICAL_NAME: b"p2", FIELD_ID: b"2"})
SCHEMA = pa.schema(
    [
        pa.field("s", pa.list_(pa.field("element", pa.struct([INNER]))), metadata={PHYSICAL_NAME: b"p1"}),
        pa.field("a.`b`", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("v", pa.null()),
    ]
)


def a_task(index: int) -> ChangeTask:
    return ChangeTask(
        "/t",
        "id",
        3,
        -1,
        index,
        TaskKind.DELETE,
        "/t/é %25",
        77,
        SCHEMA,
        (("p", ""), ("q", None)),
        DeletionVectorRef(None, "0rJua", None, 4, 1),
        DeletionVectorRef("/t/v.bin", None, 1, 34, 2),
    )


PLAN = ChangePlan("/t", "id", 3, -1, "MERGE", Regime.FILES, SCHEMA, (a_task(0), a_task(1)))


@cases(
    "refinement",
    [
        None,
        Refinement(),
        Refinement(exactly=True),
        Refinement(dropped=DeletionVectorRef("/tmp/rows", None, 1, 34, 2)),
        Refinement(updated=DeletionVectorRef(None, "0rJua", None, 4, 1)),
        Refinement(
            DeletionVectorRef("/tmp/rows", None, 1, 34, 2),
            DeletionVectorRef("/tmp/rows", None, 43, 34, 3),
            exactly=True,
        ),
    ],
)
def test_a_refined_task_survives_its_journeys(refinement: Refinement | None) -> None:
    task = replace(a_task(0), refinement=refinement, tracking=RowTracking(5, None, "rid"))
    for again in (pickle.loads(pickle.dumps(task)), ChangeTask.from_dict(json.loads(json.dumps(task.to_dict())))):
        assert (again, again.refinement) == (task, refinement)
    plan = replace(PLAN, tasks=(task, a_task(1)), feed=True)
    assert ChangePlan.from_json(plan.to_json()) == plan
    assert [each.refinement for each in plan.select(["v"]).with_row_ids().tasks] == [refinement, None]


def test_positions_in_texts() -> None:
    assert str(Position.end(3)) == "the end of version 3"
    assert str(Position.opening(3)) == "the beginning of version 3"
    assert str(Position(3, 2, 7)) == "row 7 of task 2 of version 3"
    assert str(Position.opening(3, snapshot=True)) == "the beginning of the snapshot of version 3"
    assert str(Position(3, SNAPSHOT_TASKS + 2, 7)) == "row 7 of task 2 of the snapshot of version 3"


def test_the_size_of_a_plan() -> None:
    assert PLAN.size_bytes == 154


def test_some_of_the_columns() -> None:
    some = PLAN.select(["v", "s"])
    assert some.schema.names == ["v", "s"]
    assert [(task.index, task.schema) for task in some.tasks] == [(0, some.schema), (1, some.schema)]
    assert replace(some, schema=SCHEMA, tasks=PLAN.tasks) == PLAN
    with pytest.raises(ConfigError, match="no column 'x'") as caught:
        PLAN.select(["s", "x"])
    assert "a.`b`" in caught.value.hint


def test_schema_of_change_rows() -> None:
    found = output_schema(SCHEMA)
    assert found.names == [*SCHEMA.names, *(field.name for field in METADATA_FIELDS)]
    assert all(not field.metadata for field in found)


def test_positions_are_ordered_as_rows_are_delivered() -> None:
    ascending = [
        Position.end(2),
        Position(3, 0, 0),
        Position(3, 0, 1),
        Position(3, 0),
        Position(3, 1, 0),
        Position(3, SNAPSHOT_TASKS, 0),
        Position.end(3),
        Position(4, 0, 0),
    ]
    assert sorted(ascending, reverse=True) == ascending[::-1]
    assert [position.closes_version for position in ascending] == [True, *[False] * 5, True, False]
    assert [position.in_snapshot for position in ascending] == [*[False] * 5, True, False, False]
    assert Position.end(3) == Position(3, END, END)


@cases(
    ("text", "start"),
    [
        ("earliest", Start(StartKind.EARLIEST)),
        ("latest", Start(StartKind.LATEST)),
        ("snapshot", Start(StartKind.SNAPSHOT)),
        ("0", Start(StartKind.VERSION, 0)),
        ("0012", Start(StartKind.VERSION, 12)),
        ("20260301", Start(StartKind.VERSION, 20_260_301)),
        ("1970-01-01", Start(StartKind.TIMESTAMP, 0)),
        ("1970-01-01T00:00:01", Start(StartKind.TIMESTAMP, 1000)),
        ("1970-01-01T01:00:01+01:00", Start(StartKind.TIMESTAMP, 1000)),
        ("1969-12-31T23:59:59.999Z", Start(StartKind.TIMESTAMP, -1)),
        ("0001-01-01T00:00:00Z", Start(StartKind.TIMESTAMP, -62_135_596_800_000)),
    ],
)
def test_places_in_a_history(text: str, start: Start) -> None:
    assert Start.parse(text) == start


@cases(
    "text",
    [
        "",
        "-1",
        "1.5",
        "Latest",
        "yesterday",
        "\N{SUPERSCRIPT TWO}",
        "9" * 5000,
        "2026-02-30",
        "0001-01-01T00:00:00+01:00",
    ],
)
def test_invalid_starts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Start.parse(text, "--from")
    assert caught.value.where == "--from"


@given(st.integers(0, 253_402_300_799_999))
def test_a_moment_is_exact_to_the_millisecond(moment_ms: int) -> None:
    text = pa.scalar(moment_ms, pa.timestamp("ms")).cast(pa.string()).as_py()
    assert Start.parse(text) == Start(StartKind.TIMESTAMP, moment_ms)
