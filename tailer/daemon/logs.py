"""The log of a process on standard error: as text, or as one JSON object for each record.

A record that is written while a pipeline runs carries its name, its table, and the sink's progress. They are taken from
the context of the task, so that whatever a pipeline calls can log without knowing for whom. A record with an error
among its arguments carries the error's name and hint.
"""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import anyio
import msgspec

from tailer.errors import TailerError, duration
from tailer.pipeline.status import Fault, PipelineState, PipelineStatus

__all__ = ["LogFormat", "Summaries", "about", "log_to_stderr", "logging_beside"]

SUMMARY_S: Final = 60.0
FIRST_S: Final = 1.0
WAITS_S: Final = 300.0  # for its table, before a pipeline is named
REMIND_S: Final = 3600.0

_CAUGHT_UP: Final = (PipelineState.STREAMING, PipelineState.IDLE)

_log = logging.getLogger(__name__)
_current: ContextVar[PipelineStatus | None] = ContextVar("pipeline", default=None)


class LogFormat(StrEnum):
    """The form of the log."""

    TEXT = "text"
    JSON = "json"

    @classmethod
    def for_stderr(cls) -> "LogFormat":
        """Return text for a terminal, and JSON otherwise."""
        return cls.TEXT if sys.stderr.isatty() else cls.JSON


@contextmanager
def about(status: PipelineStatus) -> Iterator[None]:
    """Add the fields of the pipeline to every record of the block, and of the tasks and threads that it starts."""
    token = _current.set(status)
    try:
        yield
    finally:
        _current.reset(token)


def _fault(record: logging.LogRecord) -> Fault | None:
    """Return the error that the record is about: the first among its arguments, or else that of its traceback."""
    name = "" if (status := _current.get()) is None else status.name
    arguments = record.args if isinstance(record.args, tuple) else ()
    for argument in arguments:
        if isinstance(argument, Fault):
            return argument
        if isinstance(argument, TailerError):
            return Fault.of(argument, record.created, name)
    error = record.exc_info[1] if record.exc_info else None
    return None if error is None else Fault.of(error, record.created, name)


class _Text(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the record in one line, with the name and the hint of its error at the end."""
        line = super().formatMessage(record)
        if (fault := _fault(record)) is None:
            return line
        return f"{line} [{': '.join(filter(None, (fault.name, fault.hint)))}]"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object in one line."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (status := _current.get()) is not None:
            position = status.backlog.position
            fields |= {"pipeline": status.name, "table": status.table}
            if position is not None:
                fields |= {"version": position.version, "position": str(position)}
        if (fault := _fault(record)) is not None:
            fields |= {name: value for name, value in (("error", fault.name), ("hint", fault.hint)) if value}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


def log_to_stderr(level: int = logging.INFO, form: LogFormat = LogFormat.TEXT) -> None:
    """Log one line for each event with UTC time: ours from `level` on, those of libraries from warnings on."""
    _log_to(logging.StreamHandler(), level, form)


@contextmanager
def logging_beside(level: int, form: LogFormat) -> Iterator[None]:
    """Log as `log_to_stderr` does, but never wait for the reader of standard error (`LogWriter`)."""
    from tailer.daemon.observe.log_writer import LogWriter  # noqa: PLC0415 - only the daemon logs for long

    writer = LogWriter()
    _log_to(writer, level, form)
    try:
        yield
    finally:
        writer.finish()
        log_to_stderr(level, form)


def _log_to(handler: logging.Handler, level: int, form: LogFormat) -> None:
    text = _Text("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    text.converter = time.gmtime
    handler.setFormatter(_Json() if form is LogFormat.JSON else text)
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
    for ours in ("tailer", "tailer_sinks"):
        logging.getLogger(ours).setLevel(level)


@dataclass(slots=True)
class _Seen:
    rows: int = 0
    transactions: int = 0
    version: int = -1


class Summaries:
    """One line for each pipeline that delivered something since its last line, in place of a line for each commit.

    The first line comes once a pipeline is at the newest version, also if it had nothing to deliver. A pipeline that
    waits for its table has a line after some minutes, and each hour: the name may be wrong. `clock`: of the statuses.
    """

    def __init__(self, statuses: Sequence[PipelineStatus], clock: Callable[[], float] = time.time) -> None:
        self._statuses = statuses
        self._clock = clock
        self._reminded_s: dict[str, float] = {}  # of those that wait
        self._seen: dict[str, tuple[PipelineStatus, _Seen]] = {}

    async def run(self) -> None:
        """Log the lines every `SUMMARY_S` seconds, and first ones within `FIRST_S`, until cancelled."""
        while True:
            for _ in range(round(SUMMARY_S / FIRST_S)):
                await anyio.sleep(FIRST_S)
                self.log_first()
            self.log()
            self.log_waits()

    def log_first(self) -> None:
        """Log the first line of each pipeline that is at the newest version now."""
        for status in self._statuses:
            if self._before(status) is None and status.state in _CAUGHT_UP:
                self._log(status)

    def log(self) -> None:
        """Log the lines that are due."""
        for status in self._statuses:
            if status.transactions != (self._before(status) or _Seen()).transactions:
                self._log(status)

    def log_waits(self) -> None:
        """Log the lines that are due about pipelines that wait for their table."""
        now_s = self._clock()
        for status in self._statuses:
            if status.state is not PipelineState.WAITING:
                self._reminded_s.pop(status.name, None)
                continue
            waited_s, reminded_s = now_s - status.since_s, self._reminded_s.get(status.name, -math.inf)
            if waited_s >= WAITS_S and now_s - reminded_s >= REMIND_S:
                self._reminded_s[status.name] = now_s
                wait = Fault(name="", text=status.why, hint=status.hint, at_s=now_s, since_s=status.since_s)
                with about(status):
                    _log.warning("%s: has waited for its table for %s: %s", status.name, duration(waited_s), wait)

    def _before(self, status: PipelineStatus) -> _Seen | None:
        """Return what the last line said of this run of a pipeline."""
        run, seen = self._seen.get(status.name, (None, None))
        return seen if run is status else None

    def _log(self, status: PipelineStatus) -> None:
        position = status.backlog.position
        if position is None:
            return
        before, now = self._before(status) or _Seen(), _Seen(status.rows.total(), status.transactions, position.version)
        self._seen[status.name] = status, now
        lag = "" if (lag_s := status.lag_s) is None else f" and {lag_s:.0f} s"
        summary = (
            f"{status.state}; rows {now.rows - before.rows}, transactions {now.transactions - before.transactions}, "
            f"up to version {now.version}; behind by {status.backlog.versions or 0} versions{lag}"
        )
        with about(status):
            _log.info("%s: %s", status.name, summary)
