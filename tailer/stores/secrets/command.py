"""Commands that print secrets: run without a shell or input, within bounds.

What a command prints is in no message, and neither are its arguments.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

__all__ = ["NoSecret", "printed_by"]

_END_S: Final = 1.0  # for the end of a killed command
_LIMIT_S: Final = 30.0
_LOOK_S: Final = 0.02  # between two looks at whether a command has ended, if something else keeps its output open
_LARGEST: Final = 64 * 2**10


class NoSecret(Exception):
    """There is no secret where it should be: `reason`, and the next step; `remedy` None: it may be there later."""

    def __init__(self, reason: str, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason: Final = reason
        self.remedy: Final = remedy


def printed_by(command: Sequence[str]) -> str:
    """Run a program with its arguments, and return what it prints. Blocks. Raises `NoSecret`."""
    place = f"the command {command[0]}"
    remedy = "It must print the secret alone, as text. Run it by hand, as the user of this process."
    none, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=none, stdout=pipe, stderr=none, start_new_session=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "an argument has a null byte"
        raise NoSecret(f"{place} cannot be run: {reason}", remedy) from None
    assert process.stdout is not None
    deadline_s = time.monotonic() + _LIMIT_S
    try:
        printed = _read(process, deadline_s)
        code = process.wait(max(deadline_s - time.monotonic(), 0.0)) if len(printed) <= _LARGEST else 0
    except (TimeoutError, subprocess.TimeoutExpired):
        raise NoSecret(f"{place} did not end within {_LIMIT_S:g} s") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):  # what it has started, too; another user's goes on
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    if code != 0:
        raise NoSecret(f"{place} ended with exit code {code}")
    if not printed.strip() or len(printed) > _LARGEST:
        what = f"more than {_LARGEST} bytes" if printed.strip() else "nothing"
        raise NoSecret(f"{place} printed {what}", remedy)
    try:
        return printed.decode("utf-8")
    except UnicodeError:
        raise NoSecret(f"{place} printed what is not UTF-8", remedy) from None


def _read(process: "subprocess.Popen[bytes]", deadline_s: float) -> bytes:
    """Read what a process prints up to its end, or a little more than `_LARGEST` bytes. Raises `TimeoutError`.

    What it has started may keep its output open beyond that.
    """
    assert process.stdout is not None
    found, number = b"", process.stdout.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(number, selectors.EVENT_READ)
        while len(found) <= _LARGEST:
            has_ended = process.poll() is not None  # then all that it has printed is there
            rest_s = deadline_s - time.monotonic()
            if not has_ended and rest_s <= 0:
                raise TimeoutError
            if selector.select(0 if has_ended else min(_LOOK_S, rest_s)):
                more = os.read(number, _LARGEST + 1)
                found += more
                if not more:
                    break
            if has_ended:
                break
    return found
