"""A target table through delta-rs: the blocking half of the `delta` sink, called in worker threads only.

`tailer_sinks.delta.txns` describes the actions that hold progress. Exactly once (invariants 1, 2, 6) rests on these
points, each tried against delta-rs and held by a test:

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
- A request to a store that failed without an answer may still arrive. So the ids of failed appends are kept: if one
  of them turns up later, the outcome counts as unknown, and the pipeline asks for progress.
"""

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tailer.errors import CommitUnknown, SinkError, SinkFenced, SinkRejected, SinkUnavailable
from tailer.events import METADATA_FIELDS
from tailer.plan import Position
from tailer.sink import pipeline_of
from tailer_sinks.delta.folder import TargetFolder
from tailer_sinks.delta.schema import (
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
from tailer_sinks.delta.target import delivered_name, first_line, table_refusal
from tailer_sinks.delta.txns import LastStreams, position_in, transactions
from tailer_sinks.delta.writes import delta_schema, has_variants, rows_in_one_stream, rows_schema_of, writable, writing
from tailer_sinks.encoding.typed import Misfit

__all__ = ["Anchor", "TargetTable"]

_NO_ROWS: Final[pa.Schema] = pa.schema([])

Rows = Callable[[pa.Schema], pa.RecordBatchReader]


@dataclass(frozen=True, slots=True)
class Anchor:
    """The base of an append: `table` at `version`, with `expected` as the progress of `app_id`.

    `table` is None, and `version` -1, if there is no table yet. `schema`: the schema of all written rows. `merge`:
    whether its columns differ from the table's. `partition_by`: the columns by which the table is, or will be,
    partitioned. `login`: the settings with which delta-rs opened it; None for a path of this machine.
    """

    app_id: str
    expected: Position | None
    schema: pa.Schema
    partition_by: Sequence[str]
    table: DeltaTable | None = None
    version: int = -1
    merge: bool = False
    login: Mapping[str, str] | None = field(default=None, repr=False)


class TargetTable:
    """The table at `path`, which may not exist yet; `name`: the sink's name in errors.

    `partition_by`: the columns it is, or will be, partitioned by; None: any. `adopt`: accept what is not ours.
    """

    def __init__(self, name: str, path: str, partition_by: Sequence[str] | None = None, *, adopt: bool = False) -> None:
        self.name = name
        self.path = path
        self.partition_by = partition_by
        self._adopt = adopt
        self.folder = TargetFolder(name, path)
        self._columns = _Columns(self.folder, name, path, partition_by)
        self._failed: set[str] = set()
        self._streams = LastStreams(name)

    def position(self, app_id: str, *, anew: bool = True) -> Position | None:
        """Read the position committed for `app_id`. None: no progress, or no table. Raises `SinkError`.

        Not `anew`: that is `SinkFenced` if the pipeline has gone on with another source table since it was read anew.
        """
        if anew:
            self._streams.forget(app_id)
        table = self.folder.open(self.folder.login())
        if table is None:
            self.folder.check_free(self._adopt)
            self._streams.note(None, app_id)
            return None
        with self.folder.reading():
            self.check_target(table, app_id)
            self._streams.check(table, app_id)
            return position_in(table, app_id)

    def has_delivered(self, pipeline: str) -> bool:
        """Return whether anything was ever committed for `pipeline`. Raises as `position` does."""
        table = self.folder.open(self.folder.login())
        with self.folder.reading():
            return table is not None and table.transaction_version(delivered_name(pipeline)) is not None

    def anchor(self, app_id: str, schema: pa.Schema, expected: Position | None) -> Anchor:
        """Read the current state of the table and check it: progress is the expected one, and rows of `schema` fit.

        Raises `SinkFenced` for other progress, `SinkRejected` naming the columns that do not fit.
        """
        login = self.folder.login()
        table = self.folder.open(login)
        if table is None:
            self.expect(None, expected)
            self.folder.check_free(self._adopt)
            return self.extended(Anchor(app_id, None, _NO_ROWS, self.partition_by or ()), schema)
        with self.folder.reading():
            self.expect(position_in(table, app_id), expected)
            self._streams.check(table, app_id)
            self.check_target(table, app_id)
        columns = table.metadata().partition_columns
        return self.extended(Anchor(app_id, expected, _NO_ROWS, columns, table, table.version(), login=login), schema)

    def extended(self, anchor: Anchor, schema: pa.Schema, *, rows: bool = False) -> Anchor:
        """Return the same anchor for rows of `schema`; `rows`: beside those to be written with the anchor's schema.

        Raises `SinkRejected` naming the columns that do not fit.
        """
        new = rows_schema(schema)
        if problems := unwritable(new):
            self.folder.reject(f"Delta files have no type for {', '.join(problems)}", "Leave these columns out.")
        fitting = self._columns.fit(anchor.table, anchor.schema if rows else _NO_ROWS, new)
        if anchor.table is None:
            self._columns.check_partitions(fitting.schema, anchor.partition_by)
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

        def write(anchor: Anchor, commit: CommitProperties) -> None:
            assert anchor.table is not None
            anchor = self._grown(anchor) if anchor.merge and has_variants(anchor.schema) else anchor
            assert anchor.table is not None
            # With column mapping the files have other names, and one column may have another one's name there.
            is_mapped = maps_columns(anchor.table.metadata().configuration)
            columns = [] if is_mapped else [name for name in measured(anchor.schema) if name not in far]
            write_deltalake(
                anchor.table,
                writable(rows(anchor.schema)),
                mode="append",
                schema_mode="merge" if anchor.merge else None,
                writer_properties=writing(columns),
                commit_properties=commit,
            )

        actions = partial(transactions, anchor.app_id, anchor.expected, anchor.table, position)
        self.commit(anchor, position, actions, write, notes)

    def commit(
        self,
        anchor: Anchor,
        position: Position,
        actions: Callable[[], list[Transaction]],
        write: Callable[[Anchor, CommitProperties], None],
        notes: Sequence[str],
    ) -> None:
        """Make one commit by `write`, with `actions`, which move the progress to `position`. Raises as `append` does.

        `actions` may read the table. `write` gets the anchor with a table, and passes the properties on.
        """
        write_id = str(uuid.uuid4())
        try:
            current = self._create(anchor) if anchor.table is None else self._renewed(anchor)
            commit = CommitProperties(
                custom_metadata={"txnId": write_id, **({"gap": "; ".join(notes)} if notes else {})},
                app_transactions=actions(),
            )
            with rows_in_one_stream():
                write(current, commit)
        except SinkError:
            raise
        except Exception as error:
            if not self._took_place(anchor, position, write_id, error):
                self._failed.add(write_id)
                raise self.folder.failure(error) from error

    def reset(self, app_id: str, end: Position) -> None:
        """Commit `end`, which closes a version, without rows.

        A missing table is created with the metadata columns. Raises as `append` does, and `SinkRejected` if going back
        would deliver existing rows again.
        """
        expected = self.position(app_id)
        anchor = self.anchor(app_id, pa.schema(METADATA_FIELDS), expected)
        if anchor.table is not None and expected is not None and end < expected:
            self.folder.check_nothing_after(anchor.table, end.version)
        self.append(anchor, end, lambda schema: pa.RecordBatchReader.from_batches(schema, []))

    def _grown(self, anchor: Anchor) -> Anchor:
        """Add the columns that the table lacks, in a commit of its own, and return an anchor after it.

        If another writer has added them, use its table. Progress is then checked again.
        """
        assert anchor.table is not None
        there = rows_schema_of(anchor.table.schema()).names
        new = delta_schema(pa.schema([column for column in anchor.schema if column.name not in there]))
        failure = None
        try:
            anchor.table.alter.add_columns(new.fields)
        except Exception as error:  # noqa: BLE001 - raised below, unless the table has the columns now
            failure = error
        grown = self.anchor(anchor.app_id, anchor.schema, anchor.expected)
        if grown.merge:
            raise failure or SinkUnavailable(self.name, f"{self.path} was given columns, and lacks them")
        return grown

    def _renewed(self, anchor: Anchor) -> Anchor:
        """Return the same anchor, at the same version, with keys that are valid now."""
        if (login := self.folder.login()) == anchor.login:
            return anchor
        return replace(anchor, table=self.folder.at(anchor.version, login), login=login)

    def newer(self, app_id: str, version: int) -> tuple[Position | None, set[str], DeltaTable | None]:
        """Read the table, the progress of `app_id` and the ids of commits after `version`. Raises `CommitUnknown`."""
        try:
            table = self.folder.open(self.folder.login())
            if table is None:
                return None, set(), None
            return position_in(table, app_id), self.folder.commit_ids(table, version), table
        except Exception as error:
            raise CommitUnknown(self.name, f"reading the table back: {first_line(error)}") from error

    def check_target(self, table: DeltaTable, app_id: str) -> None:
        """Refuse the source table, a table that is not ours, and one that could forget our progress."""
        metadata = table.metadata()
        names = pa.schema(table.schema().to_arrow()).names
        names_of_ours = (app_id, delivered_name(pipeline_of(app_id)))
        ours = self._adopt or any(table.transaction_version(name) is not None for name in names_of_ours)
        if refusal := table_refusal(self.path, app_id, str(metadata.id), names, metadata.configuration, ours=ours):
            self.folder.reject(*refusal)

    def properties(self, app_id: str) -> dict[str, str] | None:
        """Return the properties of a new table."""
        return None

    def _create(self, anchor: Anchor) -> Anchor:
        """Create the table. If another writer was first, use its table if the rows fit.

        The table is then opened again: delta-rs may also succeed in creating one that exists by now, at a later
        version, and another instance may have committed before that.
        """
        schema, columns = delta_schema(anchor.schema), list(anchor.partition_by)
        failure = None
        try:
            self.folder.create(schema, columns, self.folder.login(), self.properties(anchor.app_id))
        except Exception as error:  # noqa: BLE001 - raised below, unless there is a table now
            failure = error
        created = self.anchor(anchor.app_id, anchor.schema, anchor.expected)
        if created.table is None:
            raise failure or SinkUnavailable(self.name, f"{self.path} was created, and is not there")
        if list(created.partition_by) != columns:
            # Values that a partition column cannot have are found when rows come.
            raise SinkUnavailable(self.name, f"{self.path} was created by another writer, with partitions") from None
        return created

    def _took_place(self, anchor: Anchor, position: Position, write_id: str, error: Exception) -> bool:
        """Return whether the append that ended with `error` is in the table nevertheless."""
        try:
            position_there, ids, table = self.newer(anchor.app_id, anchor.version)
        except CommitUnknown as second:
            raise CommitUnknown(self.name, f"{first_line(error)}; {second.reason}") from second
        if position_there == position and write_id in ids:
            return True
        if self._failed & ids:
            raise CommitUnknown(self.name, "an earlier attempt of this instance arrived late") from error
        self.expect(position_there, anchor.expected)
        self._streams.check(table, anchor.app_id)
        return False

    def expect(self, position: Position | None, expected: Position | None) -> None:
        """Raise `SinkFenced` if progress differs from the expected one, `SinkRejected` if it is gone."""
        if position is None and expected is not None:
            remedy = "Restore the table. To deliver into a new one from the pipeline's start, run it again."
            self.folder.reject(
                f"{self.path} was deleted or replaced: it was left at {expected}, and has no progress", remedy
            )
        if position != expected:
            raise SinkFenced(
                self.name, f"progress in {self.path} is {position}, and was {expected or 'nothing'} before"
            )


class _Columns:
    """The columns of the table in `folder`, and whether rows fit into them; `partition_by`: as in `TargetTable`."""

    def __init__(self, folder: TargetFolder, name: str, path: str, partition_by: Sequence[str] | None) -> None:
        self._folder = folder
        self._name = name
        self._path = path
        self._partition_by = partition_by

    def fit(self, table: DeltaTable | None, earlier: pa.Schema, rows: pa.Schema) -> Fit:
        """Fit rows of both schemas into the table, or a new one. Refuse those that do not fit."""
        schema_there = None if table is None else rows_schema_of(table.schema())
        if table is not None and schema_there is not None:
            self._check_partitioning(table, schema_there)
            if conflicts := compare(schema_there, rows).conflicts:
                wider = widening(schema_there, rows)
                remedy = "Choose a new path for the new schema."
                if len(wider) == len(conflicts):
                    remedy = rewriting(self._path, schema_there.names, table.metadata().partition_columns, wider)
                self._folder.reject(f"columns of {self._path} do not fit: {', '.join(conflicts)}", remedy)
        try:
            fitting = fit(schema_there, earlier, rows)
        except Misfit as misfit:
            raise SinkRejected(
                self._name, f"{self._path}: {misfit}", "Choose a new path for the new schema."
            ) from misfit
        if table is not None and fitting.added and maps_columns(table.metadata().configuration):
            columns = ", ".join(fitting.added)
            remedy = f"Add them: ALTER TABLE delta.`{self._path}` ADD COLUMNS (...)"
            self._folder.reject(f"{self._path} lacks {columns}, and maps columns, which delta-rs cannot extend", remedy)
        fields = ", ".join(name for name in fitting.added if name not in fitting.schema.names)
        if table is not None and has_variants(fitting.schema) and fields:
            remedy = f"Add them: ALTER TABLE delta.`{self._path}` ADD COLUMNS (...)"
            self._folder.reject(f"{self._path} lacks {fields}, and has Variants, where delta-rs adds no fields", remedy)
        return fitting

    def check_partitions(self, schema: pa.Schema, columns: Sequence[str]) -> None:
        """Refuse to partition rows of `schema` by columns that cannot be."""
        if problems := partition_problems(schema, columns):
            remedy = "Partition by columns of type string, date, boolean or an integer type."
            self._folder.reject(f"{self._path} cannot have this partitioning: {', '.join(problems)}", remedy)

    def _check_partitioning(self, table: DeltaTable, schema: pa.Schema) -> None:
        columns = table.metadata().partition_columns
        if self._partition_by is not None and list(self._partition_by) != columns:
            named = ", ".join(columns) or "nothing"
            self._folder.reject(
                f"{self._path} is partitioned by {named}", "Set partition_by to that, or choose a new path."
            )
        self.check_partitions(rows_schema(schema), columns)
