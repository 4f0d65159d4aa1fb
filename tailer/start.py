"""Start and end points in a table's history: as configured, and resolved to a version. No I/O."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Self

from tailer.errors import ConfigError

__all__ = ["Start", "StartKind", "StartPoint"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class StartKind(StrEnum):
    """Kinds of start and end points."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SNAPSHOT = "snapshot"
    VERSION = "version"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Start:
    """A configured start (or end): a keyword, a version, or a time in milliseconds since 1970."""

    kind: StartKind
    value: int = 0

    @classmethod
    def parse(cls, text: str, where: str = "start") -> Self:
        """Parse `earliest`, `latest`, `snapshot`, a version number, or an ISO-8601 timestamp (without a zone: UTC).

        Raises `ConfigError` naming `where`.
        """
        if text in (StartKind.EARLIEST, StartKind.LATEST, StartKind.SNAPSHOT):
            return cls(StartKind(text))
        try:
            if text.isascii() and text.isdigit():
                return cls(StartKind.VERSION, int(text))
            moment = datetime.fromisoformat(text)
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, OverflowError):
            remedy = (
                "Give earliest, latest, snapshot, a version such as 12, or a timestamp such as 2026-03-01T12:00:00Z."
            )
            raise ConfigError(where, f"{text!r} is not a version, a time or a keyword", remedy) from None
        return cls(StartKind.TIMESTAMP, (moment - _EPOCH) // timedelta(milliseconds=1))


@dataclass(frozen=True, slots=True)
class StartPoint:
    """A resolved start: the first version to deliver, and whether as a snapshot (all its rows) or as changes."""

    version: int
    snapshot: bool = False
