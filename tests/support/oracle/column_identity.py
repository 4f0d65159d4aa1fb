"""Rows of one schema in the columns of another, after renamed, dropped, added and widened columns.

Columns are the same if they have the same physical name (PROTOCOL.md, "Column Mapping"), or, without column mapping,
the same name. This also holds for the fields of nested structs. Written from the protocol over plain Python values,
without any code under test.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any, Final

from tests.support.oracle.rows import Row, Rows

__all__ = ["Schema", "restate", "shared"]

# A Delta schema as in the log: {"type": "struct", "fields": [...]}.
Schema = Mapping[str, Any]

_MICROS_PER_DAY: Final = 86_400_000_000


def restate(rows: Rows, before: Schema, after: Schema, keep: frozenset[str] = frozenset()) -> Rows:
    """Convert `rows` from the columns `before` to the columns `after`; columns named in `keep` are not converted."""
    restated: Rows = Counter()
    for row, count in rows.items():
        kept = tuple((name, value) for name, value in row if name in keep)
        table = tuple((name, value) for name, value in row if name not in keep)
        restated[tuple(sorted((*_struct(table, before, after), *kept)))] += count
    return restated


def shared(before: Any, after: Any) -> Any:
    """Return `after` without the columns and nested fields that `before` does not have."""
    if isinstance(before, str) or isinstance(after, str):
        return after
    match after["type"]:
        case "struct":
            old = {_identity(field): field for field in before["fields"]}
            fields = [
                {**field, "type": shared(old[_identity(field)]["type"], field["type"])}
                for field in after["fields"]
                if _identity(field) in old
            ]
            return {**after, "fields": fields}
        case "array":
            return {**after, "elementType": shared(before["elementType"], after["elementType"])}
        case _:
            parts = ("keyType", "valueType")
            return {**after, **{part: shared(before[part], after[part]) for part in parts}}


def _identity(field: Mapping[str, Any]) -> str:
    return str(field["metadata"].get("delta.columnMapping.physicalName", field["name"]))


def _struct(row: Row, before: Schema, after: Schema) -> Row:
    values = dict(row)
    old = {_identity(field): field for field in before["fields"]}
    found: list[tuple[str, Hashable]] = []
    for field in after["fields"]:
        was = old.get(_identity(field))
        value = None if was is None else values.get(was["name"])
        if was is not None and value is not None:
            found.append((field["name"], _value(value, was["type"], field["type"])))
    return tuple(sorted(found))


def _value(value: Any, before: Any, after: Any) -> Hashable:
    if value is None or before == after:
        return value  # type: ignore[no-any-return]
    if isinstance(before, str) or isinstance(after, str):
        return _atom(value, str(before), str(after))
    match after["type"]:
        case "struct":
            return _struct(value, before, after)
        case "array":
            return tuple(_value(item, before["elementType"], after["elementType"]) for item in value)
        case _:
            entries = [
                tuple((side, _value(part, before[f"{side}Type"], after[f"{side}Type"])) for side, part in entry)
                for entry in value
            ]
            return tuple(sorted(entries, key=repr))


def _atom(value: Any, before: str, after: str) -> Hashable:
    """Convert a value to a wider type. Whole numbers and decimals of any width are equal in Python."""
    if after in ("double", "float") and not isinstance(value, str):
        return repr(float(value))
    if before == "date" and after == "timestamp_ntz":
        return int(value) * _MICROS_PER_DAY
    return value  # type: ignore[no-any-return]
