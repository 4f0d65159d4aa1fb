"""The end of a run of `tailer`: an error becomes an exit code, a line and a hint.

Standard output and standard error may be closed or full. A verb writes to standard output through click, rich or
`print`. In each case a failed write must end the command with a named error, so it is recognised where bytes are
written (`OutputRefused`). A pipe whose reader has gone stays a `BrokenPipeError`, which is a normal end.
"""

import errno
import io
import os
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, TextIO

import click
from click.shell_completion import shell_complete

from tailer.cli import tailer
from tailer.errors import SinkError, TailerError, one_line

__all__ = ["CHOSEN", "GRAVITY", "run_verb", "sentence"]

GRAVITY: Final = (1, 3, 2, 4)  # of exit codes, the most severe first
CHOSEN: Final = "pipeline"  # in the context: the pipeline that the command line names; empty: none
COMPLETE: Final = "_TAILER_COMPLETE"  # set by a shell that asks for completions
_STDOUT: Final = 1
_STDERR: Final = 2
_COMMAND: Final = re.compile("`[^`]{1,99}`")
_GLUE: Final = "\0"


def run_verb() -> int:
    """Run the verb that the command line names, and return its exit code; all that is printed has left."""
    _guard_streams()
    try:
        code = _run()
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_output()
        code = 0
    except OutputRefused as error:
        _abandon_output()
        _say("error", f"standard output: {error.reason}", "red")
        _say("hint", "Run it again with a writable output; what was printed may be incomplete.", "yellow")
        code = SinkError.exit_code
    try:
        sys.stderr.flush()
    except OSError:  # it is full: a failed flush at exit would change the exit code
        _occupy(_STDERR, os.O_WRONLY)
    return code


def _run() -> int:
    if instruction := os.environ.get(COMPLETE):
        return shell_complete(tailer, {}, "tailer", COMPLETE, instruction)
    context: click.Context | None = None
    try:
        # `tailer.main` has its own exit code for a closed pipe.
        with tailer.make_context("tailer", sys.argv[1:]) as context:
            result = tailer.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        with suppress(OSError):
            error.show()
        return error.exit_code
    except click.ClickException as error:
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "tailer"
        _say("error", one_line(error.format_message()), "red")
        _say("hint", f"See `{path} --help`.", "yellow")
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except (BrokenPipeError, OutputRefused):
        raise
    except Exception as error:  # noqa: BLE001 - the outermost frame; unknown errors are printed with a traceback
        pipeline = "" if context is None else context.meta.get(CHOSEN, "")
        codes = [_report(leaf, pipeline) for leaf in _leaves(error)]
        _forget(error)
        return min(codes, key=GRAVITY.index)
    return result if isinstance(result, int) else 0


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error


def _report(error: Exception, pipeline: str) -> int:
    """Print the error and its hint, and return its exit code.

    `pipeline`: the one that the command line names. Notes on the exception name another one.
    """
    notes = getattr(error, "__notes__", ())
    about = "".join(f"{note}: " for note in notes)
    if isinstance(error, TailerError):
        _say("error", f"{about}{error}", "red")
        if hint := error.hint_for(next(iter(notes), pipeline)):
            _say("hint", hint, "yellow")
        return error.exit_code
    with suppress(OSError):
        traceback.print_exception(error)
    _say("error", f"{about}{type(error).__name__}: {one_line(str(error))}", "red")
    _say("hint", "This is a bug in lake-tailer: please report it with the lines above.", "yellow")
    return 1


def _forget(error: BaseException) -> None:
    """Clear the frames of the error: some libraries warn about objects that are still referenced at exit."""
    while_handling = [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = error.__cause__ = error.__context__ = None
    for other in filter(None, while_handling):
        _forget(other)


def _say(label: str, text: str, color: str) -> None:
    with suppress(OSError):  # standard error is closed: the exit code remains
        indent = len(f"{label}: ")
        said = sentence(text, indent, indent, sys.stderr)
        click.echo(f"{click.style(f'{label}:', fg=color, bold=True)} {said}", err=True)


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


def _guard_streams() -> None:
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


def _abandon_output() -> None:
    """Discard the buffer of standard output, so that the flush at exit does not fail again."""
    _occupy(_STDOUT, os.O_WRONLY)


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
