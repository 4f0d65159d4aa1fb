"""Random histories of Iceberg tables: the fold of our changes is the table at each snapshot, whatever deletes rows."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.tables import TableRef
from tailer.engine.local import LocalEngine
from tailer.formats.rows import execute
from tailer.plan import ChangePlan
from tests.support.iceberg.table import File, IcebergTable
from tests.support.seeds import seeds

pytestmark = pytest.mark.anyio

Rows = Counter[tuple[int | None, str]]
SNAPSHOTS = 15
DELETED = ("delete", "update_preimage")


@dataclass
class Model:
    """A table, and the rows of its files that are not deleted."""

    table: IcebergTable
    chance: random.Random
    live: dict[str, dict[int, tuple[int | None, str]]] = field(default_factory=dict)
    originals: dict[str, dict[int, tuple[int | None, str]]] = field(default_factory=dict)
    by_key: dict[str, set[int]] = field(default_factory=dict)
    data: dict[str, File] = field(default_factory=dict)
    marks: list[File] = field(default_factory=list)
    rows: dict[int, Rows] = field(default_factory=dict)
    partitions: int = 1

    def write(self) -> None:
        """Make a snapshot of some kind."""
        kinds = [self.append, self.rewrite, self.delete, self.upsert, self.compact, self.undelete]
        number = self.chance.choice(kinds if self.data else [self.append])()
        self.rows[number] = Counter(row for rows in self.live.values() for row in rows.values())

    def append(self) -> int:
        """Add a file."""
        return self._commit([self._new(self._keys(self.chance.randint(1, 6)))], [], "append")

    def rewrite(self) -> int:
        """Write a file anew without some of its rows, and with another name for others."""
        file = self._file()
        rows = [(key, name) for key, name in self.live[file.path].values() if self.chance.random() < 0.8]
        changed = [(key, name if self.chance.random() < 0.5 else f"{name}'") for key, name in rows]
        return self._commit([self._new(changed, file.partition)], [file], "overwrite")

    def delete(self) -> int:
        """Mark some rows of files, in one way or another."""
        file = self._file()
        gone = [position for position in self.live[file.path] if self.chance.random() < 0.5]
        if not gone:
            return self.append()
        for position in gone:
            del self.live[file.path][position]
        if self.table.version < 3:
            mark = self.table.positions([(file, position) for position in gone], partition=file.partition)
            return self._commit([], [], "delete", [mark])
        old = [mark for mark in self.marks if mark.referenced == file.path]
        whole = set(range(file.records)) - self.live[file.path].keys() - self._by_key(file)
        return self._commit([], old, "delete", [self.table.vector(file, whole | set(gone), 7)])

    def upsert(self) -> int:
        """Delete by keys, and add rows with these keys, as Flink does."""
        keys = [self.chance.choice([None, *range(12)]) for _ in range(3)]
        partition = self._partition()
        for path, rows in self.live.items():
            if self.data[path].partition == partition:
                hit = {position for position, (key, _) in self.originals[path].items() if key in keys}
                self.by_key.setdefault(path, set()).update(hit)
                for position in hit & rows.keys():
                    del rows[position]
        mark = self.table.equality({"id": keys}, {"id": 1}, partition=partition)
        added = self._new([(key, f"u{self.table.sequence}") for key in dict.fromkeys(keys)], partition)
        return self._commit([added], [], "overwrite", [mark])

    def compact(self) -> int:
        """Write the rows of a file to another one, which changes nothing."""
        file = self._file()
        rows = list(self.live[file.path].values())
        return self._commit([self._new(rows, file.partition)] if rows else [], [file], "replace")

    def undelete(self) -> int:
        """Drop a file of positions or a vector: its rows are back, unless others delete them."""
        marks = [mark for mark in self.marks if mark.content == 1 and mark.referenced in self.data]
        if not marks:
            return self.append()
        mark = self.chance.choice(marks)
        file = self.data[mark.referenced or ""]
        kept = self.originals[file.path]
        self.live[file.path] = {at: row for at, row in kept.items() if at not in self._by_key(file)}
        return self._commit([], [mark], "overwrite")

    def _by_key(self, file: File) -> set[int]:
        return self.by_key.get(file.path, set())

    def _keys(self, number: int) -> list[tuple[int | None, str]]:
        return [(self.chance.choice([None, *range(12)]), f"n{self.chance.randint(0, 3)}") for _ in range(number)]

    def _file(self) -> File:
        return self.data[self.chance.choice(sorted(self.data))]

    def _partition(self) -> tuple[tuple[str, str], ...]:
        return () if self.partitions == 1 else (("p", f"p{self.chance.randrange(self.partitions)}"),)

    def _new(self, rows: list[tuple[int | None, str]], partition: tuple[tuple[str, str], ...] | None = None) -> File:
        values: dict[str, list[Any]] = {"id": [key for key, _ in rows], "name": [name for _, name in rows]}
        file = self.table.data(values, partition=self._partition() if partition is None else partition)
        self.originals[file.path] = dict(enumerate(rows))
        self.live[file.path] = dict(enumerate(rows))
        return file

    def _commit(self, add: list[File], remove: list[File], operation: str, marks: list[File] = []) -> int:  # noqa: B006
        dropped = {file.path for file in remove}
        number = self.table.commit([*add, *marks], remove, operation)
        self.marks = [*(mark for mark in self.marks if mark.path not in dropped), *marks]
        for path in dropped:
            self.live.pop(path, None)
            self.data.pop(path, None)
        self.data |= {file.path: self.table.file(file.path) for file in add}
        return number


def rows_of(plan: ChangePlan) -> Iterator[tuple[bool, tuple[int | None, str]]]:
    """Yield the rows of a plan: whether each is deleted, and its values."""
    for task in plan.tasks:
        for batch in execute(task):
            for row in batch.rows.to_pylist():
                yield row["_change_type"] in DELETED, (row["id"], row["name"])


async def compared(plan: ChangePlan) -> list[tuple[str, tuple[int | None, str]]]:
    """Return the rows of a plan as a pipeline delivers them."""
    async with ChangelogEngine(LocalEngine(), PairingRules()).run([plan]) as batches:
        found = [row for batch in [each async for each in batches] for row in batch.rows.to_pylist()]
    return [(row["_change_type"], (row["id"], row["name"])) for row in found]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("seed", seeds(3))
async def test_every_snapshot_is_the_one_before_with_its_changes(
    tmp_path: Path, seed: int, partitions: int, version: int
) -> None:
    table = IcebergTable(tmp_path / "t", version)
    if partitions > 1:
        column = {"id": 3, "name": "p", "type": "string"}
        table.columns = (*table.columns, column)
        table.specs = [({"name": "p", "source-id": 3, "field-id": 1000, "transform": "identity"},)]
    model = Model(table, random.Random(seed), partitions=partitions)
    for _ in range(SNAPSHOTS):
        model.write()
    log, other, rows = TableRef(str(table.path)).open(), TableRef(str(table.path)).open(), Rows()
    await log.seek(1)
    while (plan := await log.next_plan()) is not None:
        changes = list(rows_of(plan))
        gone = Rows(row for is_deleted, row in changes if is_deleted)
        assert gone <= rows, f"version {plan.version} deletes rows that are not there"
        rows = rows - gone + Rows(row for is_deleted, row in changes if not is_deleted)
        assert rows == model.rows[plan.version], f"version {plan.version} ({plan.operation})"
        delivered = await compared(plan)
        assert (
            not {row for kind, row in delivered if kind == "delete"}
            & {row for kind, row in delivered if kind == "insert"}
            or version > 2
        )
        assert not (plan.operation == "replace" and delivered)
        found = Rows()
        async for page in other.snapshot_plans(plan.version):
            found += Rows(row for _, row in rows_of(page))
        assert found == rows
    assert log.state_id == table.table_id
    assert set(model.rows) == set(range(1, SNAPSHOTS + 1))
