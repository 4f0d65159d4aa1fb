"""Tables on a terminal: a line ends at a blank or after a sign such as `/`, and inside a word only if it must.

Rich breaks lines at blanks alone, and shares the room among all columns, so that `streaming` and a number lose their
ends on a narrow terminal. Here only the columns that may be long give way.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from rich.cells import cell_len, chop_cells
from rich.table import Table
from rich.text import Text

__all__ = ["fitted"]

_PIECE: Final = re.compile(r"[^\s/_.,:=-]*[\s/_.,:=-]+|[^\s/_.,:=-]+")
_NO_STYLES: Final[Mapping[str, str]] = {}


def fitted(
    names: Sequence[str],
    rows: Sequence[Sequence[str | Text]],
    width: int,
    *,
    flexible: Collection[str],
    right: Collection[str] = (),
    styles: Mapping[str, str] = _NO_STYLES,
) -> Table:
    """Return a table of `width` at most, in which the `flexible` columns share the room that the others leave.

    `names`: of all columns. `right`: those that are aligned on the right.
    """
    texts = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = {
        name: max(
            cell_len(line) for line in (name, *(text for row in texts for text in row[number].plain.splitlines()))
        )
        for number, name in enumerate(names)
    }
    gap = 2 if sum(widths.values()) + 2 * (len(names) - 1) <= width else 1
    room = width - gap * (len(names) - 1) - sum(widths[name] for name in names if name not in flexible)
    narrowest_first = sorted((name for name in names if name in flexible), key=widths.__getitem__)
    for taken, name in enumerate(narrowest_first):
        widths[name] = max(cell_len(name), min(widths[name], room // (len(narrowest_first) - taken)))
        room -= widths[name]
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", style=styles.get(name), overflow="fold")
    for row in texts:
        table.add_row(*(_broken(text, widths[name]) for name, text in zip(names, row, strict=True)))
    return table


def _broken(text: Text, width: int) -> Text:
    plain, offsets, begin = text.plain, [], 0
    for piece in _PIECE.finditer(plain):
        while cell_len(plain[begin : piece.end()].rstrip()) > width:
            is_whole = piece.start() > begin
            begin = piece.start() if is_whole else begin + len(chop_cells(plain[begin : piece.end()], width)[0])
            offsets.append(begin)
    lines = text.divide(offsets)
    for line in lines:
        line.rstrip()
    return Text("\n").join(lines)
