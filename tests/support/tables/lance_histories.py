"""Random histories of Lance datasets, written by pylance, with the true rows of each version."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa

__all__ = ["OPERATIONS", "LanceHistory", "Row", "Rows", "changes_of", "rows_of"]

Row = tuple[tuple[str, Any], ...]
Rows = Counter[Row]


def rows_of(table: pa.Table) -> Rows:
    """Return the rows of a table, each as sorted names and values."""
    return Counter(map(_row, table.to_pylist()))


def changes_of(batches: Iterable[pa.RecordBatch]) -> dict[int, list[tuple[str, Row]]]:
    """Return the change type and the row of each change, by version."""
    found: dict[int, list[tuple[str, Row]]] = {}
    for batch in batches:
        for values in batch.to_pylist():
            kind, version = values.pop("_change_type"), values.pop("_commit_version")
            values.pop("_commit_timestamp")
            found.setdefault(version, []).append((kind, _row(values)))
    return found


def _row(values: dict[str, Any]) -> Row:
    return tuple(sorted((name, _plain(value)) for name, value in values.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(sorted((name, _plain(each)) for name, each in value.items()))
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return value


@dataclass
class LanceHistory:
    """A dataset at `path` that grows by random operations. `rows`: those of each version.

    `restored`: the version that each restore brought back.
    `branch`: the one that grows; None: the main one, which is created.
    """

    path: Path
    seed: int
    stable: bool
    padded: bool = True
    branch: str | None = None
    rows: dict[int, Rows] = field(default_factory=dict)
    columns: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    operations: dict[int, str] = field(default_factory=dict)
    restored: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._next = 0
        if self.branch is not None:
            return
        first = self._batch(self._chance.randint(1, 60))
        lance.write_dataset(
            first,
            self.path,
            max_rows_per_file=20,
            enable_stable_row_ids=self.stable,
            enable_v2_manifest_paths=self.padded,
            data_storage_version=self._chance.choice(["2.1", "stable"]),
        )
        self._note("create")

    def fork(self, name: str, seed: int) -> "LanceHistory":
        """Make a branch of the newest version, and return its history."""
        version = self.open().version
        self.open().create_branch(name)
        fork = LanceHistory(self.path, seed, self.stable, self.padded, name)
        fork._next = 1000 * seed + self._next
        fork.rows, fork.columns = {version: self.rows[version]}, {version: self.columns[version]}
        fork.operations = {version: "fork"}
        return fork

    def grow(self, versions: int) -> None:
        """Apply operations until there are so many versions."""
        while max(self.rows) < versions:
            name, apply = self._chance.choice(OPERATIONS)
            apply(self, self.open())
            self._note(name)

    def clean_up(self) -> None:
        """Remove all versions but the newest and those with a tag. From here on, the newest is the first one known."""
        newest = max(self.rows)
        self.open().cleanup_old_versions(timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False)
        self.rows, self.columns = {newest: self.rows[newest]}, {newest: self.columns[newest]}
        self.operations = {newest: "clean_up"}

    def open(self, version: int | None = None) -> lance.LanceDataset:
        """Open a version, or the newest one."""
        if self.branch is None:
            return lance.dataset(self.path, version=version)
        return lance.dataset(self.path).checkout_version((self.branch, version))

    def _target(self, dataset: lance.LanceDataset) -> Path | lance.LanceDataset:
        return self.path if self.branch is None else dataset

    def _note(self, operation: str) -> None:
        latest = self.open().version
        for version in range(max(self.rows, default=0) + 1, latest + 1):
            dataset = self.open(version)
            self.rows[version] = rows_of(dataset.to_table())
            self.columns[version] = [(each.name(), each.id()) for each in dataset.lance_schema.fields()]
            self.operations[version] = operation

    def _batch(self, count: int) -> pa.Table:
        ids = range(self._next, self._next + count)
        self._next += count
        return self._of(ids)

    def _of(self, ids: Any) -> pa.Table:
        ids, chance = list(ids), self._chance
        columns: dict[str, pa.Array] = {
            "id": pa.array(ids, pa.int64()),
            "v": pa.array([chance.choice([None, 1.5, 2.0, float(chance.randint(0, 3))]) for _ in ids], pa.float64()),
            "t": pa.array([chance.choice([None, "a", "b", "é\u2028"]) for _ in ids], pa.string()),
            "s": pa.array([{"x": chance.randint(0, 3), "y": "z"} for _ in ids]),
            "l": pa.array([[1, 2, 3][: chance.randint(0, 3)] for _ in ids], pa.list_(pa.int32())),
            "e": pa.FixedSizeListArray.from_arrays(
                pa.array([float(each) for each in ids for _ in "ab"], pa.float32()), 2
            ),
        }
        return pa.table(columns)

    def _fitting(self, table: pa.Table, dataset: lance.LanceDataset) -> pa.Table:
        """Give the table the columns of the dataset: nulls where it has no values."""
        arrays = []
        for column in dataset.schema:
            there = (
                table.schema.get_field_index(column.name) >= 0 and table.schema.field(column.name).type == column.type
            )
            arrays.append(table[column.name] if there else pa.nulls(len(table), column.type))
        return pa.table(arrays, names=dataset.schema.names)

    def _ids(self, dataset: lance.LanceDataset) -> list[int]:
        return dataset.to_table(columns=["id"])["id"].to_pylist() if "id" in dataset.schema.names else []

    def append(self, dataset: lance.LanceDataset) -> None:
        table = self._fitting(self._batch(self._chance.randint(1, 30)), dataset)
        lance.write_dataset(table, self._target(dataset), mode="append", max_rows_per_file=20)

    def delete(self, dataset: lance.LanceDataset) -> None:
        dataset.delete(f"id % {self._chance.randint(2, 9)} = 1")

    def update(self, dataset: lance.LanceDataset) -> None:
        column = self._chance.choice([name for name in ("v", "t") if name in dataset.schema.names] or ["id"])
        value = {"v": "2.5", "t": "'u'", "id": "id"}[column]
        dataset.update({column: value}, where=f"id % {self._chance.randint(1, 9)} = 0")

    def merge(self, dataset: lance.LanceDataset) -> None:
        known, chance = sorted(set(self._ids(dataset))), self._chance
        some = chance.sample(known, min(len(known), chance.randint(0, 8)))
        new = range(self._next, self._next + chance.randint(0, 4))
        self._next += len(new)
        source = self._fitting(self._of([*some, *new]), dataset)
        if len(source) == 0 or len(set(self._ids(dataset))) < len(self._ids(dataset)):
            return
        builder = dataset.merge_insert("id")
        match chance.randint(0, 3):
            case 0:
                builder = builder.when_matched_update_all()
            case 1:
                builder = builder.when_matched_update_all().when_not_matched_insert_all()
            case 2:
                builder = builder.when_not_matched_insert_all()
            case 3:
                builder = builder.when_matched_update_all().when_not_matched_insert_all()
                builder = builder.when_not_matched_by_source_delete("id % 7 = 3")
        builder.execute(source)

    def compact(self, dataset: lance.LanceDataset) -> None:
        dataset.optimize.compact_files(target_rows_per_fragment=50, materialize_deletions_threshold=0.05)

    def overwrite(self, dataset: lance.LanceDataset) -> None:
        table = self._batch(self._chance.randint(1, 30))
        if self._chance.random() < 0.5:
            table = table.select([*self._chance.sample(table.schema.names[1:], 3), "id"])
        lance.write_dataset(table, self._target(dataset), mode="overwrite", max_rows_per_file=20)

    def restore(self, dataset: lance.LanceDataset) -> None:
        former = self._chance.randint(min(self.rows), dataset.version)
        self.open(former).restore()  # type: ignore[no-untyped-call]
        self.restored[dataset.version + 1] = former

    def add_column(self, dataset: lance.LanceDataset) -> None:
        name = f"c{dataset.version}"
        if self._chance.random() < 0.5:
            dataset.add_columns({name: "id * 2"})
        else:
            dataset.add_columns(pa.field(name, pa.int32()))

    def rename(self, dataset: lance.LanceDataset) -> None:
        name = self._chance.choice(dataset.schema.names)
        if name != "id":
            change: Any = {"path": name, "name": f"{name[:3]}{dataset.version}"}
            dataset.alter_columns(change)

    def cast(self, dataset: lance.LanceDataset) -> None:
        if "v" in dataset.schema.names and dataset.schema.field("v").type == pa.float64():
            change: Any = {"path": "v", "data_type": pa.float32()}
            dataset.alter_columns(change)

    def drop(self, dataset: lance.LanceDataset) -> None:
        names = [name for name in dataset.schema.names if name != "id"]
        if len(names) > 1:
            dataset.drop_columns([self._chance.choice(names)])

    def update_columns(self, dataset: lance.LanceDataset) -> None:
        if "v" not in dataset.schema.names:
            return
        fragment = self._chance.choice(dataset.get_fragments())
        ids = fragment.to_table(columns=["id"])["id"].to_pylist()
        if len(ids) < 2:
            return
        kind = dataset.schema.field("v").type
        some = self._chance.sample(ids, len(ids) // 2)
        values = pa.table({"id": pa.array(some, pa.int64()), "v": pa.array([9.0] * len(some), kind)})
        changed, fields = fragment.update_columns(values, left_on="id", right_on="id")
        operation = lance.LanceOperation.Update(updated_fragments=[changed], fields_modified=fields)
        lance.LanceDataset.commit(self._target(dataset), operation, read_version=dataset.version)

    def index(self, dataset: lance.LanceDataset) -> None:
        dataset.create_scalar_index("id", index_type="BTREE", replace=True)

    def tag(self, dataset: lance.LanceDataset) -> None:
        version = dataset.version if self.branch is None else (self.branch, dataset.version)
        dataset.tags.create(f"t{self._chance.random()}", version)


OPERATIONS: Final[list[tuple[str, Callable[[LanceHistory, lance.LanceDataset], None]]]] = [
    ("append", LanceHistory.append),
    ("append", LanceHistory.append),
    ("delete", LanceHistory.delete),
    ("delete", LanceHistory.delete),
    ("update", LanceHistory.update),
    ("update", LanceHistory.update),
    ("merge", LanceHistory.merge),
    ("merge", LanceHistory.merge),
    ("compact", LanceHistory.compact),
    ("overwrite", LanceHistory.overwrite),
    ("restore", LanceHistory.restore),
    ("add_column", LanceHistory.add_column),
    ("rename", LanceHistory.rename),
    ("cast", LanceHistory.cast),
    ("drop", LanceHistory.drop),
    ("update_columns", LanceHistory.update_columns),
    ("index", LanceHistory.index),
    ("tag", LanceHistory.tag),
]
