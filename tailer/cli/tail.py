"""`tailer tail`: one table's changes on standard output; nothing is remembered."""

import logging
from pathlib import Path
from typing import Final

import anyio
import click

from tailer.config import local_folder
from tailer.daemon import close_sinks, log_to_stderr, run_all
from tailer.delta.table import DeltaTableLog
from tailer.engine import LocalEngine
from tailer.errors import ConfigError
from tailer.pipeline import Pipeline
from tailer.policy import Policy
from tailer.sink import AtLeastOnceSink, Progress, Recorded, Sink, configure_sink
from tailer.start import Start, StartKind
from tailer.storage import LocalStore
from tailer.watch import LocalWake

__all__ = ["command"]

# Ctrl-C means now, but not in the middle of a line if that can be helped.
DRAIN_S: Final = 0.5


class Unrecorded:
    """A `ProgressStore` that ends with the process: who looks on begins anew each time."""

    def __init__(self) -> None:
        self._progress: dict[str, Progress] = {}

    async def progress(self, app_id: str) -> Progress | None:
        """See `ProgressStore.progress`."""
        return self._progress.get(app_id)

    async def has_delivered(self, pipeline: str) -> bool:
        """See `ProgressStore.has_delivered`."""
        return bool(self._progress)

    async def record(self, progress: Progress) -> None:
        """See `ProgressStore.record`; there is no other instance."""
        self._progress[progress.app_id] = progress

    async def aclose(self) -> None:
        """See `ProgressStore.aclose`."""


@click.command("tail")
@click.argument("table")
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="PLACE",
    help="Where to begin: earliest, latest, snapshot (all rows, then changes), a version or a timestamp.",
)
@click.option("--to", "end", metavar="PLACE", help="Where to end: latest, a version or a timestamp. Without it, never.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "jsonl"]),
    help="How rows look. Default: table on a terminal, else JSON Lines.",
)
@click.option("--columns", metavar="A,B", help="Only these columns of the table, in this order.")
@click.option("--row-ids", is_flag=True, help="Add _row_id and _row_commit_version, where the table tracks rows.")
def command(table: str, start: str, end: str | None, form: str | None, columns: str | None, row_ids: bool) -> None:
    """Show a table's changes as they are committed.

    TABLE is the folder that contains _delta_log. Without --to it follows, like `tail -f`, until Ctrl-C.
    A timestamp such as 2026-03-01T12:00:00Z is UTC where it has no zone.
    """
    folder = local_folder(table, Path.cwd(), "TABLE")
    begin, until = Start.parse(start, "--from"), _until(end)
    stdout = configure_sink("stdout", "stdout", {"format": form or "auto"})
    assert isinstance(stdout, AtLeastOnceSink)
    sink = Recorded(stdout, Unrecorded())
    pipeline = Pipeline(
        "tail",
        DeltaTableLog(LocalStore(folder)),
        sink,
        LocalEngine(),
        LocalWake(folder / "_delta_log"),
        begin,
        until=until,
        policy=Policy(_columns(columns), row_ids),
    )
    log_to_stderr(logging.WARNING)
    # That only the timer tells of new commits is no news to somebody who looks on.
    logging.getLogger("tailer.watch").setLevel(logging.ERROR)
    anyio.run(_follow, pipeline, sink)


def _until(text: str | None) -> Start | None:
    if text is None:
        return None
    end = Start.parse(text, "--to")
    if end.kind in (StartKind.EARLIEST, StartKind.SNAPSHOT):
        raise ConfigError("--to", f"{text!r} is not an end", "Give latest, a version or a timestamp.")
    return end


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if "" in names or len(set(names)) < len(names):
        raise ConfigError("--columns", f"{text!r} has an empty or a repeated name", "Give names with commas between.")
    return names


async def _follow(pipeline: Pipeline, sink: Sink) -> None:
    try:
        failures = await run_all({"tail": pipeline}, DRAIN_S)
    finally:
        await close_sinks([sink])
    for error in failures.values():
        # The sink's word for a reader that went away, which to `tail | head` is a good end.
        raise error.__cause__ if isinstance(error.__cause__, BrokenPipeError) else error
