"""The table of a mirror through delta-rs; blocking, for worker threads only.

`tailer_sinks.delta.table` says how a commit is made exactly once. All rows of a mirror count, so a commit also fails if
there is any other one since the table was read. Of two streams of one pipeline only one commits: those of the ids
before and after REPLACE TABLE, and that of a snapshot which an operator asked for, beside the changes.

delta-rs keeps in memory what it merges: the changed rows several times over, and the rows of each file that may have
one of their keys, by its least and greatest keys. No option bounds that. A file is skipped only if delta-rs knows the
rows when it plans (no `streamed_exec`). So where a MERGE would take more than `_MERGE_BYTES`, or columns are renamed,
dropped or widened, the table is read, and its other rows are written again with the changed ones, in bounded memory
(invariant 7). They wait in `TMPDIR` meanwhile.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from typing_extensions import override

from tailer.errors import SinkRejected, SinkUnavailable, TailerError
from tailer.plan import Position
from tailer.sink import backfilled_app_id, pipeline_of, stream_name, stream_number
from tailer_sinks.delta.mirror.changes import CHANGE, Changes
from tailer_sinks.delta.mirror.columns import reshaped, table_schema
from tailer_sinks.delta.mirror.keys import (
    check_same_key,
    columns_name,
    key_error,
    key_name,
    key_number,
    known_from_name,
)
from tailer_sinks.delta.mirror.merges import ABSENT, PRESENT, are_removable, merge, merge_bytes, row_writer
from tailer_sinks.delta.mirror.past import DELETE, DELETED, GONE, INSERT, NOTHING, STATES, UPDATE, Past, remaining
from tailer_sinks.delta.mirror.stored_rows import StoredRows
from tailer_sinks.delta.schema import maps_columns, partition_problems
from tailer_sinks.delta.spool import Spool
from tailer_sinks.delta.table import Anchor, TargetTable
from tailer_sinks.delta.target import MIRROR, delivered_name, table_refusal
from tailer_sinks.delta.txns import position_in
from tailer_sinks.delta.writes import has_variants, rows_schema_of, writable
from tailer_sinks.encoding.typed import Misfit, conform
from tailer_sinks.mirrors import RESNAPSHOT

__all__ = ["MirrorStep", "MirrorTable", "all_valid"]

_MERGE_BYTES: Final = 1024 * 1024 * 1024
_READ_ROWS: Final = 8192
_INT96: Final[Any] = {"coerce_int96_timestamp_unit": "us"}  # which Spark's OPTIMIZE writes; nanoseconds otherwise
# What the error of a commit has in it if there is another one.
_OVERTAKEN: Final = "Failed to commit transaction: 0"

_APPEND_ONLY: Final = "delta.appendOnly"
# Features of a table that a MERGE of delta-rs upholds.
_UPHELD: Final = frozenset(
    {"appendOnly", "changeDataFeed", "checkConstraints", "invariants", "timestampNtz", "variantType"}
)


# The property of a table whose mirror keeps something of the past, which says what.
_PAST: Final = "lakeTailer.mirror.past"


@dataclass(frozen=True, kw_only=True, slots=True)
class MirrorStep:
    """A commit that moves the mirror to `position`. `key`: of the rows; none: it stays as it is.

    `origins`: the name in the table of each column that it has; None: columns may be new, and all others stay. `notes`:
    in the commit's `commitInfo`. `exact`: False, if the table may have a changed key twice, or rows without a key: all
    these are replaced. `snapshot`: the version whose rows are all of the source; None: these are changes.

    Of a history: `columns`: those of the source; none: they stay. `known_from`: the first version that it has; None: it
    stays. `uncompared`: columns that the rows of the snapshot lack.
    """

    position: Position
    key: Sequence[str] = ()
    origins: Mapping[str, str] | None = None
    notes: Sequence[str] = ()
    exact: bool = True
    snapshot: int | None = None
    columns: Sequence[str] = ()
    known_from: int | None = None
    uncompared: frozenset[str] = frozenset()


class MirrorTable(TargetTable):
    """The table at `path`, which may not exist yet; see `TargetTable`. `past`: what the mirror keeps."""

    def __init__(self, name: str, path: str, partition_by: Sequence[str] | None = None, past: Past = NOTHING) -> None:
        super().__init__(name, path, partition_by)
        self.past = past

    @property
    def remedy(self) -> str:
        """The next step where a table cannot have rows of other columns, or with another key."""
        return RESNAPSHOT if self.past is NOTHING else "Choose a new path."

    def check_target(self, table: DeltaTable, app_id: str) -> None:
        """Refuse the source table, a table that is not this pipeline's mirror, and one that cannot be merged into."""
        metadata = table.metadata()
        names = pa.schema(table.schema().to_arrow()).names
        refusal = table_refusal(
            self.path, app_id, str(metadata.id), names, metadata.configuration, ours=True, mirror=_owner(app_id)
        )
        if refusal is not None:
            self.folder.reject(*refusal)
        if (kept := metadata.configuration.get(_PAST, "")) != self.past.name:
            was = next(past.words for past in (NOTHING, DELETED, STATES) if past.name == kept)
            self.folder.reject(f"{self.path} was made with {was}", "Set that, or choose a new path.")
        protocol = table.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())} - _UPHELD
        if maps_columns(metadata.configuration):
            features.add("columnMapping")
        if features:
            reason = f"{self.path} has features that delta-rs does not uphold in a MERGE: {', '.join(sorted(features))}"
            self.folder.reject(reason, "Drop them: ALTER TABLE ... DROP FEATURE. Or choose a new path.")
        if str(metadata.configuration.get(_APPEND_ONLY)).lower() == "true":
            remedy = f"ALTER TABLE delta.`{self.path}` UNSET TBLPROPERTIES ('{_APPEND_ONLY}')"
            self.folder.reject(f"{self.path} has {_APPEND_ONLY} = true, and a mirror deletes rows", remedy)

    @override
    def properties(self, app_id: str) -> dict[str, str]:
        return {MIRROR: _owner(app_id)} | ({_PAST: self.past.name} if self.past.name else {})

    def extended(self, anchor: Anchor, schema: pa.Schema, *, rows: bool = False) -> Anchor:
        """Return the same anchor for change rows of `schema`. A history keeps all columns of an existing table.

        Raises `SinkRejected` for columns without a type, and for other ones than those of a table with Variants.
        """
        there = None if anchor.table is None else rows_schema_of(anchor.table.schema())
        if there is not None and self.past is STATES and not len(anchor.schema):
            schema = pa.schema([*schema, *(column for column in there if column.name not in schema.names)])
        wanted = self.past.table(self.past.source(table_schema(self.name, schema)))
        if CHANGE in wanted.names:
            self.folder.reject(f"{self.path} cannot have a column {CHANGE}", "Give it another name with select.")
        if self.partition_by is not None and list(self.partition_by) != list(anchor.partition_by):
            named = ", ".join(anchor.partition_by) or "nothing"
            self.folder.reject(
                f"{self.path} is partitioned by {named}", "Set partition_by to that, or choose a new path."
            )
        if problems := partition_problems(self.past.source(wanted), anchor.partition_by):
            remedy = "Partition a new path by columns of type string, date, boolean or an integer type."
            self.folder.reject(f"{self.path} cannot have this partitioning: {', '.join(problems)}", remedy)
        if there is None:
            return replace(anchor, schema=wanted, merge=False)
        types, wanted_types = (dict(zip(schema.names, schema.types, strict=True)) for schema in (there, wanted))
        if (has_variants(there) or has_variants(wanted)) and types != wanted_types:
            reason = f"{self.path} has or gets Variants, and other columns, which delta-rs cannot commit with the rows"
            self.folder.reject(reason, "Choose a new path.")
        return replace(anchor, schema=wanted, merge=set(wanted.names) != set(there.names))

    def check_names(self, schema: pa.Schema) -> None:
        """Refuse a source that has a column with a name of ours."""
        for column in schema.names:
            if column.lower() in self.past.columns:
                reason = f"with {self.past.words}, {self.path} cannot have a column {column} of the source"
                self.folder.reject(reason, "Give it another name with select.")

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
        self, anchor: Anchor, step: MirrorStep, rows: Callable[[], pa.RecordBatchReader], row_bytes: int | None
    ) -> None:
        """Commit `rows` in place of all rows, with their columns. Raises as `TargetTable.append`.

        `row_bytes`: the Arrow memory of a row, about; None: not known.
        """

        def write(current: Anchor, commit: CommitProperties) -> None:
            assert current.table is not None
            write_deltalake(
                current.table,
                writable(rows()),
                mode="overwrite",
                schema_mode=None if has_variants(current.schema) else "overwrite",
                partition_by=list(current.partition_by) or None,
                writer_properties=row_writer(anchor.schema, row_bytes),
                commit_properties=commit,
            )

        self._commit(anchor, step, write)

    def apply(self, anchor: Anchor, step: MirrorStep, changes: Changes) -> None:
        """Commit reduced `changes`. Raises as `TargetTable.append`."""
        # Bounds of files may have the former types of columns.
        merges = step.exact and step.origins is None and step.snapshot is None
        if not merges or (
            changes.counts and merge_bytes(self.folder, anchor, self.past, changes, step.key) > _MERGE_BYTES
        ):
            self._rewrite(anchor, step, changes)
            return

        def write(anchor: Anchor, commit: CommitProperties) -> None:
            assert anchor.table is not None
            if not (changes.counts and merge(anchor, self.past, changes, step.key, commit)):
                write_deltalake(
                    anchor.table,
                    pa.RecordBatchReader.from_batches(anchor.schema, []),
                    mode="append",
                    schema_mode="merge" if anchor.merge else None,
                    commit_properties=commit,
                )

        self._commit(anchor, step, write)

    def check_same_key(self, anchor: Anchor, key: Sequence[str]) -> None:
        """Refuse a `key` that is not the one of the rows of `anchor`."""
        number = self.number(anchor, key_name)
        check_same_key(self.name, self.path, key, number, f"Or keep the new key: {self.remedy}")

    def is_newest(self, anchor: Anchor) -> bool:
        """Return whether nobody has committed since `anchor`. Raises `SinkError`."""
        table = self.folder.open(self.folder.login())
        return table is not None and table.version() == anchor.version

    def rows(
        self, anchor: Anchor, columns: Sequence[str] | None = None, condition: Any = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table, or some of its columns, in batches of few rows. Raises `SinkError`.

        `condition`: which rows; None: all.
        """
        try:
            table = self._renewed(anchor).table
            assert table is not None
            types = rows_schema_of(table.schema())
            schema = types if columns is None else pa.schema([types.field(column) for column in columns])
            scanner = table.to_pyarrow_dataset(parquet_read_options=_INT96).scanner(
                columns=schema.names,
                filter=condition,
                batch_size=_READ_ROWS,
                batch_readahead=1,
                fragment_readahead=1,
                use_threads=False,
            )
            for batch in scanner.to_batches():
                yield conform(batch, schema)
        except TailerError:
            raise
        except Exception as error:
            raise self.folder.failure(error) from error

    def take_over(self, app_id: str, former: str, position: Position) -> bool:
        """Commit `position` for `app_id`, if that is later, and the table has it as the progress of `former`.

        Return whether that is so. Raises as `TargetTable.append`.
        """
        expected, table = self.position(app_id), self.folder.open(self.folder.login())
        if table is None or (expected is not None and expected >= position):
            return False
        anchor = self.anchor(app_id, rows_schema_of(table.schema()), expected)
        if anchor.table is None or position_in(anchor.table, former) != position:
            return False
        self.apply(anchor, MirrorStep(position=position), Changes(self.name, self.past))
        return True

    def number(self, anchor: Anchor, name_of: Callable[[str], str]) -> int | None:
        """Return the number that the pipeline has kept with the rows of `anchor` (`keys`). None: none, or no table."""
        if anchor.table is None:
            return None
        with self.folder.reading():
            number: int | None = anchor.table.transaction_version(name_of(_owner(anchor.app_id)))
            return number

    def _rewrite(self, anchor: Anchor, step: MirrorStep, changes: Changes) -> None:
        """Commit the rows of the table that do not change, and those that do, in place of all rows."""
        kept, counts = Spool(), Counter[int]()
        try:
            for rows, kinds in _remaining(self, anchor, step, changes):
                kept.add(rows)
                counts += kinds
            for kind in (INSERT, GONE, UPDATE, DELETE):
                count = changes.counts[kind] if kind in (UPDATE, DELETE) else 0
                if step.exact and step.snapshot is None and counts[kind] != count:
                    raise key_error(self.name, self.path, step.position.version, is_there=kind in (INSERT, GONE))

            def rows_after() -> pa.RecordBatchReader:
                batches = chain(kept.reader(anchor.schema), changes.rows(anchor.schema))
                return pa.RecordBatchReader.from_batches(anchor.schema, batches)

            self.replace_rows(anchor, step, rows_after, changes.row_bytes)
        except Misfit as misfit:
            raise SinkRejected(self.name, str(misfit), self.remedy) from misfit
        except OSError as error:
            raise SinkUnavailable(self.name, f"no room for the rows in TMPDIR: {error}") from error
        finally:
            kept.close()

    def _commit(
        self,
        anchor: Anchor,
        step: MirrorStep,
        write: Callable[[Anchor, CommitProperties], None],
    ) -> None:
        """Commit what `write` writes."""
        with self.folder.reading():
            is_removable = are_removable(anchor)
        if not is_removable:
            reason = f"delta-rs cannot remove files that Spark has written into partitions of {self.path}"
            self.folder.reject(reason, "Choose a new path.")
        app_id, pipeline = anchor.app_id, _owner(anchor.app_id)
        version = step.position.version
        names = {app_id: version, delivered_name(pipeline): 1, stream_name(app_id): stream_number(app_id)}
        if step.key:
            names[key_name(pipeline)] = key_number(step.key)
        if step.columns:
            names[columns_name(pipeline)] = key_number(step.columns)
        if step.known_from is not None:
            names[known_from_name(pipeline)] = step.known_from
        now_ms = int(time.time() * 1000)
        actions = [Transaction(name, version, now_ms) for name, version in names.items()]

        def write_alone(anchor: Anchor, commit: CommitProperties) -> None:
            # Otherwise delta-rs lets some commits of others pass: an OPTIMIZE would bring rows back that are replaced.
            commit.max_commit_retries = 0
            write(anchor, commit)

        try:
            self.commit(anchor, step.position, lambda: actions, write_alone, step.notes)
        except (SinkRejected, SinkUnavailable) as error:
            for fault in (PRESENT, ABSENT):
                if fault in error.reason:
                    raise key_error(self.name, self.path, version, is_there=fault == PRESENT) from error
            if _OVERTAKEN in error.reason:
                raise SinkUnavailable(self.name, f"another writer has changed {self.path} meanwhile") from error
            raise


def _remaining(
    table: MirrorTable, anchor: Anchor, step: MirrorStep, changes: Changes
) -> Iterator[tuple[pa.RecordBatch, Counter[int]]]:
    """Yield the rows of the table that stay, and how many change in each way."""
    past, as_texts = table.past, None
    if step.snapshot is not None and past is STATES:
        names = [name for name in past.source(anchor.schema).names if name not in step.uncompared]
        as_texts = _texts_of(StoredRows(table.name, table.path, anchor.schema), names)
        changes.compare(past.source(anchor.schema), as_texts, step.snapshot)
    for there in table.rows(anchor):
        origins = {name: name for name in there.schema.names} if step.origins is None else step.origins
        rows = reshaped(there, anchor.schema, origins)
        if past is STATES:
            is_open = rows.column(past.ended[0]).is_null()
            yield rows.filter(pc.invert(is_open)), Counter()
            rows = rows.filter(is_open)
        if not step.exact:
            rows = rows.filter(all_valid(rows.select(step.key)))
        keys = [rows.column(column) for column in step.key]
        fate = changes.met(keys, None if as_texts is None else as_texts(rows))
        yield remaining(past, rows, fate, changes.times, step.snapshot)
    if as_texts is not None:
        changes.leave_same()


def all_valid(rows: pa.RecordBatch) -> pa.Array:
    """Return which rows have a value in each column."""
    valid = rows.column(0).is_valid()
    for column in rows.columns[1:]:
        valid = pc.and_(valid, column.is_valid())
    return valid


def _texts_of(stored: StoredRows, names: Sequence[str]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return what makes texts of the values of the columns `names` of rows."""
    return lambda rows: stored.texts(rows.select(names))


def _owner(app_id: str) -> str:
    """Return the pipeline whose mirror is filled under `app_id`, which may be that of a backfill."""
    return pipeline_of(backfilled_app_id(app_id) or app_id)
