"""Standard output and standard error that may be closed or full, and sentences on them.

A verb writes to standard output through click, rich or `print`. In each case a failed write must end the command with a
named error, so it is recognised where bytes are written (`OutputRefused`). A pipe whose reader has gone stays a
`BrokenPipeError`, which is a normal end.
"""

import errno
import io
import os
import re
import shutil
import sys
import textwrap
from typing import Any, Final, TextIO

__all__ = ["OutputRefused", "abandon_output", "flush_errors", "guard_streams", "sentence"]

_STDOUT: Final = 1
_STDERR: Final = 2
_COMMAND: Final = re.compile("`[^`]{1,99}`")
_GLUE: Final = "\0"


class OutputRefused(OSError):
    """Standard output was closed before the start, or cannot take more."""

    @property
    def reason(self) -> str:
        """The cause as the operating system names it."""
        return "is closed" if self.errno == errno.EBADF else str(self.strerror)


class _Output(io.FileIO):
    """Standard output as bytes; names its own errors."""

    def write(self, data: Any) -> int:
        """See `io.FileIO.write`. Raises `OutputRefused`."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputRefused(error.errno, error.strerror) from error


def guard_streams() -> None:
    """Make standard output raise `OutputRefused`; occupy the file descriptors of closed streams.

    Otherwise the next file that is opened would get the descriptor of standard output, and our output.
    """
    if sys.stdout is None:
        # Opened for reading: every write is refused, as it is by a closed stream.
        _occupy(_STDOUT, os.O_RDONLY)
        _replace_output("utf-8", "strict", line_buffering=False)
    elif (stdout := sys.__stdout__) is sys.stdout and stdout is not None:
        _replace_output(stdout.encoding, stdout.errors or "strict", stdout.line_buffering)
    if sys.stderr is None:
        _occupy(_STDERR, os.O_WRONLY)
        sys.stderr = os.fdopen(_STDERR, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def abandon_output() -> None:
    """Discard the buffer of standard output, so that the flush at exit does not fail again."""
    _occupy(_STDOUT, os.O_WRONLY)


def flush_errors() -> None:
    """Flush standard error. Where it is full, discard its buffer: a failed flush at exit would change the exit code."""
    try:
        sys.stderr.flush()
    except OSError:
        _occupy(_STDERR, os.O_WRONLY)


def _occupy(number: int, mode: int) -> None:
    handle = os.open(os.devnull, mode)
    if handle != number:
        os.dup2(handle, number)
        os.close(handle)


def _replace_output(encoding: str, errors: str, line_buffering: bool) -> None:
    raw = io.BufferedWriter(_Output(_STDOUT, "w", closefd=False))
    sys.stdout = io.TextIOWrapper(raw, encoding, errors, line_buffering=line_buffering)


def sentence(text: str, before: int, indent: int, stream: TextIO | None = None) -> str:
    """Return a text that follows `before` characters of a line. In a terminal, its lines end at blanks.

    Paths, and commands in backticks, stay whole, to be copied. `indent`: of the later lines. `stream`: which one it
    goes to; None: standard output.
    """
    if not (sys.stdout if stream is None else stream).isatty():
        return text
    filled = textwrap.fill(
        _COMMAND.sub(lambda command: command[0].replace(" ", _GLUE), text),
        shutil.get_terminal_size().columns,
        initial_indent=" " * before,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled[before:].replace(_GLUE, " ")
