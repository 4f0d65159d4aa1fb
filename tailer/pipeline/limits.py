"""The limits of a sink transaction, and the size of the open one."""

import time
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.engine.look_ahead import AHEAD_BYTES
from tailer.events import CHANGE_TYPE, ChangeBatch, ChangeType
from tailer.sink import Demands

__all__ = ["Limits", "TransactionSize"]

_FEW_ROWS: Final = 1000
# Change types of batches that have several: those that updates give come first.
_BY_FREQUENCY: Final = (ChangeType.UPDATE_POSTIMAGE, ChangeType.UPDATE_PREIMAGE, ChangeType.INSERT, ChangeType.DELETE)


@dataclass(frozen=True, slots=True)
class Limits:
    """The size of one sink transaction, and how long to wait.

    A transaction is closed when it reaches `max_versions`, `max_rows`, `max_bytes` (of Arrow memory) or `max_seconds`.
    `poll_interval_s`: how often to look for a new version without a notification; on a store that cannot notify, the
    shortest wait, with `idle_poll_interval_s` as the longest (None: the same), and with at most `max_polls_per_hour`
    (None: no limit). `notified_poll_interval_s`: the longest wait on a store that notifies (None: as on others).
    `commit_deadline_s`: after how long the outcome of a commit counts as unknown. `retry_for_s`: how long to retry
    without success before giving up.
    `max_quiet_s`: how long to wait for rows before the open transaction is committed; None: no limit.
    """

    max_versions: int = 1000
    max_rows: int = 1_000_000
    max_bytes: int = 256 * 2**20
    max_seconds: float = 5.0
    poll_interval_s: float = 1.0
    idle_poll_interval_s: float | None = None
    max_polls_per_hour: int | None = None
    notified_poll_interval_s: float | None = None
    commit_deadline_s: float = 120.0
    retry_for_s: float = 600.0
    max_quiet_s: float | None = None

    def within(self, demands: Demands) -> "Limits":
        """Return these limits, or lower ones if the sink demands them."""
        rows, size = demands.max_rows or self.max_rows, demands.max_bytes or self.max_bytes
        max_rows, max_bytes = min(rows, self.max_rows), min(size, self.max_bytes)
        return replace(self, max_rows=max_rows, max_bytes=max_bytes, max_quiet_s=demands.max_quiet_s)


class TransactionSize:
    """The size of an open transaction. `first`: its first version."""

    def __init__(self, limits: Limits, first: int) -> None:
        self._limits = limits
        self._since_s = time.monotonic()
        self.first: Final = first
        self.versions = self.rows = self.size_bytes = 0
        self.kinds: Tally[str] = Tally()

    @property
    def age_s(self) -> float:
        """The seconds since it was opened."""
        return time.monotonic() - self._since_s

    @property
    def is_due(self) -> bool:
        """Return whether the transaction has reached a limit of size or age."""
        limits = self._limits
        is_full = self.rows >= limits.max_rows or self.size_bytes >= limits.max_bytes
        return is_full or self.versions >= limits.max_versions or self.age_s >= limits.max_seconds

    def add(self, batches: Sequence[ChangeBatch]) -> None:
        """Add the rows of `batches`."""
        for batch in batches:
            self.rows += len(batch)
            self.size_bytes += batch.size_bytes
            kinds = _counts(batch.rows.column(CHANGE_TYPE)) if batch.kind is None else {batch.kind.value: len(batch)}
            self.kinds.update(kinds)

    def leading(self, versions: Sequence[tuple[object, Sequence[ChangeBatch]]]) -> int:
        """Return how many of the versions, each with its rows, come before one that makes it due; at least 1.

        They have no more rows than are written in one step.
        """
        if self.is_due:
            return 1
        rows, size_bytes, limits = self.rows, self.size_bytes, self._limits
        most, most_bytes = limits.max_versions - self.versions - 1, min(limits.max_bytes, size_bytes + AHEAD_BYTES)
        for count, (_, batches) in enumerate(versions):
            rows += sum(map(len, batches))
            size_bytes += sum(batch.size_bytes for batch in batches)
            if count >= most or rows >= limits.max_rows or size_bytes >= most_bytes:
                return max(count, 1)
        return len(versions)


def _counts(types: pa.Array) -> dict[str, int]:
    found, left = {}, len(types)
    # To look for one text takes a tenth of the time of finding out which there are.
    for kind in _BY_FREQUENCY if left > _FEW_ROWS else ():
        found[kind.value] = int(pc.equal(types, pa.scalar(kind.value)).true_count)
        left -= found[kind.value]
        if left == 0:
            return found
    return {each["values"].as_py(): each["counts"].as_py() for each in pc.value_counts(types)}
