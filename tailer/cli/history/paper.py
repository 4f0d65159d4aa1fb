"""A history on a terminal, with bars; and as lines with tabs between the columns."""

from collections.abc import Sequence
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailer.cli.display.amounts import size
from tailer.cli.history.periods import By, Period
from tailer.errors import printable

__all__ = ["COLUMNS", "print_lines", "print_paper", "row_of"]

COLUMNS: Final = ("version", "time", "operation", "who", "inserted", "updated", "deleted", "bytes")
_NUMBERS: Final = frozenset(COLUMNS[4:])
_TEXTS: Final = frozenset(COLUMNS[2:4])
_STYLES: Final = {"inserted": "green", "updated": "yellow", "deleted": "red", "time": "dim", "who": "dim"}
_BAR: Final = 8
# A narrower terminal shows no writers: each commit stays on one line.
_WIDE: Final = 100
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def print_paper(table: str, periods: Sequence[Period]) -> None:
    """Print a table for people; the bars show the changed rows that are known, all in one scale."""
    console = Console(highlight=False)
    console.print(Text(_title(table, periods), "bold"))
    shown = [column for column in COLUMNS if column != "who" or console.width >= _WIDE]
    paper = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in shown:
        paper.add_column(
            column,
            justify="right" if column in _NUMBERS else "left",
            style=_STYLES.get(column),
            overflow="fold",
            no_wrap=column not in _TEXTS,
        )
    paper.add_column("changed", no_wrap=True)
    most = max((each.known_rows for each in periods), default=0)
    for each in periods:
        texts = dict(zip(COLUMNS, row_of(each), strict=True))
        paper.add_row(*(texts[column] for column in shown), _bar(each, most))
    console.print(paper)
    if any(each.inserted.unknown or each.updated.unknown or each.deleted.unknown for each in periods):
        note = "unknown, or + after a number: the log does not say how many rows; `tailer tail` finds them"
        console.print(Text(note, "dim"), soft_wrap=True)


def print_lines(periods: Sequence[Period]) -> None:
    """Print a line for each period, after one with the names of the columns."""
    for row in (COLUMNS, *map(row_of, periods)):
        click.echo("\t".join(row))


def row_of(period: Period) -> tuple[str, ...]:
    """Return the texts of a line."""
    counts = map(str, (period.inserted, period.updated, period.deleted))
    return (
        period.versions,
        period.when,
        printable(" ".join(period.operations.split())),
        printable(" ".join(period.authors.split())),
        *counts,
        size(period.added_bytes),
    )


def _title(table: str, periods: Sequence[Period]) -> str:
    number = sum(len(each.commits) for each in periods)
    per = "" if not periods or periods[0].by is By.COMMIT else f", by {periods[0].by.value} (UTC)"
    return f"{printable(table)}: {number:,} commit{'' if number == 1 else 's'}{per}"


def _bar(period: Period, most: int) -> Text:
    """Draw inserted, updated and deleted rows one after the other, in their colours."""
    bar = Text()
    for column, count in (("inserted", period.inserted), ("updated", period.updated), ("deleted", period.deleted)):
        eighths = round(count.rows / most * _BAR * 8) if most else 0
        whole, rest = divmod(max(eighths, 1) if count.rows else 0, 8)
        bar.append(_EIGHTHS[8] * whole + (_EIGHTHS[rest] if rest else ""), _STYLES[column])
    return bar
