"""The rules of mirrors in any store: the columns that identify a row, and the rows that changes delete and insert.

`name` is the sink's in errors, and `table` the mirror's.

JSON texts are equal where the source makes no difference between their values (`comparable_json`). A mirror may have
JSON of an earlier version, of rows that did not change: without the fields that a struct got later, with fields and
entries of maps in another order, and with other spellings of the numbers of a Variant, or of those that were integers
before they were widened.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import SinkRejected, did_you_mean
from tailer.events import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ROW_ID,
    ChangeType,
    is_struct,
    is_variant,
    type_text,
)

__all__ = [
    "ANOTHER_TABLE",
    "CONTRADICTED",
    "DELETED_AT",
    "DELETED_VERSION",
    "RESNAPSHOT",
    "VALID_FROM",
    "VALID_FROM_VERSION",
    "VALID_TO",
    "VALID_TO_VERSION",
    "check_never_null",
    "chosen_key",
    "comparable_json",
    "deleted_and_inserted",
    "key_faults",
    "one_version",
    "time_us_of",
]

# Columns of a mirror that marks deleted rows: when a row was deleted; null: it was not.
DELETED_VERSION: Final = "_deleted_version"
DELETED_AT: Final = "_deleted_at"
# Columns of a history: a state of a row holds from the first version on, until before the second; null: it holds.
VALID_FROM_VERSION: Final = "_valid_from_version"
VALID_FROM: Final = "_valid_from"
VALID_TO_VERSION: Final = "_valid_to_version"
VALID_TO: Final = "_valid_to"

ANOTHER_TABLE: Final = "Deliver to a new table: another table, and another name for the pipeline."
RESNAPSHOT: Final = "Ask for a snapshot with `tailer resnapshot PIPELINE`."
CONTRADICTED: Final = (  # the next step where changes contradict the key, or the mirror
    "Set key to columns whose values are unique in the source, and run `tailer resnapshot PIPELINE`. "
    "If they are unique, somebody else has changed the table: run it, too."
)
_TEXT: Final = pa.large_string()
_encode = msgspec.json.Encoder(order="sorted").encode
_INSERTS: Final = pa.array([ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE], pa.string())
_DELETES: Final = pa.array([ChangeType.DELETE, ChangeType.UPDATE_PREIMAGE], pa.string())


def chosen_key(names: Sequence[str], configured: Sequence[str], source_key: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the key: those `configured`, or else the row ids, or else `source_key`, if all are there.

    None of them: nothing identifies rows.
    """
    if configured or ROW_ID in names:
        return tuple(configured) or (ROW_ID,)
    return tuple(source_key) if set(source_key) <= set(names) else ()


def _no_key(name: str, table: str) -> SinkRejected:
    """Return the error for rows that nothing identifies, also where the table does not track them."""
    remedy = "Add key to the sink: the columns that identify a row. Or add row_ids = true to the pipeline, if the "
    return SinkRejected(name, f"{table} has no key", f"{remedy}table tracks rows.")


def one_version(name: str, table: str) -> SinkRejected:
    """Return the error for an earlier version of a mirror."""
    return SinkRejected(name, f"{table} has the rows of one version", 'Set mode = "history" to keep earlier ones.')


def key_faults(
    name: str, table: str, schema: pa.Schema, key: Sequence[str], is_nested: Callable[[pa.DataType], bool]
) -> Iterator[SinkRejected]:
    """Yield why the columns of `key` do not identify rows of `schema`. `is_nested`: of types whose values do not."""
    if not key:
        yield _no_key(name, table)
    for column in key:
        index = schema.get_field_index(column)
        if index < 0:
            names, near = f"The columns are: {', '.join(schema.names)}.", did_you_mean(column, schema.names)
            step = "Set key to some of them, and run `tailer resnapshot PIPELINE`."
            remedy = " ".join(filter(None, (names, near, step)))
            yield SinkRejected(name, f"the key column {column} is not a column of {table}", remedy)
            continue
        kind = schema.field(index).type
        if is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
            reason = f"the key column {column} has type {type_text(kind)}, whose values identify no row"
            yield SinkRejected(name, reason, "Set key to columns of other types.")


def time_us_of(rows: pa.RecordBatch) -> int | None:
    """Return the time of the version of rows of the source, in microseconds since 1970; None: they do not say it."""
    if not len(rows) or COMMIT_TIMESTAMP not in rows.schema.names:
        return None
    time_us: int = rows.column(COMMIT_TIMESTAMP)[0].value
    return time_us


def check_never_null(name: str, table: str, rows: pa.RecordBatch, key: Sequence[str]) -> None:
    """Raise `SinkRejected` for a row whose key has a null."""
    for column in key:
        values = rows.column(column)
        if values.null_count:
            if column == ROW_ID:
                raise _no_key(name, table)
            version = rows.column(COMMIT_VERSION).filter(values.is_null())[0]
            reason = f"the key column {column} of {table} is null in version {version}"
            raise SinkRejected(name, reason, "Set key to columns that are never null.")


def deleted_and_inserted(name: str, rows: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """Return which rows are deleted, and which are inserted. Raises `SinkRejected` for other change types."""
    changes = rows.column(CHANGE_TYPE)
    deleted, inserted = pc.is_in(changes, _DELETES), pc.is_in(changes, _INSERTS)
    has_kind = pc.or_(inserted, deleted)
    if not pc.all(has_kind).as_py():
        version = rows.column(COMMIT_VERSION).filter(pc.invert(has_kind))[0]
        reason = f"version {version} has rows of another change type than Delta defines"
        raise SinkRejected(name, reason, 'Set mode = "append".')
    return deleted, inserted


class _Number(str):
    """A number of JSON, with all digits."""

    __slots__ = ()


def comparable_json(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return what turns JSON texts of values of `kind` into texts to compare. A text that is no JSON stays as it is."""

    def convert(text: str | None) -> str | None:
        if text is None:
            return None
        try:
            value = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
        except ValueError:
            return text
        return _encode(_comparable(kind, value)).decode()

    return lambda texts: pa.array([convert(text) for text in texts.to_pylist()], _TEXT)


def _comparable(kind: pa.DataType, value: Any) -> Any:
    """Return a value as it is encoded. What does not fit the type is encoded as it is."""
    if isinstance(value, _Number):
        by_value = is_variant(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        return msgspec.Raw((_by_value(value) if by_value else value).encode())
    if is_variant(kind):
        return _nested(value, lambda child: _comparable(kind, child))
    if is_struct(kind) and isinstance(value, dict):
        kinds = {field.name: field.type for field in kind}
        present = {name: child for name, child in value.items() if child is not None or name not in kinds}
        return {name: _comparable(kinds.get(name, pa.null()), child) for name, child in present.items()}
    if pa.types.is_map(kind) and isinstance(value, dict):
        return {name: _comparable(kind.item_type, child) for name, child in value.items()}
    if pa.types.is_map(kind) and isinstance(value, list):
        entry = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return sorted((msgspec.Raw(_encode(_comparable(entry, child))) for child in value), key=bytes)
    if isinstance(value, list) and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return [_comparable(kind.value_type, child) for child in value]
    return _nested(value, lambda child: _comparable(pa.null(), child))


def _nested(value: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {name: convert(child) for name, child in value.items()}
    return [convert(child) for child in value] if isinstance(value, list) else value


def _by_value(number: str) -> str:
    try:
        return format(Decimal(number).normalize(), "f")
    except InvalidOperation:
        return number
