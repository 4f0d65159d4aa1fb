"""Histories whose operations rewrite unchanged rows, and the events among these that are changes.

The operations are those of `tests.support.histories.random_history`, but most rows that a version deletes and inserts
are equal: set to their own values, merged with themselves, overwritten with some of their own, written twice, made
equal to others. Operations depend on the seed and on everything in the shape except the feed: a history is written
twice, with a feed and without one, with the same rows at each version.

`changes` returns the events of a version without rows that it deletes and inserts unchanged, `with_updates` the updates
among these. Both work in plain Python on rows as the suites compare them, independently of `tailer.changelog`.
"""

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql import DataFrame

from tailer.events import CHANGE_TYPE, ROW_COMMIT_VERSION, ROW_ID
from tailer.plan import TASKS, Position
from tests.support.follow import Followed
from tests.support.histories.random_history import History, Shape
from tests.support.oracle.rows import GONE, Row, rows_in_order

__all__ = ["TRACKED", "UNIQUE", "Event", "RewriteHistory", "RewriteShape", "changes", "events", "with_updates"]

TRACKED: Final = "row tracking"
UNIQUE: Final = "unique ids"

# Null or empty values on every level, zeros, and nested NaN.
_NESTED: Final = {
    "reals": (
        "ARRAY<FLOAT>",
        (
            "CASE pmod({h}, 5) WHEN 0 THEN NULL WHEN 1 THEN array() WHEN 2 THEN array(NULL, float('NaN')) "
            "WHEN 3 THEN array(-0.0F, CAST(0 AS FLOAT)) ELSE array(CAST(0 AS FLOAT), -0.0F) END"
        ),
    ),
    "points": (
        "MAP<STRING, STRUCT<x: DOUBLE, y: ARRAY<BINARY>>>",
        (
            "CASE pmod({h}, 4) WHEN 0 THEN map() WHEN 1 THEN map('k', NULL) "
            "WHEN 2 THEN map('k', named_struct('x', CAST(NULL AS DOUBLE), 'y', NULL)) "
            "ELSE map('k', named_struct('x', -0.0D, 'y', array(X'00', NULL))) END"
        ),
    ),
    "small": ("DECIMAL(38,18)", "IF(pmod({h}, 3) = 0, NULL, CAST({h} AS DECIMAL(38,18)) / 1000)"),
}

# Operations that rewrite no unchanged rows, or have another form here.
_LEFT_OUT: Final = ("delete all", "zorder", "merge inserts only", "overwrite", "replace where", "dynamic overwrite")


@dataclass(frozen=True)
class RewriteShape(Shape):
    """A shape whose traits are `TRACKED` and `UNIQUE`: rows are tracked, no two rows of a version have the same id."""

    @property
    def columns(self) -> dict[str, tuple[str, str]]:
        """See `Shape.columns`."""
        return {**super().columns, **(_NESTED if self.rich else {})}

    @property
    def partition_columns(self) -> list[str]:
        """See `Shape.partition_columns`."""
        return ["p"] if self.partitioned else []


