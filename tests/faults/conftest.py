"""Processes that tests of faults start."""

import subprocess
from collections.abc import Iterator
from typing import Protocol

import pytest


class Started(Protocol):
    """A daemon or a writer of its own."""

    process: "subprocess.Popen[bytes]"


@pytest.fixture
def started() -> Iterator[list[Started]]:
    """The daemons and writers of a test, all killed at its end."""
    found: list[Started] = []
    yield found
    for each in found:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()
