"""A MERGE by Spark of the changes that executors read: one commit for a range of versions.

The rows come from the same source as those of an append (`tailer.spark.write.delta.append`). Of each key, the first
change says whether the table must have it, and the last one whether it has it afterwards. One exchange brings the
changes of a key together, in the order of versions, a deletion before an insertion. What is left is one row for each
key, and the MERGE finds whether the table has it. Every contradiction raises an error in a task, so nothing is
committed.

Spark reads the `txn` of a MERGE from its settings, not from options. They are set in a session of its own, so no other
commit has them.
"""

import re
from collections.abc import Sequence
from typing import Final

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from tailer.errors import TailerError
from tailer.sink import MERGED_INSERTED, MERGED_VERSION, KeyFault, Merge
from tailer.spark.splits import Split
from tailer.spark.write.delta.append import RangeAppend

__all__ = ["RangeMerge"]

_INSERT: Final = "insert"
_UPDATE: Final = "update"
_DELETE: Final = "delete"
# Columns beside those of the table.
_BEFORE: Final = "lake_tailer_before"
_AFTER: Final = "lake_tailer_after"
_WAS_NEW: Final = "lake_tailer_was_new"
_TWICE: Final = "lake_tailer_twice"
_CHANGE: Final = "lake_tailer_change"


class RangeMerge(RangeAppend):
    """A MERGE of the rows of `splits`, which closes version `last`. The rest, and what is raised, as in `RangeAppend`.

    `SinkRejected` is also raised for changes that contradict the key, or the table.
    """

    def __init__(self, session: SparkSession, sink: str, merge: Merge, splits: Sequence[Split], last: int) -> None:
        super().__init__(session, sink, merge, splits, last)
        self._merge = merge

    def _open(self) -> SparkSession:
        session, merge = super()._open(), self._merge
        for name, value in {
            "spark.databricks.delta.write.txnAppId": merge.app_id,
            "spark.databricks.delta.write.txnVersion": str(self._last),
            "spark.databricks.delta.commitInfo.userMetadata": merge.note,
            # Whatever isolation Spark has: some let commits of others pass, such as appends that read nothing.
            "spark.databricks.delta.maxCommitAttempts": "0",
        }.items():
            session.conf.set(name, value)
        return session

    def _write(self, rows: DataFrame) -> None:
        merge = self._merge
        names = [name for name in merge.schema.names if name not in (MERGED_VERSION, MERGED_INSERTED)]
        values: dict[str, str | Column] = {_quoted(name): f"source.{_quoted(name)}" for name in names}
        key, change = _quoted(merge.key[0]), f"source.{_CHANGE}"
        same_key = " AND ".join(f"target.{_quoted(column)} = source.{_quoted(column)}" for column in merge.key)
        target = DeltaTable.forPath(rows.sparkSession, self._location).alias("target")
        (
            target.merge(self._reduced(rows).alias("source"), same_key)
            .whenMatchedUpdate(f"{change} = '{_UPDATE}'", values)
            .whenMatchedDelete(f"{change} = '{_DELETE}'")
            .whenMatchedUpdate(set=values | {key: self._fails(KeyFault.PRESENT)})
            .whenNotMatchedInsert(f"{change} = '{_INSERT}'", values)
            .whenNotMatchedInsert(values=values | {key: self._fails(KeyFault.ABSENT)})
            .execute()
        )

    def _reduced(self, rows: DataFrame) -> DataFrame:
        """Return one row for each key that changes: the last one, with what becomes of the key."""
        of_key = Window.partitionBy(*(sql.col(_quoted(column)) for column in self._merge.key))
        in_order = of_key.orderBy(MERGED_VERSION, MERGED_INSERTED)
        inserted, was_new = sql.col(MERGED_INSERTED), sql.col(_WAS_NEW)
        twice = sql.min(sql.when(sql.col(_BEFORE) == inserted, sql.col(MERGED_VERSION)))
        change = (
            sql.when(sql.col(_TWICE).isNotNull(), self._fails(KeyFault.TWICE, sql.col(_TWICE)))
            .when(inserted & was_new, _INSERT)
            .when(inserted, _UPDATE)
            .when(~was_new, _DELETE)
        )
        return (
            rows.withColumn(_BEFORE, sql.lag(inserted).over(in_order))
            .withColumn(_AFTER, sql.lead(inserted).over(in_order))
            .withColumn(_WAS_NEW, sql.first(inserted).over(in_order))
            .withColumn(_TWICE, twice.over(of_key))
            .where(sql.col(_AFTER).isNull())
            .withColumn(_CHANGE, change)
            .where(sql.col(_CHANGE).isNotNull())
            .drop(MERGED_VERSION, MERGED_INSERTED, _BEFORE, _AFTER, _WAS_NEW, _TWICE)
        )

    def _fails(self, fault: KeyFault, version: Column | None = None) -> Column:
        """Return an expression that fails for every row for which it is evaluated, in a way that `_named` knows."""
        at = sql.lit(str(self._last)) if version is None else version.cast("string")
        return sql.raise_error(sql.concat(sql.lit(f"{self._mark} {fault} "), at))

    def _named(self, error: Exception) -> TailerError:
        found = re.search(rf"USER_RAISED_EXCEPTION\] {self._mark} (\w+) (\d+)", str(error))
        return super()._named(error) if found is None else self._merge.refusal(KeyFault(found[1]), int(found[2]))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
