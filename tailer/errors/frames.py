"""Errors as a program that called us should see them: a `TailerError` says all in its text and its hint."""

from collections.abc import Callable
from operator import attrgetter

from tailer.errors.general import TailerError

__all__ = ["brief_errors"]


class brief_errors:  # noqa: N801 - used like a function; a generator would bring the frames back
    """End the traceback of a `TailerError` with its next step, and drop the frames below the caller.

    Where it was raised helps nobody who has to act on it. Its cause stays, without frames as well. `next_step`: the
    error's own hint, if nothing else is given.
    """

    def __init__(self, next_step: Callable[[TailerError], str] = attrgetter("hint")) -> None:
        self._next_step = next_step

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, TailerError):
            return
        step = self._next_step(error)
        if step and step not in getattr(error, "__notes__", ()):
            error.add_note(step)
        error.__suppress_context__ = True
        cause: BaseException | None = error
        while cause is not None:
            cause.__traceback__ = None
            cause = cause.__cause__
