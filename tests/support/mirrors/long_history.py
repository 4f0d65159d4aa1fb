"""The mirror in Delta of a history that is published commit by commit, and the check that it is one."""

from collections import Counter
from functools import partial

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
        found = table.to_pyarrow_table(columns=["id"]).column("id").to_pylist()
        assert len(found) == len(set(found))
        assert set(found) == (set() if version is None else self._states[version]), f"not version {version}"
        return -1 if version is None else version

    def commits(self) -> int:
        """Return the number of commits."""
        return int(self._open().version()) + 1
