"""The shop in a Delta table, written by Spark."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import anyio
from pyspark.sql import SparkSession

from examples.demo.proof import judge
from examples.demo.writer import Commit, Verdict
from tailer.config.tables import TableRef

__all__ = ["Shop"]

_ORDER: Final = """
    id,
    element_at(array('Ada', 'Bob', 'Cem', 'Dua', 'Eva', 'Fay', 'Gus'), CAST(id % 7 AS INT) + 1) AS customer,
    element_at(array('DE', 'FR', 'JP', 'BR', 'US'), CAST(id % 5 AS INT) + 1) AS country,
    'new' AS status,
    CAST(id % 400 + 0.99 AS DECIMAL(10, 2)) AS amount
"""


class Shop:
    """Writes the table at `path` in `rounds` of five commits; see `Writer`."""

    name = "Spark"
    scene = "the table orders, with change feed and deletion vectors"
    reference = "Spark's own feed"

    def __init__(self, spark: SparkSession, path: Path, rounds: int) -> None:
        self._spark = spark
        self._path = path
        self._rounds = rounds
        self._table = f"delta.`{path}`"
        self.operations: Counter[str] = Counter()

    @property
    def commits(self) -> int:
        """The number of commits that `trade` makes."""
        return 2 + 5 * self._rounds

    def open(self) -> Commit:
        """Create the empty table."""
        return self._commit(
            "create",
            f"""CREATE TABLE {self._table}
            (id BIGINT, customer STRING, country STRING, status STRING, amount DECIMAL(10, 2)) USING delta
            TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')""",
        )

    def trade(self) -> Iterator[Commit]:
        """Make all other commits, and yield each."""
        yield self._insert(0, 400)
        for number in range(self._rounds):
            yield self._insert(400 + 100 * number, 500 + 100 * number)
            yield self._commit(
                "update",
                f"UPDATE {self._table} SET status = 'paid', amount = amount + 1 WHERE id % 11 = {number}",
            )
            yield self._merge(350 + 100 * number, 520 + 100 * number)
            yield self._commit("delete", f"DELETE FROM {self._table} WHERE id % 29 = {number}")
            if number % 2:
                # Insert the same rows again: a table is a multiset, and so must be its copy.
                yield self._insert(400 + 100 * number, 410 + 100 * number)
            else:
                moved = f"UPDATE {self._table} SET country = 'NL' WHERE id % 13 = {number}"
                yield self._commit("update", moved)
        yield self._commit("optimize", f"OPTIMIZE {self._table}")

    def judge(self, copy: Path) -> Verdict:
        """See `Writer.judge`."""
        return judge(self._spark, self._path, copy)

    def _insert(self, first: int, end: int) -> Commit:
        return self._commit("insert", f"INSERT INTO {self._table} SELECT {_ORDER} FROM range({first}, {end}, 1, 1)")

    def _merge(self, first: int, end: int) -> Commit:
        return self._commit(
            "merge",
            f"""MERGE INTO {self._table} AS target
            USING (SELECT {_ORDER} FROM range({first}, {end}, 3, 1)) AS source ON target.id = source.id
            WHEN MATCHED AND target.id % 5 = 0 THEN DELETE
            WHEN MATCHED THEN UPDATE SET status = 'imported', amount = target.amount * 2
            WHEN NOT MATCHED THEN INSERT *""",
        )

    def _commit(self, operation: str, statement: str) -> Commit:
        records = self._spark.sql(statement).collect()
        rows = records[0].asDict().get("num_affected_rows") if records else None
        self.operations[operation] += 1
        version = anyio.run(TableRef(str(self._path)).open().latest)
        return Commit(version, operation, rows)
