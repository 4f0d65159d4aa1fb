"""A history on a terminal, with bars; and as lines with tabs between the columns."""

from collections.abc import Mapping, Sequence
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from tailer.cli.display.display import count, duration, size
from tailer.cli.display.tables import fitted
from tailer.cli.history.periods import By, Period
from tailer.errors import printable

__all__ = ["Deliveries", "print_lines", "print_paper"]

# Seconds from the commit of a version until the sink had it; None: nobody asked.
Deliveries = Mapping[int, float] | None

_DELIVERY: Final = "delivery"
_COLUMNS: Final = ("version", "time", "operation", "who", "inserted", "updated", "deleted", "bytes")
_NUMBERS: Final = frozenset((*_COLUMNS[4:], _DELIVERY))
_TEXTS: Final = frozenset(_COLUMNS[2:4])
_STYLES: Final = {"inserted": "green", "updated": "yellow", "deleted": "red", "time": "dim", "who": "dim"}
_BAR: Final = len("changed")
# A narrower terminal shows no writers, and with `delivery` no bars: each commit stays on one line.
_WIDE: Final = 100
_DELIVERY_WIDTH: Final = len(_DELIVERY) + 1
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def _columns(deliveries: Deliveries) -> tuple[str, ...]:
    return _COLUMNS if deliveries is None else (*_COLUMNS, _DELIVERY)


def print_paper(table: str, periods: Sequence[Period], deliveries: Deliveries) -> None:
    """Print a table for people; the bars show the changed rows that are known, all in one scale."""
    console = Console(highlight=False)
    number = sum(len(period.commits) for period in periods)
    per = "" if not periods or periods[0].by is By.COMMIT else f", by {periods[0].by.value} (UTC)"
    console.print(Text(f"{printable(table)}: {count(number, 'commit')}{per}", "bold"))
    columns = _columns(deliveries)
    wide = _WIDE if deliveries is None else _WIDE + _DELIVERY_WIDTH
    shown = [column for column in columns if column != "who" or console.width >= wide]
    has_bars = deliveries is None or console.width >= _WIDE
    most = max((period.known_rows for period in periods), default=0)
    rows: list[list[str | Text]] = []
    for period in periods:
        texts = dict(zip(columns, _row(period, deliveries), strict=True))
        rows.append([*(texts[column] for column in shown), *([_bar(period, most)] if has_bars else [])])
    names = [*shown, *(["changed"] if has_bars else [])]
    console.print(fitted(names, rows, console.width, flexible=_TEXTS, right=_NUMBERS, styles=_STYLES))
    if any(period.inserted.unknown or period.updated.unknown or period.deleted.unknown for period in periods):
        note = "unknown, or + after a number: the log does not say how many rows; `tailer tail` finds them"
        console.print(Text(note, "dim"), soft_wrap=True)


def print_lines(periods: Sequence[Period], deliveries: Deliveries) -> None:
    """Print a line for each period, after one with the names of the columns."""
    for row in (_columns(deliveries), *(_row(period, deliveries) for period in periods)):
        click.echo("\t".join(row))


def _row(period: Period, deliveries: Deliveries) -> tuple[str, ...]:
    """Return the texts of a line."""
    counts = map(str, (period.inserted, period.updated, period.deleted))
    texts = (
        period.versions,
        period.when,
        printable(" ".join(period.operations.split())),
        printable(" ".join(period.authors.split())),
        *counts,
        size(period.added_bytes),
    )
    if deliveries is None:
        return texts
    seconds = deliveries.get(period.commits[0].version)
    return *texts, "-" if seconds is None else duration(seconds)


def _bar(period: Period, most: int) -> Text:
    """Draw inserted, updated and deleted rows one after the other, in their colours."""
    bar = Text()
    for column, changed in (("inserted", period.inserted), ("updated", period.updated), ("deleted", period.deleted)):
        eighths = round(changed.rows / most * _BAR * 8) if most else 0
        whole, rest = divmod(max(eighths, 1) if changed.rows else 0, 8)
        bar.append(_EIGHTHS[8] * whole + (_EIGHTHS[rest] if rest else ""), _STYLES[column])
    return bar
