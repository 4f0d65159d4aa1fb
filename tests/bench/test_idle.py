"""Needs of a daemon that follows a hundred quiet tables: `tests.bench.idle_daemon` says how they are measured."""

from typing import Final

import pytest

from tests.bench.conftest import PutLine
from tests.bench.idle_daemon import measure

TABLES: Final = 100


@pytest.mark.parametrize("compared", [False, True], ids=["appends", "rows compared"])
def test_idle(put_line: PutLine, compared: bool) -> None:
    """The database that compares rows stays loaded."""
    work = f"idle on {TABLES} local tables, {'rows were compared' if compared else 'appends'}"
    put_line(work, measure(TABLES, compared), "-", "120 MB, 1 % of a core")
