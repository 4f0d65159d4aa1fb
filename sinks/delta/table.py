"""A target table through delta-rs: the blocking half of the `delta` sink, called in worker threads only.

Progress is a `txn` action (PROTOCOL.md, "Transaction Identifiers") in the commit that adds the rows:

    txn(app_id)            the last complete version; everything up to it is delivered
    txn(app_id "#task")    END, or the last task reached in the snapshot of the version after that one
    txn(app_id "#row")     END, or the last row reached in that task

The last two exist only for a snapshot that takes several commits; the state table (`tailer.progress.state_table`)
always writes them. Every commit that ends inside a snapshot writes all three. So does the next commit that does not:
the rest of the snapshot, or a reset, which sets both to END. So if they are not END, the newest commit of our app_id
wrote them. They then hold the position in the snapshot of the version after the complete one, which stays the same in
all those commits. Before the snapshot of version 0 it is -1: delta-rs, Spark and the checkpoints of both keep that like
any number. After a gap it is the version before the snapshot, because the lost versions are done with, too.

The first commit of a pipeline writes one more, `<pipeline>/#delivered`: the pipeline has progress for some table.

Exactly once (invariants 1, 2, 6) rests on these points, each tried against delta-rs and held by a test:

- All three are read from one `DeltaTable`, which is one version of the table, so they belong together.
- Every commit has the txn of app_id, because delta-rs looks for that in the commits of others. It compares the name,
  not the number, which stays the same all through a snapshot.
- An `Anchor` is the table in the state in which our progress was seen to be the expected one. The append is made from
  that `DeltaTable`, and delta-rs checks every later commit: one with our app_id fails ours, one with another does
  not. A `DeltaTable` is never refreshed in between: that would move the check.
- Without a `DeltaTable` delta-rs would open the table itself, at its newest version, and nothing would be checked. So a
  missing table is created first, in a commit of its own, from which the append is then made.
- Every commit carries an id in `commitInfo.txnId`. If an append fails for any reason, the table is read again. Our
  progress and a commit with our id mean success. Other progress means another instance. Anything else is a failure that
  left nothing but data files, which VACUUM removes.

The log gives the least and greatest values of each file, and filtering readers skip files by them. delta-rs takes them
from the Parquet file, and gets some wrong (`sinks.delta.schema.measured`). So a file has statistics only of columns
that come out right, and none of nested columns.
"""

import os
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import DeltaProtocolError, SchemaMismatchError, TableNotFoundError

from sinks.delta.one_stream import rows_in_one_stream
from sinks.delta.schema import (
    Fit,
    compare,
    fit,
    maps_columns,
    measured,
    partition_problems,
    rewriting,
    rows_schema,
    unwritable,
    widening,
)
from sinks.delta.target import delivered_name, first_line, folder_refusal, is_permanent, table_refusal
from sinks.encoding.typed import Misfit
from tailer.delta.folders import holds_table
from tailer.errors import CommitUnknown, SinkError, SinkFenced, SinkRejected, SinkUnavailable
from tailer.events import COMMIT_VERSION, METADATA_FIELDS
from tailer.plan import END, Position
from tailer.sink import pipeline_of
from tailer.stores.folders import CHOOSE_ANOTHER, creation_obstacle

__all__ = ["Anchor", "TargetTable"]

# The key under which other writers keep user metadata of a commit.
NOTE: Final = "userMetadata"
_NO_ROWS: Final[pa.Schema] = pa.schema([])

Rows = Callable[[pa.Schema], pa.RecordBatchReader]


@dataclass(frozen=True, slots=True)
class Anchor:
    """The base of an append: `table` at `version`, with `expected` as the progress of `app_id`.

    `table` is None, and `version` -1, if there is no table yet. `schema`: the schema of all written rows. `merge`:
    whether its columns differ from the table's. `partition_by`: the columns by which the table is, or will be,
    partitioned.
    """

    app_id: str
    expected: Position | None
    schema: pa.Schema
    partition_by: Sequence[str]
    table: DeltaTable | None = None
    version: int = -1
    merge: bool = False


