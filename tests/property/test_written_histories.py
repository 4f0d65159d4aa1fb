"""Histories recorded by `tests.generate_histories` with Spark's answers: a dozen combinations of changes.

Renamed, dropped, added and widened columns, at the top and nested, mapped from the start or later; replaced tables and
overwritten schemas; in-commit timestamps, row tracking and the feed switched on or off midway; checkpoints of every
kind, and cleaned logs. Judged version by version, from every start, without Spark.
"""

from pathlib import Path
from typing import Final

import pytest

from tests.support.histories.schema_evolution import EVOLVING
from tests.support.oracle.recorded import HISTORIES, judge, read

WRITTEN: Final = sorted(HISTORIES.glob("*.tar.xz"))


@pytest.mark.parametrize(
    "archive", WRITTEN, ids=lambda archive: f"{archive.name[:2]} {EVOLVING[int(archive.name[:2])]}"
)
def test_written_histories(archive: Path, tmp_path: Path) -> None:
    assert len(judge(read(archive, tmp_path))) >= 20


def test_every_combination_was_written_and_versions_are_many(tmp_path: Path) -> None:
    assert [archive.name for archive in WRITTEN] == [f"{number:02d}.tar.xz" for number in range(len(EVOLVING))]
    versions = 0
    for archive in WRITTEN:
        recorded = read(archive, tmp_path / archive.name)
        versions += recorded.last - recorded.first + 1
    assert versions >= 300
