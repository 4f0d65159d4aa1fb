"""Offsets of Spark's streams: places in a table's changes as JSON. Spark compares text, so the keys have one order.

    {"appId":"orders","tableId":"5e5f...","version":12,"task":9223372036854775807,"row":9223372036854775807,
     "startVersion":3,"startTask":4611686018427387904}

(on one line). Everything up to and including that position is delivered. `appId` is present if the option is given.

Spark records only the end of its first batch. After a crash it asks for the start again, and by then the newest
version, or the earliest, has changed. So every offset contains the start of the stream.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailer.errors import ConfigError
from tailer.plan import END, Position
from tailer.spark.source.plan_cache import Place

__all__ = ["Offset", "StreamPlace", "offset_of", "place_of"]

Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A place in a stream that began after `start`."""

    place: Place
    start: Position

    @property
    def beginning(self) -> Place:
        """The start of the stream; the table may have had another identity there."""
        return Place(self.place.table_id, self.start)


def offset_of(reached: StreamPlace, app_id: str | None) -> Offset:
    named = {} if app_id is None else {"appId": app_id}
    position = reached.place.position
    return {
        **named,
        "tableId": reached.place.table_id,
        "version": position.version,
        "task": position.task,
        "row": position.row,
        "startVersion": reached.start.version,
        "startTask": reached.start.task,
    }


def place_of(offset: Mapping[str, Any], app_id: str | None) -> StreamPlace:
    """Parse an offset. Raises `ConfigError` for one that is not of the stream `app_id`."""
    stored = offset.get("appId")
    if stored != app_id:
        reason = f"is {app_id!r}, and the checkpoint is of a stream with {stored!r}"
        raise ConfigError("appId", reason, "Give the appId that the query began with, or a new checkpoint folder.")
    try:
        position = Position(int(offset["version"]), int(offset["task"]), int(offset["row"]))
        closed = Position.end(int(offset["startVersion"]))
        start = closed if offset["startTask"] == END else Position.opening(closed.version, snapshot=True)
        return StreamPlace(Place(str(offset["tableId"]), position), start)
    except (KeyError, TypeError, ValueError):
        remedy = "Give this source a checkpoint folder of its own."
        raise ConfigError("checkpointLocation", f"{dict(offset)} is not an offset of this source", remedy) from None
