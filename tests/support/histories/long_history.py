"""A long history written by hand and published commit by commit, with a model of each commit's changes.

Data, change and deletion-vector files exist from the start. Publishing a commit is one atomic rename, so a daemon that
follows can be killed at any moment of a busy table's life. The model does not depend on plans, tasks or files.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tests.support.tables.handwritten import HandwrittenTable

__all__ = ["Change", "LongHistory"]

Change = tuple[int, str, int]  # version, change type, id
LARGE: Final = 5_000


@dataclass
class LongHistory:
    """The history of the table at `path`: `length` commits, of which only the first is published at the start.

    `text_of`: returns the bytes of the column `text` of the row with an id; None: there is no such column.
    """

    path: Path
    seed: int
    length: int
    published: int = 1
    text_of: Callable[[int], bytes] | None = None
    changes: Counter[Change] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._table = HandwrittenTable(self.path, texts=() if self.text_of is None else ("text",))
        self._live: dict[str, tuple[list[int], set[int], dict[str, Any] | None]] = {}
        self._ids = count()
        self._names = count()
        moves = [self._append] * 6 + [self._delete] * 5 + [self._update] * 4 + [self._overwrite, self._nothing]
        for version in range(1, self.length):
            actions = self._append_many() if version % 40 == 20 else self._random.choice(moves)()
            self._table.commit(*actions)
        self._held = [self._table.commit_file(version) for version in range(self.length)]
        for commit in self._held[1:]:
            commit.rename(commit.with_suffix(".held"))

    @property
    def table_id(self) -> str:
        """The id of the table."""
        return str(self._table.metadata["id"])

    @property
    def last(self) -> int:
        """The last version of the history."""
        return self.length - 1

    @property
    def states(self) -> list[set[int]]:
        """The ids of each version."""
        states, ids, changes = list[set[int]](), Counter[int](), sorted(self.changes.items(), key=lambda one: one[0][0])
        for version in range(self.length):
            while changes and changes[0][0][0] == version:
                (_, kind, one), number = changes.pop(0)
                ids[one] += number if kind in ("insert", "update_postimage") else -number
            states.append(set(+ids))
        return states

    def publish(self, commits: int = 1) -> None:
        """Publish the next commits, or fewer if fewer are left."""
        for commit in self._held[self.published : self.published + commits]:
            commit.with_suffix(".held").touch()  # the time of the commit is now
            commit.with_suffix(".held").rename(commit)
            self.published += 1

    @property
    def _version(self) -> int:
        return self._table.version + 1

    def _note(self, kind: str, ids: list[int]) -> None:
        self.changes.update((self._version, kind, one) for one in ids)

    def _new_file(self, rows: int, kind: str = "insert") -> dict[str, Any]:
        ids = [next(self._ids) for _ in range(rows)]
        name = self._data(f"part-{next(self._names)}.parquet", ids, row_group_size=max(7, rows // 3))
        self._live[name] = (ids, set(), None)
        self._note(kind, ids)
        return self._table.add(name)

    def _data(self, file: str, ids: list[int], **more: Any) -> str:
        if self.text_of is not None:
            more["text"] = pa.array(map(self.text_of, ids), pa.binary()).view(pa.string())
        return self._table.data(file, ids, **more)

    def _append(self) -> list[dict[str, Any]]:
        return [self._new_file(self._random.randint(1, 60)) for _ in range(self._random.randint(1, 2))]

    def _append_many(self) -> list[dict[str, Any]]:
        return [self._new_file(LARGE), self._new_file(3)]

    def _nothing(self) -> list[dict[str, Any]]:
        return [{"commitInfo": {"operation": "SET TBLPROPERTIES"}}]

    def _delete(self) -> list[dict[str, Any]]:
        """Mark some rows of one file in a new deletion vector."""
        if not self._live:
            return self._append()
        name = self._random.choice(list(self._live))
        ids, gone, vector = self._live[name]
        rows = {row for row in range(len(ids)) if row not in gone and self._random.random() < 0.3}
        if not rows:
            return self._nothing()
        self._note("delete", [ids[row] for row in rows])
        after = self._table.vector(next(self._names), gone | rows)
        self._live[name] = (ids, gone | rows, after)
        return [self._table.add(name, after), self._table.remove(name, vector)]

    def _update(self) -> list[dict[str, Any]]:
        """Replace a file by another one, with a change file."""
        if not self._live:
            return self._append()
        name = self._random.choice(list(self._live))
        ids, gone, vector = self._live.pop(name)
        before = [one for row, one in enumerate(ids) if row not in gone]
        removed = self._table.remove(name, vector)
        added = self._new_file(len(before) or 1, "update_postimage")
        after = self._live[added["add"]["path"]][0]
        self._note("update_preimage", before)
        changed = [*before, *after]
        kinds = ["update_preimage"] * len(before) + ["update_postimage"] * len(after)
        file = self._data(f"_change_data/cdc-{next(self._names)}.parquet", changed, _change_type=kinds)
        return [added, removed, {"cdc": {"path": file, "partitionValues": {}, "size": 1, "dataChange": False}}]

    def _overwrite(self) -> list[dict[str, Any]]:
        """Remove every file, with its vector if any, and add one."""
        removed = []
        for name, (ids, gone, vector) in self._live.items():
            self._note("delete", [one for row, one in enumerate(ids) if row not in gone])
            removed.append(self._table.remove(name, vector))
        self._live.clear()
        return [self._new_file(5), *removed]
