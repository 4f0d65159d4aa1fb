"""`tailer demo`: the whole product on one screen, in two minutes, with a proof at the end."""

import signal

import click
from rich.console import Console

from tailer.errors import ConfigError, how_to_install

__all__ = ["command"]


@click.command("demo")
def command() -> int:
    """Follow a live Delta table into another, and prove it.

    Starts a local Spark (PySpark, Delta and Java 17 are needed) that creates a table and goes on inserting,
    updating, deleting and merging, while the daemon shows the events and copies them into a Delta table. The
    daemon is killed once in the middle. In the end Spark compares: was every change delivered once, and is
    their fold the table? Ends with 0 if so, with 1 if not. It all happens in a folder that is removed then.
    """
    try:
        from tailer.demo.stage import play  # noqa: PLC0415 - Spark need not be there for the help
    except ImportError as missing:
        remedy = how_to_install("spark", "delta")
        raise ConfigError("tailer demo", f"a library is not installed: {missing}", remedy) from missing
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return 0 if play(Console(highlight=False)) else 1
