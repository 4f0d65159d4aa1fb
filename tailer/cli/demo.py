"""`tailer demo`: follow a live table, survive a kill, and compare the copy with Spark's change feed."""

import signal

import click
from rich.console import Console

from tailer.errors import ConfigError, how_to_install

__all__ = ["command"]


@click.command("demo")
def command() -> int:
    """Follow a live Delta table into another, and prove it.

    Starts a local Spark (requires PySpark, Delta and Java 17) that creates a table and then inserts, updates,
    deletes and merges rows, while the daemon prints the events and copies them into a Delta table. The daemon is
    killed once in the middle. At the end Spark compares: was every change delivered once, and is their fold the
    table? The exit code is 0 if so, otherwise 1. All files are in a folder that is removed at the end.
    """
    try:
        from tailer.demo.stage import play  # noqa: PLC0415 - Spark need not be there for the help
    except ImportError as missing:
        remedy = how_to_install("spark", "delta")
        raise ConfigError("tailer demo", f"a library is not installed: {missing}", remedy) from missing
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return 0 if play(Console(highlight=False)) else 1
