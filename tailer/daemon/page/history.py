"""The recent past of pipelines: the events of the status page, and the way of versions to the sink.

Changes of state are found by looking every second, so a state that lasts less may be missed. That a healthy table
becomes idle, or busy again, is no event, and neither is a start that goes well: 500 of them would hide the others.

`GET /history` has the events of all pipelines since the daemon began, and `GET /history?pipeline=NAME` those of one::

    {"format": 2,
     "events": [{"at": "2026-03-01T11:58:12Z", "pipeline": "orders", "state": "retrying", "before": "streaming",
                 "why": "SinkUnavailable: ..."}],
     "journeys": [{"first": 7, "last": 7, "appeared": "2026-03-01T11:59:58.800Z", "begun": "2026-03-01T11:59:59Z",
                   "plan_s": 0.01, "read_s": 0.2, "deliver_s": 0.05}],
     "table": "/data/orders"}

Events come newest first, and so do journeys. Only the answer about one pipeline has its `table`, else null, and
journeys: the way of its last versions to the sink (`tailer.pipeline.retention.Journey`), for as long as the process
runs.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

import anyio
import msgspec

from tailer.daemon.status_report import time_of
from tailer.pipeline.status import PipelineState, PipelineStatus

__all__ = ["EVENTS", "FORMAT", "History", "HistoryReport", "JourneyReport"]

FORMAT: Final = 2  # 1 also had points of lag and rows over six hours
EVENTS: Final = 200
# Changes between these are no news, and those from the others below to any of these only after an event.
_QUIET: Final = frozenset({PipelineState.STREAMING, PipelineState.IDLE})
_BEGINNING: Final = frozenset({PipelineState.STARTING, PipelineState.SNAPSHOT, PipelineState.CATCHING_UP})
_LOOK_S: Final = 1.0


class Event(msgspec.Struct, frozen=True):
    """A change of a pipeline's state, and the reason of the new one."""

    at: datetime
    pipeline: str
    state: PipelineState
    before: PipelineState
    why: str


class JourneyReport(msgspec.Struct, frozen=True):
    """A `Journey`: of the versions `first` to `last`, when the first appeared, and seconds."""

    first: int
    last: int
    appeared: datetime | None
    begun: datetime
    plan_s: float
    read_s: float
    deliver_s: float

    @property
    def delivered(self) -> datetime:
        """The time when the sink had committed them."""
        return self.begun + timedelta(seconds=self.plan_s + self.read_s + self.deliver_s)


class HistoryReport(msgspec.Struct, frozen=True):
    """The answer of `/history`."""

    format: int
    events: list[Event]
    journeys: list[JourneyReport]
    table: str | None


class History:
    """The recent past of `pipelines`, which may grow and shrink. One thread calls its methods."""

    def __init__(self, pipelines: Sequence[PipelineStatus], clock: Callable[[], float] = time.time) -> None:
        self._pipelines = pipelines
        self._clock = clock
        self._states: dict[str, PipelineState] = {}
        self._unsettled: set[str] = set()  # those with an event that is not over
        self._events: deque[Event] = deque(maxlen=EVENTS)

    async def run(self) -> None:
        """Keep events until cancelled."""
        while True:
            self.look()
            await anyio.sleep(_LOOK_S)

    def look(self) -> None:
        """Note changes of state."""
        now = time_of(self._clock())
        for pipeline in self._pipelines:
            state = pipeline.state
            before = self._states.get(pipeline.name, state)
            self._states[pipeline.name] = state
            if before is state or {before, state} <= _QUIET:
                continue
            begins = before in _BEGINNING and state in _BEGINNING | _QUIET
            if not begins or pipeline.name in self._unsettled:
                self._events.appendleft(Event(now, pipeline.name, state, before, pipeline.why))
                self._unsettled.add(pipeline.name)
            if state in _QUIET:
                self._unsettled.discard(pipeline.name)

    def report(self, pipeline: str | None = None) -> HistoryReport | None:
        """Return the past of all pipelines, or of one with its journeys; None where there is none of that name."""
        chosen = [status for status in self._pipelines if pipeline in (None, status.name)]
        if pipeline is not None and not chosen:
            return None
        events = [event for event in self._events if pipeline in (None, event.pipeline)]
        journeys, table = ([], None) if pipeline is None else (_journeys(chosen[0]), chosen[0].table)
        return HistoryReport(FORMAT, events, journeys, table)


def _journeys(status: PipelineStatus) -> list[JourneyReport]:
    """Return the journeys of a pipeline, newest first. Its thread may add others meanwhile."""
    return [
        JourneyReport(
            journey.first,
            journey.last,
            None if journey.appeared_s is None else time_of(journey.appeared_s),
            time_of(journey.begun_s),
            round(journey.plan_s, 3),
            round(journey.read_s, 3),
            round(journey.deliver_s, 3),
        )
        for journey in reversed(tuple(status.backlog.journeys))
    ]
