"""The state of each pipeline for operators: one state machine, and what it delivered so far.

`tailer.pipeline.states` lists the states. A drain is a reason (`why`), not a state: the pipeline still delivers. The
loop and the daemon note what happens; time alone makes a `streaming` pipeline `idle`, or one that cannot keep up
`catching_up`. So the state is computed when it is asked for, and a pipeline that hangs cannot look fresh.
"""

import logging
import shlex
import time
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from tailer.errors import duration
from tailer.metrics import Counter, Gauge
from tailer.pipeline.backfill.command import Backfills
from tailer.pipeline.policy import OnDataLoss
from tailer.pipeline.retention import Backlog
from tailer.pipeline.states import Active, Fault, PipelineState
from tailer.plan import ChangePlan, Position
from tailer.start import StartPoint

__all__ = [
    "BEHIND_AFTER_S",
    "IDLE_AFTER_S",
    "METRICS",
    "Committed",
    "Fault",
    "PipelineState",
    "PipelineStatus",
    "watch_commits",
]

_log = logging.getLogger(__name__)

IDLE_AFTER_S: Final = 60.0
BEHIND_AFTER_S: Final = 30.0

_UP: Final = Gauge("lake_tailer_pipeline_up", "1 while the pipeline runs, 0 once it has stopped.")
_SUCCESS: Final = Gauge(
    "lake_tailer_last_success_timestamp_seconds",
    "When the pipeline last committed something, or found that nothing was due.",
)
_ERRORS: Final = Counter("lake_tailer_errors", "Errors that ended an attempt to deliver.")
_RETRIES: Final = Counter("lake_tailer_retries", "Attempts to deliver that followed an error.")
METRICS: Final = (_UP, _SUCCESS, _ERRORS, _RETRIES)


@dataclass(frozen=True, slots=True)
class Committed:
    """A sink transaction: the position after it, its rows by change type, their Arrow memory, and how long it took.

    `first`: the first version of which it has a part; None: that of the position.
    """

    position: Position
    rows: Mapping[str, int]
    size_bytes: int = 0
    seconds: float = 0.0
    first: int | None = None


CommitWatcher = Callable[["PipelineStatus", Committed], None]
_watchers: Final[list[CommitWatcher]] = []


def watch_commits(watcher: CommitWatcher) -> Callable[[], None]:
    """Call `watcher` in the event loop for each transaction of any pipeline. Return what ends that."""
    _watchers.append(watcher)
    return lambda: _watchers.remove(watcher)


class _Work(Enum):
    NOTHING = "nothing"  # known yet
    TABLE = "table"  # is missing
    SNAPSHOT = "snapshot"
    VERSIONS = "versions"


_BEFORE_VERSIONS: Final = {
    _Work.NOTHING: PipelineState.STARTING,
    _Work.TABLE: PipelineState.WAITING,
    _Work.SNAPSHOT: PipelineState.SNAPSHOT,
}


class _Hold(Enum):
    RUNNING = "running"
    STANDBY = "standby"
    PAUSED = "paused"
    STOPPED = "stopped"


_HELD: Final = {
    _Hold.STANDBY: PipelineState.STANDBY,
    _Hold.PAUSED: PipelineState.PAUSED,
    _Hold.STOPPED: PipelineState.STOPPED,
}