class TargetTable:
    """The table at `path`, which may not exist yet; `name`: the sink's name in errors.

    `partition_by`: the columns it is, or will be, partitioned by; None: any. `adopt`: accept what is not ours.
    """

    def __init__(self, name: str, path: str, partition_by: Sequence[str] | None = None, *, adopt: bool = False) -> None:
        self.name = name
        self.path = path
        self.partition_by = partition_by
        self._adopt = adopt

    def position(self, app_id: str) -> Position | None:
        """Read the position committed for `app_id`. None: no progress, or no table. Raises `SinkError`."""
        table = self._open()
        if table is not None:
            self._check_target(table, app_id)
            return _position(table, app_id)
        self._check_folder()
        return None

    def has_delivered(self, pipeline: str) -> bool:
        """Return whether anything was ever committed for `pipeline`. Raises as `position` does."""
        table = self._open()
        return table is not None and table.transaction_version(delivered_name(pipeline)) is not None

    def anchor(self, app_id: str, schema: pa.Schema, expected: Position | None) -> Anchor:
        """Read the current state of the table and check it: progress is the expected one, and rows of `schema` fit.

        Raises `SinkFenced` for other progress, `SinkRejected` naming the columns that do not fit.
        """
        table = self._open()
        if table is None:
            self.expect(None, expected)
            self._check_folder()
            return self.extended(Anchor(app_id, None, _NO_ROWS, self.partition_by or ()), schema)
        self.expect(_position(table, app_id), expected)
        self._check_target(table, app_id)
        columns = table.metadata().partition_columns
        return self.extended(Anchor(app_id, expected, _NO_ROWS, columns, table, table.version()), schema)

    def extended(self, anchor: Anchor, schema: pa.Schema, *, rows: bool = False) -> Anchor:
        """Return the same anchor for rows of `schema`; `rows`: beside those to be written with the anchor's schema.

        Raises `SinkRejected` naming the columns that do not fit.
        """
        new = rows_schema(schema)
        if problems := unwritable(new):
            self._reject(f"Delta files have no type for {', '.join(problems)}", "Leave these columns out.")
        fitting = self._fit(anchor.table, anchor.schema if rows else _NO_ROWS, new)
        if anchor.table is None:
            self._check_partitions(fitting.schema, anchor.partition_by)
        return replace(anchor, schema=fitting.schema, merge=bool(fitting.added or fitting.missing))

    def append(
        self, anchor: Anchor, position: Position, rows: Rows, notes: Sequence[str] = (), far: Collection[str] = ()
    ) -> None:
        """Commit rows and `position` as the progress of the anchor's app_id in one Delta commit, or nothing.

        `rows` receives the schema to write and returns a reader. `notes` are kept in the commit's `commitInfo`. `far`:
        columns with dates for which delta-rs has no statistics.

        Raises `SinkFenced` if another instance committed for the app_id after `anchor` was read, `SinkRejected` if the
        table refuses the rows, `SinkUnavailable` if nothing was committed for another reason, and `CommitUnknown` if
        the outcome is unknown.
        """
        write_id = str(uuid.uuid4())
        try:
            at = self._create(anchor) if anchor.table is None else anchor
            assert at.table is not None
            commit = CommitProperties(
                custom_metadata={"txnId": write_id, **({"gap": "; ".join(notes)} if notes else {})},
                app_transactions=_transactions(anchor, position),
            )
            with rows_in_one_stream():
                write_deltalake(
                    at.table,
                    rows(at.schema),
                    mode="append",
                    schema_mode="merge" if at.merge else None,
                    writer_properties=_writing(at, far),
                    commit_properties=commit,
                )
        except SinkError:
            raise
        except Exception as error:
            if not self._took_place(anchor, position, write_id, error):
                raise self._failure(error) from error

    def existing(self, anchor: Anchor) -> Anchor:
        """Return the anchor for another writer's append; a missing table is created. Raises as `append` does."""
        if anchor.table is not None:
            return anchor
        try:
            return self._create(anchor)
        except SinkError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def check(self, app_id: str, expected: Position | None) -> None:
        """Raise `SinkFenced` if the current progress of `app_id` is not the expected one."""
        self.expect(self.position(app_id), expected)

    def since(self, app_id: str, version: int, write_id: str) -> tuple[Position | None, bool]:
        """Read the current progress of `app_id`, and whether a commit after `version` has our id.

        Raises `CommitUnknown`.
        """
        try:
            table = self._open()
            if table is None:
                return None, False
            newer = table.version() - version
            commits = table.history(newer) if newer > 0 else []
        except Exception as error:
            raise CommitUnknown(self.name, f"reading the table back: {first_line(error)}") from error
        return _position(table, app_id), any(write_id in (each.get("txnId"), each.get(NOTE)) for each in commits)

    def reset(self, app_id: str, end: Position) -> None:
        """Commit `end`, which closes a version, without rows.

        A missing table is created with the metadata columns. Raises as `append` does, and `SinkRejected` if going back
        would deliver existing rows again.
        """
        expected = self.position(app_id)
        anchor = self.anchor(app_id, pa.schema(METADATA_FIELDS), expected)
        if anchor.table is not None and expected is not None and end < expected:
            self._check_nothing_after(anchor.table, end.version)
        self.append(anchor, end, lambda schema: pa.RecordBatchReader.from_batches(schema, []))

    def _open(self) -> DeltaTable | None:
        if os.path.isfile(self.path):  # noqa: PTH113 - Path.is_file raises where a folder above cannot be entered
            self._reject(f"{self.path} is a file, not a folder", "Give the folder of a Delta table, or a new one.")
        try:
            return DeltaTable(self.path)
        except TableNotFoundError as error:
            if "://" not in self.path and holds_table(Path(self.path)):
                self._reject(f"{self.path}: {first_line(error)}", "Restore the table's log, or choose another path.")
            return None
        except Exception as error:
            raise self._failure(error) from error

    def _check_folder(self) -> None:
        """Refuse to create a table in a folder with foreign files."""
        if "://" in self.path:
            return
        try:
            refusal = folder_refusal(self.path, self._adopt)
        except OSError as error:
            raise self._failure(error) from error
        if refusal is not None:
            self._reject(*refusal)

    def _check_target(self, table: DeltaTable, app_id: str) -> None:
        """Refuse the source table, a table that is not ours, and one that could forget our progress."""
        found = table.metadata()
        names = pa.schema(table.schema().to_arrow()).names
        known = (app_id, delivered_name(pipeline_of(app_id)))
        ours = self._adopt or any(table.transaction_version(name) is not None for name in known)
        if refusal := table_refusal(self.path, app_id, str(found.id), names, found.configuration, ours=ours):
            self._reject(*refusal)

    def _create(self, anchor: Anchor) -> Anchor:
        """Create the table. If another writer was first, use its table if the rows fit."""
        schema = Schema.from_arrow(anchor.schema)
        try:
            table = DeltaTable.create(self.path, schema, mode="error", partition_by=list(anchor.partition_by))
        except Exception:
            theirs = self.anchor(anchor.app_id, anchor.schema, anchor.expected)
            if theirs.table is None:
                raise
            if list(theirs.partition_by) != list(anchor.partition_by):
                # Values that a partition column cannot have are found when rows come.
                raise SinkUnavailable(
                    self.name, f"{self.path} was created by another writer, with partitions"
                ) from None
            return theirs
        return replace(anchor, table=table)

    def _took_place(self, anchor: Anchor, position: Position, write_id: str, error: Exception) -> bool:
        """Return whether the append that ended with `error` is in the table nevertheless."""
        try:
            found, is_ours = self.since(anchor.app_id, anchor.version, write_id)
        except CommitUnknown as second:
            raise CommitUnknown(self.name, f"{first_line(error)}; {second.reason}") from second
        if found == position and is_ours:
            return True
        self.expect(found, anchor.expected)
        return False

    def expect(self, found: Position | None, expected: Position | None) -> None:
        """Raise `SinkFenced` if progress differs from the expected one, `SinkRejected` if it is gone."""
        if found is None and expected is not None:
            remedy = "Restore the table. To deliver into a new one from the pipeline's start, run it again."
            self._reject(f"{self.path} was deleted or replaced: it was left at {expected}, and has no progress", remedy)
        if found != expected:
            raise SinkFenced(self.name, f"progress in {self.path} is {found}, and was {expected or 'nothing'} before")

    def _check_nothing_after(self, table: DeltaTable, version: int) -> None:
        """Refuse a table that holds rows of versions after `version`."""
        try:
            found = pa.RecordBatchReader.from_stream(table.scan([COMMIT_VERSION], f"{COMMIT_VERSION} > {version}"))
            is_there = any(batch.num_rows for batch in found)
        except Exception as error:
            raise self._failure(error) from error
        if is_there:
            reason = f"{self.path} holds rows of versions after {version}, which would be duplicated"
            self._reject(reason, f"DELETE FROM delta.`{self.path}` WHERE {COMMIT_VERSION} > {version}")

    def _fit(self, table: DeltaTable | None, earlier: pa.Schema, rows: pa.Schema) -> Fit:
        """Fit rows of both schemas into the table, or a new one. Refuse those that do not fit."""
        found = None if table is None else pa.schema(table.schema().to_arrow())
        if table is not None and found is not None:
            self._check_partitioning(table, found)
            if conflicts := compare(found, rows).conflicts:
                wider = widening(found, rows)
                remedy = "Choose a new path for the new schema."
                if len(wider) == len(conflicts):
                    remedy = rewriting(self.path, found.names, table.metadata().partition_columns, wider)
                self._reject(f"columns of {self.path} do not fit: {', '.join(conflicts)}", remedy)
        try:
            fitting = fit(found, earlier, rows)
        except Misfit as misfit:
            raise SinkRejected(self.name, f"{self.path}: {misfit}", "Choose a new path for the new schema.") from misfit
        if table is not None and fitting.added and maps_columns(table.metadata().configuration):
            columns = ", ".join(fitting.added)
            remedy = f"Add them: ALTER TABLE delta.`{self.path}` ADD COLUMNS (...)"
            self._reject(f"{self.path} lacks {columns}, and maps columns, which delta-rs cannot extend", remedy)
        return fitting

    def _check_partitioning(self, table: DeltaTable, found: pa.Schema) -> None:
        columns = table.metadata().partition_columns
        if self.partition_by is not None and list(self.partition_by) != columns:
            named = ", ".join(columns) or "nothing"
            self._reject(f"{self.path} is partitioned by {named}", "Set partition_by to that, or choose a new path.")
        self._check_partitions(rows_schema(found), columns)

    def _check_partitions(self, schema: pa.Schema, columns: Sequence[str]) -> None:
        if problems := partition_problems(schema, columns):
            remedy = "Partition by columns of type string, date, boolean or an integer type."
            self._reject(f"{self.path} cannot have this partitioning: {', '.join(problems)}", remedy)

    def _reject(self, reason: str, remedy: str) -> None:
        raise SinkRejected(self.name, reason, remedy)

    def _failure(self, error: Exception) -> SinkError:
        return _translated(self.name, self.path, error)


