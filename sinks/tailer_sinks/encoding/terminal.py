"""Change rows as a table for people: signs and colours for what happened, columns that fit the terminal.

    version 12 · 2026-03-01T12:00:00.000000Z ──────────────────
       id  name    amount
    +   4  Emily         1.50
    ~   2  Bob → Robert  9.99        what changed is highlighted
       1 inserted, 1 updated

An update is one line if comparing rows paired its images, which shows in their position. Images as a writer wrote them
have a line each, with the signs `~-` and `~+`: neighbours may be of different rows.

The column `_explain` is no column here: its texts are below their rows, whole.

Events have a line of their own, `version 13: column extra int32 was added`, after which the heading is repeated.

It streams: columns are as wide as the widest value so far, so a wider one widens what follows and the names are
repeated. Only here are values cut, with an ellipsis, nested ones early. Where columns cannot even be narrowed enough,
rows are written as `name=value` over as many lines as they need. Values are JSON's, strings without their quotes where
nothing is lost by it; what does not print, such as a terminal's control characters, is escaped.
"""

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from tailer.errors import SinkRejected, printable
from tailer.events import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    EXPLAIN,
    ChangeBatch,
    ChangeType,
    ControlEvent,
    Gap,
    SchemaChange,
    joined_rows,
)
from tailer_sinks.encoding.columns import NoText, whole, writer_for

__all__ = ["TerminalView", "sentence_of"]

