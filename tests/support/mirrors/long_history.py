"""The mirror in Delta of a history that is published commit by commit, and the check that it is one."""

from collections import Counter
from functools import partial
from typing import Any

import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.support.histories.long_history import LongHistory

__all__ = ["HistoryMirror"]


class HistoryMirror:
    """The mirror of a history at `location`, which delta-rs opens with `login`, and the check that it is one."""

    def __init__(self, location: str, history: LongHistory, login: dict[str, str] | None = None) -> None:
        self._open = partial(DeltaTable, location, storage_options=login)
        self._app_id = f"orders/{history.table_id}"
        self._states: list[set[int]] = []
        ids: Counter[int] = Counter()
        changes = sorted(history.changes.items(), key=lambda each: each[0][0])
        for version in range(history.length):
            while changes and changes[0][0][0] == version:
                (_, kind, one), number = changes.pop(0)
                ids[one] += number if kind in ("insert", "update_postimage") else -number
            self._states.append(set(+ids))

    def version(self, commit: int | None = None) -> int:
        """Check the table behind a commit, by default the newest. Return the version that it mirrors; -1: none."""
        try:
            table = self._open(commit)
        except TableNotFoundError:
            return -1
        version = table.transaction_version(self._app_id)
        rows = table.to_pyarrow_table()
        for column in {"_deleted_version", "_valid_to_version"}.intersection(rows.column_names):
            rows = rows.filter(pc.field(column).is_null())
        found = rows.column("id").to_pylist()
        assert len(found) == len(set(found))
        assert set(found) == (set() if version is None else self._states[version]), f"not version {version}"
        return -1 if version is None else version

    def check_past(self) -> None:
        """Check that the newest commit has the source as of each known version, and says when rows were deleted."""
        table = self._open()
        rows, last = table.to_pyarrow_table().to_pylist(), table.transaction_version(self._app_id)
        known_from = table.transaction_version("orders/#known-from")
        assert last is not None
        for version in range(last + 1 if known_from is None else known_from, last + 1):
            found = sorted(row["id"] for row in rows if _holds(row, version))
            assert found == sorted(self._states[version]), f"not version {version}"
        for row in rows:
            if (deleted := row.get("_deleted_version")) is not None:
                assert not any(row["id"] in ids for ids in self._states[deleted : last + 1])

    def commits(self) -> int:
        """Return the number of commits."""
        return int(self._open().version()) + 1


def _holds(row: dict[str, Any], version: int) -> bool:
    """Return whether a state of a history holds at a version."""
    ended = row["_valid_to_version"]
    return bool(row["_valid_from_version"] <= version and (ended is None or version < ended))
