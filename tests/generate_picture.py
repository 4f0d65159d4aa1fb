"""Write the picture of the README, `docs/tail.svg`: `python -m tests.generate_picture`.

It runs `tailer tail` on a terminal, on a table that it makes, and draws what the terminal shows.
"""

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tests.house import ROOT

PICTURE: Final = ROOT / "docs" / "tail.svg"
COMMAND: Final = "tailer tail shop --from earliest --to latest --compute-updates --key id"
COLUMNS: Final = 100
THEME: Final = TerminalTheme(
    (24, 26, 32),
    (216, 220, 228),
    [
        *((60, 64, 72), (224, 108, 117), (126, 192, 120), (214, 178, 94)),
        *((97, 160, 230), (190, 132, 220), (86, 182, 194), (200, 204, 212)),
    ],
)
# Fonts of the reader's machine in place of a download.
FONTS: Final = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


def make_shop(folder: Path) -> None:
    """Write a table of three rows; then one is updated, one deleted and one inserted."""
    path = str(folder / "shop")
    write_deltalake(path, pa.table({"id": [1, 2, 3], "item": ["tea", "cup", "pot"], "amount": [10.0, 20.0, 30.0]}))
    DeltaTable(path).update(updates={"amount": "amount + 1"}, predicate="id = 2")
    DeltaTable(path).delete("id = 3")
    write_deltalake(path, pa.table({"id": [4], "item": ["jug"], "amount": [15.5]}), mode="append")


def on_a_terminal(folder: Path) -> str:
    """Return what `COMMAND` writes to its terminal, with the codes of colours."""
    ours, theirs = pty.openpty()
    arguments = [str(Path(sys.executable).with_name("tailer")), *COMMAND.split()[1:]]
    environment = {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": "30", "PATH": "/usr/bin:/bin"}
    shown = b""
    with (
        os.fdopen(ours, "rb", buffering=0) as terminal,
        subprocess.Popen(
            arguments, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL
        ),
    ):
        os.close(theirs)
        with suppress(OSError):  # what Linux says once nobody else has the terminal open
            while part := terminal.read(1 << 16):
                shown += part
    return shown.decode()


def picture() -> str:
    """Draw the run as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        make_shop(Path(folder))
        shown = on_a_terminal(Path(folder))
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.assemble(("$ ", "bold green"), COMMAND))
    console.print(Text.from_ansi(shown.replace("\r\n", "\n")), end="")
    return console.export_svg(
        title="lake-tailer", theme=THEME, code_format=FONTS.sub("", CONSOLE_SVG_FORMAT), unique_id="tail"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture())