def _translated(name: str, path: str, error: Exception) -> SinkError:
    reason = first_line(error)
    if "://" not in path and (obstacle := creation_obstacle(Path(path))):
        return SinkRejected(name, f"{path}: {obstacle}", CHOOSE_ANOTHER)
    if isinstance(error, SchemaMismatchError | DeltaProtocolError) or is_permanent(error):
        return SinkRejected(name, f"{path}: {reason}", "Change the target table, or choose a new path.")
    return SinkUnavailable(name, f"{path}: {reason}")


def _names(app_id: str) -> tuple[str, str, str]:
    return app_id, f"{app_id}#task", f"{app_id}#row"


def _position(table: DeltaTable, app_id: str) -> Position | None:
    """Read the progress of `app_id` in one version of the table."""
    closed, task, row = map(table.transaction_version, _names(app_id))
    if closed is None or task is None or row is None or task == END:
        return None if closed is None else Position.end(closed)
    return Position(closed + 1, task, row)


def _transactions(anchor: Anchor, position: Position) -> list[Transaction]:
    """Make the txns for `position`; only that of app_id if no snapshot is involved."""
    at, before = position, anchor.expected
    place = (at.version, END, END) if at.closes_version else (at.version - 1, at.task, at.row)
    in_snapshot = at.in_snapshot or (before is not None and before.in_snapshot)
    now_ms = int(time.time() * 1000)
    pairs = list(zip(_names(anchor.app_id), place, strict=True))[: None if in_snapshot else 1]
    delivered = delivered_name(pipeline_of(anchor.app_id))
    if anchor.table is None or anchor.table.transaction_version(delivered) is None:
        pairs.append((delivered, 1))
    return [Transaction(name, value, now_ms) for name, value in pairs]


def _writing(anchor: Anchor, far: Collection[str]) -> WriterProperties:
    """Choose the columns with correct statistics, if delta-rs would write wrong ones by default."""
    # With column mapping the files have other names, and one column may have another one's name there.
    mapped = anchor.table is not None and maps_columns(anchor.table.metadata().configuration)
    names = [] if mapped else [name for name in measured(anchor.schema) if name not in far]
    return WriterProperties(
        compression="SNAPPY",
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties={name: ColumnProperties(statistics_enabled="PAGE") for name in names},
    )
