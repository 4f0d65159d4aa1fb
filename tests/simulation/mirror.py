"""A mirror in a file of SQLite: what its readers see, for the judge.

The judge looks after each commit, and whenever a session begins. Rows and progress are in one state of the file, so
whatever it finds must be the rows of the table at the version that the file names.
"""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from tailer.plan import Position
from tests.simulation.oracle import Judge, Violation
from tests.simulation.table import Row, row_of

__all__ = ["Mirror"]

_TABLE: Final = "rows"
_NAMES: Final = "SELECT name FROM sqlite_master WHERE type = 'table'"
_PROGRESS: Final = (
    "SELECT app_id, version, task, row FROM lake_tailer_progress WHERE app_id NOT LIKE '%#%' AND app_id NOT LIKE '%~%'"
)
_VERSION: Final = f"SELECT app_id, version FROM lake_tailer_mirrors WHERE table_name = '{_TABLE}'"


class Mirror:
    """The mirror in the file at `path`."""

    def __init__(self, path: Path, judge: Judge) -> None:
        self.options: Final[dict[str, Any]] = {
            "url": f"sqlite:///{path}",
            "table": _TABLE,
            "mode": "mirror",
            "key": ["id"],
        }
        self._path = path
        self._judge = judge
        self._seen: dict[str, Position] = {}

    def look(self, now_s: float) -> str:
        """Judge what the file has, and say what is new. Raises `Violation`."""
        if not self._path.exists():
            return ""
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute("BEGIN")
            names = {name for (name,) in connection.execute(_NAMES)}
            if "lake_tailer_progress" not in names:
                return ""
            progress = {name: Position(*place) for name, *place in connection.execute(_PROGRESS)}
            if progress == self._seen:
                return ""
            at: tuple[str, int] | None = connection.execute(_VERSION).fetchone()
            rows = connection.execute(f"SELECT * FROM {_TABLE}") if _TABLE in names else None
            found: Counter[Row] = Counter() if rows is None else Counter(_rows(rows))
        if at is not None:
            self._compare(*at, found)
        moved = [f"{name} is at {place}" for name, place in progress.items() if self._seen.get(name) != place]
        for name, position in progress.items():
            if self._seen.get(name) != position:
                self._judge.move(name, position, now_s)
        self._seen = progress
        return ", ".join(moved)

    def _compare(self, app_id: str, version: int, found: Counter[Row]) -> None:
        wanted = self._judge.witness.table_of(app_id).facts[version].rows
        if found != wanted:
            more, less = list((found - wanted).elements()), list((wanted - found).elements())
            raise Violation(8, f"the mirror at version {version} has {more[:3]}, and lacks {less[:3]}")


def _rows(cursor: sqlite3.Cursor) -> list[Row]:
    names = [name for name, *_ in cursor.description]
    return [row_of(dict(zip(names, values, strict=True))) for values in cursor]
