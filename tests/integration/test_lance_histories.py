"""Random histories of Lance datasets: the changes of each version lead from its rows before to those after.

The oracle is pylance, which reads the rows of every version. More histories are recorded: see
`property/test_written_lance_histories.py`.
"""

from collections import Counter
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

import tailer
from tests.support.oracle.lance_fold import assert_folds
from tests.support.seeds import seeds
from tests.support.tables.lance_histories import LanceHistory, changes_of

HISTORIES: Final = seeds(3)
VERSIONS: Final = 26
BRANCHES: Final = seeds(3)


@pytest.mark.parametrize("seed", HISTORIES)
def test_every_version_is_the_one_before_with_its_changes(seed: int, tmp_path: Path) -> None:
    history = LanceHistory(tmp_path / "t", seed, stable=seed % 2 == 0, padded=seed % 3 > 0)
    history.grow(VERSIONS)
    assert assert_folds(history, changes_of(tailer.changes(history.path))) >= VERSIONS - 1


@pytest.mark.parametrize("seed", BRANCHES)
def test_branches_grow_apart(seed: int, tmp_path: Path) -> None:
    """The main history, a branch and a branch of that branch grow in turns; each has its own changes."""
    main = LanceHistory(tmp_path / "t", 50 + seed, stable=seed % 2 == 0, padded=seed % 3 > 0)
    main.grow(1 + seed % 4)
    branch = main.fork("dev", 150 + seed)
    branch.grow(max(branch.rows) + 3)
    histories = (main, branch, branch.fork("team/next", 250 + seed))
    for _ in range(4):
        for each in histories:
            each.grow(max(each.rows) + 3)
    for each in histories:
        assert_folds(each, changes_of(tailer.changes(each.path, branch=each.branch)))
        snapshot = changes_of(tailer.changes(each.path, branch=each.branch, start="snapshot"))
        (rows,) = snapshot.values()
        assert Counter(row for _, row in rows) == each.rows[max(each.rows)]


def test_a_fixed_history_has_the_same_rows_in_any_batches(tmp_path: Path) -> None:
    """The rows of one version in one range, and of all versions together, are the same, in the same order."""
    history = LanceHistory(tmp_path / "t", 7, stable=True)
    history.grow(12)
    whole = [row for batch in tailer.changes(history.path) for row in batch.to_pylist()]
    single = [
        row
        for version in history.rows
        for batch in tailer.changes(history.path, start=version, end=version)
        for row in batch.to_pylist()
    ]
    assert pa.Table.from_pylist(whole).equals(pa.Table.from_pylist(single))
