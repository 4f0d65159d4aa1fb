"""Delta tables written by hand with columns that are added, renamed, dropped and widened, with rows in between.

Columns are mapped by name, so that each keeps its identity.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tests.support.tables.log_files import add, metadata, parquet, remove, write_commit

__all__ = ["MappedTable", "Rewriting"]

Action = dict[str, Any]

_TYPES: Final = {
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
}
_FEATURES: Final = ["columnMapping", "typeWidening", "deletionVectors"]


class MappedTable:
    """The table at `path` with columns given as name and Delta type, created by version 0."""

    def __init__(self, path: Path, *, feed: bool = True, table_id: str = "id", **columns: str) -> None:
        self.path = path
        self.feed = feed
        self.table_id = table_id
        self.version = -1
        self.columns = [(name, name, kind) for name, kind in columns.items()]  # name, physical name, type
        self.files: dict[str, dict[str, Sequence[Any]]] = {}
        gate = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": _FEATURES, "writerFeatures": _FEATURES}
        self.commit({"protocol": gate}, self.metadata())

    def metadata(self) -> Action:
        """Make the metadata action for the present columns and properties."""
        fields = [
            {
                "name": name,
                "type": kind,
                "nullable": True,
                "metadata": {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical},
            }
            for number, (name, physical, kind) in enumerate(self.columns, 1)
        ]
        properties = {
            "delta.enableChangeDataFeed": str(self.feed).lower(),
            "delta.columnMapping.mode": "name",
            "delta.enableTypeWidening": "true",
        }
        return metadata(json.dumps({"type": "struct", "fields": fields}), table_id=self.table_id, **properties)

    def commit(self, *actions: Action) -> int:
        """Write the next version; return it."""
        self.version += 1
        write_commit(self.path, self.version, *actions)
        return self.version

    def put(self, row_group_size: int | None = None, **values: Sequence[Any]) -> Action:
        """Write a file; columns that are not given are not in it."""
        name = f"{self.version + 1}-{len(self.files)}-{len(next(iter(values.values())))}.parquet"
        there = {physical: pa.array(values[n], _TYPES[kind]) for n, physical, kind in self.columns if n in values}
        file = parquet(self.path / name, pa.table(there), row_group_size=row_group_size)
        self.files[name] = values
        return add(name, size=file.stat().st_size)

    def take(self, name: str) -> Action:
        """Remove a file."""
        del self.files[name]
        return remove(name, size=(self.path / name).stat().st_size)

    def insert(self, row_group_size: int | None = None, **values: Sequence[Any]) -> int:
        """Commit a file of rows."""
        return self.commit(self.put(row_group_size, **values))

    def delete_oldest(self) -> int:
        """Commit the removal of the oldest file."""
        return self.commit(self.take(next(iter(self.files))))

    def add_column(self, name: str, kind: str, **values: Sequence[Any]) -> int:
        """Commit one more column, and a file with it if there are values."""
        self.columns.append((name, f"{name}-{self.version + 1}", kind))
        return self.commit(self.metadata(), *([self.put(None, **values)] if values else []))

    def drop(self, name: str, *more: Action) -> int:
        """Commit a schema without the column."""
        self.columns = [column for column in self.columns if column[0] != name]
        return self.commit(self.metadata(), *more)

    def rename(self, name: str, other: str) -> int:
        """Commit another name of the column."""
        self.columns = [(other if n == name else n, physical, kind) for n, physical, kind in self.columns]
        return self.commit(self.metadata())

    def retype(self, name: str, kind: str, *more: Action) -> int:
        """Commit another type of the column, wider or not."""
        self.columns = [(n, physical, kind if n == name else old) for n, physical, old in self.columns]
        return self.commit(self.metadata(), *more)


class Rewriting:
    """A table without a feed whose versions rewrite files: some rows are deleted, some changed, most are unchanged."""

    def __init__(self, path: Path, seed: int) -> None:
        chance = random.Random(seed)
        self.table = MappedTable(path, feed=False, k="long", v="string")
        self.states: list[dict[int, str]] = [{}]
        self._next = 8
        self._commit([(key, f"v{key}") for key in range(8)], [], chance)
        for _ in range(10):
            gone = chance.sample(list(self.table.files), chance.randint(1, len(self.table.files)))
            rows = [row for name in gone for row in zip(*(self.table.files[name][c] for c in ("k", "v")), strict=True)]
            self._commit(list(self._changed(rows, chance)), gone, chance)

    def _changed(self, rows: list[tuple[int, str]], chance: random.Random) -> Iterator[tuple[int, str]]:
        for key, value in rows:
            if (dice := chance.random()) > 0.2:
                yield key, f"u{chance.randint(0, 3)}" if dice < 0.4 else value
        for _ in range(chance.randint(1, 3)):
            yield self._next, f"v{self._next}"
            self._next += 1

    def _commit(self, rows: list[tuple[int, str]], gone: list[str], chance: random.Random) -> None:
        removed = [self.table.take(name) for name in gone]
        chance.shuffle(rows)
        parts = [part for part in (rows[::2], rows[1::2]) if part]
        added = [self.table.put(k=[k for k, _ in part], v=[v for _, v in part]) for part in parts]
        self.table.commit(*removed, *added)
        files = self.table.files.values()
        self.states.append({k: v for file in files for k, v in zip(file["k"], file["v"], strict=True)})

    def changes(self, before: int, after: int, updates: bool = True) -> Counter[tuple[str, int, str]]:
        """Return the difference between two versions."""
        old, new = self.states[before], self.states[after]
        found: Counter[tuple[str, int, str]] = Counter()
        for key in old.keys() | new.keys():
            if old.get(key) == new.get(key):
                continue
            is_update = updates and key in old and key in new
            if key in old:
                found["update_preimage" if is_update else "delete", key, old[key]] += 1
            if key in new:
                found["update_postimage" if is_update else "insert", key, new[key]] += 1
        return found
