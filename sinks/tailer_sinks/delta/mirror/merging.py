"""A MERGE into a mirror by another writer: its preparation.

Spark's MERGE takes one `txn` action, that of the app id (`txnAppId`, `txnVersion`). The other two of a mirror stay as
they are: `<pipeline>/#delivered`, and `<pipeline>/#key`, because rows that are merged have the key of those that stay.
So Spark goes on with a mirror that has all three, and never begins one.

Whoever commits beside Spark is found in three ways. The rows that are merged check, in a task of the job that makes
them, that the progress is the expected one, and that nobody has committed since it was read. By then, Spark's
transaction is open, and it commits the next version of the table or none: it is not tried again on top of another
commit. It leaves out a version that the app id has already.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from tailer.errors import SinkRejected, SinkUnavailable
from tailer.plan import Position
from tailer.sink import MERGED_INSERTED, MERGED_VERSION, KeyFault, Merge
from tailer_sinks.delta.mirror.columns import difference
from tailer_sinks.delta.mirror.keyed_rows import KeyedRows
from tailer_sinks.delta.mirror.keys import contradiction, key_error, key_in
from tailer_sinks.delta.mirror.paths import may_be_beyond_ascii
from tailer_sinks.delta.mirror.table import MirrorTable
from tailer_sinks.delta.txns import position_in
from tailer_sinks.delta.variants import has_variants, rows_schema_of

__all__ = ["merge_into"]

# Columns that the other writer adds to the rows have names that begin like this.
_OWN_PREFIX: Final = "lake_tailer_"
_ADDED: Final = (pa.field(MERGED_VERSION, pa.int64()), pa.field(MERGED_INSERTED, pa.bool_()))


def merge_into(
    table: MirrorTable,
    app_id: str,
    schema: pa.Schema,
    expected: Position | None,
    keys: tuple[Sequence[str], Sequence[str]],
    note: str,
) -> Merge | None:
    """See `tailer.sink.Mergeable.merging`. `keys`: that of the options, and the source's.

    Raises `SinkFenced` if progress is not the expected one, `SinkRejected` if the table is no mirror of the pipeline,
    or has another key.
    """
    anchor = table.anchor(app_id, schema, expected)
    if anchor.table is None or expected is None or table.key_number(anchor) is None:
        return None
    there = rows_schema_of(anchor.table.schema())
    if has_variants(there) or any(each.lower().startswith(_OWN_PREFIX) for each in there.names):
        return None
    if difference(table.name, table.path, there, anchor.schema) is not None:
        return None
    if may_be_beyond_ascii(anchor):
        return None
    key = key_in(table.name, table.path, anchor.schema, *keys)
    table.check_same_key(anchor, key)
    rows = KeyedRows(table.name, table.path, anchor.schema, tuple(anchor.partition_by), key)
    return Merge(
        app_id=app_id,
        expected=expected,
        location=table.path if "://" in table.path else os.path.abspath(table.path),  # noqa: PTH100 - as text
        schema=pa.schema([*anchor.schema, *_ADDED]),
        merges=False,
        conform=_Merged(rows),
        check=partial(_check, table, app_id, expected, anchor.version),
        note=note,
        version=anchor.version,
        key=key,
        refusal=partial(_refusal, table.name, table.path, key),
    )


@dataclass(frozen=True, slots=True)
class _Merged:
    """A converter of change rows to rows to merge."""

    rows: KeyedRows

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        schema = pa.schema([*self.rows.schema, *_ADDED])
        found = [
            pa.record_batch([*kept.columns, versions, pa.repeat(pa.scalar(inserted), len(kept))], schema=schema)
            for kept, versions, inserted in self.rows.parts(rows)
        ]
        return pa.concat_batches(found) if found else pa.RecordBatch.from_pylist([], schema=schema)


def _check(table: MirrorTable, app_id: str, expected: Position, version: int) -> None:
    """Raise `SinkFenced` for other progress, and `SinkUnavailable` if anybody has committed since `version`."""
    found = table.folder.open(table.folder.login())
    with table.folder.reading():
        table.expect(None if found is None else position_in(found, app_id), expected)
    if found is None or found.version() != version:
        raise SinkUnavailable(table.name, f"another writer has changed {table.path} meanwhile")


def _refusal(name: str, path: str, key: Sequence[str], fault: KeyFault, version: int) -> SinkRejected:
    if fault is KeyFault.TWICE:
        reason = f"version {version} inserts or deletes a key twice; the key is {', '.join(key)}"
        return contradiction(name, reason)
    return key_error(name, path, version, is_there=fault is KeyFault.PRESENT)
