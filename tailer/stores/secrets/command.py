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
    none, (ours, theirs) = subprocess.DEVNULL, os.pipe()
    try:
        process = subprocess.Popen(command, stdin=none, stdout=theirs, stderr=none, start_new_session=True)
    except (OSError, ValueError) as error:
        os.close(ours)
        reason = getattr(error, "strerror", None) or "an argument has a null byte"
        raise NoSecret(f"{place} cannot be run: {reason}", remedy) from None
    finally:
        os.close(theirs)
    deadline_s = time.monotonic() + _LIMIT_S
    try:
        printed = _read(process, ours, deadline_s)
        code = process.wait(max(deadline_s - time.monotonic(), 0.0)) if len(printed) <= _LARGEST else 0
    except (TimeoutError, subprocess.TimeoutExpired):
        raise NoSecret(f"{place} did not end within {_LIMIT_S:g} s") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):  # what it has started, too; another user's goes on
            os.killpg(process.pid, signal.SIGKILL)
        os.close(ours)
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


def _read(process: "subprocess.Popen[bytes]", output: int, deadline_s: float) -> bytes:
    """Read what a process prints into the pipe `output` up to its end, or a little more than `_LARGEST` bytes.

    What it has started may keep the pipe open beyond that. Raises `TimeoutError`.
    """
    printed = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while len(printed) <= _LARGEST:
            has_ended = process.poll() is not None  # then all that it has printed is there
            rest_s = deadline_s - time.monotonic()
            if not has_ended and rest_s <= 0:
                raise TimeoutError
            if selector.select(0 if has_ended else min(_LOOK_S, rest_s)):
                more = os.read(output, _LARGEST + 1)
                printed += more
                if not more:
                    break
            if has_ended:
                break
    return printed
