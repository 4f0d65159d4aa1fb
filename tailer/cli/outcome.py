"""The end of a run of `tailer`: an error becomes an exit code, a line and a hint."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import click
from click.shell_completion import shell_complete

from tailer.cli import tailer
from tailer.cli.streams import OutputRefused, abandon_output, flush_errors, guard_streams, sentence
from tailer.errors import SinkError, TailerError, one_line

__all__ = ["CHOSEN", "run_verb"]

GRAVITY: Final = (1, 3, 2, 4)
CHOSEN: Final = "pipeline"  # in the context: the pipeline that the command line names; empty: none
COMPLETE: Final = "_TAILER_COMPLETE"  # set by a shell that asks for completions


def run_verb() -> int:
    """Run the verb that the command line names, and return its exit code; all that is printed has left."""
    guard_streams()
    try:
        code = _run()
        sys.stdout.flush()
    except BrokenPipeError:
        abandon_output()
        code = 0
    except OutputRefused as error:
        abandon_output()
        _say("error", f"standard output: {error.reason}", "red")
        _say("hint", "Run it again with a writable output; what was printed may be incomplete.", "yellow")
        code = SinkError.exit_code
    flush_errors()
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
