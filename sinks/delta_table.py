"""A target table as delta-rs sees it: the blocking half of the `delta` sink, called in worker threads only.

What makes an append exactly once (invariants 1, 2, 6), each point tried against delta-rs and held by a test:

- An `Anchor` is the table as it was when the `txn` of our app_id was seen to be what we expect. The append is made from
  that very `DeltaTable`, and delta-rs checks every commit that came after it: one with our app_id fails ours, one
  with another app_id does not. A `DeltaTable` is never refreshed in between: that would move the check.
- Without a `DeltaTable` delta-rs would open the table itself, at its newest version, and nothing would be checked. So
  a table that is not there is created first, in a commit of its own, from which the append is then made.
- Every commit carries an id in `commitInfo.txnId`. When an append fails, whatever the reason, the table is read again:
  a `txn` of our version in a commit with our id is success, a `txn` that moved is another instance, anything else is a
  failure that left nothing behind but data files, which VACUUM removes.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaProtocolError, SchemaMismatchError, TableNotFoundError

from sinks.delta_schema import compare, partition_problems, rows_schema, unwritable
from tailer.errors import CommitUnknown, SinkError, SinkFenced, SinkRejected, SinkUnavailable
from tailer.events import COMMIT_VERSION, METADATA_FIELDS

__all__ = ["Anchor", "TargetTable"]

_RETENTION: Final = "delta.setTransactionRetentionDuration"
_CHANGE_FEED: Final = "delta.enableChangeDataFeed"
_COLUMN_MAPPING: Final = "delta.columnMapping.mode"
# delta-rs has few exception classes: these parts of its messages say that trying again cannot help.
_REFUSALS: Final = ("Unsupported", "not yet supported", "Invalid data found", "Schema error")


@dataclass(frozen=True, slots=True)
class Anchor:
    """The state an append is made from: `table` at `version` has `expected` as the txn version of `app_id`.

    `table` is None, and `version` -1, where there is no table yet. `schema` is what rows are written as; `merge` says
    whether it differs from the table's. `partition_by`: the columns the table is, or will be, partitioned by.
    """

    app_id: str
    expected: int | None
    schema: pa.Schema
    partition_by: Sequence[str]
    table: DeltaTable | None = None
    version: int = -1
    merge: bool = False


class TargetTable:
    """The table at `path`, which may not exist yet. `name` is what errors call the sink.

    `partition_by`: the columns the table is, or will be, partitioned by; None takes a table as it is.
    """

    def __init__(self, name: str, path: str, partition_by: Sequence[str] | None = None) -> None:
        self.name = name
        self.path = path
        self.partition_by = partition_by

    def txn_version(self, app_id: str) -> int | None:
        """The last committed version of `app_id`, read anew; None if there is none, or no table.

        Raises `SinkRejected` for a table that could forget it, `SinkUnavailable` where the table cannot be read.
        """
        table = self._open()
        if table is None:
            return None
        self._check_properties(table)
        return table.transaction_version(app_id)

    def anchor(self, app_id: str, schema: pa.Schema, expected: int | None) -> Anchor:
        """The table's state now, checked: the txn is the expected one, and rows of `schema` fit.

        Raises `SinkFenced` where the txn is another one, `SinkRejected` naming the columns that do not fit.
        """
        rows = rows_schema(schema)
        if problems := unwritable(rows):
            self._reject(f"Delta has no type for {', '.join(problems)}", "Leave these columns out of the pipeline.")
        table = self._open()
        if table is None:
            self._expect(None, expected)
            columns = self.partition_by or ()
            self._check_partitions(rows, columns)
            return Anchor(app_id, None, rows, columns)
        self._check_properties(table)
        self._expect(table.transaction_version(app_id), expected)
        merge = self._check_schema(table, rows)
        columns = table.metadata().partition_columns
        return Anchor(app_id, expected, rows, columns, table, table.version(), merge)

    def append(self, anchor: Anchor, version: int, rows: pa.RecordBatchReader) -> None:
        """Commit `rows` and the txn `version` of the anchor's app_id in one Delta commit, or nothing.

        Raises `SinkFenced` where another instance committed for the app_id after `anchor` was taken, `SinkRejected`
        where the table refuses the rows, `SinkUnavailable` where nothing was committed for another reason, and
        `CommitUnknown` where that cannot be told.
        """
        write_id = str(uuid.uuid4())
        try:
            table, merge = self._create(anchor) if anchor.table is None else (anchor.table, anchor.merge)
            write_deltalake(
                table,
                rows,
                mode="append",
                schema_mode="merge" if merge else None,
                commit_properties=CommitProperties(
                    custom_metadata={"txnId": write_id},
                    app_transactions=[Transaction(anchor.app_id, version, int(time.time() * 1000))],
                ),
            )
        except SinkError:
            raise
        except Exception as error:
            if not self._took_place(anchor, version, write_id, error):
                raise self._failure(error) from error

    def reset(self, app_id: str, version: int) -> None:
        """Commit the txn `version` without rows. A table that is not there is created with the metadata columns.

        Raises as `append` does, and `SinkRejected` where going back would deliver rows that are there once more.
        """
        expected = self.txn_version(app_id)
        anchor = self.anchor(app_id, pa.schema(METADATA_FIELDS), expected)
        if anchor.table is not None and expected is not None and version < expected:
            self._check_nothing_after(anchor.table, version)
        self.append(anchor, version, pa.RecordBatchReader.from_batches(anchor.schema, []))

    def _open(self) -> DeltaTable | None:
        if Path(self.path).is_file():
            self._reject(f"{self.path} is a file, not a folder", "Give the folder of a Delta table, or of one to be.")
        try:
            return DeltaTable(self.path)
        except TableNotFoundError:
            return None
        except Exception as error:
            raise self._failure(error) from error

    def _create(self, anchor: Anchor) -> tuple[DeltaTable, bool]:
        """Create the table; where another writer was first, take its table if the rows fit. Returns table, merge."""
        schema = Schema.from_arrow(anchor.schema)
        try:
            return DeltaTable.create(self.path, schema, mode="error", partition_by=list(anchor.partition_by)), False
        except Exception:
            theirs = self.anchor(anchor.app_id, anchor.schema, anchor.expected)
            if theirs.table is None:
                raise
            return theirs.table, theirs.merge

    def _took_place(self, anchor: Anchor, version: int, write_id: str, error: Exception) -> bool:
        """Whether the append that ended with `error` is in the table nevertheless."""
        try:
            table = self._open()
            if table is None:
                return False
            found = table.transaction_version(anchor.app_id)
            since = table.version() - anchor.version
            ids = {commit.get("txnId") for commit in table.history(since)} if since > 0 else set()
        except Exception as second:
            reason = f"{_first_line(error)}; reading the table back: {_first_line(second)}"
            raise CommitUnknown(self.name, reason) from second
        if found == version and write_id in ids:
            return True
        self._expect(found, anchor.expected)
        return False

    def _expect(self, found: int | None, expected: int | None) -> None:
        if found != expected:
            raise SinkFenced(self.name, f"progress in {self.path} is {found}, this instance left it at {expected}")

    def _check_properties(self, table: DeltaTable) -> None:
        configuration = table.metadata().configuration
        if _RETENTION in configuration:
            # Any duration will do harm: a source that is idle for longer would be delivered once more from the start.
            self._refuse_property(_RETENTION, configuration[_RETENTION], "the table could forget our progress")
        if str(configuration.get(_CHANGE_FEED)).lower() == "true":
            # Delta takes a column _change_type for its own: a DELETE on such a table loses rows.
            self._refuse_property(_CHANGE_FEED, "true", "the change feed reserves the columns we write")

    def _refuse_property(self, key: str, value: str, why: str) -> None:
        remedy = f"ALTER TABLE delta.`{self.path}` UNSET TBLPROPERTIES ('{key}')"
        self._reject(f"{self.path} has {key} = {value}: {why}", remedy)

    def _check_nothing_after(self, table: DeltaTable, version: int) -> None:
        """Refuse where the table holds rows of versions after `version`."""
        try:
            found = pa.RecordBatchReader.from_stream(table.scan([COMMIT_VERSION], f"{COMMIT_VERSION} > {version}"))
            is_there = any(batch.num_rows for batch in found)
        except Exception as error:
            raise self._failure(error) from error
        if is_there:
            remedy = f"DELETE FROM delta.`{self.path}` WHERE {COMMIT_VERSION} > {version}"
            self._reject(f"{self.path} holds rows of versions after {version}; they would be there twice", remedy)

    def _check_schema(self, table: DeltaTable, rows: pa.Schema) -> bool:
        """Refuse rows that do not fit; return whether the table has to grow or leaves columns to be filled."""
        metadata = table.metadata()
        if self.partition_by is not None and list(self.partition_by) != metadata.partition_columns:
            found = ", ".join(metadata.partition_columns) or "nothing"
            self._reject(f"{self.path} is partitioned by {found}", "Set partition_by to that, or choose a new path.")
        self._check_partitions(rows_schema(pa.schema(table.schema().to_arrow())), metadata.partition_columns)
        differences = compare(pa.schema(table.schema().to_arrow()), rows)
        if differences.conflicts:
            columns = ", ".join(differences.conflicts)
            self._reject(f"columns of {self.path} do not fit: {columns}", "Choose a new path for the new schema.")
        if differences.added and metadata.configuration.get(_COLUMN_MAPPING, "none") != "none":
            columns = ", ".join(differences.added)
            remedy = f"Add them: ALTER TABLE delta.`{self.path}` ADD COLUMNS (...)"
            self._reject(f"{self.path} lacks {columns}, and maps columns, which delta-rs cannot extend", remedy)
        return bool(differences.added or differences.gone)

    def _check_partitions(self, schema: pa.Schema, columns: Sequence[str]) -> None:
        if problems := partition_problems(schema, columns):
            remedy = "Partition by columns of type string, date, boolean or an integer type."
            self._reject(f"{self.path} cannot be partitioned so: {', '.join(problems)}", remedy)

    def _reject(self, reason: str, remedy: str) -> None:
        raise SinkRejected(self.name, reason, remedy)

    def _failure(self, error: Exception) -> SinkError:
        reason = _first_line(error)
        permanent = isinstance(error, SchemaMismatchError | DeltaProtocolError)
        if permanent or any(refusal in reason for refusal in _REFUSALS):
            return SinkRejected(self.name, f"{self.path}: {reason}", "Change the target table, or choose a new path.")
        return SinkUnavailable(self.name, f"{self.path}: {reason}")


def _first_line(error: Exception) -> str:
    """What happened. delta-rs appends stack traces, and rows that broke a constraint, which are not ours to print."""
    return str(error).partition("\n")[0] or type(error).__name__
