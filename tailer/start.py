"""Start and end points in a table's history: as configured, and resolved to a version. No I/O."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Self

from tailer.errors import ConfigError

__all__ = ["EARLIER", "Place", "Start", "StartKind", "StartPoint", "check_order"]

Place = str | int | datetime
"""A place in a history: `earliest`, `latest`, `snapshot`, a version, a moment (without a zone: UTC), or `tag:NAME`."""

EARLIER: Final = "Give an earlier start, such as `earliest`, or a later end."
_TAG: Final = "tag:"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class StartKind(StrEnum):
    """Kinds of start and end points."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SNAPSHOT = "snapshot"
    VERSION = "version"
    TIMESTAMP = "timestamp"
    TAG = "tag"


@dataclass(frozen=True, slots=True)
class Start:
    """A configured start (or end): a keyword, a version, a time in milliseconds since 1970, or the name of a tag."""

    kind: StartKind
    value: int = 0
    tag: str = ""

    @classmethod
    def at(cls, place: Place, where: str = "start") -> Self:
        """Make one from a place in a program. Raises `ConfigError` naming `where`."""
        if isinstance(place, datetime):
            place = (place.replace(tzinfo=UTC) if place.tzinfo is None else place).isoformat()
        return cls.parse(str(place), where)

    @classmethod
    def parse(cls, text: str, where: str = "start") -> Self:
        """Parse a keyword, a version, an ISO-8601 timestamp (without a zone: UTC), or `tag:NAME`.

        The keywords are `earliest`, `latest` and `snapshot`.

        Raises `ConfigError` naming `where`.
        """
        if text in (StartKind.EARLIEST, StartKind.LATEST, StartKind.SNAPSHOT):
            return cls(StartKind(text))
        if text.startswith(_TAG) and text != _TAG:
            return cls(StartKind.TAG, tag=text.removeprefix(_TAG))
        try:
            if text.isascii() and text.isdigit():
                return cls(StartKind.VERSION, int(text))
            moment = datetime.fromisoformat(text)
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, OverflowError):
            remedy = (
                "Give earliest, latest, snapshot, a version such as 12, a timestamp such as 2026-03-01T12:00:00Z, or "
                "tag:NAME for a tag, if the table's format has any."
            )
            raise ConfigError(where, f"{text!r} is not a version, a time or a keyword", remedy) from None
        return cls(StartKind.TIMESTAMP, (moment - _EPOCH) // timedelta(milliseconds=1))

    def comes_after(self, other: "Start") -> bool:
        """Return whether it comes after `other`, as far as that can be told without a log."""
        return self.kind is other.kind and self.value > other.value

    @property
    def moment(self) -> datetime:
        """The time, of a start of that kind."""
        return _EPOCH + timedelta(milliseconds=self.value)


def check_order(start: Start, end: Start | None, where: str = "start") -> None:
    """Raise `ConfigError` naming `where` if `start` comes after `end`."""
    if end is not None and start.comes_after(end):
        is_time = start.kind is StartKind.TIMESTAMP
        first, last = (place.moment.isoformat() if is_time else f"version {place.value}" for place in (start, end))
        raise ConfigError(where, f"{first} comes after the end, {last}", EARLIER)


@dataclass(frozen=True, slots=True)
class StartPoint:
    """A resolved start: the first version to deliver, and whether as a snapshot (all its rows) or as changes."""

    version: int
    snapshot: bool = False
