"""The base of all sink tests: sinks over a destination, transactions, and comparison of what arrived."""

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Final

import pyarrow as pa
import pytest
from anyio import to_thread

from tailer.errors import CommitUnknown, SinkFenced, SinkRejected, SinkUnavailable
from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch, ControlEvent, Gap, SchemaChange
from tailer.plan import Position
from tailer.sink import Progress, Sink, SinkTransaction
from tailer_sinks.encoding.flat import event_values
from tailer_sinks.testing.rows import flat_rows, numbered

__all__ = [
    "APP",
    "OTHER",
    "SCHEMA",
    "Item",
    "Rows",
    "SinkSuite",
    "attempt",
    "deliver",
    "known",
    "play",
    "row_text",
    "succeeds",
    "up_to",
]

APP: Final = "orders/5f0c6a1e-77aa-4f3b-9d0e-6a3c1b2d4e5f"
OTHER: Final = "orders/c1f7e4d2-0000-4aaa-8bbb-123456789abc"
SCHEMA: Final[pa.Schema] = numbered(0).rows.schema
METADATA: Final = frozenset(field.name for field in METADATA_FIELDS)

Rows = list[dict[str, Any]]
Item = ChangeBatch | ControlEvent


def expected(*items: Item) -> Rows:
    """Return the rows and events of `items` as a reader must find them."""
    rows: Rows = []
    for item in items:
        rows += flat_rows(item.rows) if isinstance(item, ChangeBatch) else [event_values(item)]
    return rows


def up_to(app_id: str, version: int) -> Progress:
    """Make the progress at the end of `version`."""
    return Progress(app_id, Position.end(version))


async def play(transaction: SinkTransaction, *items: Item) -> None:
    """Hand over `items`, rows and events."""
    for item in items:
        if isinstance(item, ChangeBatch):
            await transaction.write(item)
        else:
            await transaction.announce(item)


async def deliver(sink: Sink, *items: Item, app_id: str = APP, progress: Progress | None = None) -> None:
    """Run one transaction with `items`; `progress` is by default the end of the last one's version."""
    first = items[0]
    schema = first.rows.schema if isinstance(first, ChangeBatch) else getattr(first, "before", SCHEMA)
    async with sink.begin(app_id, schema) as transaction:
        await play(transaction, *items)
        await transaction.commit(progress or up_to(app_id, items[-1].version))


async def attempt(sink: Sink, *items: Item, progress: Progress | None = None) -> bool:
    """Try to commit `items`. Return False if another instance was first, the only allowed reason."""
    try:
        await deliver(sink, *items, progress=progress)
    except (SinkFenced, SinkUnavailable):
        return False
    return True


async def succeeds(delivery: Awaitable[None]) -> bool:
    """Return whether the delivery ends without an error of the sink."""
    try:
        await delivery
    except (SinkUnavailable, SinkRejected, CommitUnknown):
        return False
    return True


def row_text(row: dict[str, Any]) -> str:
    """Return a row as sortable text. The order of columns is the destination's."""
    return json.dumps(row, sort_keys=True)


def known(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without nulls: a later column or field may be null in earlier rows, or missing.

    Of a gap only the values that all destinations can hold.
    """
    bare = row[CHANGE_TYPE] == Gap.kind
    return {name: value for name, value in _without_nulls(row).items() if name in METADATA or not bare}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(child) for name, child in value.items() if child is not None}
    return [_without_nulls(child) for child in value] if isinstance(value, list) else value


def without_repeats(rows: Rows) -> Rows:
    """Keep the first occurrence of each row."""
    return list({row_text(row): row for row in rows}.values())


class SinkSuite(ABC):
    """The properties of a sink that a subclass of `SinkTests` gives, and the tools of the tests."""

    pytestmark = pytest.mark.anyio

    exactly_once: ClassVar[bool] = True
    """False for an `AtLeastOnceSink`, whose rows may be early or repeated."""
    joins_tables: ClassVar[bool] = True
    """False where the rows of each source table have a place of their own, which late ones do not leave."""
    keeps_order: ClassVar[bool] = True
    """False where the destination has no order to read rows back in."""
    reports_schema_changes: ClassVar[bool] = True
    """False where a change of the schema shows in the destination's own schema, and not between the rows."""
    refused_types: ClassVar[frozenset[str]] = frozenset()
    """Names in `DELTA_TYPES` that the destination has no place for: they must be refused, not altered."""

    @abstractmethod
    def make_sink(self) -> Sink:
        """Make a new instance over this test's destination, which is empty when the test begins."""

    @abstractmethod
    async def delivered(self, app_id: str) -> Rows:
        """Read what is delivered for `app_id`, in order, as `flat_rows`, with the events between the rows.

        An event has the last columns of a row: `_change_type` (`schema_change` or `gap`), the version, the timestamp.
        """

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Choose asyncio, the daemon's event loop."""
        return "asyncio"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Sink]:
        """Open a new instance, closed at the end."""
        sink = self.make_sink()
        try:
            yield sink
        finally:
            await sink.aclose()

    async def assert_delivered(self, *batches: ChangeBatch, app_id: str = APP) -> None:
        """Assert that a reader finds exactly the rows of `batches`, in order if the sink promises it."""
        rows = await self.delivered(app_id)
        await to_thread.run_sync(lambda: self._compare_rows(rows, expected(*batches)))  # many rows may take a while

    async def assert_announced(self, *items: Item, app_id: str = APP) -> None:
        """Assert that a reader finds these rows and events. Null values of a row may be missing in it."""
        wanted = [item for item in items if self.reports_schema_changes or not isinstance(item, SchemaChange)]
        rows = await self.delivered(app_id)
        await to_thread.run_sync(
            lambda: self._compare_rows(list(map(known, rows)), list(map(known, expected(*wanted))))
        )

    def _compare_rows(self, rows: Rows, wanted: Rows) -> None:
        if not self.exactly_once:
            of_these = set(map(row_text, wanted))
            assert [row for row in without_repeats(rows) if row_text(row) in of_these] == wanted
        elif self.keeps_order:
            assert rows == wanted
        else:
            assert sorted(map(row_text, rows)) == sorted(map(row_text, wanted))

    async def assert_progress(self, progress: Progress | None, app_id: str = APP) -> None:
        """Assert that a new instance finds `progress`."""
        async with self.opened() as sink:
            assert await sink.progress(app_id) == progress

    async def assert_has_delivered(self, pipeline: str) -> None:
        """Assert that a new instance knows that `pipeline` has delivered."""
        async with self.opened() as sink:
            assert await sink.has_delivered(pipeline)
