"""Errors as a program that called us should see them: a `TailerError` says all in its text and its hint."""

from tailer.errors.general import TailerError

__all__ = ["without_frames"]


def without_frames(error: TailerError) -> TailerError:
    """Return the error without the frames below the caller: where it was raised helps nobody who has to act on it.

    Its cause stays, without frames as well.
    """
    error.__suppress_context__ = True
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__
    return error
