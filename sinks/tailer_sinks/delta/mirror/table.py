"""The table of a mirror through delta-rs; blocking, for worker threads only.

How a commit is made exactly once, says `tailer_sinks.delta.table`. Every commit also has the txn `#delivered` of the
pipeline. So of two streams of one pipeline that begin from the same version of the table, only one commits: the streams
of both ids before and after REPLACE TABLE, and that of a snapshot which an operator ordered, beside the changes.

The MERGE itself finds contradictions: where a key that must be there is missing, or one that must not be there is
found, it assigns an expression that fails. Then nothing is committed.

delta-rs keeps the rows that it merges in memory, so their size is limited. It must know their number (no
`streamed_exec`), or else it keeps the rows of the table in memory instead. It then also skips files whose least and
greatest keys say that they have none of these keys. A snapshot is written as it is read.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tailer.errors import SinkRejected, SinkUnavailable
from tailer.plan import Position
from tailer.sink import backfilled_app_id, pipeline_of
from tailer_sinks.delta.mirror.changes import CHANGE, DELETE, INSERT, UPDATE
from tailer_sinks.delta.mirror.columns import table_schema
from tailer_sinks.delta.schema import maps_columns, measured, partition_problems
from tailer_sinks.delta.table import Anchor, TargetTable
from tailer_sinks.delta.target import MIRROR, delivered_name, table_refusal
from tailer_sinks.delta.variants import rows_schema_of
from tailer_sinks.delta.writes import writing

__all__ = ["MirrorTable", "contradiction"]

# What the error of a MERGE has in it if a key is there, or is not there, against what the changes say.
_PRESENT: Final = "lake_tailer_key_is_there"
_ABSENT: Final = "lake_tailer_key_is_missing"

_APPEND_ONLY: Final = "delta.appendOnly"
# Features of a table that a MERGE of delta-rs upholds.
_UPHELD: Final = frozenset({"appendOnly", "changeDataFeed", "checkConstraints", "invariants", "timestampNtz"})


class MirrorTable(TargetTable):
    """The table at `path`, which may not exist yet; see `TargetTable`."""

    def check_target(self, table: DeltaTable, app_id: str) -> None:
        """Refuse the source table, a table that is not this pipeline's mirror, and one that cannot be merged into."""
        found = table.metadata()
        names = pa.schema(table.schema().to_arrow()).names
        refusal = table_refusal(
            self.path, app_id, str(found.id), names, found.configuration, ours=True, mirror=_owner(app_id)
        )
        if refusal is not None:
            self.folder.reject(*refusal)
        protocol = table.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())} - _UPHELD
        if maps_columns(found.configuration):
            features.add("columnMapping")
        if features:
            reason = f"{self.path} has features that delta-rs does not uphold in a MERGE: {', '.join(sorted(features))}"
            self.folder.reject(reason, "Drop them: ALTER TABLE ... DROP FEATURE. Or choose a new path.")
        if str(found.configuration.get(_APPEND_ONLY)).lower() == "true":
            remedy = f"ALTER TABLE delta.`{self.path}` UNSET TBLPROPERTIES ('{_APPEND_ONLY}')"
            self.folder.reject(f"{self.path} has {_APPEND_ONLY} = true, and a mirror deletes rows", remedy)

    def properties(self, app_id: str) -> dict[str, str]:
        """See `TargetTable.properties`."""
        return {MIRROR: _owner(app_id)}

    def extended(self, anchor: Anchor, schema: pa.Schema, *, rows: bool = False) -> Anchor:
        """Return the same anchor for change rows of `schema`. Raises `SinkRejected` for columns without a type."""
        wanted = table_schema(self.name, schema)
        if self.partition_by is not None and list(self.partition_by) != list(anchor.partition_by):
            named = ", ".join(anchor.partition_by) or "nothing"
            self.folder.reject(
                f"{self.path} is partitioned by {named}", "Set partition_by to that, or choose a new path."
            )
        if problems := partition_problems(wanted, anchor.partition_by):
            remedy = "Partition a new path by columns of type string, date, boolean or an integer type."
            self.folder.reject(f"{self.path} cannot have this partitioning: {', '.join(problems)}", remedy)
        merge = anchor.table is not None and set(wanted.names) != set(rows_schema_of(anchor.table.schema()).names)
        return replace(anchor, schema=wanted, merge=merge)

    def check_new(self, pipeline: str) -> None:
        """Refuse a mirror of `pipeline`, which has no progress, if the table has rows."""
        table = self.folder.open(self.folder.login())
        if table is None:
            return
        with self.folder.reading():
            lost = table.transaction_version(delivered_name(pipeline)) is None and bool(table.file_uris())
        if lost:
            remedy = "Restore the table, or choose a new path."
            self.folder.reject(f"{self.path} has rows of {pipeline}, but there is no progress", remedy)

    def replace_rows(
        self, anchor: Anchor, position: Position, rows: Callable[[], pa.RecordBatchReader], notes: Sequence[str]
    ) -> None:
        """Commit `rows` in place of all rows, with their columns, and `position`. Raises as `TargetTable.append`."""

        def write(at: Anchor, commit: CommitProperties) -> None:
            assert at.table is not None
            write_deltalake(
                at.table,
                rows(),
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=list(at.partition_by) or None,
                writer_properties=writing(_measured(anchor.schema)),
                commit_properties=commit,
            )

        self._commit(anchor, position, write, notes)

    def merge_rows(
        self,
        anchor: Anchor,
        position: Position,
        rows: Callable[[], pa.RecordBatchReader] | None,
        key: Sequence[str],
        notes: Sequence[str] = (),
    ) -> None:
        """Commit reduced `rows` and `position`; None: there are no rows. Raises as `TargetTable.append`."""

        def write(at: Anchor, commit: CommitProperties) -> None:
            assert at.table is not None
            if rows is not None:
                self._merge(at.table, at, rows(), key, commit)
                return
            # A MERGE without rows makes no commit.
            write_deltalake(
                at.table,
                pa.RecordBatchReader.from_batches(at.schema, []),
                mode="append",
                schema_mode="merge" if at.merge else None,
                commit_properties=commit,
            )

        self._commit(anchor, position, write, notes)

    def _commit(
        self,
        anchor: Anchor,
        position: Position,
        write: Callable[[Anchor, CommitProperties], None],
        notes: Sequence[str],
    ) -> None:
        now_ms = int(time.time() * 1000)
        names = {anchor.app_id: position.version, delivered_name(_owner(anchor.app_id)): 1}
        actions = [Transaction(name, version, now_ms) for name, version in names.items()]
        try:
            self.commit(anchor, position, actions, write, notes)
        except (SinkRejected, SinkUnavailable) as error:
            if _PRESENT in error.reason or _ABSENT in error.reason:
                what = "insert a key that is there" if _PRESENT in error.reason else "delete a key that is not there"
                reason = f"the changes up to version {position.version} {what}, in {self.path}"
                raise contradiction(self.name, reason) from error
            raise

    def _merge(
        self, table: DeltaTable, at: Anchor, rows: pa.RecordBatchReader, key: Sequence[str], commit: CommitProperties
    ) -> None:
        change = f"source.{_quoted(CHANGE)}"
        values = {_quoted(each): f"source.{_quoted(each)}" for each in at.schema.names}
        merger = table.merge(
            rows,
            " AND ".join(f"target.{_quoted(each)} = source.{_quoted(each)}" for each in key),
            source_alias="source",
            target_alias="target",
            merge_schema=at.merge,
            streamed_exec=False,
            writer_properties=writing(_measured(at.schema)),
            commit_properties=commit,
        )
        merger = merger.when_matched_update(values, f"{change} = {UPDATE}")
        merger = merger.when_matched_delete(f"{change} = {DELETE}")
        merger = merger.when_matched_update(values | _failing(key[0], _PRESENT), f"{change} = {INSERT}")
        merger = merger.when_not_matched_insert(values, f"{change} = {INSERT}")
        merger = merger.when_not_matched_insert(values | _failing(key[0], _ABSENT), f"{change} <> {INSERT}")
        merger.execute()


def contradiction(name: str, reason: str) -> SinkRejected:
    """Return the error of the sink called `name` for changes that contradict the key, or the table."""
    remedy = (
        "Set key to columns whose values are unique in the source, and order a snapshot with `tailer resnapshot`. "
        "If they are unique, somebody else has changed the table: order a snapshot, too."
    )
    return SinkRejected(name, reason, remedy)


def _owner(app_id: str) -> str:
    """Return the pipeline whose mirror is filled under `app_id`, which may be that of a backfill."""
    return pipeline_of(backfilled_app_id(app_id) or app_id)


def _failing(column: str, text: str) -> dict[str, str]:
    """Return an assignment that fails with `text` for every row for which it is made."""
    name = _quoted(column)
    number = f"CAST(concat('{text}', CAST(source.{_quoted(CHANGE)} AS VARCHAR)) AS INT)"
    return {name: f"CASE WHEN {number} = 0 THEN NULL ELSE source.{name} END"}


def _measured(schema: pa.Schema) -> list[str]:
    """Return the columns with statistics: no dates, as a MERGE writes rows again whose dates may be far ones."""
    return [name for name in measured(schema) if schema.field(name).type != pa.date32()]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
