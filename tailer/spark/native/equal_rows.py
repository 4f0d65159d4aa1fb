"""Queries of a row index as DataFrames: Spark's exchange brings equal rows together.

`rows` always has the columns of `tailer.changelog.equal_rows.fingerprints.Fingerprints.rows`: a fingerprint in two
halves, an address, and whether the row is deleted. Results are those of
`tailer.changelog.equal_rows.database_index`, which has the same queries in DuckDB's SQL.

Spark combines counts before the exchange, so equal rows are few counts however many they are. Where rows themselves
meet, they do so file by file: the numbers of equal rows go on from file to file, so one executor gets at most the equal
rows of one file. Only `paired_in_turn` needs all equal rows in one place.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from tailer.changelog.equal_rows.comparable_values import MAX_ROWS
from tailer.changelog.equal_rows.fingerprints import BUCKETS, SUMS
from tailer.files.row_bitmaps import WORD_BITS

__all__ = [
    "BOTH_SIDES",
    "SINGLE",
    "counted",
    "ends",
    "equal_partners",
    "first_or_last",
    "in_buckets",
    "of_fingerprints",
    "paired_in_turn",
    "paired_many",
    "paired_singles",
    "places",
    "tally",
    "uneven",
    "unpacked",
    "words",
]

_FINGERPRINT: Final = ("high", "low")
_ROWS: Final = (*_FINGERPRINT, "address", "deleted")
SINGLE: Final = "all_deleted = 1 AND all_inserted = 1"
BOTH_SIDES: Final = "all_deleted > 0 AND all_inserted > 0"
_SEVERAL: Final = "(all_deleted > 1 OR all_inserted > 1)"

_TASK_BITS: Final = MAX_ROWS.bit_length() - 1
_TASK: Final = f"shiftright({{0}}, {_TASK_BITS})"  # of an address
_ROW: Final = f"({{0}} & {MAX_ROWS - 1})"


def uneven(sums: DataFrame) -> DataFrame:
    """Return the buckets whose sums (`tailer.changelog.equal_rows.fingerprints.Fingerprints.sums`) are not all zero."""
    totals = sums.where("bucket IS NOT NULL").groupBy("bucket").agg(*(sql.sum(name).alias(name) for name in SUMS))
    return totals.where(" OR ".join(f"{name} <> 0" for name in SUMS)).select("bucket")


def unpacked(packed: DataFrame) -> DataFrame:
    """Return the rows of `tailer.spark.native.shared_index.FingerprintSums`, which has many to a row."""
    numbered = packed.where("address IS NOT NULL").selectExpr(
        *_ROWS, "explode(sequence(0, size(address) - 1)) AS place"
    )
    return numbered.selectExpr(*(f"{name}[place] AS {name}" for name in _ROWS))


def in_buckets(rows: DataFrame, buckets: DataFrame) -> DataFrame:
    """Return the rows in some buckets, of which every executor gets all."""
    return rows.join(sql.broadcast(buckets), sql.expr(f"CAST(low & {BUCKETS - 1} AS INT) = bucket"), "left_semi")


def counted(rows: DataFrame) -> DataFrame:
    """Return how many deleted and inserted rows have each fingerprint, and the last address of each side."""
    deleted, inserted = sql.count_if("deleted"), sql.count_if(~sql.col("deleted"))
    address = sql.col("address")
    return rows.groupBy(*_FINGERPRINT).agg(
        deleted.alias("all_deleted"),
        inserted.alias("all_inserted"),
        sql.max(sql.when(sql.col("deleted"), address)).alias("deleted"),
        sql.max(sql.when(~sql.col("deleted"), address)).alias("inserted"),
    )


def ends(counts: DataFrame) -> DataFrame:
    """Return the addresses of the rows with the fingerprints `counts` (`counted`), if each side has one at most."""
    few = counts.where(f"NOT ({_SEVERAL})")
    return few.selectExpr("explode(array(deleted, inserted)) AS address").where("address IS NOT NULL")


def of_fingerprints(rows: DataFrame, counts: DataFrame) -> DataFrame:
    """Return the addresses of the rows with the fingerprints `counts` (`counted`), if a side has several."""
    return rows.join(counts.where(_SEVERAL).select(*_FINGERPRINT), [*_FINGERPRINT], "left_semi").select("address")


def first_or_last(rows: DataFrame, counts: DataFrame) -> DataFrame:
    """Return the addresses that are left of the fingerprints `counts` (`counted`) that both sides have.

    These are the first deleted or the last inserted rows.
    """
    some = rows.join(counts.where(BOTH_SIDES).select(*_FINGERPRINT), [*_FINGERPRINT], "left_semi")
    # Of the rows of a file, all are left, none, or those before or after some number.
    most = "IF(deleted, all_deleted - all_inserted, all_deleted)"
    kept = _groups(some).where(f"IF(deleted, before < {most}, before + in_file > {most})")
    numbered = _numbered(_with_task(some).join(kept, [*_FINGERPRINT, "task", "deleted"]))
    return numbered.where(f"IF(deleted, nth <= {most}, nth > {most})").select("address")


def tally(counts: DataFrame) -> tuple[int, int]:
    """Count the fingerprints (`counted`) that several rows of one side alone have, and those that both sides have."""
    row = counts.selectExpr(f"count_if({_SEVERAL} AND NOT ({BOTH_SIDES}))", f"count_if({BOTH_SIDES})").collect()[0]
    return int(row[0]), int(row[1])


def paired_singles(counts: DataFrame) -> DataFrame:
    """Return partners of the fingerprints (`counted`) that one row of each side has."""
    return counts.where(SINGLE).select("deleted", "inserted")


def paired_many(rows: DataFrame, counts: DataFrame) -> DataFrame:
    """Return partners of all other fingerprints that both sides have: the n-th deleted and the n-th inserted row."""
    many = counts.where(f"{BOTH_SIDES} AND NOT ({SINGLE})").select(*_FINGERPRINT)
    some = rows.join(many, [*_FINGERPRINT], "left_semi")
    groups = _groups(some).where("before < least(all_deleted, all_inserted)")
    numbered = _numbered(_with_task(some).join(groups, [*_FINGERPRINT, "task", "deleted"]))
    numbered = numbered.where("nth <= least(all_deleted, all_inserted)").select(
        *_FINGERPRINT, "nth", "deleted", "address"
    )
    sides = [
        numbered.where(f"deleted = {side}").select(*_FINGERPRINT, "nth", sql.col("address").alias(name))
        for side, name in (("true", "deleted"), ("false", "inserted"))
    ]
    return sides[0].join(sides[1], [*_FINGERPRINT, "nth"]).select("deleted", "inserted")


def paired_in_turn(rows: DataFrame) -> DataFrame:
    """Return partners across versions: a deleted row and the next row of its fingerprint, if that is inserted."""
    turns = Window.partitionBy(*_FINGERPRINT).orderBy("address")
    following = rows.withColumns(
        {"next": sql.lead("address").over(turns), "deleted_again": sql.lead("deleted").over(turns)}
    )
    return following.where("deleted AND NOT deleted_again").selectExpr("address AS deleted", "next AS inserted")


def equal_partners(rows: DataFrame, partners: DataFrame) -> DataFrame:
    one = rows.where("deleted").select(sql.col("address").alias("deleted"), *_halves("one"))
    other = rows.where("NOT deleted").select(sql.col("address").alias("inserted"), *_halves("other"))
    both = partners.join(one, "deleted").join(other, "inserted")
    return both.where("one_high = other_high AND one_low = other_low").select("deleted", "inserted")


def places(partners: DataFrame, numbers: DataFrame) -> DataFrame:
    """Return the place of each deleted partner, `task` and `row`, and of its inserted one, `to_task` and `to_row`.

    `numbers`: the `number` of each `task` in addresses, of which every executor gets all.
    """
    both = partners.selectExpr(
        *(f"{_TASK.format(side)} AS of_{side}" for side in ("deleted", "inserted")),
        f"{_ROW.format('deleted')} AS row",
        f"{_ROW.format('inserted')} AS to_row",
    )
    for side, name in (("deleted", "task"), ("inserted", "to_task")):
        own = numbers.selectExpr(f"task AS of_{side}", f"number AS {name}")
        both = both.join(sql.broadcast(own), f"of_{side}")
    return both.select("task", "row", "to_task", "to_row")


def words(addresses: DataFrame) -> DataFrame:
    """Return addresses as bits: a row for each task and 64 rows of it."""
    parts = addresses.selectExpr(
        f"{_TASK.format('address')} AS task",
        f"{_ROW.format('address')} div {WORD_BITS} AS word",
        f"shiftleft(1L, CAST({_ROW.format('address')} % {WORD_BITS} AS INT)) AS bit",
    )
    return parts.groupBy("task", "word").agg(sql.bit_or("bit").alias("bits"))


def _with_task(rows: DataFrame) -> DataFrame:
    return rows.withColumn("task", sql.expr(_TASK.format("address")))


def _groups(rows: DataFrame) -> DataFrame:
    """Count the rows of each fingerprint by file and side: in the file, in the files before it, and in all."""
    groups = _with_task(rows).groupBy(*_FINGERPRINT, "task", "deleted").agg(sql.count("*").alias("in_file"))
    whole = Window.partitionBy(*_FINGERPRINT)
    earlier = Window.partitionBy(*_FINGERPRINT, "deleted").orderBy("task").rowsBetween(Window.unboundedPreceding, -1)
    return groups.withColumns(
        {
            "all_deleted": sql.sum(sql.expr("IF(deleted, in_file, 0L)")).over(whole),
            "all_inserted": sql.sum(sql.expr("IF(deleted, 0L, in_file)")).over(whole),
            "before": sql.coalesce(sql.sum("in_file").over(earlier), sql.lit(0)),
        }
    )


def _numbered(rows: DataFrame) -> DataFrame:
    """Number equal rows of a side from 1 on, in the order of addresses."""
    in_file = Window.partitionBy(*_FINGERPRINT, "task", "deleted").orderBy("address")
    return rows.withColumn("nth", sql.col("before") + sql.row_number().over(in_file))


def _halves(side: str) -> list[Column]:
    return [sql.col(half).alias(f"{side}_{half}") for half in _FINGERPRINT]
