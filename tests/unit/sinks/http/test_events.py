"""Events of the `http` sink: an id for each, the same however rows are divided, and images of updates together."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.errors import SinkRejected
from tailer.events import METADATA_FIELDS, ChangeBatch
from tailer_sinks.http.events import CloudEvents, EventEncoder, FlatEvents, Place
from tailer_sinks.testing import change_batch
from tailer_sinks.testing.announcements import change, gap
from tailer_sinks.testing.rows import numbered

ENCODERS: Final = (FlatEvents, CloudEvents)
IMAGES: Final = ("update_preimage", "update_postimage")


def encoded(encoder: EventEncoder, *steps: Sequence[ChangeBatch]) -> list[tuple[Place, dict[str, Any]]]:
    """Return the events of batches, with their places, and those that are held back at the end."""
    found = [events for step in steps for events in encoder.encode(step)]
    rest = encoder.flush()
    found += [] if rest is None else [rest]
    return [
        (place, json.loads(text)) for events in found for place, text in zip(events.places, events.texts, strict=True)
    ]


def updates(version: int, rows: int, task: int = 0) -> ChangeBatch:
    """Return rows of updates, each preimage before its postimage."""
    batch = numbered(version, rows, task)
    kinds = pa.array([IMAGES[row % 2] for row in range(rows)])
    at = batch.rows.schema.get_field_index(METADATA_FIELDS[0].name)
    changed = batch.rows.set_column(at, METADATA_FIELDS[0], kinds)
    return ChangeBatch(batch.table_id, version, task, changed, batch.row_index)


def test_flat_rows_have_an_id() -> None:
    (place, event), *_ = encoded(FlatEvents("orders"), [numbered(5, rows=2)])
    assert place == (5, 0, 0)
    assert event == {
        "id": 5_000_000,
        "name": None,
        "_change_type": "insert",
        "_commit_version": 5,
        "_commit_timestamp": "2026-03-01T12:00:00.000005Z",
        "_event_id": "orders;table;5;0;0;insert",
    }


def test_cloudevents_are_those_of_kafka() -> None:
    (place, event), *_ = encoded(CloudEvents("orders"), [numbered(5, rows=2)])
    assert place == (5, 0, 0)
    assert event == {
        "specversion": "1.0",
        "id": "orders;table;5;0;0;c",
        "source": "/lake-tailer/orders",
        "type": "io.debezium.connector.delta.DataChangeEvent",
        "time": "2026-03-01T12:00:00.000005Z",
        "datacontenttype": "application/json",
        "data": {"before": None, "after": {"id": 5_000_000, "name": None}},
    }


@pytest.mark.parametrize("kind", ENCODERS)
def test_events_do_not_depend_on_how_rows_are_divided(kind: type[EventEncoder]) -> None:
    batches = [updates(1, 40), updates(1, 6, task=1), numbered(2, rows=9), updates(3, 2)]
    whole = encoded(kind("orders"), *([batch] for batch in batches))
    pieces = [batch.slice(at, 1) for batch in batches for at in range(len(batch))]
    assert encoded(kind("orders"), *([piece] for piece in pieces)) == whole
    assert encoded(kind("orders"), pieces) == whole
    ids = [event.get("_event_id") or event["id"] for _, event in whole]
    assert len(set(ids)) == len(ids)
    assert len(ids) == (57 if kind is FlatEvents else 20 + 3 + 9 + 1)
    assert [place for place, _ in whole] == sorted(place for place, _ in whole)


def test_images_that_are_held_back_can_be_forgotten() -> None:
    encoder = CloudEvents("orders")
    batch = updates(1, 4)
    assert encoded(encoder, []) == []
    assert [len(events) for events in encoder.encode([batch.slice(0, 3)])] == [1]
    encoder.forget()
    again = encoded(encoder, [batch])
    assert [event["id"] for _, event in again] == ["orders;table;1;0;1;u", "orders;table;1;0;3;u"]


def test_a_large_batch_is_encoded_in_parts() -> None:
    batch = numbered(1, rows=30_000)
    parts = list(FlatEvents("orders").encode([batch]))
    assert len(parts) > 1
    assert [place for part in parts for place in part.places] == [(1, 0, row) for row in range(30_000)]


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("event", [change(5), gap(3, 5)])
def test_control_events_have_an_id(kind: type[EventEncoder], event: Any) -> None:
    events = kind("orders").control(event)
    assert list(events.places) == [(5, event.kind)]
    (found,) = map(json.loads, events.texts)
    if kind is CloudEvents:
        assert (found["type"], found["id"]) == (f"lake_tailer.{event.kind}", f"orders;table;5;{event.kind}")
        assert found["time"] == found["data"]["_commit_timestamp"]
        assert found["data"]["_change_type"] == event.kind
    else:
        assert (found["_change_type"], found["_event_id"]) == (event.kind, f"orders;table;5;{event.kind}")


@pytest.mark.parametrize("kind", ENCODERS)
def test_snapshots_that_were_asked_for_at_one_version_have_gaps_of_their_own(kind: type[EventEncoder]) -> None:
    """A receiver that drops the second gap as known would have the rows twice."""
    ids = set()
    for command in (None, "20260301T115001-1f3a5c7e", "20260301T115002-1f3a5c7e"):
        (found,) = map(json.loads, kind("orders").control(replace(gap(5, 5, snapshot=True), command=command)).texts)
        ids.add(found["id" if kind is CloudEvents else "_event_id"])
    gap_id = "orders;table;5;gap"
    assert ids == {gap_id, f"{gap_id};20260301T115001-1f3a5c7e", f"{gap_id};20260301T115002-1f3a5c7e"}


def test_a_column_with_the_name_of_the_id_is_refused() -> None:
    batch = change_batch(1, {"_event_id": pa.array(["a"])})
    with pytest.raises(SinkRejected, match="_event_id") as raised:
        encoded(FlatEvents("orders"), [batch])
    assert "AS event_id" in raised.value.hint
    assert encoded(CloudEvents("orders"), [batch])
