"""Summary of one commit, from its file alone: how many rows it changed, as far as writers say so.

Of several things that a commit may say, the first that it says counts:

1. the metrics of a DELETE, UPDATE or MERGE, as Spark and delta-rs write them;
2. with change files, nothing else: they have no statistics; nor without metrics of an UPDATE or MERGE;
3. deletion vectors that files get or lose: their rows. Which rows another vector than before adds, only the vectors
   tell;
4. `numRecords` of the files that only appear or only go.

A commit that removes files and adds others usually rewrote them: which rows changed is then not in the log. Only an
overwrite means all rows of these files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tailer.formats.delta.log.actions import (
    AddWithStatistics,
    CdcFile,
    Commit,
    FileAction,
    RemoveWithStatistics,
)
from tailer.formats.inspection import NO_ROWS, CommitSummary, RowCounts, total

__all__ = ["FileTally", "summarize"]

# By the operation: the kind of change that it makes, and its metric in Spark and in delta-rs.
_METRICS: Final = {
    "DELETE": {"deleted": ("numDeletedRows", "num_deleted_rows")},
    "UPDATE": {"updated": ("numUpdatedRows", "num_updated_rows")},
    "MERGE": {
        "inserted": ("numTargetRowsInserted", "num_target_rows_inserted"),
        "updated": ("numTargetRowsUpdated", "num_target_rows_updated"),
        "deleted": ("numTargetRowsDeleted", "num_target_rows_deleted"),
    },
}
_WRITTEN: Final = ("numOutputRows", "num_added_rows")
# Of these, files alone do not tell which deleted and inserted rows are updates.
_UPDATING: Final = ("UPDATE", "MERGE")
# They replace files by others with other rows.
_OVERWRITES: Final = ("WRITE", "CREATE OR REPLACE", "REPLACE TABLE", "STREAMING UPDATE")


class _Statistics(msgspec.Struct, frozen=True, rename={"records": "numRecords"}):
    records: int | None = None


_STATISTICS: Final = msgspec.json.Decoder(_Statistics)


@dataclass(frozen=True, slots=True)
class _FileRows:
    """The rows of a file that a commit adds or removes. `records`: deleted ones included; None: not known.

    `vector`: the id of the deletion vector; None if no row is deleted.
    """

    records: int | None
    deleted: int = 0
    vector: str | None = None

    @property
    def left(self) -> int | None:
        """The rows that are not deleted."""
        return None if self.records is None else self.records - self.deleted


@dataclass(slots=True)
class FileTally:
    """The files of one commit, noted one by one, so that their actions need not be kept."""

    added_bytes: int = 0
    has_change_files: bool = False
    adds: dict[str, _FileRows] = field(default_factory=dict)
    removes: dict[str, _FileRows] = field(default_factory=dict)

    def note(self, action: FileAction) -> bool:
        """Note an action of the commit; return False, which tells the reader of commits not to keep it."""
        if isinstance(action, CdcFile):
            self.has_change_files = True
            self.added_bytes += max(action.size, 0)
            return False
        is_add = isinstance(action, AddWithStatistics)
        if is_add:
            self.added_bytes += max(action.size or 0, 0)
        if action.data_change and isinstance(action, AddWithStatistics | RemoveWithStatistics):
            vector, rows = action.deletion_vector, _FileRows(_records(action.stats))
            if vector is not None and vector.cardinality:
                rows = _FileRows(rows.records, vector.cardinality, vector.unique_id)
            (self.adds if is_add else self.removes)[action.path] = rows
        return False

    @property
    def rows(self) -> RowCounts | None:
        """The rows that are inserted and deleted by files that appear, go, or change their vector.

        None where files were removed and others added.
        """
        stay = self.adds.keys() & self.removes.keys()
        inserted = [rows.left for path, rows in self.adds.items() if path not in stay]
        deleted = [rows.left for path, rows in self.removes.items() if path not in stay]
        if inserted and deleted:
            return None
        for path in stay:
            now, before = self.adds[path], self.removes[path]
            if now.vector == before.vector:
                continue
            is_known = now.vector is None or before.vector is None
            inserted.append(before.deleted if is_known else None)
            deleted.append(now.deleted if is_known else None)
        return RowCounts(total(inserted), 0, total(deleted))


def summarize(commit: Commit, tally: FileTally, timestamp_ms: int) -> CommitSummary:
    """Return the summary of a commit whose file actions were noted by `tally`."""
    info = commit.info
    operation = None if info is None else info.operation_name
    metrics = info.operation_metrics if info is not None else None
    rows = _rows(operation or "", metrics if isinstance(metrics, dict) else {}, tally)
    named = () if info is None else (info.user_name, info.engine_info)
    author = next((name for name in named if isinstance(name, str) and name), None)
    return CommitSummary(commit.version, timestamp_ms, operation, author, rows, tally.added_bytes)


def _rows(operation: str, metrics: Mapping[str, Any], tally: FileTally) -> RowCounts:
    if not (tally.adds or tally.removes or tally.has_change_files):
        return NO_ROWS
    kinds = _METRICS.get(operation, {})
    counts = {kind: _metric(metrics, names) for kind, names in kinds.items()}
    if any(count is not None for count in counts.values()):
        return RowCounts(**{**dict.fromkeys(("inserted", "updated", "deleted"), 0), **counts})
    if tally.has_change_files or operation in _UPDATING:
        return RowCounts()
    by_files = tally.rows
    if by_files is None:
        if not operation.startswith(_OVERWRITES):
            return RowCounts()
        by_files = RowCounts(_left(tally.adds), 0, _left(tally.removes))
    if by_files.inserted is None:
        return RowCounts(_metric(metrics, _WRITTEN), by_files.updated, by_files.deleted)
    return by_files


def _left(files: Mapping[str, _FileRows]) -> int | None:
    return total(rows.left for rows in files.values())


def _metric(metrics: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """Return the first of the metrics that there is: Spark writes texts, delta-rs numbers."""
    for name in names:
        text = str(metrics.get(name))
        if text.isdecimal():
            return int(text)
    return None


def _records(statistics: Any) -> int | None:
    try:
        return _STATISTICS.decode(statistics).records if isinstance(statistics, str) else None
    except (msgspec.DecodeError, UnicodeError):
        return None
