"""The memory sink keeps batches and events in one order, and nothing of an aborted transaction."""

import pytest

from tailer_sinks.memory import MemorySink
from tailer_sinks.testing.announcements import change, gap, wider
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import APP, SCHEMA, Item, deliver

pytestmark = pytest.mark.anyio


async def test_events_lie_between_the_batches() -> None:
    sink = MemorySink("memory")
    items: list[Item] = [numbered(1), change(2), wider(2), gap(3, 5), wider(6)]
    await deliver(sink, *items)
    async with sink.begin(APP, SCHEMA) as transaction:
        await transaction.announce(gap(7, 8))
    assert sink.destination.log[APP] == items
    assert sink.destination.events(APP) == [items[1], items[3]]
    assert sink.destination.batches[APP] == [items[0], items[2], items[4]]
    assert [row["_commit_version"] for row in sink.destination.rows(APP)] == [1] * 3 + [2] * 3 + [6] * 3
    assert sink.destination.events("nobody") == []
