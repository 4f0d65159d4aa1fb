"""The destinations as their readers see them: each object of the `files` sink, each transaction of the broker.

A destination without transactions is here, too: it takes rows at once, and its progress is in the product's own state
table in the bucket.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from tailer.errors import SinkUnavailable
from tailer.events import ChangeBatch, ControlEvent, Gap
from tailer.plan import END, SNAPSHOT_TASKS, Position
from tailer.sink import AtLeastOnceSink
from tailer_sinks.files.names import PLACE, after_place
from tests.simulation.network import Network, NoAnswer
from tests.simulation.oracle import Announced, Change, Judge, Transaction, change_of
from tests.simulation.table import row_of

__all__ = ["Endpoint", "LinesSink", "read_file", "read_progress"]

_DATA: Final = re.compile(r"(?P<app_id>.+)/[^/]+\.(?P<kind>jsonl|parquet)")


def read_file(key: str, data: bytes, attributes: Mapping[str, str]) -> Transaction | None:
    """Read an object of the `files` sink as one transaction; None: it is no file of rows."""
    found = _DATA.fullmatch(key)
    if found is None:
        return None
    app_id = "/".join(map(unquote, found["app_id"].split("/")))
    ends = [re.fullmatch(PLACE, attributes.get(f"lake-tailer-{name}", "")) for name in ("begin", "next")]
    before, after = (None if each is None else after_place(*each.groups()) for each in ends)
    items = [change_of(json.loads(line)) for line in data.decode().splitlines()]
    resets = attributes.get("lake-tailer-reset") == "true"
    return Transaction(app_id, items, after, before, resets)


def read_progress(data: bytes) -> dict[str, Position]:
    """Read the progress that a commit of the state table records, by app_id."""
    txns = {}
    for line in data.decode().splitlines():
        if (txn := json.loads(line).get("txn")) is not None:
            txns[txn["appId"]] = txn["version"]
    found = {}
    for app_id, version in txns.items():
        if "#" not in app_id:
            task, row = txns.get(f"{app_id}#task", END), txns.get(f"{app_id}#row", END)
            found[app_id] = Position.end(version) if task == END else Position(version + 1, task, row)
    return found


class Endpoint:
    """A server that takes rows and has no transactions; `judge` accepts repetitions."""

    def __init__(self, network: Network, judge: Judge) -> None:
        self.network = network
        self.judge = judge
        self.app_id = ""
        self._early: list[Change | Announced] = []

    def take(self, items: list[Change | Announced]) -> None:
        """Take rows for good."""
        self._early += items

    def recorded(self, app_id: str, position: Position) -> None:
        """Judge what has come when progress is recorded: it must be everything up to there."""
        items, self._early = self._early, []
        later = [item for item in items if isinstance(item, Change) and item.version > position.version]
        known = [item for item in items if item not in later]
        self.judge.see(Transaction(app_id, known, position), self.network.physics.now_s)
        self._early = later + self._early


class LinesSink(AtLeastOnceSink):
    """A sink without transactions that sends each batch to `endpoint`."""

    name = "lines"
    writes_together = False

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def write(self, batch: ChangeBatch) -> None:
        """See `AtLeastOnceSink.write`."""
        rows: list[dict[str, Any]] = batch.rows.to_pylist()
        if batch.task >= SNAPSHOT_TASKS:
            self._endpoint.judge.begun_with = batch.version
        await self._send([Change(row["_change_type"], row["_commit_version"], row_of(row)) for row in rows])

    async def announce(self, event: ControlEvent) -> None:
        """See `AtLeastOnceSink.announce`."""
        if isinstance(event, Gap):
            await self._send([Announced("gap", event.version, event.first_version, event.snapshot)])

    async def _send(self, items: list[Change | Announced]) -> None:
        try:
            await self._endpoint.network.send(f"POST {len(items)} rows", lambda: self._endpoint.take(items))
        except NoAnswer as error:
            raise SinkUnavailable(self.name, str(error)) from error

    async def flush(self) -> None:
        """See `AtLeastOnceSink.flush`."""

    async def aclose(self) -> None:
        """See `AtLeastOnceSink.aclose`."""
