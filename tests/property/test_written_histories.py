"""Histories recorded by `tests.generate_histories` with Spark's answers: a dozen combinations of changes.

Renamed, dropped, added and widened columns, at the top and nested, mapped from the start or later; replaced tables and
overwritten schemas; in-commit timestamps, row tracking and the feed switched on or off midway; checkpoints of every
kind, and cleaned logs. Judged version by version, from every start, without Spark.
"""

from pathlib import Path
from typing import Final

import pytest

import tailer
from tailer.changelog.engine import ChangelogEngine
from tailer.engine import look_ahead
from tests.support.histories.lying_feeds import checked
from tests.support.histories.schema_evolution import EVOLVING
from tests.support.oracle.recorded import HISTORIES, RecordedTable, judge, read

WRITTEN: Final = sorted(HISTORIES.glob("*.tar.xz"))


@pytest.mark.parametrize(
    "archive", WRITTEN, ids=lambda archive: f"{archive.name[:2]} {EVOLVING[int(archive.name[:2])]}"
)
def test_written_histories(archive: Path, tmp_path: Path) -> None:
    assert len(judge(read(archive, tmp_path))) >= 20


@pytest.mark.sampled(4)
@pytest.mark.parametrize("archive", WRITTEN, ids=lambda archive: archive.name[:2])
def test_a_backlog_has_the_rows_of_each_version(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare files that are decoded once for several versions with deletion vectors, and once for each."""
    table = read(archive, tmp_path)
    monkeypatch.setattr(look_ahead, "_WORTH_BYTES", 0)  # these files are small
    together = _rows(table)
    monkeypatch.setattr(ChangelogEngine, "expect", lambda *_: False)
    assert together == _rows(table)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("archive", WRITTEN, ids=lambda archive: archive.name[:2])
def test_feeds_say_what_the_data_files_say(archive: Path, tmp_path: Path) -> None:
    """Also where a version changes columns. One history has no feed, and of another no version has change files."""
    check = checked(read(archive, tmp_path).path)
    assert (check.faults, bool(check.compared)) == ([], archive.name[:2] not in ("08", "10"))
    assert set(check.unread) <= {0}  # a cleaned log


def _rows(table: RecordedTable) -> list[str]:
    batches = tailer.changes(str(table.path), start=table.first, compute_updates=True)
    return [repr(row) for batch in batches for row in batch.to_pylist()]


def test_every_combination_was_written_and_versions_are_many(tmp_path: Path) -> None:
    assert [archive.name for archive in WRITTEN] == [f"{number:02d}.tar.xz" for number in range(len(EVOLVING))]
    versions = 0
    for archive in WRITTEN:
        recorded = read(archive, tmp_path / archive.name)
        versions += recorded.last - recorded.first + 1
    assert versions >= 300
