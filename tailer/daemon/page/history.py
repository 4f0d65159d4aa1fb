"""The recent past of pipelines, for the plots and the events of the status page.

Every `STEP_S` seconds the lag and the new rows of each pipeline are kept, for `KEPT_S` seconds: 12 KB a pipeline. Its
changes of state are found by looking every second, so a state that lasts less may be missed. That a healthy table
becomes idle, or busy again, is no event, and neither is a start that goes well: 500 of them would hide the others.

`GET /history` has the past of all pipelines in at most `COARSE` points each, since the daemon began, and
`GET /history?pipeline=NAME` that of one in full::

    {"format": 1, "at": "2026-03-01T12:00:00Z", "step_s": 450,
     "pipelines": {"orders": {"lag_s": [0.0, 1.5, null], "rows": [12, 0, null]}},
     "events": [{"at": "2026-03-01T11:58:12Z", "pipeline": "orders", "state": "retrying", "before": "streaming",
                 "why": "SinkUnavailable: ..."}],
     "journeys": [{"first": 7, "last": 7, "appeared": "2026-03-01T11:59:58.800Z", "begun": "2026-03-01T11:59:59Z",
                   "plan_s": 0.01, "read_s": 0.2, "deliver_s": 0.05}],
     "table": "/data/orders"}

The last point ends at `at`, and each is `step_s` after the one before. A point has the greatest lag and the sum of the
rows of its time; null: not known. Events come newest first, and so do journeys. Only the answer about one pipeline has
its `table`, else null, and journeys: the way of its last versions to the sink (`tailer.pipeline.retention.Journey`),
for as long as the process runs.
"""

import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
import msgspec

from tailer.pipeline.status import PipelineState, PipelineStatus

__all__ = [
    "COARSE",
    "EVENTS",
    "FORMAT",
    "KEPT_S",
    "STEP_S",
    "Event",
    "History",
    "HistoryReport",
    "JourneyReport",
    "Past",
]

FORMAT: Final = 1
STEP_S: Final = 15
KEPT_S: Final = 6 * 3600
COARSE: Final = 48
EVENTS: Final = 200
# Changes between these are no news, and those from the others below to any of these only after an event.
_QUIET: Final = frozenset({PipelineState.STREAMING, PipelineState.IDLE})
_BEGINNING: Final = frozenset({PipelineState.STARTING, PipelineState.SNAPSHOT, PipelineState.CATCHING_UP})
_LOOK_S: Final = 1.0
_POINTS: Final = KEPT_S // STEP_S


class Event(msgspec.Struct, frozen=True):
    """A change of a pipeline's state, and the reason of the new one."""

    at: datetime
    pipeline: str
    state: PipelineState
    before: PipelineState
    why: str


class Past(msgspec.Struct, frozen=True):
    """The past of one pipeline, oldest first."""

    lag_s: list[float | None]
    rows: list[float | None]


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
    at: datetime
    step_s: int
    pipelines: dict[str, Past]
    events: list[Event]
    journeys: list[JourneyReport]
    table: str | None


class _Kept:
    """The points of one pipeline, in rings; NaN: not known."""

    def __init__(self, rows: int) -> None:
        self.lag_s = array("f", [math.nan]) * _POINTS
        self.rows = array("f", [math.nan]) * _POINTS
        self.counted = rows


class History:
    """The recent past of `pipelines`, which may grow and shrink. One thread calls its methods."""

    def __init__(self, pipelines: Sequence[PipelineStatus], clock: Callable[[], float] = time.time) -> None:
        self._pipelines = pipelines
        self._clock = clock
        self._next = 0  # the place of the next point in every ring
        self._count = 0  # of points since the beginning, as many as a ring holds
        self._sampled_s = clock()
        self._kept: dict[str, _Kept] = {}
        self._states: dict[str, PipelineState] = {}
        self._unsettled: set[str] = set()  # those with an event that is not over
        self._events: deque[Event] = deque(maxlen=EVENTS)

    async def run(self) -> None:
        """Keep points and events until cancelled."""
        while True:
            self.look()
            await anyio.sleep(_LOOK_S)

    def look(self) -> None:
        """Note changes of state, and a point if one is due."""
        now_s = self._clock()
        at = _time(now_s)
        for each in self._pipelines:
            state = each.state
            before = self._states.get(each.name, state)
            self._states[each.name] = state
            if before is state or {before, state} <= _QUIET:
                continue
            begins = before in _BEGINNING and state in _BEGINNING | _QUIET
            if not begins or each.name in self._unsettled:
                self._events.appendleft(Event(at, each.name, state, before, each.why))
                self._unsettled.add(each.name)
            if state in _QUIET:
                self._unsettled.discard(each.name)
        if now_s - self._sampled_s >= STEP_S:
            self._sampled_s = now_s
            self._sample()

    def report(self, pipeline: str | None = None) -> HistoryReport | None:
        """Return the past of all pipelines, coarsely, or of one in full; None where there is none of that name."""
        width = max(math.ceil(self._count / COARSE), 1) if pipeline is None else 1
        chosen = [each for each in self._pipelines if pipeline in (None, each.name)]
        if pipeline is not None and not chosen:
            return None
        events = [event for event in self._events if pipeline in (None, event.pipeline)]
        found = {each.name: self._past(self._kept[each.name], width) for each in chosen if each.name in self._kept}
        journeys, table = ([], None) if pipeline is None else (_journeys(chosen[0]), chosen[0].table)
        return HistoryReport(FORMAT, _time(self._sampled_s), width * STEP_S, found, events, journeys, table)

    def _sample(self) -> None:
        """Add a point to every ring."""
        names = {each.name for each in self._pipelines}
        for gone in self._kept.keys() - names:
            del self._kept[gone]
        for each in self._pipelines:
            total = each.rows.total()
            kept = self._kept.get(each.name)
            if kept is not None and total < kept.counted:  # a reload has begun the pipeline anew
                kept.counted = 0
            if kept is None:
                kept = self._kept[each.name] = _Kept(0)
            lag_s = each.lag_s
            kept.lag_s[self._next] = math.nan if lag_s is None else lag_s
            kept.rows[self._next] = total - kept.counted
            kept.counted = total
        self._next = (self._next + 1) % _POINTS
        self._count = min(self._count + 1, _POINTS)

    def _past(self, kept: _Kept, width: int) -> Past:
        return Past(self._merge(kept.lag_s, width, max), self._merge(kept.rows, width, sum))

    def _merge(self, ring: "array[float]", width: int, merge: Callable[[list[float]], float]) -> list[float | None]:
        """Return the points of a ring from the oldest on, `width` of them as one."""
        ordered = (ring[self._next :] + ring[: self._next])[_POINTS - self._count :]
        found: list[float | None] = []
        # The first point may stand for fewer, so that the last one ends now.
        for start in range(-(-len(ordered) % width), len(ordered), width):
            known = [value for value in ordered[max(start, 0) : start + width] if not math.isnan(value)]
            found.append(round(merge(known), 3) if known else None)
        return found


def _journeys(status: PipelineStatus) -> list[JourneyReport]:
    """Return the journeys of a pipeline, newest first. Its thread may add others meanwhile."""
    return [
        JourneyReport(
            each.first,
            each.last,
            None if each.appeared_s is None else _time(each.appeared_s),
            _time(each.begun_s),
            round(each.plan_s, 3),
            round(each.read_s, 3),
            round(each.deliver_s, 3),
        )
        for each in reversed(tuple(status.backlog.journeys))
    ]


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(round(seconds, 3), UTC)
