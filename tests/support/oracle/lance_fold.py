"""The judge of Lance histories: the changes of each version lead from the rows before to those after.

The rows are those that pylance reads.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from tests.support.tables.lance_histories import Row, Rows

__all__ = ["BEGINNINGS", "History", "assert_folds"]

BEGINNINGS: Final = ("fork", "clean_up")  # the version that they leave is the first with known rows
_QUIET: Final = ("compact", "index", "tag", "add_column", "rename", "cast", "drop")


class History(Protocol):
    """A dataset with the rows, the columns and the operation of each version."""

    @property
    def stable(self) -> bool:
        """Return whether row ids are stable."""

    @property
    def rows(self) -> Mapping[int, Rows]:
        """Return the rows of each version."""

    @property
    def columns(self) -> Mapping[int, list[tuple[str, int]]]:
        """Return the name and the field id of each column, by version."""

    @property
    def operations(self) -> Mapping[int, str]:
        """Return the operation that made each version."""


def assert_folds(history: History, found: Mapping[int, list[tuple[str, Row]]]) -> int:
    """Check the changes of every version of a history. Return the number of pairs of versions."""
    assert found.keys() <= history.rows.keys()
    pairs = 0
    for version, rows in history.rows.items():
        operation = history.operations[version]
        if operation in BEGINNINGS:
            assert version not in found
            continue
        changes, title = found.get(version, []), f"version {version}, {operation}"
        before = history.rows.get(version - 1, Counter())
        pairs += version - 1 in history.rows
        if not _has_same_columns(history, version):
            ids = [(kind, row) for (kind, _), row in zip(changes, _only_ids(row for _, row in changes), strict=True)]
            assert _folded(Counter(_only_ids(before.elements())), ids) == Counter(_only_ids(rows.elements())), title
        else:
            assert _folded(before, changes) == rows, title
        kinds = {kind for kind, _ in changes}
        if operation in _QUIET:
            assert not kinds, title
        if operation == "update" and history.stable:
            assert kinds <= {"update_preimage", "update_postimage"}, title
    return pairs


def _has_same_columns(history: History, version: int) -> bool:
    """Return whether a version has the columns of the one before, or replaces all rows."""
    is_new = version == 1 or history.operations[version] == "overwrite"
    return is_new or history.columns[version] == history.columns[version - 1]


def _folded(rows: Rows, changes: list[tuple[str, Row]]) -> Rows:
    folded = Counter(rows)
    for kind, row in changes:
        folded[row] += -1 if kind in ("delete", "update_preimage") else 1
    assert min(folded.values(), default=0) >= 0
    return +folded


def _only_ids(rows: Iterable[Row]) -> Iterator[Row]:
    """Leave the other columns out: where columns changed, their values come without a change of a row."""
    return ((("id", dict(row).get("id")),) for row in rows)
