"""The table of a mirror through delta-rs; blocking, for worker threads only.

How a commit is made exactly once, says `tailer_sinks.delta.table`. A commit also fails if there is any other one since
the table was read, because all rows of the table count. So of two streams of one pipeline only one commits: those of
the ids before and after REPLACE TABLE, and that of a snapshot which an operator asked for, beside the changes.

The MERGE itself finds contradictions: where a key that must be there is missing, or one that must not be there is
found, it assigns an expression that fails. Then nothing is committed.

delta-rs keeps in memory what it merges: the changed rows several times over, and the rows of each file that may have
one of their keys, by its least and greatest keys, and has none. No option bounds that. A file is skipped only if
delta-rs knows the rows when it plans (no `streamed_exec`). So where a MERGE would take more than `_MERGE_BYTES`, the
table is read, and its other rows are written again with the changed ones, in bounded memory (invariant 7). They wait in
`TMPDIR` meanwhile. The same happens where columns are renamed, dropped or widened, which a MERGE cannot do.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tailer.errors import SinkRejected, SinkUnavailable, TailerError
from tailer.plan import Position
from tailer.sink import backfilled_app_id, pipeline_of, stream_name, stream_number
from tailer_sinks.delta.folder import TargetFolder
from tailer_sinks.delta.mirror.changes import CHANGE, DELETE, GONE, INSERT, UPDATE, Changes
from tailer_sinks.delta.mirror.columns import RESNAPSHOT, reshaped, table_schema
from tailer_sinks.delta.mirror.keys import check_same_key, key_error, key_name, key_number
from tailer_sinks.delta.mirror.paths import are_removable
from tailer_sinks.delta.schema import maps_columns, measured, partition_problems
from tailer_sinks.delta.spool import Spool
from tailer_sinks.delta.table import Anchor, TargetTable
from tailer_sinks.delta.target import MIRROR, delivered_name, table_refusal
from tailer_sinks.delta.txns import position_in
from tailer_sinks.delta.variants import has_variants, rows_schema_of, writable
from tailer_sinks.delta.writes import writing
from tailer_sinks.encoding.typed import Misfit, conform

__all__ = ["MirrorTable"]

_MERGE_BYTES: Final = 1024 * 1024 * 1024
# What delta-rs takes for a byte of Arrow memory of a changed row, for one of a row in a file without any, and for each
# of these rows besides.
_PER_CHANGED: Final = 8
_PER_OTHER: Final = 2
_PER_OTHER_ROW: Final = 64
_PER_FILE_BYTE: Final = 4  # Arrow memory for a byte of a file, if it is not known how large rows are
_READ_ROWS: Final = 8192
# Spark's OPTIMIZE writes INT96 timestamps, which are nanoseconds otherwise: too few years.
_INT96: Final[Any] = {"coerce_int96_timestamp_unit": "us"}
# A row group is in memory while it is written, and while it is read.
_GROUP_BYTES: Final = 16 * 1024 * 1024
_GROUP_ROWS: Final = 1024, 128 * 1024

# What the error of a MERGE has in it if a key is there, or is not there, against what the changes say.
_PRESENT: Final = "lake_tailer_key_is_there"
_ABSENT: Final = "lake_tailer_key_is_missing"

# What the error of a commit has in it if there is another one.
_OVERTAKEN: Final = "Failed to commit transaction: 0"

_APPEND_ONLY: Final = "delta.appendOnly"
# Features of a table that a MERGE of delta-rs upholds.
_UPHELD: Final = frozenset(
    {"appendOnly", "changeDataFeed", "checkConstraints", "invariants", "timestampNtz", "variantType"}
)


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
        """Return the same anchor for change rows of `schema`.

        Raises `SinkRejected` for columns without a type, and for other ones than those of a table with Variants.
        """
        wanted = table_schema(self.name, schema)
        if CHANGE in wanted.names:
            self.folder.reject(f"{self.path} cannot have a column {CHANGE}", "Give it another name with select.")
        if self.partition_by is not None and list(self.partition_by) != list(anchor.partition_by):
            named = ", ".join(anchor.partition_by) or "nothing"
            self.folder.reject(
                f"{self.path} is partitioned by {named}", "Set partition_by to that, or choose a new path."
            )
        if problems := partition_problems(wanted, anchor.partition_by):
            remedy = "Partition a new path by columns of type string, date, boolean or an integer type."
            self.folder.reject(f"{self.path} cannot have this partitioning: {', '.join(problems)}", remedy)
        if anchor.table is None:
            return replace(anchor, schema=wanted, merge=False)
        there = rows_schema_of(anchor.table.schema())
        if (has_variants(there) or has_variants(wanted)) and _types(there) != _types(wanted):
            reason = f"{self.path} has or gets Variants, and other columns, which delta-rs cannot commit with the rows"
            self.folder.reject(reason, "Choose a new path.")
        return replace(anchor, schema=wanted, merge=set(wanted.names) != set(there.names))

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
        self,
        anchor: Anchor,
        position: Position,
        rows: Callable[[], pa.RecordBatchReader],
        row_bytes: int | None,
        key: Sequence[str],
        notes: Sequence[str],
    ) -> None:
        """Commit `rows` in place of all rows, with their columns, and `position`. Raises as `TargetTable.append`.

        `row_bytes`: the Arrow memory of a row, about; None: not known. `key`: of the rows.
        """

        def write(at: Anchor, commit: CommitProperties) -> None:
            assert at.table is not None
            write_deltalake(
                at.table,
                writable(rows()),
                mode="overwrite",
                schema_mode=None if has_variants(at.schema) else "overwrite",
                partition_by=list(at.partition_by) or None,
                writer_properties=writing(_measured(anchor.schema), _group_rows(row_bytes)),
                commit_properties=commit,
            )

        self._commit(anchor, position, write, key, notes)

    def apply(
        self,
        anchor: Anchor,
        position: Position,
        changes: Changes,
        key: Sequence[str],
        origins: Mapping[str, str] | None,
        notes: Sequence[str],
        *,
        exact: bool = True,
    ) -> None:
        """Commit reduced `changes` and `position`. Raises as `TargetTable.append`.

        `origins`: the name in the table of each column that it has; None: columns may be new, and all others stay.
        `exact`: False, if the table may have a changed key twice, or rows without a key: all these are replaced.
        """
        merges = exact and origins is None  # otherwise bounds of files may have the former types of columns
        if not merges or (changes.counts and _merge_bytes(self.folder, anchor, changes, key) > _MERGE_BYTES):
            self._rewrite(anchor, position, changes, key, origins, notes, exact=exact)
            return

        def write(at: Anchor, commit: CommitProperties) -> None:
            assert at.table is not None
            if not (changes.counts and _merge(at, changes, key, commit)):
                write_deltalake(
                    at.table,
                    pa.RecordBatchReader.from_batches(at.schema, []),
                    mode="append",
                    schema_mode="merge" if at.merge else None,
                    commit_properties=commit,
                )

        self._commit(anchor, position, write, key, notes)

    def check_same_key(self, anchor: Anchor, key: Sequence[str]) -> None:
        """Refuse a `key` that is not the one of the rows of `anchor`."""
        check_same_key(self.name, self.path, key, self.key_number(anchor))

    def key_number(self, anchor: Anchor) -> int | None:
        """Return the number of the key of the rows of `anchor` (`keys`). None: no commit has it, or no table."""
        if anchor.table is None:
            return None
        with self.folder.reading():
            return anchor.table.transaction_version(key_name(_owner(anchor.app_id)))

    def is_newest(self, anchor: Anchor) -> bool:
        """Return whether nobody has committed since `anchor`. Raises `SinkError`."""
        table = self.folder.open(self.folder.login())
        return table is not None and table.version() == anchor.version

    def rows(self, anchor: Anchor, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table, or some of its columns, in batches of few rows. Raises `SinkError`."""
        try:
            table = self._renewed(anchor).table
            assert table is not None
            types = rows_schema_of(table.schema())
            schema = types if columns is None else pa.schema([types.field(each) for each in columns])
            scanner = table.to_pyarrow_dataset(parquet_read_options=_INT96).scanner(
                columns=schema.names, batch_size=_READ_ROWS, batch_readahead=1, fragment_readahead=1, use_threads=False
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
        self.apply(anchor, position, Changes(self.name), (), None, ())
        return True

    def _rewrite(
        self,
        anchor: Anchor,
        position: Position,
        changes: Changes,
        key: Sequence[str],
        origins: Mapping[str, str] | None,
        notes: Sequence[str],
        *,
        exact: bool,
    ) -> None:
        """Commit the rows of the table that do not change, and those that do, in place of all rows."""
        kept, met = Spool(), Counter[int]()
        try:
            for there in self.rows(anchor):
                names = {each: each for each in there.schema.names} if origins is None else origins
                rows = reshaped(there, anchor.schema, names)
                keys = [rows.column(column) for column in key]
                changed, kinds = changes.met(keys)
                met += kinds
                for column in () if exact else keys:
                    changed = pc.or_(changed, column.is_null())
                kept.add(rows.filter(pc.invert(changed)))
            for kind in (INSERT, GONE, UPDATE, DELETE):
                count = changes.counts[kind] if kind in (UPDATE, DELETE) else 0
                if exact and met[kind] != count:
                    raise key_error(self.name, self.path, position.version, is_there=kind in (INSERT, GONE))

            def rows_after() -> pa.RecordBatchReader:
                batches = chain(kept.reader(anchor.schema), changes.rows(anchor.schema))
                return pa.RecordBatchReader.from_batches(anchor.schema, batches)

            self.replace_rows(anchor, position, rows_after, changes.row_bytes, key, notes)
        except Misfit as misfit:
            raise SinkRejected(self.name, str(misfit), RESNAPSHOT) from misfit
        except OSError as error:
            raise SinkUnavailable(self.name, f"no room for the rows in TMPDIR: {error}") from error
        finally:
            kept.close()

    def _commit(
        self,
        anchor: Anchor,
        position: Position,
        write: Callable[[Anchor, CommitProperties], None],
        key: Sequence[str],
        notes: Sequence[str],
    ) -> None:
        """Commit what `write` writes. `key`: of the rows; none: it stays as it is."""
        with self.folder.reading():
            is_removable = are_removable(anchor)
        if not is_removable:
            reason = f"delta-rs cannot remove files that Spark has written into partitions of {self.path}"
            self.folder.reject(reason, "Choose a new path.")
        now_ms, pipeline = int(time.time() * 1000), _owner(anchor.app_id)
        names = {anchor.app_id: position.version, delivered_name(pipeline): 1}
        names[stream_name(anchor.app_id)] = stream_number(anchor.app_id)
        if key:
            names[key_name(pipeline)] = key_number(key)
        actions = [Transaction(name, version, now_ms) for name, version in names.items()]

        def write_alone(at: Anchor, commit: CommitProperties) -> None:
            # Otherwise delta-rs lets some commits of others pass: an OPTIMIZE would bring rows back that are replaced.
            commit.max_commit_retries = 0
            write(at, commit)

        try:
            self.commit(anchor, position, lambda: actions, write_alone, notes)
        except (SinkRejected, SinkUnavailable) as error:
            for fault in (_PRESENT, _ABSENT):
                if fault in error.reason:
                    raise key_error(self.name, self.path, position.version, is_there=fault == _PRESENT) from error
            if _OVERTAKEN in error.reason:
                raise SinkUnavailable(self.name, f"another writer has changed {self.path} meanwhile") from error
            raise


def _merge(at: Anchor, changes: Changes, key: Sequence[str], commit: CommitProperties) -> bool:
    """Merge `changes`. Return False if there is no commit, because the table stays as it is."""
    assert at.table is not None
    before, change = at.table.version(), f"source.{_quoted(CHANGE)}"
    values = {_quoted(each): f"source.{_quoted(each)}" for each in at.schema.names}
    merger = at.table.merge(
        writable(changes.merged(at.schema)),
        " AND ".join(f"target.{_quoted(each)} = source.{_quoted(each)}" for each in key),
        source_alias="source",
        target_alias="target",
        merge_schema=at.merge,
        streamed_exec=False,
        writer_properties=writing(_measured(at.schema), _group_rows(changes.row_bytes)),
        commit_properties=commit,
    )
    merger = merger.when_matched_update(values, f"{change} = {UPDATE}")
    merger = merger.when_matched_delete(f"{change} = {DELETE}")
    merger = merger.when_matched_update(values | _failing(key[0], _PRESENT), f"{change} IN ({INSERT}, {GONE})")
    merger = merger.when_not_matched_insert(values, f"{change} = {INSERT}")
    merger = merger.when_not_matched_insert(values | _failing(key[0], _ABSENT), f"{change} IN ({UPDATE}, {DELETE})")
    merger.execute()
    return at.table.version() > before


def _owner(app_id: str) -> str:
    """Return the pipeline whose mirror is filled under `app_id`, which may be that of a backfill."""
    return pipeline_of(backfilled_app_id(app_id) or app_id)


def _failing(column: str, text: str) -> dict[str, str]:
    """Return an assignment that fails with `text` for every row for which it is made."""
    name = _quoted(column)
    number = f"CAST(concat('{text}', CAST(source.{_quoted(CHANGE)} AS VARCHAR)) AS INT)"
    return {name: f"CASE WHEN {number} = 0 THEN NULL ELSE source.{name} END"}


def _merge_bytes(folder: TargetFolder, anchor: Anchor, changes: Changes, key: Sequence[str]) -> int:
    """Estimate the memory that a MERGE takes."""
    assert anchor.table is not None
    with folder.reading():
        files = pa.table(anchor.table.get_add_actions(flatten=True))
    for column, (least, greatest) in zip(key, changes.bounds(), strict=True):
        files = files.filter(_may_have(files, column, least, greatest))
    row_bytes = changes.row_bytes
    size: int = pc.sum(files["size_bytes"]).as_py() or 0
    rows: int = pc.sum(files["num_records"]).as_py() or 0
    others = size * _PER_FILE_BYTE if row_bytes is None else max(rows * row_bytes, size)
    return changes.size_bytes * _PER_CHANGED + others * _PER_OTHER + rows * _PER_OTHER_ROW


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


def _group_rows(row_bytes: int | None) -> int:
    least, most = _GROUP_ROWS
    return max(least, min(most, _GROUP_BYTES // max(row_bytes or 1024, 1)))


def _measured(schema: pa.Schema) -> list[str]:
    """Return the columns with statistics: no dates, as a MERGE writes rows again whose dates may be far ones."""
    return [name for name in measured(schema) if schema.field(name).type != pa.date32()]


def _types(schema: pa.Schema) -> dict[str, pa.DataType]:
    return {each.name: each.type for each in schema}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
