"""The key of a mirror: the columns that identify a row, and what the table says about it.

Rows that are unique by one key may share another one, which only a snapshot finds out. So the table has the key in use
in a `txn`, `<pipeline>/#key`, whose version is a digest of the columns. Every commit of the pipeline has it, so it
changes with the rows. A property would not: delta-rs changes none in the commit that replaces all rows. A table of an
earlier release has no such `txn`; its key is taken to be the one in use now.
"""

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256

import pyarrow as pa

from tailer.errors import SinkRejected, did_you_mean
from tailer.events import ROW_ID, type_text
from tailer_sinks.delta.mirror.columns import RESNAPSHOT

__all__ = [
    "check_key",
    "check_same_key",
    "contradiction",
    "key_error",
    "key_faults",
    "key_in",
    "key_name",
    "key_number",
    "no_key",
]


def key_in(
    name: str, path: str, schema: pa.Schema, configured: Sequence[str], source_key: Sequence[str]
) -> tuple[str, ...]:
    """Return the columns that identify rows of `schema` (`table_schema`).

    Those are the ones `configured`, or else the row ids, or else `source_key`, if rows have all of its columns. Raises
    `SinkRejected`.
    """
    for fault in key_faults(name, path, schema, configured, source_key):
        raise fault
    return _chosen(schema, configured, source_key)


def key_faults(
    name: str, path: str, schema: pa.Schema, configured: Sequence[str], source_key: Sequence[str]
) -> Iterator[SinkRejected]:
    """Yield what `key_in` raises for each column of the key."""
    key = _chosen(schema, configured, source_key)
    if not key:
        yield no_key(name, path)
    yield from _faults(name, path, schema, key)


def no_key(name: str, path: str) -> SinkRejected:
    """Return the error for rows that nothing identifies, also where the table does not track them."""
    remedy = "Add key to the sink: the columns that identify a row. Or add row_ids = true to the pipeline, if the "
    return SinkRejected(name, f"{path} has no key", f"{remedy}table tracks rows.")


def check_key(name: str, path: str, schema: pa.Schema, key: Sequence[str]) -> None:
    """Raise `SinkRejected` unless rows of `schema` have all columns of `key`, of types that can identify a row."""
    for fault in _faults(name, path, schema, key):
        raise fault


def check_same_key(name: str, path: str, key: Sequence[str], number: int | None) -> None:
    """Raise `SinkRejected` unless rows are identified by `key`. `number`: of their `txn`; None: there is none."""
    if number not in (None, key_number(key)):
        reason = f"the rows of {path} have another key than {', '.join(key)}, which is the one of the pipeline now"
        raise SinkRejected(name, reason, f"Set key to the former columns. Or keep the new key: {RESNAPSHOT}")


def contradiction(name: str, reason: str) -> SinkRejected:
    """Return the error of the sink called `name` for changes that contradict the key, or the table."""
    remedy = (
        "Set key to columns whose values are unique in the source, and run `tailer resnapshot PIPELINE`. "
        "If they are unique, somebody else has changed the table: run it, too."
    )
    return SinkRejected(name, reason, remedy)


def key_error(name: str, path: str, version: int, *, is_there: bool) -> SinkRejected:
    """Return the error for a key that is, or is not, in the table, against what the changes up to `version` say."""
    what = "insert a key that is there" if is_there else "delete a key that is not there"
    return contradiction(name, f"the changes up to version {version} {what}, in {path}")


def key_name(pipeline: str) -> str:
    """Return the app id of the txn that holds the key. No table id begins with `#`."""
    return f"{pipeline}/#key"


def key_number(key: Sequence[str]) -> int:
    """Return the version of the txn for a key, whose columns may be in any order."""
    return int.from_bytes(sha256(json.dumps(sorted(key)).encode()).digest()[:8], "big") >> 1


def _chosen(schema: pa.Schema, configured: Sequence[str], source_key: Sequence[str]) -> tuple[str, ...]:
    if configured or ROW_ID in schema.names:
        return tuple(configured) or (ROW_ID,)
    return tuple(source_key) if set(source_key) <= set(schema.names) else ()


def _faults(name: str, path: str, schema: pa.Schema, key: Sequence[str]) -> Iterator[SinkRejected]:
    for column in key:
        at = schema.get_field_index(column)
        if at < 0:
            known, near = f"The columns are: {', '.join(schema.names)}.", did_you_mean(column, schema.names)
            step = "Set key to some of them, and run `tailer resnapshot PIPELINE`."
            remedy = " ".join(filter(None, (known, near, step)))
            yield SinkRejected(name, f"the key column {column} is not a column of {path}", remedy)
            continue
        kind = schema.field(at).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
            reason = f"the key column {column} has type {type_text(kind)}, whose values identify no row"
            yield SinkRejected(name, reason, "Set key to columns of other types.")
