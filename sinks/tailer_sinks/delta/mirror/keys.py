"""The key of a mirror: the columns that identify a row, and what the table says about it, and about a history.

Rows that are unique by one key may share another one, which only a snapshot finds out. So the table has the key in use
in a `txn`, `<pipeline>/#key`, whose version is a digest of the columns. Every commit of the pipeline has it, so it
changes with the rows. A property would not: delta-rs changes none in the commit that replaces all rows. A table of an
earlier release has no such `txn`; its key is taken to be the one in use now.

A history has two more: `<pipeline>/#columns`, a digest of the columns that the source had last, of which the table may
have more; and `<pipeline>/#known-from`, the first version whose rows it has.
"""

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256

import pyarrow as pa

from tailer.errors import SinkRejected
from tailer.events import COMMIT_VERSION
from tailer_sinks.delta.schema import partition_refusal
from tailer_sinks.encoding.typed import Misfit, conform
from tailer_sinks.mirrors import (
    CONTRADICTED,
    RESNAPSHOT,
    check_never_null,
    chosen_key,
    deleted_and_inserted,
    key_faults,
)

__all__ = [
    "check_same_key",
    "columns_name",
    "key_error",
    "key_in",
    "key_name",
    "key_number",
    "keyed_parts",
    "known_from_name",
    "other_columns",
]


def key_in(
    name: str, path: str, schema: pa.Schema, configured: Sequence[str], source_key: Sequence[str]
) -> tuple[str, ...]:
    """Return the columns that identify rows of `schema` (`table_schema`). Raises `SinkRejected`."""
    key = chosen_key(schema.names, configured, source_key)
    for fault in key_faults(name, path, schema, key, pa.types.is_nested):
        raise fault
    return key


def check_same_key(name: str, path: str, key: Sequence[str], number: int | None, other_remedy: str) -> None:
    """Raise `SinkRejected` unless rows are identified by `key`. `number`: of their `txn`; None: there is none."""
    if number not in (None, key_number(key)):
        reason = f"the rows of {path} have another key than {', '.join(key)}, which is the one of the pipeline now"
        raise SinkRejected(name, reason, f"Set key to the former columns. {other_remedy}")


def other_columns(name: str, path: str, columns: Sequence[str], number: int | None) -> SinkRejected | None:
    """Return the refusal of other `columns` of the source than a history had last: their values were left out.

    `number`: of their `txn`; None: there is none.
    """
    if number in (None, key_number(columns)):
        return None
    reason = f"the pipeline has other columns now than those with which it has left {path}"
    return SinkRejected(name, reason, f"Choose the former ones. Or keep the new ones: {RESNAPSHOT}")


def key_error(name: str, path: str, version: int, *, is_there: bool) -> SinkRejected:
    """Return the error for a key that is, or is not, in the table, against what the changes up to `version` say."""
    what = "insert a key that is there" if is_there else "delete a key that is not there"
    return SinkRejected(name, f"the changes up to version {version} {what}, in {path}", CONTRADICTED)


def key_name(pipeline: str) -> str:
    """Return the app id of the txn that holds the key. No table id begins with `#`."""
    return f"{pipeline}/#key"


def columns_name(pipeline: str) -> str:
    """Return the app id of the txn that holds the columns of the source."""
    return f"{pipeline}/#columns"


def known_from_name(pipeline: str) -> str:
    """Return the app id of the txn whose version is the first one of a history."""
    return f"{pipeline}/#known-from"


def key_number(key: Sequence[str]) -> int:
    """Return the version of the txn for a key, or for columns, which may be in any order."""
    return int.from_bytes(sha256(json.dumps(sorted(key)).encode()).digest()[:8], "big") >> 1


def keyed_parts(
    name: str, path: str, schema: pa.Schema, partition_by: Sequence[str], key: Sequence[str], rows: pa.RecordBatch
) -> Iterator[tuple[pa.RecordBatch, pa.Array, bool]]:
    """Yield the deleted and the inserted ones of `rows` with `schema`, their versions, and whether they come in.

    Deleted rows have nothing but their key. Raises `SinkRejected` for a key with a null, and for values that the
    mirror cannot have. `schema`, `partition_by`, `key`: of the mirror.
    """
    check_never_null(name, path, rows, key)
    for chosen, is_insert in zip(deleted_and_inserted(name, rows), (False, True), strict=True):
        if not len(part := rows.filter(chosen)):
            continue
        if is_insert and (reason := partition_refusal(part, partition_by)):
            raise SinkRejected(name, reason, "Partition the target by another column.")
        try:
            kept = conform(part if is_insert else part.select(key), schema)
        except Misfit as misfit:
            raise SinkRejected(name, str(misfit), "Choose another form of the column with select.") from misfit
        yield kept, part.column(COMMIT_VERSION), is_insert
