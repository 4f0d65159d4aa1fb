"""A short epoch of the soak: faults that take little, added columns, and a judge that finds what is planted."""

import json
from pathlib import Path
from threading import Event
from typing import Final

import pytest

from tests.soak.epoch import Epoch, Plan
from tests.soak.report import FIGURES, Report
from tests.support.mirrors.databases import SqliteDatabase

# The client library forgets a Unix socket that nobody serves.
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning"),
]

# They start a daemon or a broker once more.
DEAR: Final = frozenset(
    {
        "daemon killed while it starts",
        "daemon terminated",
        "broker killed",
        "broker shut down",
        "broker frozen",
        "command: backfills and snapshots",
    }
)
CHEAP: Final = 10
COLUMN_ADDED: Final = "source: column added"


def test_a_planted_loss_is_found_and_nothing_else(tmp_path: Path) -> None:
    def plant() -> None:
        """Delete a row of a mirror, put a change of a log over another one, and change a value of an added column."""
        SqliteDatabase(tmp_path / "sqlite.mirror").query(
            'DELETE FROM "sqlite-mirror" WHERE id = (SELECT min(id) FROM "sqlite-mirror")'
        )
        SqliteDatabase(tmp_path / "sqlite.log").query(
            'UPDATE "sqlite-log" SET added_1 = added_1 + 1 WHERE rowid = '
            "(SELECT max(rowid) FROM \"sqlite-log\" WHERE added_1 IS NOT NULL AND _change_type = 'insert')"
        )
        file = max((tmp_path / "files").rglob("[0-9]*.jsonl"), key=lambda file: file.stat().st_size)
        first, second, *others = file.read_text().splitlines()
        doubled = json.dumps(json.loads(second))
        file.write_text("\n".join([doubled, second, *others]) + "\n")
        assert first != second

    plan = Plan(seed=0, rounds=CHEAP, commits=4, round_s=0.5, longest_s=1.0, without=DEAR)
    outcome = Epoch(plan, tmp_path, Event(), plant).run()
    planted = {
        "sqlite-mirror": {"missing": 1},
        "sqlite-log": {"missing": 1, "changed": 1},
        "files": {"missing": 1, "doubled": 1},
    }
    zero = dict.fromkeys(FIGURES, 0)
    assert outcome.figures == {name: zero | planted.get(name, {}) for name in outcome.events}
    assert len(outcome.figures) == 9
    assert {name: times for name, times in outcome.verified.items() if not times} == {
        "sqlite-mirror": 0,
        "sqlite-log": 0,
    }
    assert len(outcome.violations) == 5
    assert outcome.faults.pop(COLUMN_ADDED) == 3
    assert set(outcome.faults.values()) == {1}
    assert len(outcome.faults) == CHEAP
    report = Report("a commit", [outcome])
    assert not report.is_clean
    table = str(report)
    assert "missing 1, doubled 1, disordered 0, changed 0, lost 0" in table
    assert "| fault: daemon killed | 1 |" in table
    assert outcome.peak_mb > 50
