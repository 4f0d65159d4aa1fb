"""The command of the demonstration: `python -m examples.demo`, in the folder of a clone."""

import argparse
import signal
import sys
from typing import Final

from rich.console import Console
from rich.text import Text

from examples.demo.stage import play
from tailer.errors import ConfigError, TailerError, how_to_install

__all__ = ["main"]

INTERRUPTED: Final = 130
DESCRIPTION: Final = """
Follow a live table into a Delta table, and prove it. A local Spark (requires PySpark, Delta and Java 17) creates a
table and then inserts, updates, deletes and merges rows, while the daemon prints the events and copies them into a
Delta table. The daemon is killed once in the middle. At the end Spark compares: was every change delivered once, and
is their fold the table? The exit code is 0 if so, otherwise 1. All files are in a folder that is removed at the end.
"""


def main() -> int:
    """Run the demonstration; return 0 if the copy is right, 1 if it is wrong, or the exit code of an error."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=DESCRIPTION)
    parser.add_argument(
        "--format",
        choices=("delta", "lance"),
        default="delta",
        help="format of the table to follow; a Lance dataset is written by pylance, and needs no Spark",
    )
    of_lance = parser.parse_args().format == "lance"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return 0 if play(Console(highlight=False), of_lance=of_lance) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except ImportError as missing:
        remedy = how_to_install("lance" if of_lance else "spark", "delta")
        return _report(ConfigError("demo", f"a library is not installed: {missing}", remedy))
    except TailerError as error:
        return _report(error)


def _report(error: TailerError) -> int:
    """Print an error with the next step; return its exit code."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble(("error:", "bold red"), f" {error}"))
    console.print(Text.assemble(("hint:", "bold yellow"), f" {error.hint}"))
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
