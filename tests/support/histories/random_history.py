"""Random histories of Delta tables, written by Spark.

A history is a function of its seed and its shape, so a failure is repeated by its seed. SQL expressions over ids and a
salt make the rows: no values are transferred from Python to the JVM. Ids repeat across inserts, so equal rows occur
more than once, which distinguishes a multiset from a set.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from pyspark.sql import DataFrame, SparkSession

__all__ = ["PARTITION_VALUES", "SHAPES", "History", "Shape", "latest_version", "quick"]

_QUICK: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}

# Every kind of character that a writer escapes in a path, the empty string and null.
PARTITION_VALUES: Final = ("a/b", "x:y", "50%", "two words", "é", "", None, "q?#&=+", "plain")

_PLAIN: Final = {
    "id": ("BIGINT", "id"),
    "name": ("STRING", "IF(pmod({h}, 7) = 0, NULL, IF(pmod({h}, 11) = 0, '', concat('n', pmod({h}, 100))))"),
    "n": ("INT", "CAST(pmod({h}, 1000) AS INT)"),
}
_RICH: Final = {
    "amount": ("DECIMAL(12,3)", "CAST(pmod({h}, 100000) / 1000 AS DECIMAL(12,3))"),
    "day": ("DATE", "date_add(DATE'1969-12-31', CAST(pmod({h}, 2) AS INT))"),
    "at": ("TIMESTAMP", "timestamp_micros(pmod({h}, 4000000000) * 1000003 - 1000000000000)"),
    "ratio": ("DOUBLE", "CASE pmod({h}, 9) WHEN 0 THEN double('NaN') WHEN 1 THEN -0.0D ELSE pmod({h}, 90) / 7 END"),
    "raw": ("BINARY", "IF(pmod({h}, 5) = 0, NULL, unhex(substr(md5(string({h})), 1, 6)))"),
    "nested": (
        "STRUCT<a: INT, b: ARRAY<STRING>>",
        (
            "IF(pmod({h}, 6) = 0, NULL, named_struct('a', CAST(pmod({h}, 50) AS INT), "
            "'b', IF(pmod({h}, 4) = 0, NULL, array('x', NULL, string(pmod({h}, 3))))))"
        ),
    ),
    "tags": ("MAP<STRING, INT>", "IF(pmod({h}, 3) = 0, NULL, map('k', CAST(pmod({h}, 5) AS INT), 'l', NULL))"),
}


def _text(value: str | None) -> str:
    return "CAST(NULL AS STRING)" if value is None else f"'{value}'"


_PARTITION: Final = (
    "STRING",
    (
        f"element_at(array({', '.join(map(_text, PARTITION_VALUES))}), "
        f"CAST(pmod(hash({{h}}, 'p'), {len(PARTITION_VALUES)}) AS INT) + 1)"
    ),
)


@dataclass(frozen=True)
class Shape:
    """The kind of table that a history writes."""

    feed: bool
    vectors: bool
    partitioned: bool
    rich: bool = False
    traits: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = ("feed", "vectors", "partitioned", "rich")
        return "+".join([*(name for name in names if getattr(self, name)), *self.traits]) or "bare"

    @property
    def columns(self) -> dict[str, tuple[str, str]]:
        """Map column names to SQL types and the expressions that make them from `id` and a hash."""
        extra = _RICH if self.rich else {}
        return {**_PLAIN, **({"p": _PARTITION} if self.partitioned else {}), **extra}

    @property
    def partition_columns(self) -> list[str]:
        """The partition columns; they are in the middle of the table on purpose."""
        return [name for name in ("day", "p") if self.partitioned and name in self.columns]


SHAPES: Final = tuple(
    Shape(feed, vectors, partitioned, rich=feed == (vectors == partitioned))
    for feed in (True, False)
    for vectors in (True, False)
    for partitioned in (True, False)
)


@contextmanager
def quick(spark: SparkSession) -> Iterator[None]:
    """Configure `spark` for tables of a few dozen rows: compiling a query costs more than running it."""
    before = {key: spark.conf.get(key, None) for key in _QUICK}
    for key, value in _QUICK.items():
        spark.conf.set(key, value)
    yield
    for key, former in before.items():
        if former is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, former)


def latest_version(path: Path) -> int:
    """Return the table's newest version, by the names in its log."""
    return max(int(commit.stem) for commit in (path / "_delta_log").glob("[0-9]" * 20 + ".json"))


