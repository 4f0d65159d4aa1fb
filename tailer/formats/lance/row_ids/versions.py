"""Versions in which rows were created and last updated (`protos/rowids.proto`, `RowLatestUpdateVersionSequence`).

Runs of rows with the same version, in the order of their offsets. A run's length is how many numbers its span has; the
numbers themselves say nothing.
"""

from dataclasses import dataclass

from pyroaring import BitMap

from tailer.formats.lance.protobuf import InvalidMessage, Message
from tailer.formats.lance.row_ids.segments import MOST_ROWS, parse_segment

__all__ = ["RowVersions", "parse_row_versions"]


@dataclass(frozen=True, slots=True)
class RowVersions:
    """Versions of a fragment's rows: the rows with offsets in the range have the version."""

    runs: tuple[tuple[range, int], ...]

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.runs[-1][0].stop if self.runs else 0

    def offsets_with(self, version: int) -> BitMap:
        """Return the offsets of the rows that have a version."""
        return BitMap().union(*(BitMap(offsets) for offsets, each in self.runs if each == version))


def parse_row_versions(data: bytes) -> RowVersions:
    """Read the versions of a fragment's rows. Raises `InvalidMessage`."""
    runs: list[tuple[range, int]] = []
    start = 0
    for message in Message(data).messages(1):
        span = message.optional_message(1)
        end = start + (0 if span is None else len(parse_segment(span)))
        if end > MOST_ROWS:
            raise InvalidMessage(f"versions of more than {MOST_ROWS} rows")
        runs.append((range(start, end), message.number(2)))
        start = end
    return RowVersions(tuple(runs))
