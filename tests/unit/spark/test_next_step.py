"""Errors in queries: with the next step, once, and without frames of ours."""

import traceback
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.clientserver import ClientServer

from tailer.errors import ChangesUnavailable, ConfigError, LogCorrupt, TailerError, VersionGone
from tailer.spark import changes, follow
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


@pytest.mark.parametrize(
    ("table", "options", "where"),
    [
        (5, {}, "table"),
        ("orders", {"start": "xx"}, "start"),
        ("orders", {"start": 4, "end": 2}, "start"),
        ("orders", {"columms": ["id"]}, "columms"),
        ("orders", {"schema": "envelope"}, "schema"),
    ],
)
@pytest.mark.parametrize("is_followed", [False, True])
def test_an_option_that_cannot_be_is_named_without_frames(
    table: Any, options: dict[str, Any], where: str, is_followed: bool
) -> None:
    """Before the session is used for more than to see what it is."""
    context = SimpleNamespace(_gateway=object.__new__(ClientServer))
    session: Any = SimpleNamespace(_jsparkSession=None, version="4.2.0", sparkContext=context, conf={})
    with pytest.raises(ConfigError, match=where) as caught:
        (partial(follow, deliver=lambda _rows, _number: None) if is_followed else changes)(session, table, **options)
    lines = "".join(traceback.format_exception(caught.value))
    assert lines.endswith(f"{caught.value.hint}\n")
    assert lines.count("  File ") == 1
