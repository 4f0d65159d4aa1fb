"""Lines of modules that inputs reach: what a corpus covers, and the few inputs that cover the same."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import CodeType, FrameType
from typing import Any

__all__ = ["Lines", "all_lines", "minimise", "reached"]

Lines = frozenset[tuple[str, int, int]]


def all_lines(modules: Sequence[str]) -> int:
    """Return how many lines the functions of modules have."""
    return len({(file, line) for name in modules for file, line in _of_module(name)})


def _of_module(name: str) -> Iterator[tuple[str, int]]:
    file = import_module(name).__file__
    assert file is not None
    with open(file, encoding="utf-8") as source:  # noqa: PTH123 - as the import system names it
        pending = [each for each in compile(source.read(), file, "exec").co_consts if isinstance(each, CodeType)]
    while pending:
        code = pending.pop()
        pending += [each for each in code.co_consts if isinstance(each, CodeType)]
        if code.co_flags & 0x2:  # a function, not the body of a class
            yield from ((file, line) for _, _, line in code.co_lines() if line and line != code.co_firstlineno)


def reached(work: Callable[[], object], modules: Sequence[str]) -> Lines:
    """Return the lines of modules that `work` reaches, on any thread, each with the line before it."""
    files = {import_module(name).__file__ for name in modules}
    found: set[tuple[str, int, int]] = set()

    def enter(frame: FrameType, _: str, __: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in files:
            return None
        before = 0

        def step(inner: FrameType, event: str, _: Any) -> Any:
            nonlocal before
            if event == "line":
                found.add((file, before, inner.f_lineno))
                before = inner.f_lineno
            return step

        return step

    threading.settrace(enter)
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(None)
        threading.settrace(None)
    return frozenset(found)


def minimise(inputs: Sequence[bytes], reach: Callable[[bytes], Lines]) -> list[bytes]:
    """Return the shortest inputs that together reach what all do, each adding something."""
    known: set[tuple[str, int, int]] = set()
    kept = []
    for data in sorted(inputs, key=lambda each: (len(each), each)):
        new = reach(data) - known
        if new:
            known |= new
            kept.append(data)
    return kept
