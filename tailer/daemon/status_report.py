"""The shape of `/status`: the state of all pipelines as JSON, for programs and for `tailer status`.

`format` grows with each change that a reader would notice; new fields alone do not change it. Times are in ISO 8601,
UTC. Nothing here is a secret: errors are shown by their own text, and options of sinks not at all.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from tailer.events import ChangeType
from tailer.metrics import BAD_VALUES
from tailer.pipeline.backfill.command import BackfillPhase, Backfills
from tailer.pipeline.states import PipelineState
from tailer.pipeline.status import Fault, PipelineStatus

__all__ = [
    "FORMAT",
    "BackfillReport",
    "PipelineReport",
    "StatusReport",
    "report_of",
    "rows_by_kind",
    "time_of",
]

FORMAT: Final = 1
_KINDS: Final = tuple(ChangeType)
_OTHER: Final = "other"


class ErrorReport(msgspec.Struct, frozen=True):
    """An error: its name, its text, the operator's next step, and when it came."""

    name: str
    text: str
    hint: str
    at: datetime


class Lag(msgspec.Struct, frozen=True):
    """The part of the table that is not delivered, as in the metrics; null is unknown."""

    versions: int | None
    seconds: float | None
    bytes: int | None


class BackfillReport(msgspec.Struct, frozen=True):
    """The last backfill of a pipeline.

    `phase`: `waiting`, `running`, `done`, `failed` or `cancelled`. `version`: null before it is decided. `files`: how
    many it reads; null before they are counted. `rows`: committed since the process began. `error`: why it failed.
    `kind`: `snapshot` for that of `tailer resnapshot`, else `backfill`.
    """

    id: str
    phase: BackfillPhase
    version: int | None
    where: str | None
    files: int | None
    files_done: int
    rows: int
    error: ErrorReport | None
    kind: str = "backfill"


class ActiveReport(msgspec.Struct, frozen=True):
    """The active instance of a pipeline, as this process knows it, with times of its own clock.

    `here`: whether it is this process. `since`: since when it is known to be active. `heartbeat`: when its last
    heartbeat was sent or seen.
    """

    instance: str
    here: bool
    since: datetime
    heartbeat: datetime


class PipelineReport(msgspec.Struct, frozen=True):
    """One pipeline.

    `state`, `since`, `why`, `hint`: see operations.md. `draining`: whether it was asked to end. `retry_at`: when it
    begins again by itself; null: not. `command`: of an operator, not obeyed yet; empty: none. `position`: the sink's
    progress. `delivered`: the last version the sink has completely. `latest`: the newest version known. `rows`: by
    change type, since the process began; null where Spark writes them. `last_error`: may be over. `backfill`: the last
    one since the process began, or one that it goes on with. `active`: null without `tailer run --standby`, or while no
    instance is active. `bad_values`: that a database cannot hold, by column, since the process began.
    """

    name: str
    state: PipelineState
    since: datetime
    why: str
    hint: str
    draining: bool
    retry_at: datetime | None
    command: str = msgspec.field(name="order")  # the name that scripts read
    table: str
    sink: str
    position: str | None
    delivered: int | None
    latest: int | None
    lag: Lag
    rows: dict[str, int]
    transactions: int
    seconds_since_progress: float | None
    last_error: ErrorReport | None
    backfill: BackfillReport | None = None
    active: ActiveReport | None = None
    bad_values: dict[str, int] = {}


class StatusReport(msgspec.Struct, frozen=True):
    """The whole daemon at the time `at`; it began at `began`."""

    format: int
    at: datetime
    began: datetime
    pipelines: list[PipelineReport]


def report_of(pipelines: Sequence[PipelineStatus], began_s: float, now_s: float) -> StatusReport:
    """Return the report about `pipelines` at this moment."""
    return StatusReport(FORMAT, time_of(now_s), time_of(began_s), [_pipeline(pipeline) for pipeline in pipelines])


def rows_by_kind(pipeline: PipelineStatus) -> dict[str, int]:
    """Return the committed rows by change type; those of types that Delta does not define are `other`."""
    rows = pipeline.rows.copy()
    numbers = {kind.value: rows[kind] for kind in _KINDS}
    others = rows.total() - sum(numbers.values())
    return numbers | ({_OTHER: others} if others else {})


def _pipeline(status: PipelineStatus) -> PipelineReport:
    backlog, active = status.backlog, status.active
    bad_values = Counter[str]()
    for labels, sample in BAD_VALUES.samples().items():
        if labels[0] == status.name:
            bad_values[labels[1]] += int(sample.value)
    position, seconds, progress = backlog.position, status.lag_s, status.seconds_since_progress
    return PipelineReport(
        name=status.name,
        state=status.state,
        since=time_of(status.since_s),
        why=status.why,
        hint=status.hint,
        draining=status.is_draining,
        retry_at=None if status.retry_at_s is None else time_of(status.retry_at_s),
        command=status.command.value if status.command is not None else "",
        table=status.table,
        sink=status.sink_kind,
        position=None if position is None else str(position),
        delivered=None if position is None or position.whole_version < 0 else position.whole_version,
        latest=backlog.latest,
        lag=Lag(backlog.versions, None if seconds is None else round(seconds, 3), backlog.size_bytes),
        rows=rows_by_kind(status),
        transactions=status.transactions,
        seconds_since_progress=None if progress is None else round(progress, 3),
        last_error=None if status.fault is None else _error(status.fault),
        backfill=_backfill(status.backfills, status.name),
        active=None
        if active is None
        else ActiveReport(active.instance, active.is_here, time_of(active.since_s), time_of(active.heartbeat_s)),
        bad_values=dict(bad_values),
    )


def _backfill(backfills: Backfills, pipeline: str) -> BackfillReport | None:
    command, error = backfills.shown, backfills.error
    if command is None:
        return None
    fault = None if error is None else _error(Fault.of(error, backfills.ended_s, pipeline))
    return BackfillReport(
        id=command.id,
        phase=backfills.phase,
        version=command.version,
        where=command.where,
        files=backfills.files,
        files_done=backfills.files_done,
        rows=backfills.rows,
        error=fault,
        kind=command.kind,
    )


def _error(fault: Fault) -> ErrorReport:
    return ErrorReport(fault.name, fault.text, fault.hint, time_of(fault.at_s))


def time_of(seconds: float) -> datetime:
    """Return a time in seconds since 1970, to the millisecond."""
    return datetime.fromtimestamp(round(seconds, 3), UTC)
