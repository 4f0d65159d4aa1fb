"""Errors in queries: with the next step, once, and without frames of ours."""

import traceback

import pytest

from tailer.errors import ChangesUnavailable, LogCorrupt, TailerError, VersionGone
from tailer.spark.next_step import with_next_step


def fail(error: TailerError, depth: int = 20) -> None:
    if depth:
        fail(error, depth - 1)
    raise error


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (ChangesUnavailable("t", 3, "lost"), "startingVersion = 4 continues"),
        (LogCorrupt("t", "p", "garbage", 3), "startingVersion = a version after the gap continues"),
        (VersionGone("t", 3, 0, 9), "startingVersion = a version after the gap continues"),
        (VersionGone("t", 3, 0, 9, 5, ("latest",)), "startingVersion = 5 continues"),
        (VersionGone("t", 3, 0, 9, None, ()), "A writer that still has the state may write a checkpoint"),
    ],
)
def test_the_next_step_comes_once_and_without_frames(error: TailerError, step: str) -> None:
    with pytest.raises(type(error)) as caught, with_next_step(), with_next_step():
        fail(error)
    lines = "".join(traceback.format_exception(caught.value))
    assert lines.count(step) == 1
    assert "in fail" not in lines
