"""The operations of a random history: rows, columns, partitions, upkeep, branches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.support.iceberg.spark.deltas import Deltas
from tests.support.iceberg.spark.evolution import Evolution
from tests.support.iceberg.spark.table import SparkTable

__all__ = ["Operations"]

_TAGGED_AT: Final = 9


class Operations:
    """Random operations on one table."""

    def __init__(self, table: SparkTable, scratch: Path) -> None:
        self.table = table
        self._chance = table.chance
        self._evolution = Evolution(table)
        self._deltas = Deltas(table, scratch)
        self._steps = 0
        # The first format cannot be followed, so it does not last.
        self._upgraded_at = self._chance.randint(3, 8 if table.version == 1 else 30)
        rows = (
            *(self._insert,) * 5, *(self._delete,) * 4, *(self._update,) * 4, *(self._merge,) * 4,
            self._overwrite, self._overwrite_partitions, self._truncate,
        )  # fmt: skip
        upkeep = (
            *(self._rewrite_data,) * 2, self._rewrite_deletes, self._rewrite_manifests, self._expire, self._rollback,
            self._cherrypick, self._branch, self._on_branch, self._on_branch, self._fast_forward, self._tag, self._mode,
            self._set_current,
        )  # fmt: skip
        deltas = (self._deltas.upsert, self._deltas.upsert, self._deltas.delete)
        copies = () if table.keyed else (self._insert_select, self._deltas.row_and_mark)
        changes = () if table.plain else (*self._evolution.all(), self._replace)
        self._kinds: tuple[Callable[[], object], ...] = (*rows, *upkeep, *deltas, *copies, *changes, self._upgrade)

    def step(self, inserts: bool) -> tuple[str, str | None]:
        """Do something, or insert rows; return its name, and the error if there was one."""
        self._steps += 1
        does = self._insert if self._steps <= 2 else self._chance.choice(self._kinds)
        does = {self._upgraded_at: self._upgrade, _TAGGED_AT: self._tag}.get(self._steps, does)
        does = self._insert if inserts else does
        name = getattr(does, "__name__", "?").strip("_")
        try:
            found = does()
        except Exception as error:  # noqa: BLE001 - some operations do not fit the table
            return name, " | ".join(line.strip() for line in str(error).splitlines()[:2])[:300]
        return (f"{name} {found}" if isinstance(found, str) else name), None

    def _insert(self) -> None:
        self.table.sql(f"INSERT INTO {{t}} VALUES {self.table.rows(1, 6)}")

    def _insert_select(self) -> None:
        self.table.sql(f"INSERT INTO {{t}} SELECT * FROM {{t}} WHERE {self.table.condition()}")

    def _overwrite(self) -> None:
        self.table.sql(f"INSERT OVERWRITE {{t}} VALUES {self.table.rows(1, 5)}")

    def _overwrite_partitions(self) -> None:
        self.table.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
        try:
            self._overwrite()
        finally:
            self.table.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")

    def _truncate(self) -> None:
        self.table.sql("TRUNCATE TABLE {t}")

    def _delete(self) -> str:
        condition = self.table.condition()
        self.table.sql(f"DELETE FROM {{t}} WHERE {condition}")
        return condition

    def _update(self) -> str:
        fields = [field for field in self.table.fields() if field.name != "id"]
        field, condition = self._chance.choice(fields), self.table.condition()
        value = field.name if self._chance.random() < 0.1 else self.table.literal(field.dataType, field)
        self.table.sql(f"UPDATE {{t}} SET {field.name} = {value} WHERE {condition}")
        return f"{field.name} WHERE {condition}"

    def _merge(self) -> None:
        fields = self.table.fields()
        keys = self._chance.sample(self.table.ids, 4)
        rows = []
        for key in keys:
            values = [
                f"CAST({key} AS {field.dataType.simpleString()})"
                if field.name == "id"
                else self.table.literal(field.dataType, field)
                for field in fields
            ]
            rows.append(f"({', '.join(values)})")
        names = ", ".join(field.name for field in fields)
        clauses = [
            f"WHEN MATCHED AND s.id % 3 = {self._chance.randrange(3)} THEN DELETE",
            "WHEN MATCHED THEN UPDATE SET *",
            "WHEN NOT MATCHED THEN INSERT *",
        ]
        if self._chance.random() < 0.2:
            clauses.append("WHEN NOT MATCHED BY SOURCE AND t.id % 4 = 1 THEN DELETE")
        if self._chance.random() < 0.3:
            del clauses[self._chance.randrange(3)]
        source = f"(SELECT * FROM VALUES {', '.join(rows)} AS x({names}))"
        self.table.sql(f"MERGE INTO {{t}} t USING {source} s ON t.id = s.id {' '.join(clauses)}")

    def _rewrite_data(self) -> str:
        use = self._chance.choice(("true", "false"))
        options = f"options => map('rewrite-all', 'true', 'use-starting-sequence-number', '{use}')"
        where = f", where => 'id > {self._chance.randrange(10)}'" if self._chance.random() < 0.2 else ""
        kind = ", strategy => 'sort', sort_order => 'id'" if self._chance.random() < 0.5 else ""
        self.table.call("rewrite_data_files", options + kind + where)
        return use

    def _rewrite_deletes(self) -> None:
        self.table.call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")

    def _rewrite_manifests(self) -> None:
        self.table.call("rewrite_manifests")

    def _expire(self) -> None:
        keep = self._chance.randint(1, 4)
        self.table.call("expire_snapshots", f"older_than => TIMESTAMP '2100-01-01', retain_last => {keep}")

    def _ancestors(self) -> list[int]:
        return [row.snapshot_id for row in self.table.sql("SELECT * FROM {t}.history WHERE is_current_ancestor")]

    def _rollback(self) -> None:
        self.table.call("rollback_to_snapshot", f"snapshot_id => {self._chance.choice(self._ancestors())}")

    def _set_current(self) -> None:
        ids = [row.snapshot_id for row in self.table.sql("SELECT * FROM {t}.snapshots")]
        self.table.call("set_current_snapshot", f"snapshot_id => {self._chance.choice(ids)}")

    def _cherrypick(self) -> None:
        self.table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.wap.enabled'='true')")
        self.table.spark.conf.set("spark.wap.id", f"w{self._steps}")
        try:
            self._chance.choice((self._insert, self._overwrite_partitions))()
        finally:
            self.table.spark.conf.unset("spark.wap.id")
            self.table.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('write.wap.enabled')")
        if self._chance.random() < 0.5:
            self._insert()
        (staged,) = self.table.sql(f"SELECT * FROM {{t}}.snapshots WHERE summary['wap.id'] = 'w{self._steps}'")
        self.table.call("cherrypick_snapshot", f"snapshot_id => {staged.snapshot_id}")

    def _branch(self) -> str:
        name = f"b{self._chance.randrange(2)}"
        self.table.sql(f"ALTER TABLE {{t}} CREATE OR REPLACE BRANCH {name}")
        return name

    def _branches(self) -> list[str]:
        return [row.name for row in self.table.sql("SELECT * FROM {t}.refs WHERE type = 'BRANCH' AND name <> 'main'")]

    def _on_branch(self) -> str:
        branch = self._chance.choice(self._branches() or [self._branch()])
        at = f"{self.table.name}.branch_{branch}"
        if self._chance.random() < 0.5:
            self.table.sql(f"INSERT INTO {at} VALUES {self.table.rows(1, 3)}")
        else:
            self.table.sql(f"DELETE FROM {at} WHERE {self.table.condition()}")
        return branch

    def _fast_forward(self) -> str:
        branch = self._chance.choice(self._branches() or [self._on_branch()])
        self.table.call("fast_forward", f"branch => 'main', to => '{branch}'")
        return branch

    def _tag(self) -> None:
        self.table.sql(f"ALTER TABLE {{t}} CREATE OR REPLACE TAG g{self._chance.randrange(3)}")

    def _mode(self) -> None:
        what, mode = (
            self._chance.choice(("delete", "update", "merge")),
            self._chance.choice(("copy-on-write", "merge-on-read")),
        )
        self.table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.{what}.mode'='{mode}')")

    def _upgrade(self) -> str:
        table: Any = self.table.load()
        version = min(table.operations().current().formatVersion() + 1, 3)
        self.table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('format-version'='{version}')")
        return str(version)

    def _replace(self) -> str:
        table: Any = self.table.load()
        version = table.operations().current().formatVersion()
        if self._chance.random() < 0.5:
            self.table.sql(
                f"CREATE OR REPLACE TABLE {{t}} USING iceberg TBLPROPERTIES ('format-version'='{version}') "
                "AS SELECT CAST(id AS BIGINT) AS id, p, CAST(3 AS INT) AS v, 'new' AS another FROM {t}"
            )
            return "as select"
        columns = [("id", "bigint"), ("p", "string"), ("v", "bigint"), ("w", "array<int>")]
        self.table.create("REPLACE TABLE", columns, self._chance.choice(("", "p")), {"format-version": version})
        self._insert()
        return "columns"
