"""Tables and sentences on a terminal of 80 columns: words stay whole wherever there is room."""

import io

import pytest
from rich.console import Console
from rich.text import Text

from tailer.cli.display.tables import fitted
from tailer.cli.outcome import sentence
from tailer.cli.status import COLUMNS

WIDTH = 80
NAME = "orders_of_the_last_seven_years_into_the_warehouse"
ROWS = [
    ["shop", "streaming", "5 min", "1204", "1207", "3 versions, 12 s", "3120456", "12 of 40 files"],
    [NAME, "stopped", "117 s", "-", "1", "-", "0", "-"],
]
PATH = "/data/warehouse/production/customer_relationship_management/eu-central-1/orders_of_all_years"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(width: int) -> list[str]:
    shown = Console(file=io.StringIO(), width=width)
    rows = [[Text(cell) for cell in row] for row in ROWS]
    shown.print(fitted(COLUMNS[:-1], rows, width, flexible=("pipeline", "behind", "backfill")))
    assert isinstance(shown.file, io.StringIO)
    return [line.rstrip() for line in shown.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_only_columns_that_may_be_long_give_way(width: int) -> None:
    heading, shop, *others = lines(width)
    assert heading.split() == list(COLUMNS[:-1])
    assert max(map(len, (heading, shop, *others))) <= width
    assert shop.split()[:6] == ["shop", "streaming", "5", "min", "1204", "1207"]
    pieces = [piece for line in others if (piece := line[: heading.index("state")].strip())]
    assert "".join(pieces) == NAME
    assert all(piece.endswith("_") for piece in pieces[:-1])


def test_a_word_longer_than_its_column_is_cut() -> None:
    table = fitted(("name", "n"), [["x" * 30 + "\u65e5" * 10, "7"]], 20, flexible=("name",))
    shown = Console(file=io.StringIO(), width=20)
    shown.print(table)
    assert isinstance(shown.file, io.StringIO)
    rows = shown.file.getvalue().splitlines()[1:]
    assert "".join(row[:18].replace("7", "").strip() for row in rows) == "x" * 30 + "\u65e5" * 10


def test_sentences_end_lines_at_blanks_in_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    text = f"{PATH}: version 0 needs a file that is gone. Restore it, and run `tailer resume {NAME}`, or begin anew."
    assert sentence(text, 7, 2, io.StringIO()) == text
    said = sentence(text, 7, 2, Terminal())
    assert " ".join(line.strip() for line in said.splitlines()) == text
    assert [PATH in said, f"`tailer resume {NAME}`" in said] == [True, True]
    rest = [line for line in said.splitlines() if PATH not in line]
    assert all(line.startswith("  ") and len(line) <= WIDTH for line in rest)
