"""Heartbeats: what a process that delivers a pipeline leaves at the destination, so that standbys see that it works.

They only say who should deliver. That no row is lost or doubled by two who do is up to the sink's transactions
(invariant 6), so a place for heartbeats needs no lock and no order: it is one value that the last writer replaces.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from tailer.errors import SinkRejected

__all__ = ["Heartbeat", "Heartbeats", "decode_heartbeat", "encode_heartbeat"]

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life of the active instance of a pipeline.

    `instance`: a name that no other instance has. `term`: grows with each takeover. `count`: grows with each heartbeat
    of a term. `released`: whether the instance has ended, so that nobody has to wait.
    """

    instance: str
    term: int
    count: int = 0
    released: bool = False

    @property
    def rank(self) -> tuple[int, str]:
        """Which of two instances that are both active stays so: the one with the higher rank."""
        return self.term, self.instance


class Heartbeats(Protocol):
    """The place of the heartbeats of one pipeline. One call at a time; each may be cancelled.

    Methods raise `SinkUnavailable` and `SinkRejected`.
    """

    async def read(self) -> Heartbeat | None:
        """Return what was written last; None: nothing."""
        ...

    async def write(self, heartbeat: Heartbeat) -> None:
        """Replace what was written last."""
        ...

    async def aclose(self) -> None:
        """Release connections."""
        ...


class _Record(msgspec.Struct, frozen=True):
    format: int
    instance: str
    term: int
    count: int
    released: bool


def encode_heartbeat(heartbeat: Heartbeat) -> str:
    """Return a heartbeat as JSON."""
    given = heartbeat.instance, heartbeat.term, heartbeat.count, heartbeat.released
    return msgspec.json.encode(_Record(_FORMAT, *given)).decode()


def decode_heartbeat(sink: str, place: str, text: str | bytes) -> Heartbeat:
    """Return the heartbeat of a text at `place`. Raises `SinkRejected` where it is none."""
    try:
        record = msgspec.json.decode(text, type=_Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = f"{place} is not a heartbeat: {error}"
        raise SinkRejected(sink, reason, "Remove it, and give each pipeline a name of its own.") from None
    if record.format != _FORMAT:
        reason = f"{place} is a heartbeat in format {record.format}, and this release knows {_FORMAT}"
        raise SinkRejected(sink, reason, "Run the same release of lake-tailer everywhere.")
    return Heartbeat(record.instance, record.term, record.count, record.released)
