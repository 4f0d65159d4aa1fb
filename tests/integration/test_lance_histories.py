"""Random histories of Lance datasets: the changes of each version lead from its rows before to those after.

The oracle is pylance, which reads the rows of every version.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

import tailer
from tests.support.tables.lance_histories import LanceHistory, Row, Rows, changes_of

HISTORIES: Final = 20
VERSIONS: Final = 26
BRANCHES: Final = 8


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_every_version_is_the_one_before_with_its_changes(seed: int, tmp_path: Path) -> None:
    history = LanceHistory(tmp_path / "t", seed, stable=seed % 2 == 0, padded=seed % 3 > 0)
    history.grow(VERSIONS)
    _check(history, changes_of(tailer.changes(history.path)))


@pytest.mark.parametrize("seed", range(BRANCHES))
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
        _check(each, changes_of(tailer.changes(each.path, branch=each.branch)))
        snapshot = changes_of(tailer.changes(each.path, branch=each.branch, start="snapshot"))
        (rows,) = snapshot.values()
        assert Counter(row for _, row in rows) == each.rows[max(each.rows)]


def _check(history: LanceHistory, found: dict[int, list[tuple[str, Row]]]) -> None:
    """Check that the changes of each version of a history lead from the rows before to those after."""
    assert found.keys() <= history.rows.keys()
    for version, rows in history.rows.items():
        if history.operations[version] == "fork":
            assert version not in found
            continue
        changes, title = found.get(version, []), f"version {version}, {history.operations[version]}"
        before = history.rows.get(version - 1, Counter())
        if not history.has_same_columns(version):
            ids = [(kind, row) for (kind, _), row in zip(changes, _only_ids(row for _, row in changes), strict=True)]
            assert _folded(Counter(_only_ids(before.elements())), ids) == Counter(_only_ids(rows.elements())), title
        else:
            assert _folded(before, changes) == rows, title
        kinds = {kind for kind, _ in changes}
        if history.operations[version] in ("compact", "index", "tag", "add_column", "rename", "cast", "drop"):
            assert not kinds, title
        if history.operations[version] == "update" and history.stable:
            assert kinds <= {"update_preimage", "update_postimage"}, title


def test_histories_are_as_long_as_promised() -> None:
    assert HISTORIES * (VERSIONS - 1) >= 500


def _folded(rows: Rows, changes: list[tuple[str, Row]]) -> Rows:
    folded = Counter(rows)
    for kind, row in changes:
        folded[row] += -1 if kind in ("delete", "update_preimage") else 1
    assert min(folded.values(), default=0) >= 0
    return +folded


def _only_ids(rows: Iterable[Row]) -> Iterator[Row]:
    """Leave the other columns out: where columns changed, their values come without a change of a row."""
    return ((("id", dict(row).get("id")),) for row in rows)


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