SIGNS: Final = {
    ChangeType.INSERT: ("+ ", "green"),
    ChangeType.DELETE: ("- ", "red"),
    ChangeType.UPDATE_PREIMAGE: ("~-", "dim yellow"),
    ChangeType.UPDATE_POSTIMAGE: ("~+", "yellow"),
}
COUNTED: Final = {
    ChangeType.INSERT: "inserted",
    ChangeType.DELETE: "deleted",
    ChangeType.UPDATE_POSTIMAGE: "updated",
}
METADATA: Final = frozenset((CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP))
UPDATED: Final = ("~ ", "yellow")
CHANGED: Final = "bold yellow"
KEPT: Final = "dim"
ARROW: Final = " → "
MARGIN: Final = 3  # for the sign
LONGEST: Final = 120
LONGEST_NESTED: Final = 60
NARROWEST: Final = 8
ROWS_AT_ONCE: Final = 256
GAP: Final = "  "
ELLIPSIS: Final = "…"


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the table, with those below it.

    `changed`: the numbers of the cells that an update changed; None: it is no update. `explanations`: of its rows.
    """

    sign: str
    style: str
    cells: Sequence[str]
    changed: Set[int] | None = None
    explanations: Sequence[str] = ()

    def render(self, widths: Sequence[int], right: Sequence[bool]) -> Text:
        """Render the line; `right`: which cells are aligned to the right."""
        line = Text(f"{self.sign:<{MARGIN}}", self.style)
        for number, (cell, width, to_the_right) in enumerate(zip(self.cells, widths, right, strict=True)):
            text = _cut(cell, width)
            space = " " * (width - _width(text))
            kept = self.style if self.changed is None else KEPT
            style = CHANGED if self.changed is not None and number in self.changed else kept
            line.append(GAP * (number > 0))
            line.append(space + text if to_the_right else text + space, style)
        line.rstrip()
        return line.append("\n").append(self.below(), KEPT)

    def below(self) -> str:
        """Return the lines below it."""
        return "".join(f"{' ' * MARGIN}{text}\n" for text in self.explanations)


class TerminalView:
    """A renderer of the rows of one stream for `console`, which gives the width and the colours."""

    def __init__(self, sink: str, console: Console) -> None:
        self._sink = sink
        self._console = console
        self._version: int | None = None
        self._counts: Counter[str] = Counter()
        self._counts_shown = True
        self._schema: pa.Schema | None = None
        self._widths: list[int] = []
        self._names_due = True

    def rows(self, batches: Sequence[ChangeBatch]) -> Iterator[str]:
        """Render change rows of one version and schema as text, some hundred rows at a time.

        Raises `SinkRejected` for a value without a text.
        """
        rows, version = joined_rows(batches), batches[0].version
        if len(rows) and version != self._version:
            yield self._heading(version, rows)
        changes = rows.column(CHANGE_TYPE).to_pylist()
        pairs = _pairs(batches)
        start = 0
        while start < len(rows):
            end = min(start + ROWS_AT_ONCE, len(rows))
            end += end - 1 in pairs
            self._counts.update(changes[start:end])
            self._counts_shown = False
            some = rows.slice(start, end - start).drop_columns(list(METADATA))
            yield self._render(
                self._table(some, changes[start:end], {place - start for place in range(start, end) if place in pairs})
            )
            start = end

    def check(self, rows: pa.RecordBatch) -> None:
        """Raise `SinkRejected` for a value without a text."""
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            self._cells(name, column)

    def event(self, event: ControlEvent) -> str:
        """Render an event as a line. The heading with the columns' names is repeated after it."""
        before = "" if isinstance(event, SchemaChange) and event.version == self._version else self.counts()
        if isinstance(event, Gap):
            self._version = None  # the next batch repeats its version's heading
        self._schema, self._names_due = None, True
        return before + self._render(Text(f"{' ' * MARGIN}{printable(sentence_of(event))}\n", "dim"))

    def counts(self) -> str:
        """Render the counts of the version as a line, unless they were rendered already."""
        if self._counts_shown:
            return ""
        self._counts_shown = True
        words = [f"{self._counts[kind]} {word}" for kind, word in COUNTED.items() if self._counts[kind]]
        others = [f"{count} {printable(kind)}" for kind, count in self._counts.items() if kind not in SIGNS]
        return self._render(Text(f"{' ' * MARGIN}{', '.join(words + others)}\n", "dim")) if words or others else ""

    def _heading(self, version: int, rows: pa.RecordBatch) -> str:
        before = self.counts()
        (moment,) = self._cells(COMMIT_TIMESTAMP, rows.column(COMMIT_TIMESTAMP).slice(0, 1))
        title = Text(f"version {version} · {moment}", "bold cyan")
        self._version = version
        self._counts.clear()
        return before + self._render(Rule(title, align="left", style="cyan"))

    def _render(self, content: Text | Rule) -> str:
        with self._console.capture() as captured:
            self._console.print(content, end="", soft_wrap=isinstance(content, Text))
        return captured.get()

    def _table(self, rows: pa.RecordBatch, changes: Sequence[str], pairs: Set[int]) -> Text:
        """Render rows; those in `pairs` are in one line with the row after them."""
        explained = EXPLAIN in rows.schema.names
        explanations = [printable(text) for text in rows.column(EXPLAIN).to_pylist()] if explained else None
        rows = rows.drop_columns([EXPLAIN]) if explained else rows
        names = [printable(name) for name in rows.schema.names]
        columns = [self._cells(name, column) for name, column in zip(rows.schema.names, rows.columns, strict=True)]
        lines = list(_lines(changes, list(zip(*columns, strict=True)), pairs, explanations))
        self._widen(rows.schema, names, [line.cells for line in lines])
        widths = _fitted(self._widths, self._console.width - MARGIN)
        text = Text()
        if widths is None:
            for line in lines:
                text.append(_record(line.sign, names, line.cells, self._console.width), line.style)
                text.append(line.below(), KEPT)
            return text
        numbers = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal
        right = [any(applies(kind) for applies in numbers) for kind in rows.schema.types]
        if self._names_due:
            text.append_text(_Line("", "bold", names).render(widths, right))
            self._names_due = False
        for line in lines:
            text.append_text(line.render(widths, right))
        return text

    def _cells(self, name: str, column: pa.Array) -> list[str]:
        try:
            texts = whole(writer_for(column.type)(column))
        except NoText as error:
            raise SinkRejected(self._sink, str(error.below(name)), "Leave the column out.") from error
        most = LONGEST_NESTED if pa.types.is_nested(column.type) else LONGEST
        return [_shown(text, most) for text in pc.utf8_slice_codeunits(texts, 0, most + 1).to_pylist()]

    def _widen(self, schema: pa.Schema, names: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
        """Widen columns to fit the cells of lines; start over if the columns are different."""
        if self._schema is None or not self._schema.equals(schema):
            self._schema = schema
            self._widths = [0] * len(names)
        widths = [
            max(width, _width(name), *map(_width, cells))
            for width, name, cells in zip(self._widths, names, zip(*lines, strict=True), strict=True)
        ]
        self._names_due = self._names_due or widths != self._widths
        self._widths = widths


def sentence_of(event: ControlEvent) -> str:
    """Describe `event`."""
    if isinstance(event, Gap):
        follows = "all rows of the table follow" if event.snapshot else f"version {event.version + 1} follows"
        return f"changes of versions {event.first_version} to {event.version} are lost: {event.reason}; {follows}"
    return f"version {event.version}: {'; '.join(event.changes)}"


def _pairs(batches: Sequence[ChangeBatch]) -> set[int]:
    """Return the places of preimages that are followed by the same row as it is: both have one position."""
    pre, post = ChangeType.UPDATE_PREIMAGE.value, ChangeType.UPDATE_POSTIMAGE.value
    places: set[int] = set()
    first = 0
    for batch in batches:
        rows = zip(batch.rows.column(CHANGE_TYPE).to_pylist(), batch.row_index.to_pylist(), strict=True)
        for place, ((before, row), (after, next_row)) in enumerate(pairwise(rows), first):
            if (before, after, row) == (pre, post, next_row):
                places.add(place)
        first += len(batch)
    return places


def _lines(
    changes: Sequence[str], rows: Sequence[Sequence[str]], pairs: Set[int], explanations: Sequence[str] | None
) -> Iterator[_Line]:
    """Yield a line for each row; for those in `pairs` one with the row after it."""
    for place, (change, cells) in enumerate(zip(changes, rows, strict=True)):
        if place - 1 in pairs:
            continue
        last = place + (place in pairs)
        # Both images of an update that was compared have one place, and so one explanation.
        below = () if explanations is None else tuple(dict.fromkeys(explanations[place : last + 1]))
        if place not in pairs:
            # A change type that Delta does not define is its own sign.
            sign, style = SIGNS[ChangeType(change)] if change in SIGNS else (f"{printable(change)} ", "magenta")
            yield _Line(sign, style, cells, explanations=below)
            continue
        both = list(zip(cells, rows[last], strict=True))
        changed = {number for number, (before, after) in enumerate(both) if before != after}
        merged = [before if before == after else f"{before}{ARROW}{after}" for before, after in both]
        yield _Line(*UPDATED, merged, changed, below)


def _shown(text: str, most: int) -> str:
    """Format a JSON text for display: cut if long; a string without quotes unless empty, padded or like a null."""
    cut = len(text) > most
    if cut:
        text = text[:most]
    inner = text[1:] if cut else text[1:-1]
    if text.startswith('"') and inner not in ("", "null") and inner == inner.strip():
        text = inner
    return printable(text) + (ELLIPSIS if cut else "")


def _fitted(widths: Sequence[int], available: int) -> list[int] | None:
    """Narrow the widest of the widths until all fit into `available`. None: they would be too narrow."""
    for widest in range(max(available, NARROWEST), NARROWEST - 1, -1):
        fitted = [min(width, widest) for width in widths]
        if sum(fitted) + len(GAP) * (len(fitted) - 1) <= available:
            return fitted
    return None


def _width(text: str) -> int:
    """Return how many cells of a terminal the text takes."""
    return len(text) if text.isascii() else cell_len(text)


def _cut(text: str, width: int) -> str:
    return text if _width(text) <= width else set_cell_size(text, width - 1) + ELLIPSIS


def _record(sign: str, names: Sequence[str], cells: Sequence[str], width: int) -> str:
    """Render a row as `name=value`, wrapped."""
    lines = [f"{sign:<{MARGIN}}"]
    room = width - MARGIN
    used = 0
    for name, cell in zip(names, cells, strict=True):
        piece = _cut(f"{name}={cell}", room)
        if used and used + len(GAP) + _width(piece) > room:
            lines.append(" " * MARGIN)
            used = 0
        lines[-1] += GAP + piece if used else piece
        used += _width(piece) + (len(GAP) if used else 0)
    return "".join(f"{line.rstrip()}\n" for line in lines)
