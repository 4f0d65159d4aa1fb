"""A target table as delta-rs sees it: the blocking half of the `delta` sink, called in worker threads only.

Progress is a `txn` action (PROTOCOL.md, "Transaction Identifiers") in the commit that adds the rows:

    txn(app_id)            the last version that is closed; everything up to it is done
    txn(app_id "#task")    END, or the task that was reached in the snapshot of the version after that one
    txn(app_id "#row")     END, or the row that was reached in that task

The last two are there only for a snapshot that takes several commits; the state table (`tailer.progress.state_table`)
writes them always. Every commit that ends inside of a snapshot writes all three, and so does the one that comes next
and does not: the rest of the snapshot or a reset, which set both to END. So where they are not END the newest commit of
our app_id wrote them, and they say the place in the snapshot of the version after the closed one, which stays the same
in all those commits. Before the snapshot of version 0 it is -1: delta-rs, Spark and checkpoints of both keep that as
they keep any number. Behind a gap it is the version before the snapshot: what is lost is done with, too.

The first commit of a pipeline writes one more, `<pipeline>/#delivered`: it has progress for some table.

What makes an append exactly once (invariants 1, 2, 6), each point tried against delta-rs and held by a test:

- All three are read from one `DeltaTable`, which is one version of the table, so they belong together.
- Every commit has the txn of app_id, whatever else it has: that is what delta-rs looks for in the commits of others.
  It looks at the name, not at the number, which stays the same all through a snapshot.
- An `Anchor` is the table as it was when our progress was seen to be what we expect. The append is made from
  that very `DeltaTable`, and delta-rs checks every commit that came after it: one with our app_id fails ours, one
  with another app_id does not. A `DeltaTable` is never refreshed in between: that would move the check.
- Without a `DeltaTable` delta-rs would open the table itself, at its newest version, and nothing would be checked. So
  a table that is not there is created first, in a commit of its own, from which the append is then made.
- Every commit carries an id in `commitInfo.txnId`. When an append fails, whatever the reason, the table is read again:
  progress that is ours and a commit with our id is success, progress that moved is another instance, anything else is a
  failure that left nothing behind but data files, which VACUUM removes.

The log says of each file what its least and greatest values are, and readers that filter pass by files on that word.
delta-rs takes it from the Parquet file, and gets some wrong (`sinks.delta.schema.measured`). So a file has statistics
of the columns that come out right, and of no others; what is nested has none.
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

from sinks.delta.schema import (
    Fit,
    compare,
    fit,
    measured,
    partition_problems,
    rewriting,
    rows_schema,
    unwritable,
    widening,
)
from sinks.delta.target import delivered_name, first_line, folder_refusal, is_permanent, table_refusal
from sinks.encoding.typed import Misfit
from tailer.errors import CommitUnknown, SinkError, SinkFenced, SinkRejected, SinkUnavailable
from tailer.events import COMMIT_VERSION, METADATA_FIELDS
from tailer.plan import END, Position
from tailer.sink import pipeline_of
from tailer.stores.folders import holds_table

__all__ = ["Anchor", "TargetTable"]

_COLUMN_MAPPING: Final = "delta.columnMapping.mode"
# Where other writers keep what they are given to note in a commit.
NOTE: Final = "userMetadata"
_NO_ROWS: Final[pa.Schema] = pa.schema([])

Rows = Callable[[pa.Schema], pa.RecordBatchReader]


@dataclass(frozen=True, slots=True)
class Anchor:
    """The state an append is made from: `table` at `version` has `expected` as the progress of `app_id`.

    `table` is None, and `version` -1, where there is no table yet. `schema` is what all rows are written as; `merge`
    says whether its columns differ from the table's. `partition_by`: the columns the table is, or will be, partitioned
    by.
    """

    app_id: str
    expected: Position | None
    schema: pa.Schema
    partition_by: Sequence[str]
    table: DeltaTable | None = None
    version: int = -1
    merge: bool = False


class TargetTable:
    """The table at `path`, which may not exist yet; `name` is what errors call the sink.

    `partition_by`: the columns it is, or will be, partitioned by; None: any. `adopt`: take what is not ours, too.
    """

    def __init__(self, name: str, path: str, partition_by: Sequence[str] | None = None, *, adopt: bool = False) -> None:
        self.name = name
        self.path = path
        self.partition_by = partition_by
        self._adopt = adopt

    def position(self, app_id: str) -> Position | None:
        """Up to where `app_id` was committed, read anew; None if it never was, or there is no table.

        Raises `SinkRejected` for a table that could forget it or is not ours, `SinkUnavailable` for an unreadable one.
        """
        table = self._open()
        if table is None:
            self._check_folder()
            return None
        self._check_target(table, app_id)
        return _position(table, app_id)

    def has_delivered(self, pipeline: str) -> bool:
        """Whether anything was ever committed for `pipeline`. Raises as `position` does."""
        table = self._open()
        return table is not None and table.transaction_version(delivered_name(pipeline)) is not None

    def anchor(self, app_id: str, schema: pa.Schema, expected: Position | None) -> Anchor:
        """The table's state now, checked: progress is the expected one, and rows of `schema` fit.

        Raises `SinkFenced` where progress is another one, `SinkRejected` naming the columns that do not fit.
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
        """The same state for rows of `schema`; `rows`: beside those that are to be written as the anchor's schema.

        Raises `SinkRejected` naming the columns that do not fit.
        """
        new = rows_schema(schema)
        if problems := unwritable(new):
            self._reject(f"Delta files have no type for {', '.join(problems)}", "Leave these columns out.")
        fitting = self._fit(anchor.table, anchor.schema if rows else _NO_ROWS, new)
        if anchor.table is None:
            self._check_partitions(fitting.schema, anchor.partition_by)
        return replace(anchor, schema=fitting.schema, merge=bool(fitting.added or fitting.gone))

    def append(
        self, anchor: Anchor, position: Position, rows: Rows, notes: Sequence[str] = (), far: Collection[str] = ()
    ) -> None:
        """Commit rows and `position` as the progress of the anchor's app_id in one Delta commit, or nothing.

        `rows` is asked for them in the schema to write them in. `notes` are kept in the commit's `commitInfo`. `far`:
        columns that hold dates which delta-rs has no statistics for.

        Raises `SinkFenced` where another instance committed for the app_id after `anchor` was taken, `SinkRejected`
        where the table refuses the rows, `SinkUnavailable` where nothing was committed for another reason, and
        `CommitUnknown` where that cannot be told.
        """
        write_id = str(uuid.uuid4())
        try:
            at = self._create(anchor) if anchor.table is None else anchor
            assert at.table is not None
            write_deltalake(
                at.table,
                rows(at.schema),
                mode="append",
                schema_mode="merge" if at.merge else None,
                writer_properties=_writing(at, far),
                commit_properties=CommitProperties(
                    custom_metadata={"txnId": write_id, **({"gap": "; ".join(notes)} if notes else {})},
                    app_transactions=_transactions(anchor, position),
                ),
            )
        except SinkError:
            raise
        except Exception as error:
            if not self._took_place(anchor, position, write_id, error):
                raise self._failure(error) from error

    def existing(self, anchor: Anchor) -> Anchor:
        """The anchor for somebody else's append: its table is created where there is none. Raises as `append` does."""
        if anchor.table is not None:
            return anchor
        try:
            return self._create(anchor)
        except SinkError:
            raise
        except Exception as error:
            raise self._failure(error) from error

    def check(self, app_id: str, expected: Position | None) -> None:
        """Raise `SinkFenced` where the progress of `app_id` is not the expected one by now."""
        self.expect(self.position(app_id), expected)

    def since(self, app_id: str, version: int, write_id: str) -> tuple[Position | None, bool]:
        """The progress of `app_id` by now, and whether a commit after `version` has our id. Raises `CommitUnknown`."""
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
        """Commit `end`, which closes a version, without rows. A table that is not there is created with the metadata
        columns.

        Raises as `append` does, and `SinkRejected` where going back would deliver rows that are there once more.
        """
        expected = self.position(app_id)
        anchor = self.anchor(app_id, pa.schema(METADATA_FIELDS), expected)
        if anchor.table is not None and expected is not None and end < expected:
            self._check_nothing_after(anchor.table, end.version)
        self.append(anchor, end, lambda schema: pa.RecordBatchReader.from_batches(schema, []))

    def _open(self) -> DeltaTable | None:
        if os.path.isfile(self.path):  # noqa: PTH113 - Path.is_file raises where a folder above cannot be entered
            self._reject(f"{self.path} is a file, not a folder", "Give the folder of a Delta table, or of one to be.")
        try:
            return DeltaTable(self.path)
        except TableNotFoundError as error:
            if "://" not in self.path and holds_table(Path(self.path)):
                self._reject(f"{self.path}: {first_line(error)}", "Restore the table's log, or choose another path.")
            return None
        except Exception as error:
            raise self._failure(error) from error

    def _check_folder(self) -> None:
        """Refuse to create a table among what is somebody else's."""
        if "://" in self.path:
            return
        try:
            refusal = folder_refusal(self.path, self._adopt)
        except OSError as error:
            raise self._failure(error) from error
        if refusal is not None:
            self._reject(*refusal)

    def _check_target(self, table: DeltaTable, app_id: str) -> None:
        """Refuse the table that is followed, one that is not ours, and one that could forget our progress."""
        found = table.metadata()
        names = pa.schema(table.schema().to_arrow()).names
        known = (app_id, delivered_name(pipeline_of(app_id)))
        ours = self._adopt or any(table.transaction_version(name) is not None for name in known)
        if refusal := table_refusal(self.path, app_id, str(found.id), names, found.configuration, ours=ours):
            self._reject(*refusal)

    def _create(self, anchor: Anchor) -> Anchor:
        """Create the table; where another writer was first, take its table if the rows fit."""
        schema = Schema.from_arrow(anchor.schema)
        try:
            table = DeltaTable.create(self.path, schema, mode="error", partition_by=list(anchor.partition_by))
        except Exception:
            theirs = self.anchor(anchor.app_id, anchor.schema, anchor.expected)
            if theirs.table is None:
                raise
            if list(theirs.partition_by) != list(anchor.partition_by):
                # Which values a partition column cannot have is asked when rows come.
                raise SinkUnavailable(
                    self.name, f"{self.path} was created by another writer, with partitions"
                ) from None
            return theirs
        return replace(anchor, table=table)

    def _took_place(self, anchor: Anchor, position: Position, write_id: str, error: Exception) -> bool:
        """Whether the append that ended with `error` is in the table nevertheless."""
        try:
            found, is_ours = self.since(anchor.app_id, anchor.version, write_id)
        except CommitUnknown as second:
            raise CommitUnknown(self.name, f"{first_line(error)}; {second.reason}") from second
        if found == position and is_ours:
            return True
        self.expect(found, anchor.expected)
        return False

    def expect(self, found: Position | None, expected: Position | None) -> None:
        """Raise `SinkFenced` where progress was moved from the expected one, `SinkRejected` where it is gone."""
        if found is None and expected is not None:
            remedy = "Put the table back. To deliver into a new one from the pipeline's start on, start again."
            reason = f"{self.path} was deleted or replaced: this instance left it at {expected}, and it has no progress"
            self._reject(reason, remedy)
        if found != expected:
            raise SinkFenced(self.name, f"progress in {self.path} is {found}, this instance left it at {expected}")

    def _check_nothing_after(self, table: DeltaTable, version: int) -> None:
        """Refuse where the table holds rows of versions after `version`."""
        try:
            found = pa.RecordBatchReader.from_stream(table.scan([COMMIT_VERSION], f"{COMMIT_VERSION} > {version}"))
            is_there = any(batch.num_rows for batch in found)
        except Exception as error:
            raise self._failure(error) from error
        if is_there:
            reason = f"{self.path} holds rows of versions after {version}; they would be there twice"
            self._reject(reason, f"DELETE FROM delta.`{self.path}` WHERE {COMMIT_VERSION} > {version}")

    def _fit(self, table: DeltaTable | None, earlier: pa.Schema, rows: pa.Schema) -> Fit:
        """How rows of both schemas go into the table, or a new one; refuse those that do not fit."""
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
        if table is not None and fitting.added and _maps_columns(table):
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
            self._reject(f"{self.path} cannot be partitioned so: {', '.join(problems)}", remedy)

    def _reject(self, reason: str, remedy: str) -> None:
        raise SinkRejected(self.name, reason, remedy)

    def _failure(self, error: Exception) -> SinkError:
        reason = first_line(error)
        if isinstance(error, SchemaMismatchError | DeltaProtocolError) or is_permanent(error):
            return SinkRejected(self.name, f"{self.path}: {reason}", "Change the target table, or choose a new path.")
        return SinkUnavailable(self.name, f"{self.path}: {reason}")


def _names(app_id: str) -> tuple[str, str, str]:
    return app_id, f"{app_id}#task", f"{app_id}#row"


def _position(table: DeltaTable, app_id: str) -> Position | None:
    """The progress of `app_id` in one version of the table."""
    closed, task, row = map(table.transaction_version, _names(app_id))
    if closed is None or task is None or row is None or task == END:
        return None if closed is None else Position.end(closed)
    return Position(closed + 1, task, row)


def _transactions(anchor: Anchor, position: Position) -> list[Transaction]:
    """The txns that make `position` of what the anchor has; only those of app_id where no snapshot is involved."""
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
    """Statistics of the columns where they are right, and none of others; else what delta-rs does by itself."""
    # Where columns are mapped the files have other names, and one column may have the name another one has there.
    mapped = anchor.table is not None and _maps_columns(anchor.table)
    names = [] if mapped else [name for name in measured(anchor.schema) if name not in far]
    return WriterProperties(
        compression="SNAPPY",
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties={name: ColumnProperties(statistics_enabled="PAGE") for name in names},
    )


def _maps_columns(table: DeltaTable) -> bool:
    return bool(table.metadata().configuration.get(_COLUMN_MAPPING, "none") != "none")
