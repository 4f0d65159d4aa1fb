"""The limits of a sink transaction, and how long to wait."""

from dataclasses import dataclass, replace

from tailer.sink import Demands

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The size of one sink transaction, and how long to wait.

    A transaction is closed when it reaches `max_versions`, `max_rows`, `max_bytes` (of Arrow memory) or `max_seconds`.
    `poll_interval_s`: how often to look for a new version without a notification; on a store that cannot notify, the
    shortest wait, with `idle_poll_interval_s` as the longest (None: the same), and with at most `max_polls_per_hour`
    (None: no limit). `notified_poll_interval_s`: the longest wait on a store that notifies (None: as on others).
    `commit_deadline_s`: after how long the outcome of a commit counts as unknown. `retry_for_s`: how long to retry
    without success before giving up. `first_answer_s`: the same as long as the table has not been read at all, counted
    from the start (None: no other limit), for commands whose user may have named a wrong place.
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
    first_answer_s: float | None = None
    max_quiet_s: float | None = None

    def within(self, demands: Demands) -> "Limits":
        """Return these limits, or lower ones if the sink demands them."""
        rows, size = demands.max_rows or self.max_rows, demands.max_bytes or self.max_bytes
        max_rows, max_bytes = min(rows, self.max_rows), min(size, self.max_bytes)
        return replace(self, max_rows=max_rows, max_bytes=max_bytes, max_quiet_s=demands.max_quiet_s)