class PipelineStatus:
    """The status of the pipeline `name`. One thread notes; any thread may read.

    `table`, `sink_kind`: to be shown. `clock`: seconds since 1970.
    """

    def __init__(self, name: str, table: str = "", sink_kind: str = "", clock: Callable[[], float] = time.time) -> None:
        self.name: Final = name
        self.table: Final = table
        self.sink_kind: Final = sink_kind
        self.began_s: Final = clock()
        self.rows: Tally[str] = Tally()
        self.transactions = self.transaction_bytes = 0
        self.gaps = 0  # losses of changes that were reported to the sink
        self.transaction_seconds = 0.0
        self.backlog = Backlog()
        self.backfills: Final = Backfills()
        self.fault: Fault | None = None  # the last one, which may be over
        self.retry_at_s: float | None = None
        self.command: OnDataLoss | None = None  # of an operator, not obeyed yet
        self.active: Active | None = None  # where several instances run it
        self.on_command: Callable[[], object] = bool  # ends the wait for a version
        # Of a new stream, with its last version.
        self.on_start: Callable[[StartPoint, int | None], object] = lambda _start, _last: None
        self.on_plan: Callable[[ChangePlan], object] = bool  # whose rows come next
        self.has_answer = self.waits = False  # of the table and of the sink; for a version, or for the table
        self._clock = clock
        self._hold, self._work, self._why, self._lacks = _Hold.RUNNING, _Work.NOTHING, "", ""
        self._failing = self._was_level = False
        self._delivered_s: float | None = None
        self._moved_s = self._since_s = self.began_s
        self._progressed_s: float | None = None
        for counter in (_ERRORS, _RETRIES):
            counter.add(name, 0)

    @property
    def state(self) -> PipelineState:
        """The state at this moment."""
        now_s = self._clock()
        if self._failing and self._hold in (_Hold.RUNNING, _Hold.STANDBY):
            return PipelineState.RETRYING
        if self._hold is not _Hold.RUNNING:
            return _HELD[self._hold]
        if self._work is not _Work.VERSIONS:
            return _BEFORE_VERSIONS[self._work]
        due_since_s = self.backlog.due_since_s
        if due_since_s is not None:
            late = not self._was_level or now_s - due_since_s >= BEHIND_AFTER_S
            return PipelineState.CATCHING_UP if late else PipelineState.STREAMING
        quiet = self._delivered_s is None or now_s - self._delivered_s >= IDLE_AFTER_S
        return PipelineState.IDLE if quiet else PipelineState.STREAMING

    @property
    def since_s(self) -> float:
        """The time at which the pipeline came into its state, in seconds since 1970."""
        state, since_s = self.state, self._since_s
        if state is PipelineState.IDLE and self._delivered_s is not None:
            return max(since_s, self._delivered_s + IDLE_AFTER_S)
        due_since_s = self.backlog.due_since_s
        if state is PipelineState.CATCHING_UP and self._was_level and due_since_s is not None:
            return max(since_s, due_since_s + BEHIND_AFTER_S)
        return since_s

    @property
    def why(self) -> str:
        """The reason of the state; empty where it needs none."""
        if self._failing and self.fault is not None and self._hold is not _Hold.PAUSED:
            return f"{self.fault.name}: {self.fault.text}"
        if self.state is PipelineState.WAITING and not self._why:
            return self._lacks or f"there is no table at {self.table} yet"
        return f"{self._why}; it finishes its transaction" if self.is_draining else self._why

    @property
    def hint(self) -> str:
        """The operator's next step; empty where there is none."""
        return _hint(self.name, self.state, self.fault if self._failing else None, self.retry_at_s)

    @property
    def is_draining(self) -> bool:
        """Return whether it was asked to end, and is still at its last transaction."""
        return self._hold is _Hold.RUNNING and bool(self._why)

    @property
    def is_ready(self) -> bool:
        """Return whether the pipeline does what its operator wants: it works, or was paused."""
        return self.state is PipelineState.PAUSED or (self.state.works and not self.is_draining)

    @property
    def has_seen_table(self) -> bool:
        """Return whether the current run, or the last one, has read the table."""
        return self._work not in (_Work.NOTHING, _Work.TABLE)

    @property
    def is_in_snapshot(self) -> bool:
        """Return whether the sink has a part of a snapshot, or nothing before the first one."""
        position = self.backlog.position
        return self._work is _Work.SNAPSHOT if position is None else position.in_snapshot

    @property
    def seconds_since_step(self) -> float:
        """Seconds since the pipeline last did anything: made progress, began an attempt, or failed."""
        return max(self._clock() - self._moved_s, 0.0)

    @property
    def seconds_since_progress(self) -> float | None:
        """Seconds since the pipeline last planned, wrote, committed, or found nothing due; None: it never did."""
        return None if self._progressed_s is None else max(self._clock() - self._progressed_s, 0.0)

    def hangs(self, after_s: float) -> bool:
        """Return whether work is due and its task has done nothing for `after_s` seconds."""
        return self._hold is _Hold.RUNNING and not self.waits and self.seconds_since_step >= after_s

    @property
    def lag_s(self) -> float | None:
        """The age of the oldest change that may be undelivered; see `Backlog.age_s`."""
        return self.backlog.age_s(self._clock(), looks=self._hold is _Hold.RUNNING and not self._failing)

    @property
    def headroom_s(self) -> float | None:
        """Seconds until VACUUM or log cleanup may remove undelivered changes; negative: overdue; None: not known."""
        kept_s = self.backlog.kept_s
        return None if self.lag_s is None or kept_s is None else kept_s - self.lag_s

    def note_start(self) -> None:
        """Note that the pipeline begins to run."""
        before = self.state
        self._hold, self._work, self._why, self.retry_at_s = _Hold.RUNNING, _Work.NOTHING, "", None
        self._failing = self.waits = self._was_level = False
        _UP.set(self.name, 1)
        self._note_change(before)

    def note_standby(self, why: str) -> None:
        """Note that the pipeline waits until no other instance is active; `why`: which one is."""
        before = self.state
        if self._hold is not _Hold.STANDBY:
            self.backlog = Backlog()  # the other instance knows it
        self._hold, self._failing, self._why = _Hold.STANDBY, False, why
        self._note_change(before)

    def note_missing_table(self, lacks: str = "") -> None:
        """Note that the pipeline waits for its table. `lacks`: why it is not whole yet; empty: there is none."""
        before = self.state
        self._work, self.waits, self._failing, self._lacks = _Work.TABLE, True, False, lacks
        self._note_change(before)

    def note_resume(self, position: Position | None) -> None:
        """Note the progress that a session begins after."""
        before = self.state
        if position is not None:
            self.backlog.deliver(position)
        self.backlog.forget_plans()
        self.waits, self.has_answer = False, True
        self._note_change(before)

    def note_snapshot(self, version: int) -> None:
        """Note that all rows of `version` are delivered next."""
        before = self.state
        self._work = _Work.SNAPSHOT
        self.backlog.await_snapshot(version, self._clock())
        self._note_change(before)

    def note_work(self, last: int, oldest_ms: int | None, size_bytes: int, first: int | None = None) -> None:
        """Note that the versions `first` (None: only `last`) to `last` are delivered next; see `Backlog.plan`."""
        before = self.state
        self._work, self.waits, self._progressed_s = _Work.VERSIONS, False, self._clock()
        self.backlog.plan(last if first is None else first, last, oldest_ms, size_bytes, self._clock())
        self._note_change(before)

    def note_table(self, latest: int, kept_ms: int | None) -> None:
        """Note the table's newest version, and for how long what a version needs is kept."""
        self.backlog.latest = latest
        self.backlog.kept_s = None if kept_ms is None else kept_ms / 1000

    def note_step(self) -> None:
        """Note that the pipeline is alive and has something to do."""
        self.waits, self._moved_s = False, self._clock()
        if self._work is not _Work.NOTHING and not self._failing:
            self._progressed_s = self._moved_s

    def note_caught_up(self, version: int, has_progress: bool = True) -> None:
        """Note that everything up to `version`, the newest one, is committed, and that the pipeline waits.

        `has_progress`: whether the sink knows that; not, if the pipeline has just begun after that version.
        """
        before, now_s = self.state, self._clock()
        self._work, self.waits, self._was_level = _Work.VERSIONS, True, True
        self.backlog.clear(version, now_s, has_progress)
        self._note_success(now_s)
        self._note_change(before)

    def note_commit(self, done: Committed, *, moves: bool = True) -> None:
        """Note a committed transaction. `moves`: not that of a backfill, which leaves the pipeline at its position."""
        before, now_s = self.state, self._clock()
        if moves:
            for watcher in _watchers:
                watcher(self, done)
            self.backlog.deliver(done.position, now_s)
            self._delivered_s = now_s
        self.transactions += 1
        self.transaction_bytes += done.size_bytes
        self.transaction_seconds += done.seconds
        self.rows.update(done.rows)
        self._note_success(now_s)
        self._note_change(before)

    def note_error(self, error: BaseException) -> None:
        """Note that a session ended with an error."""
        before = self.state
        _ERRORS.add(self.name, 1)
        self.fault, self._failing, self.waits = Fault.after(self.fault, error, self._clock(), self.name), True, False
        self.backlog.level_since_s = None
        self._note_change(before)

    def note_retry(self) -> None:
        """Note that another session begins after an error."""
        _RETRIES.add(self.name, 1)
        self.note_step()

    def note_drain(self, why: str) -> None:
        """Note that the pipeline was asked to end, and why."""
        self._why = why

    def note_pause(self) -> None:
        """Note that the pipeline has ended, on an operator's command."""
        before = self.state
        self._hold, self._why, self.retry_at_s = _Hold.PAUSED, "an operator paused it", None
        self._note_change(before)

    def note_stop(self, error: BaseException | None = None, retry_at_s: float | None = None) -> None:
        """Note that the pipeline has ended, with `error` if any; `retry_at_s`: when it begins again by itself."""
        before = self.state
        self._hold, self._failing, self.retry_at_s = _Hold.STOPPED, error is not None, retry_at_s
        if error is not None:
            self.fault = Fault.after(self.fault, error, self._clock(), self.name)
        self._why = self._why or "its work is done"
        _UP.set(self.name, 0)
        self._note_change(before)

    def _note_success(self, now_s: float) -> None:
        if (fault := self.fault) is not None and not fault.is_over:
            failed_s = duration(now_s - fault.since_s)
            _log.info("%s: works again after %s; it had failed with: %s", self.name, failed_s, fault)
            self.fault = replace(fault, is_over=True)
        self._failing, self._progressed_s = False, now_s
        _SUCCESS.set(self.name, now_s)

    def _note_change(self, before: PipelineState) -> None:
        self._moved_s = self._clock()
        if self.state is not before:
            self._since_s = self._moved_s


def _hint(name: str, state: PipelineState, fault: Fault | None, retry_at_s: float | None) -> str:
    """Return the operator's next step for the pipeline `name`. `fault`: of its last attempt."""
    match state:
        case PipelineState.RETRYING:
            return "" if fault is None else fault.hint
        case PipelineState.WAITING:
            return "It begins by itself when the table is there. If the table exists, correct `table` of the pipeline."
        case PipelineState.PAUSED:
            return f"`tailer resume {shlex.quote(name)}` continues from the sink's progress."
        case PipelineState.STOPPED if fault is not None:
            if retry_at_s is not None:
                return f"{fault.hint} It begins again by itself.".strip()
            # Hints of sinks and of settings say what to mend, and leave the rest to the one who mended it.
            again = f"`tailer resume {shlex.quote(name)}` begins it again."
            return fault.hint if "`tailer re" in fault.hint else f"{fault.hint} {again}".strip()
    return ""