@dataclass
class History:
    """A table at `path` and its operations: `story` names the operation of every version."""

    spark: SparkSession
    path: Path
    seed: int
    shape: Shape
    story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed} {self.shape}")
        self.vectors = self.shape.vectors
        self.restorable = 0
        self._create()
        self._append(self._rows(0, 30))
        self._note("create and insert")

    def _create(self) -> None:
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in self.shape.columns.items())
        partitions = ", ".join(self.shape.partition_columns)
        self._sql(
            f"CREATE TABLE {self.table} ({columns}) USING delta"
            + (f" PARTITIONED BY ({partitions})" if partitions else "")
            + f" TBLPROPERTIES ('delta.enableChangeDataFeed' = '{self.shape.feed}',"
            f" 'delta.enableDeletionVectors' = '{self.vectors}')"
        )

    @property
    def table(self) -> str:
        """The table's name in SQL."""
        return f"delta.`{self.path}`"

    @property
    def latest(self) -> int:
        """The newest version."""
        return latest_version(self.path)

    def describe(self, version: int | None = None) -> str:
        """Return the text of a failure: how to repeat it, and the operations up to `version`."""
        story = self.story if version is None else self.story[: version + 1]
        lines = "\n".join(f"  {at}: {what}" for at, what in enumerate(story))
        return f"seed {self.seed}, shape {self.shape}, version {version}, {self.path}\n{lines}"

    def run(self, steps: int) -> Self:
        """Do `steps` random operations."""
        for _ in range(steps):
            self.step()
        return self

    def step(self) -> None:
        """Do one random operation, which need not make a version."""
        choices = self._choices()
        name = self.random.choices([name for name, _, _ in choices], [weight for _, weight, _ in choices])[0]
        operation = next(work for known, _, work in choices if known == name)
        operation()
        self._note(name)

    def _choices(self) -> list[tuple[str, int, Callable[[], None]]]:
        return [
            ("insert", 4, self._insert),
            ("delete", 5, lambda: self._sql(f"DELETE FROM {self.table} WHERE {self._condition()}")),
            ("delete all", 1, lambda: self._sql(f"DELETE FROM {self.table}")),
            ("update", 5, self._update),
            ("merge", 5, self._merge),
            ("merge inserts only", 2, self._merge_inserts),
            ("merge changing nothing", 2, self._merge_nothing),
            ("optimize", 2, lambda: self._sql(f"OPTIMIZE {self.table}")),
            ("zorder", 1, lambda: self._sql(f"OPTIMIZE {self.table} ZORDER BY (id)")),
            ("restore", 3, self._restore),
            ("overwrite", 1, lambda: self._write(self._some_rows(), mode="overwrite")),
            ("replace where", 3, self._replace_where),
            ("vectors on or off", 1, self._toggle_vectors),
            ("add column", 1, self._add_column),
            *([("dynamic overwrite", 3, self._overwrite_partitions)] if self.shape.partitioned else []),
        ]

    def _note(self, operation: str) -> None:
        self.story += [operation] * (self.latest + 1 - len(self.story))

    def sql(self, text: str) -> None:
        """Run a given statement; `{table}` is the table."""
        self._sql(text.format(table=self.table))
        self._note(text)

    def _sql(self, text: str) -> None:
        self.spark.sql(text).collect()

    def _rows(self, first: int, last: int) -> DataFrame:
        salt = self.random.randrange(1 << 20)
        made = [f"{maker.format(h=f'hash(id, {salt})')} AS {name}" for name, (_, maker) in self.shape.columns.items()]
        return self.spark.range(first, last, 1, 2).selectExpr(*made)

    def _some_rows(self) -> DataFrame:
        first = self.random.randrange(40)
        return self._rows(first, first + self.random.randint(1, 20))

    def _write(self, rows: DataFrame, **options: str) -> None:
        mode = options.pop("mode", "append")
        rows.write.format("delta").options(**options).mode(mode).save(str(self.path))

    def _append(self, rows: DataFrame) -> None:
        self._write(rows)

    def _insert(self) -> None:
        self._append(self._some_rows())

    def _condition(self) -> str:
        modulus = self.random.randint(2, 9)
        conditions = [
            f"pmod(id, {modulus}) = {self.random.randrange(modulus)}",
            f"id < {self.random.randrange(40)}",
            "name IS NULL",
            f"n > {self.random.randrange(1000)}",
        ]
        if self.shape.partitioned:
            value = self.random.choice(PARTITION_VALUES[:4])
            conditions += [f"p = '{value}'", "p IS NULL", f"p = '{value}' AND pmod(id, 2) = 0"]
        return self.random.choice(conditions)

    def _update(self) -> None:
        changes = ["n = n + 1", "name = concat('u', n)", "name = NULL"]
        if self.shape.partitioned:
            changes += [f"p = {_text(self.random.choice(PARTITION_VALUES))}"]
        if self.shape.rich:
            changes += ["nested.a = n", "amount = -amount", "raw = NULL"]
        self._sql(f"UPDATE {self.table} SET {self.random.choice(changes)} WHERE {self._condition()}")

    def _merged(self, clauses: str) -> None:
        view = f"source_{id(self)}"
        self._some_rows().createOrReplaceTempView(view)
        self._sql(f"MERGE INTO {self.table} t USING {view} s ON t.id = s.id {clauses}")
        self.spark.catalog.dropTempView(view)

    def _merge(self) -> None:
        columns = list(self.shape.columns)
        update = ", ".join(f"{name} = s.{name}" for name in columns)
        insert = f"({', '.join(columns)}) VALUES ({', '.join(f's.{name}' for name in columns)})"
        clauses = f"WHEN MATCHED AND s.n % 3 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET {update}"
        clauses += f" WHEN NOT MATCHED THEN INSERT {insert}"
        if self.random.random() < 0.4:
            clauses += " WHEN NOT MATCHED BY SOURCE AND t.n % 4 = 0 THEN UPDATE SET n = t.n + 1"
        self._merged(clauses)

    def _merge_inserts(self) -> None:
        columns = list(self.shape.columns)
        insert = f"({', '.join(columns)}) VALUES ({', '.join(f's.{name}' for name in columns)})"
        self._merged(f"WHEN NOT MATCHED THEN INSERT {insert}")

    def _merge_nothing(self) -> None:
        self._merged("WHEN NOT MATCHED BY SOURCE AND t.n < -1000000 THEN DELETE")  # rewrites files without a match

    def _restore(self) -> None:
        version = self.random.randint(self.restorable, self.latest)
        self._sql(f"RESTORE TABLE {self.table} TO VERSION AS OF {version}")

    def _replace_where(self) -> None:
        if self.shape.partitioned and self.random.random() < 0.5:
            where = f"p = '{self.random.choice(PARTITION_VALUES[:5])}'"
        else:
            first = self.random.randrange(30)
            where = f"id >= {first} AND id < {first + 10}"
        self._write(self._rows(0, 50).where(where), mode="overwrite", replaceWhere=where)

    def _overwrite_partitions(self) -> None:
        self._write(self._some_rows(), mode="overwrite", partitionOverwriteMode="dynamic")

    def _toggle_vectors(self) -> None:
        if self.shape.vectors:
            self.vectors = not self.vectors
            self._sql(f"ALTER TABLE {self.table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = '{self.vectors}')")

    def _add_column(self) -> None:
        if not self.restorable:
            self._sql(f"ALTER TABLE {self.table} ADD COLUMN extra INT AFTER id")
            self.restorable = self.latest
            self._sql(f"UPDATE {self.table} SET extra = n WHERE {self._condition()}")
