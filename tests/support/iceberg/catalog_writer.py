"""A writer into a catalog of Iceberg tables, by PyIceberg, which knows the rows of each version."""

import random
from collections.abc import Collection
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import In

__all__ = ["CatalogWriter"]

Rows = dict[int, str]

SCHEMA: Final = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


class CatalogWriter:
    """A writer into a SQL catalog, whose rows it knows at each version: most of its commits are two snapshots."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.uri = f"sqlite:///{folder / 'catalog.db'}"
        catalog = load_catalog("prod", type="sql", uri=self.uri, warehouse=f"file://{folder / 'warehouse'}")
        catalog.create_namespace("sales")
        self._table = catalog.create_table("sales.orders", SCHEMA)
        self._chance = random.Random(seed)
        self.states: dict[int, Rows] = {}
        self.append()

    def commit(self, count: int) -> None:
        """Make a commit of some kind, if any: PyIceberg takes long for one."""
        for _ in range(min(count, 1)):
            self._chance.choice((self.append, self._delete, self._overwrite, self._upsert))()

    def append(self) -> None:
        """Add some rows."""
        first = max(self._rows, default=0) + 1
        added = dict.fromkeys(range(first, first + 5), "new")
        self._next(self._rows | added)
        self._table.append(_table(added))

    def _delete(self) -> None:
        gone = self._some()
        if gone:
            self._next(self._without(gone))
            self._table.delete(In("id", gone))

    def _overwrite(self) -> None:
        changed = {one: f"{self._rows[one]}+" for one in self._some()}
        if changed:
            rows = self._rows
            self._next(self._without(changed))
            self._next(rows | changed)
            self._table.overwrite(_table(changed), In("id", list(changed)))

    def _upsert(self) -> None:
        rows, changed = self._rows, {one: f"{self._rows[one]}*" for one in self._some()}
        added = {max(rows, default=0) + 1: "upsert"}
        if changed:
            self._next(self._without(changed))
            self._next(rows | changed)
        self._next(rows | changed | added)
        self._table.upsert(_table(changed | added), join_cols=["id"])

    @property
    def _rows(self) -> Rows:
        return self.states[max(self.states)] if self.states else {}

    def _some(self) -> list[int]:
        return self._chance.sample(sorted(self._rows), min(3, len(self._rows)))

    def _without(self, gone: Collection[int]) -> Rows:
        return {one: name for one, name in self._rows.items() if one not in gone}

    def _next(self, rows: Rows) -> None:
        """Note the rows of the next version, before a reader can see it."""
        self.states[len(self.states) + 1] = rows


def _table(rows: Rows) -> pa.Table:
    return pa.table({"id": list(rows), "name": list(rows.values())}, SCHEMA)
