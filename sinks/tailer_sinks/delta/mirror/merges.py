"""The MERGE of a transaction, its memory, and the way rows are written; blocking, for worker threads only.

The MERGE itself finds contradictions, keys that are missing or there against the changes: it assigns an expression that
fails, and nothing is committed. It ends rows of the table, and opens others. Rows of a history that are ended match
nothing, and delta-rs does not read files that have no other ones.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, WriterProperties

from tailer_sinks.delta.folder import TargetFolder
from tailer_sinks.delta.mirror.changes import CHANGE, Changes
from tailer_sinks.delta.mirror.past import DELETE, GONE, INSERT, LATER, NOTHING, STATES, UPDATE, Past
from tailer_sinks.delta.schema import measured
from tailer_sinks.delta.table import Anchor
from tailer_sinks.delta.writes import writable, writing

__all__ = ["ABSENT", "PRESENT", "are_removable", "merge", "merge_bytes", "row_writer"]

# What the error of a MERGE has in it if a key is there, or is not there, against what the changes say.
PRESENT: Final = "lake_tailer_key_is_there"
ABSENT: Final = "lake_tailer_key_is_missing"

# What delta-rs takes for a byte of Arrow memory of a changed row, for one of a row in a file without any, and for each
# of these rows besides.
_PER_CHANGED: Final = 8
_PER_OTHER: Final = 2
_PER_OTHER_ROW: Final = 64
_PER_FILE_BYTE: Final = 4  # Arrow memory for a byte of a file, if it is not known how large rows are

# A row group is in memory while it is written, and while it is read.
_GROUP_BYTES: Final = 16 * 1024 * 1024
_GROUP_ROWS: Final = 1024, 128 * 1024

_CHANGE: Final = f"source.{CHANGE}"


def merge(anchor: Anchor, past: Past, changes: Changes, key: Sequence[str], commit: CommitProperties) -> bool:
    """Merge `changes`. Return False if there is no commit, because the table stays as it is."""
    assert anchor.table is not None
    before = anchor.table.version()
    values = {_quoted(column): f"source.{_quoted(column)}" for column in anchor.schema.names}
    matches = [f"target.{_quoted(column)} = source.{_quoted(column)}" for column in key]
    if past is STATES:
        matches += [f"target.{past.ended[0]} IS NULL", f"{_CHANGE} <> {LATER}"]
    merger = anchor.table.merge(
        writable(changes.merged(anchor.schema)),
        " AND ".join(matches),
        source_alias="source",
        target_alias="target",
        merge_schema=anchor.merge,
        streamed_exec=False,
        writer_properties=row_writer(anchor.schema, changes.row_bytes),
        commit_properties=commit,
    )
    is_there, is_missing = values | _failing(key[0], PRESENT), values | _failing(key[0], ABSENT)
    if past is NOTHING:
        merger = merger.when_matched_update(values, f"{_CHANGE} = {UPDATE}")
        merger = merger.when_matched_delete(f"{_CHANGE} = {DELETE}")
        merger = merger.when_matched_update(is_there, f"{_CHANGE} IN ({INSERT}, {GONE})")
    else:
        is_open = f"target.{past.ended[0]} IS NULL"
        revives = f"{_CHANGE} = {INSERT} AND NOT ({is_open})"
        merger = merger.when_matched_update(values, f"{_CHANGE} = {UPDATE} AND {is_open} OR {revives}")
        if past is STATES:  # a state that a repair replaces in the version that it begins with holds for no version
            is_empty = f"target.{past.began[0]} = source.{past.ended[0]}"
            merger = merger.when_matched_delete(f"{_CHANGE} = {DELETE} AND {is_empty}")
        ends = {column: f"source.{column}" for column in past.ended}
        merger = merger.when_matched_update(ends, f"{_CHANGE} = {DELETE} AND {is_open}")
        merger = merger.when_matched_update(is_there, f"{_CHANGE} = {INSERT}")
        merger = merger.when_matched_update(is_missing, f"{_CHANGE} IN ({UPDATE}, {DELETE})")
    merger = merger.when_not_matched_insert(values, f"{_CHANGE} IN ({INSERT}, {LATER})")
    merger = merger.when_not_matched_insert(is_missing, f"{_CHANGE} IN ({UPDATE}, {DELETE})")
    merger.execute()
    return anchor.table.version() > before


def merge_bytes(folder: TargetFolder, anchor: Anchor, past: Past, changes: Changes, key: Sequence[str]) -> int:
    """Estimate the memory that a MERGE takes."""
    assert anchor.table is not None
    with folder.reading():
        files = pa.table(anchor.table.get_add_actions(flatten=True))
    for column, (least, greatest) in zip(key, changes.bounds(), strict=True):
        files = files.filter(_may_have(files, column, least, greatest))
    if past is STATES and (nulls := f"null_count.{past.ended[0]}") in files.column_names:
        files = files.filter(pc.fill_null(pc.greater(files[nulls], 0), True))
    size: int = pc.sum(files["size_bytes"]).as_py() or 0
    rows: int = pc.sum(files["num_records"]).as_py() or 0
    others = size * _PER_FILE_BYTE if changes.row_bytes is None else max(rows * changes.row_bytes, size)
    return changes.size_bytes * _PER_CHANGED + others * _PER_OTHER + rows * _PER_OTHER_ROW


def row_writer(schema: pa.Schema, row_bytes: int | None) -> WriterProperties:
    """Return how files with rows of `schema` are written. `row_bytes`: the Arrow memory of a row; None: not known."""
    least, most = _GROUP_ROWS
    # No statistics of dates, as a MERGE writes rows again whose dates may be far ones.
    columns = [name for name in measured(schema) if schema.field(name).type != pa.date32()]
    return writing(columns, max(least, min(most, _GROUP_BYTES // max(row_bytes or 1024, 1))))


def _failing(column: str, text: str) -> dict[str, str]:
    """Return an assignment that fails with `text` for every row for which it is made."""
    name = _quoted(column)
    number = f"CAST(concat('{text}', CAST(source.{_quoted(CHANGE)} AS VARCHAR)) AS INT)"
    return {name: f"CASE WHEN {number} = 0 THEN NULL ELSE source.{name} END"}


def _may_have(files: pa.Table, column: str, least: pa.Scalar, greatest: pa.Scalar) -> pa.ChunkedArray:
    """Return for each file whether a column may have a value from `least` to `greatest` there."""
    partition = f"partition.{column}"
    first, last = (partition, partition) if partition in files.column_names else (f"min.{column}", f"max.{column}")
    if first not in files.column_names or last not in files.column_names:
        return pa.chunked_array([pa.repeat(pa.scalar(True), len(files))])
    kind = files.schema.field(first).type
    below = pc.less(files[last], least.cast(kind))
    above = pc.greater(files[first], greatest.cast(kind))
    return pc.invert(pc.fill_null(pc.or_kleene(below, above), False))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def are_removable(anchor: Anchor) -> bool:
    """Return whether delta-rs can remove all files of the table.

    Spark writes letters beyond ASCII into the path of a file as they are, where they are part of a partition. delta-rs
    reads such a file, but its commits escape the path: they remove a file that is not there, and the rows stay.
    """
    texts = {field.name for field in anchor.schema if field.type == pa.string()}
    if anchor.table is None or not any(not name.isascii() or name in texts for name in anchor.partition_by):
        return True
    paths: list[str] = pa.table(anchor.table.get_add_actions())["path"].to_pylist()
    return all(path.isascii() for path in paths)
