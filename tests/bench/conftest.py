"""One Markdown table at the end of `make bench`, of the lines that the benchmarks put into it."""

from collections.abc import Callable
from typing import Final

import pytest

__all__ = ["PutLine"]

PutLine = Callable[[str, str, str, str], None]
"""Puts a line into the table: the work, our figure, a peer's figure of the same run with the ratio, and the goal."""

_LINES: Final = pytest.StashKey[list[str]]()


@pytest.fixture
def put_line(request: pytest.FixtureRequest) -> PutLine:
    """Put lines into the table."""
    lines = request.config.stash.setdefault(_LINES, ["| work | lake-tailer | peer | goal |", "|---|---|---|---|"])

    def put(work: str, ours: str, peer: str, goal: str) -> None:
        lines.append(f"| {work} | {ours} | {peer} | {goal} |")

    return put


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    for line in config.stash.get(_LINES, []):
        terminalreporter.write_line(line)
