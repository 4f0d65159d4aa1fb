"""Random conditions, as SQL and as plain Python: which rows fulfil one, judged without the code under test."""

import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.support.oracle.column_identity import Schema
from tests.support.oracle.rows import Row, Rows

__all__ = ["Wanted", "comparable_columns", "random_condition", "widened_columns"]

Value = Hashable
_Judge = Callable[[Mapping[str, Value]], bool | None]
_NUMBERS: Final = ("byte", "short", "integer", "long")


@dataclass(frozen=True)
class Wanted:
    """A condition: its text, and what it says of a row (`tests.support.oracle.rows`), maybe neither true nor false."""

    text: str
    judge: _Judge

    def rows(self, rows: Rows) -> Rows:
        """Return the rows that fulfil it, each as often as it is there."""
        return Counter({row: count for row, count in rows.items() if self.judge(dict(row)) is True})


def comparable_columns(before: Schema, after: Schema) -> dict[str, str]:
    """Return the columns, by name, whose name, identity and type are the same in two schemas, and simple."""
    old = {field["name"]: field for field in before["fields"]}
    return {
        field["name"]: field["type"]
        for field in after["fields"]
        if field["type"] in (*_NUMBERS, "string", "boolean") and _same(old.get(field["name"]), field)
    }


def widened_columns(before: Schema, after: Schema) -> dict[str, str]:
    """Return the columns, by name, that hold wider integers in the second of two schemas."""
    old = {field["name"]: field for field in before["fields"]}
    both = {field["name"]: (old[field["name"]], field) for field in after["fields"] if field["name"] in old}
    return {
        name: new["type"]
        for name, (former, new) in both.items()
        if former["type"] != new["type"]
        and former["type"] in _NUMBERS
        and new["type"] in _NUMBERS
        and _same({**former, "type": new["type"]}, new)
    }


def _same(old: Any, new: Any) -> bool:
    key = "delta.columnMapping.physicalName"
    return old is not None and old["type"] == new["type"] and old["metadata"].get(key) == new["metadata"].get(key)


def random_condition(chance: random.Random, columns: Mapping[str, str], rows: Sequence[Row], depth: int = 2) -> Wanted:
    """Return a condition over some of the `columns`, with values that occur in `rows`, or nearly."""
    if depth and chance.random() < 0.6:
        left = random_condition(chance, columns, rows, depth - 1)
        right = random_condition(chance, columns, rows, depth - 1)
        return chance.choice([_and(left, right), _or(left, right), _not(left)])
    name = chance.choice(sorted(columns))
    value = dict(chance.choice(rows)).get(name) if rows else None
    quoted = f"`{name.replace('`', '``')}`"
    if value is None or chance.random() < 0.15:
        return chance.choice(
            [
                Wanted(f"{quoted} IS NULL", lambda row: row.get(name) is None),
                Wanted(f"{quoted} IS NOT NULL", lambda row: row.get(name) is not None),
            ]
        )
    sign, compare = chance.choice(list(_COMPARISONS.items()))
    return Wanted(f"{quoted} {sign} {_literal(value)}", lambda row: _compared(row.get(name), value, compare))


_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": lambda one, other: one == other,
    "<>": lambda one, other: one != other,
    "<": lambda one, other: one < other,
    ">=": lambda one, other: one >= other,
    "<=": lambda one, other: one <= other,
}


def _compared(found: Any, value: Any, compare: Callable[[Any, Any], bool]) -> bool | None:
    if found is None:
        return None
    return compare(found.encode(), value.encode()) if isinstance(value, str) else compare(found, value)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value)


def _and(one: Wanted, other: Wanted) -> Wanted:
    def judge(row: Mapping[str, Value]) -> bool | None:
        found = one.judge(row), other.judge(row)
        return False if False in found else None if None in found else True

    return Wanted(f"({one.text}) AND ({other.text})", judge)


def _or(one: Wanted, other: Wanted) -> Wanted:
    def judge(row: Mapping[str, Value]) -> bool | None:
        found = one.judge(row), other.judge(row)
        return True if True in found else None if None in found else False

    return Wanted(f"({one.text}) OR ({other.text})", judge)


def _not(one: Wanted) -> Wanted:
    def judge(row: Mapping[str, Value]) -> bool | None:
        found = one.judge(row)
        return None if found is None else not found

    return Wanted(f"NOT ({one.text})", judge)
