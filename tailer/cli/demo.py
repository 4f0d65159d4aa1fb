"""`tailer demo`: follow a live table, survive a kill, and compare the copy with Spark's change feed."""

import signal

import click
from rich.console import Console

from tailer.errors import ConfigError, how_to_install

__all__ = ["command"]


@click.command("demo")
@click.option(
    "--format",
    "table_format",
    type=click.Choice(["delta", "lance"]),
    default="delta",
    show_default=True,
    help="Format of the table to follow. A Lance dataset is written by pylance, and needs no Spark.",
)
def command(table_format: str) -> int:
    """Follow a live table into a Delta table, and prove it.

    Starts a local Spark (requires PySpark, Delta and Java 17) that creates a table and then inserts, updates,
    deletes and merges rows, while the daemon prints the events and copies them into a Delta table. The daemon is
    killed once in the middle. At the end Spark compares: was every change delivered once, and is their fold the
    table? The exit code is 0 if so, otherwise 1. All files are in a folder that is removed at the end.
    """
    of_lance = table_format == "lance"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from tailer.demo.stage import play  # noqa: PLC0415 - slow to import

        return 0 if play(Console(highlight=False), of_lance=of_lance) else 1
    except ImportError as missing:
        remedy = how_to_install("lance" if of_lance else "spark", "delta")
        raise ConfigError("tailer demo", f"a library is not installed: {missing}", remedy) from missing
