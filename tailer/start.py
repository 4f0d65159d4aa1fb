"""Where in a table's history to begin or to end, as people say it and made definite. No I/O."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Self

from tailer.errors import ConfigError

__all__ = ["Start", "StartKind", "StartPoint"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class StartKind(StrEnum):
    """The ways to say where to start."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SNAPSHOT = "snapshot"
    VERSION = "version"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a reader wants to begin (or to end): a word, a version, or a moment in milliseconds since 1970."""

    kind: StartKind
    value: int = 0

    @classmethod
    def parse(cls, text: str, where: str = "start") -> Self:
        """Read `earliest`, `latest`, `snapshot`, a version number, or an ISO-8601 timestamp (without a zone: UTC).

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
            raise ConfigError(where, f"{text!r} is not a place in a table's history", remedy) from None
        return cls(StartKind.TIMESTAMP, (moment - _EPOCH) // timedelta(milliseconds=1))


@dataclass(frozen=True, slots=True)
class StartPoint:
    """A start made definite: the first version to deliver, and whether as a snapshot (all its rows) or as changes."""

    version: int
    snapshot: bool = False