@dataclass
class RewriteHistory(History):
    """A table that is mostly rewritten unchanged."""

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.seed} {replace(self.shape, feed=False)}")
        self.vectors = self.shape.vectors
        self._create()
        self._append(self._rows(0, 24))
        self._note("create and insert")
        self.restorable = self.latest

    @property
    def _unique(self) -> bool:
        return UNIQUE in self.shape.traits

    def _create(self) -> None:
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in self.shape.columns.items())
        partitions = f"PARTITIONED BY ({', '.join(self.shape.partition_columns)})" if self.shape.partitioned else ""
        properties = {
            "delta.enableChangeDataFeed": self.shape.feed,
            "delta.enableDeletionVectors": self.vectors,
            "delta.enableRowTracking": TRACKED in self.shape.traits,
        }
        settings = ", ".join(f"'{key}' = '{str(value).lower()}'" for key, value in properties.items())
        self._sql(f"CREATE TABLE {self.table} ({columns}) USING delta {partitions} TBLPROPERTIES ({settings})")

    def do(self, *names: str) -> "RewriteHistory":
        """Do the operations of these names in the order given."""
        works = {name: work for name, _, work in self._choices()}
        for name in names:
            works[name]()
            self._note(name)
        return self

    def _choices(self) -> list[tuple[str, int, Callable[[], None]]]:
        left_out = {*_LEFT_OUT, *(() if self.shape.vectors else ("vectors on or off",))}
        return [
            *(choice for choice in super()._choices() if choice[0] not in left_out),
            ("update to the same", 3, self._update_to_the_same),
            ("merge to the same", 3, self._merge_to_the_same),
            ("overwrite with some of the same", 4, self._overwrite_some),
            ("replace where with some of the same", 3, self._replace_some),
            *([] if self._unique else [("insert again", 3, self._insert_again), ("make equal", 2, self._make_equal)]),
            *([("dynamic overwrite", 3, self._overwrite_partition)] if self.shape.partitioned else []),
            *([("other zeros", 2, self._other_zeros)] if self.shape.rich else []),
        ]

    def _own(self) -> DataFrame:
        return self.spark.read.format("delta").load(str(self.path))

    def _changed(self) -> DataFrame:
        """Return the table's rows without some, and with others changed."""
        rows = self._own().where(f"NOT coalesce({self._condition()}, false)")
        changed = {"n": "IF(pmod(id, 5) = 2, n + 1, n) AS n"}
        return rows.selectExpr(*(changed.get(name, name) for name in rows.columns))

    def _restore(self) -> None:
        version = self.random.randint(self.restorable, max(self.restorable, self.latest - 1))
        self._sql(f"RESTORE TABLE {self.table} TO VERSION AS OF {version}")

    def _insert(self) -> None:
        rows = self._some_rows()
        self._append(rows.join(self._own(), "id", "left_anti") if self._unique else rows)

    def _insert_again(self) -> None:
        self._append(self._own().where(self._condition()))

    def _update_to_the_same(self) -> None:
        self._sql(f"UPDATE {self.table} SET name = name, n = n WHERE {self._condition()}")

    def _merge_to_the_same(self) -> None:
        self._merged("WHEN MATCHED THEN UPDATE SET n = t.n")

    def _overwrite_some(self) -> None:
        first = self.random.randrange(60, 80)
        rows = self._changed().where(f"id < {first}").unionByName(self._rows(first, first + 5), True)
        self._write(rows, mode="overwrite")

    def _replace_some(self) -> None:
        first = self.random.randrange(20)
        where = f"id >= {first} AND id < {first + 15}"
        self._write(self._changed().where(where), mode="overwrite", replaceWhere=where)

    def _overwrite_partition(self) -> None:
        self._write(
            self._changed().where("p IN ('', 'x:y', '50%')"), mode="overwrite", partitionOverwriteMode="dynamic"
        )

    def _make_equal(self) -> None:
        """Make rows that differ in little, then exchange their values: few rows of the table change, if any."""
        kept = {"id": "pmod(id, 3)", "n": "pmod(n, 2)", **dict.fromkeys(self.shape.partition_columns, "p")}
        values = {name: kept.get(name, "NULL") for name in self.shape.columns}
        self._sql(f"UPDATE {self.table} SET {', '.join(f'{name} = {value}' for name, value in values.items())}")
        self._note("make equal")
        self._sql(f"UPDATE {self.table} SET n = 1 - n WHERE n IN (0, 1) AND id < 2")

    def _other_zeros(self) -> None:
        """Make zeros, then turn some into minus zero, at the top or inside. NaN stays NaN, whatever its sign."""
        self._sql(f"UPDATE {self.table} SET ratio = 0, reals = array(CAST(0 AS FLOAT)) WHERE pmod(id, 3) = 0")
        self._note("other zeros")
        self._sql(
            f"UPDATE {self.table} SET ratio = IF(pmod(id, 4) = 0, -ratio, ratio), "
            "reals = IF(pmod(id, 4) = 2, transform(reals, x -> -x), reals) WHERE pmod(id, 2) = 0"
        )


