"""Places in a table's feed as offsets of Spark's streams: JSON that is compared as text, so its keys have one order.

    {"appId":"orders","tableId":"5e5f...","version":12,"task":9223372036854775807,"row":9223372036854775807,
     "startVersion":3,"startTask":4611686018427387904}

(on one line). Everything up to and including that position was delivered. `appId` is there where the option is.

Of its first batch Spark writes down the end only. A query that was killed in it is asked for its start again, and by
then the newest version, or the earliest, is another one. So every offset tells where the stream began.
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
    """A place in a stream that began behind `start`."""

    place: Place
    start: Position

    @property
    def beginning(self) -> Place:
        """Where the stream began; the table may have had another of its identities there."""
        return Place(self.place.table_id, self.start)


def offset_of(at: StreamPlace, app_id: str | None) -> Offset:
    """The place as an offset of the stream `app_id`."""
    named = {} if app_id is None else {"appId": app_id}
    position = at.place.position
    return {
        **named,
        "tableId": at.place.table_id,
        "version": position.version,
        "task": position.task,
        "row": position.row,
        "startVersion": at.start.version,
        "startTask": at.start.task,
    }


def place_of(offset: Mapping[str, Any], app_id: str | None) -> StreamPlace:
    """The place that an offset names. Raises `ConfigError` for one that is not of the stream `app_id`."""
    found = offset.get("appId")
    if found != app_id:
        reason = f"is {app_id!r}, and the checkpoint is of a stream with {found!r}"
        raise ConfigError("appId", reason, "Give the appId that the query began with, or a new checkpoint folder.")
    try:
        position = Position(int(offset["version"]), int(offset["task"]), int(offset["row"]))
        closed = Position.end(int(offset["startVersion"]))
        start = closed if offset["startTask"] == END else Position.opening(closed.version, snapshot=True)
        return StreamPlace(Place(str(offset["tableId"]), position), start)
    except (KeyError, TypeError, ValueError):
        remedy = "Give this source a checkpoint folder of its own."
        raise ConfigError("checkpointLocation", f"{dict(offset)} is no offset of this source", remedy) from None
