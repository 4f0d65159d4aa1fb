"""`tailer demo`: the whole product on one screen, in two minutes, with a proof at the end."""

import signal
from types import FrameType

import click
from rich.console import Console

__all__ = ["command"]


@click.command("demo")
def command() -> int:
    """Follow a live Delta table into another, and prove it.

    Starts a local Spark (PySpark, Delta and Java 17 are needed) that creates a table and goes on inserting, updating,
    deleting and merging, while the daemon shows the events and copies them into a Delta table. It is killed once in
    the middle. In the end Spark compares: every change once, and their fold is the table. Ends with 0 if so, else 1.
    """
    # Spark is loaded by this verb alone.
    from tailer.demo.stage import play

    signal.signal(signal.SIGTERM, _interrupt)
    return 0 if play(Console(highlight=False)) else 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