@dataclass(frozen=True)
class Event:
    """One change row: its position, its change type, and the values of its other columns.

    `ids`: row id and row commit version, where both are known.
    """

    position: Position
    kind: str
    row: Row
    ids: tuple[Hashable, Hashable] | None = field(default=None, compare=False)

    @property
    def gone(self) -> bool:
        """Return whether the row exists before the version and not after it."""
        return self.kind in GONE


def events(version: Followed) -> list[Event]:
    """Return the events of a version in delivery order."""
    rows = [row for table in version.tables for row in rows_in_order(table)]
    return [_event(position, row) for position, row in zip(version.positions, rows, strict=True)]


def _event(position: Position, row: Row) -> Event:
    values = dict(row)
    row_id, row_version = values.pop(ROW_ID, None), values.pop(ROW_COMMIT_VERSION, None)
    ids = None if row_id is None or row_version is None else (row_id, row_version)
    kind = values.pop(CHANGE_TYPE)
    place = replace(position, task=position.task % TASKS)  # for any comparison rules
    return Event(place, str(kind), tuple(values.items()), ids)


def changes(raw: Sequence[Event]) -> list[Event]:
    """Return the events of a version without rows that are deleted and inserted unchanged.

    Rows with ids are matched by these first, where one is deleted and one inserted; all others by their values. Of
    equal rows, the first deleted ones or the last inserted ones remain.
    """
    alone = {ids for ids, counts in _sides(raw, lambda event: event.ids).items() if counts == (1, 1)} - {None}
    rest = [event for event in raw if event.ids not in alone]
    sides = _sides(rest, lambda event: event.row)
    seen: Counter[tuple[bool, Row]] = Counter()
    left = []
    for event in rest:
        seen[event.gone, event.row] += 1
        gone, come = sides[event.row]
        nth = seen[event.gone, event.row]
        if nth <= gone - come if event.gone else nth > gone:
            left.append(event)
    return left


def _sides(found: Iterable[Event], key: Callable[[Event], Hashable]) -> dict[Hashable, tuple[int, int]]:
    sides: dict[Hashable, tuple[int, int]] = {}
    for event in found:
        gone, come = sides.get(key(event), (0, 0))
        sides[key(event)] = (gone + event.gone, come + (not event.gone))
    return sides


def with_updates(left: Sequence[Event], column: str | None = None) -> list[Event]:
    """Return the same events with updates of one row: by the values of a column, then by row ids.

    The n-th deleted row is paired with the n-th inserted one. A preimage comes right before its postimage.
    """
    partners: dict[int, int] = {}
    by_value = [] if column is None else [[dict(event.row).get(column) for event in left]]
    for keys in (*by_value, [event.ids and event.ids[0] for event in left]):
        waiting: dict[Hashable, tuple[list[int], list[int]]] = {}
        taken = {*partners, *partners.values()}
        for index, (event, key) in enumerate(zip(left, keys, strict=True)):
            if index not in taken and key is not None:
                waiting.setdefault(key, ([], []))[not event.gone].append(index)
        for gone, come in waiting.values():
            partners |= dict(zip(come, gone, strict=False))
    return list(_joined(left, partners))


def _joined(left: Sequence[Event], partners: Mapping[int, int]) -> Iterator[Event]:
    moved = set(partners.values())
    for index, event in enumerate(left):
        if index in partners:
            yield replace(left[partners[index]], position=event.position, kind="update_preimage")
            yield replace(event, kind="update_postimage")
        elif index not in moved:
            yield event
