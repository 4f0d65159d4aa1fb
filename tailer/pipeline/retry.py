"""Retries of a pipeline's sessions, the same for every kind of pipeline.

Each session begins with the progress in the sink. A session that fails with a temporary error is repeated, after pauses
that grow, until `Limits.retry_for_s` have passed without success. The session itself reports success. Then the pipeline
stops; `revival_pause_s` says when the daemon begins it again. Where access is refused, that is after some seconds: time
enough for a secret that is just replaced, and not so many logins that they lock an account.

`SinkFenced` stops a pipeline, with one exception. The last request of a killed instance may still be on its way when
the next one reads the progress, which then finds that another instance has committed. A killed instance has at most one
such request, so a run that has just begun and has not committed reads the progress once more. A live rival commits
again, and is not waited for a second time.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from tailer.errors import Retry, TailerError, duration
from tailer.pipeline.status import Committed, PipelineStatus

__all__ = ["Retries", "revival_pause_s"]

_log = logging.getLogger(__name__)
_RETRIED: Final = (Retry.BRIEF, Retry.TIMED, Retry.ASK)
_BRIEF_S: Final = 10.0
_BRIEF_PAUSE_S: Final = 3.0
_LATE_REQUEST_S: Final = 600.0  # the first transaction may take minutes, and finds only then what has arrived
_REVIVE_FIRST_S: Final = 60.0
_REVIVE_LAST_S: Final = 1800.0


def revival_pause_s(error: BaseException, stops: int) -> float | None:
    """Return after how many seconds a pipeline that `error` stopped begins again by itself; None: a person must act.

    `stops`: how often it has stopped since it last delivered, this time included.
    """
    if not isinstance(error, TailerError) or error.retry not in _RETRIED:
        return None
    return min(_REVIVE_FIRST_S * 2.0 ** min(stops - 1, 10), _REVIVE_LAST_S)


class Retries:
    """Runs sessions of the pipeline `name` and gives up after `retry_for_s` seconds without success.

    `status`: receives the outcome of each session. `first_answer_s`: as in `Limits`.
    """

    def __init__(
        self,
        name: str,
        retry_for_s: float,
        status: PipelineStatus | None = None,
        first_answer_s: float | None = None,
    ) -> None:
        self._name = name
        self.status: Final = status or PipelineStatus(name)
        self._retry_for_s = retry_for_s
        self._first_answer_s = first_answer_s
        self._stopping = anyio.Event()
        self._succeeded = self._has_committed = self._was_fenced = False
        self._failing_since = 0.0
        self._refused_since: float | None = None  # since when every attempt ended with a refused access
        self._began = 0.0

    def is_stopping(self) -> bool:
        """Return whether no other session is to begin and the current one is to end soon."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Begin no other session."""
        self._stopping.set()

    def note_commit(self, done: Committed) -> None:
        """Note a transaction of the current session, which has thereby made progress."""
        self._succeeded = self._has_committed = True
        self.status.note_commit(done)

    def note_progress(self) -> None:
        """Note that the current session has delivered something, though it may fail afterwards."""
        self._succeeded = self._has_committed = True

    def note_caught_up(self, version: int, has_progress: bool = True) -> None:
        """Note that the current session found nothing due after `version`; see `PipelineStatus.note_caught_up`."""
        self._succeeded = True
        self.status.note_caught_up(version, has_progress)

    async def run(self, session: Callable[[], Awaitable[bool]]) -> None:
        """Run sessions until one returns True or `stop` is called. After False the next one follows at once.

        Raises the `TailerError` that needs a person, or that lasted too long. One that may pass and ends the last
        session after `stop` is only logged: a pipeline that was stopped has failed at nothing.
        """
        self._began = time.monotonic()
        growing_s = wait_random_exponential(multiplier=0.5, max=30.0)
        done = False
        while not (done or self.is_stopping()):
            retrying = AsyncRetrying(
                retry=retry_if_exception(self._may_pass),
                wait=lambda state: _BRIEF_PAUSE_S if _is_brief(state) else growing_s(state),
                stop=self._gives_up,
                sleep=self._pause,
                before_sleep=self._report,
                reraise=True,
            )
            done = await retrying(self._attempt, session)

    async def _attempt(self, session: Callable[[], Awaitable[bool]]) -> bool:
        """Run one session. Return False to reset the retry timer."""
        if self.is_stopping():
            return True
        self._succeeded = False
        self.status.note_step()
        try:
            return await session()
        except TailerError as error:
            if self.is_stopping() and error.retry in _RETRIED:
                _log.warning("%s: %s; the next run begins from the sink's progress", self._name, error)
                return True
            self.status.note_error(error)
            if self._is_late_request(error):
                self._was_fenced = True
            elif not self._succeeded or not self._may_pass(error):
                raise
            _log.warning("%s: %s; starting again from the sink's progress", self._name, error)
            self.status.note_retry()
            return False
        except Exception as error:
            self.status.note_error(error)
            raise

    def _is_late_request(self, error: TailerError) -> bool:
        """Return whether what fenced the session may be the last request of an instance that is gone."""
        if error.retry is not Retry.ONCE or self._has_committed or self._was_fenced or self.is_stopping():
            return False
        return time.monotonic() - self._began < _LATE_REQUEST_S

    def _may_pass(self, error: BaseException) -> bool:
        return isinstance(error, TailerError) and error.retry in _RETRIED

    def _gives_up(self, state: RetryCallState) -> bool:
        if state.attempt_number == 1:
            self._failing_since, self._refused_since = time.monotonic(), None
        self._refused_since = (self._refused_since or time.monotonic()) if _is_brief(state) else None
        return self._left_s() <= 0

    def _left_s(self) -> float:
        """Return for how many seconds more to retry without success."""
        if self._refused_since is not None:
            if self._first_answer_s is not None:
                return 0.0
            return self._refused_since + min(_BRIEF_S, self._retry_for_s) - time.monotonic()
        if self._first_answer_s is not None and not self.status.has_seen_table:
            return self._began + self._first_answer_s - time.monotonic()
        return self._failing_since + self._retry_for_s - time.monotonic()

    def _report(self, state: RetryCallState) -> None:
        self.status.note_retry()
        error = state.outcome.exception() if state.outcome is not None else None
        text = "%s: %s; retrying in %.1f s, for up to %s"
        left_s = max(self._left_s(), state.upcoming_sleep)
        _log.warning(text, self._name, error, state.upcoming_sleep, duration(left_s))

    async def _pause(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._stopping.wait()


def _is_brief(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome is not None else None
    return isinstance(error, TailerError) and error.retry is Retry.BRIEF
