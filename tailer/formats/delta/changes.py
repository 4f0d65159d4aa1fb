r"""The rules of the change data feed: from a commit and the states around it to a `ChangePlan`. Pure; no I/O.

In order (PROTOCOL.md, "Add CDC File", "Change Data Files", "Deletion Vectors"):

1. A commit with `cdc` actions lists its changes: only those files are read. Their `delete` rows come first, then all
   other rows in file order, so that both images of an update stay together.
2. A MERGE whose metrics report no changed row may still have rewritten files. It changed nothing.
3. Otherwise added and removed files with `dataChange` are compared, by the path as written in the log:

   | remove | add  | deleted rows | inserted rows |
   |--------|------|--------------|---------------|
   | -      | A    |              | all \ A      |
   | R      | -    | all \ R     |               |
   | R      | A    | A \ R       | R \ A        |

   where A and R are the rows marked by the deletion vectors (none: the empty set). Deletes come before inserts.

Deleted rows have the columns and the partitioning of the table before the commit, also where the commit replaces the
table (REPLACE TABLE). All other rows have those after the commit.

These rules apply whether or not the feed is enabled. Without the feed a writer writes no `cdc` actions, and each
unchanged row of its rewritten files appears as a delete and an insert. `tailer.changelog.carryovers` removes these.
With `compare`, rule 3 alone applies to every version.
"""

import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from operator import attrgetter
from typing import Final, TypeAlias, TypeVar

from tailer.errors import ChangesUnavailable, FileOutsideTable, LogCorrupt, UnsupportedFeature
from tailer.files.deletion_vector import z85_decode
from tailer.formats.delta.log.actions import (
    AddFile,
    AddWithStatistics,
    CdcFile,
    Commit,
    DeletionVector,
    RemoveFile,
    RemoveWithStatistics,
)
from tailer.formats.delta.log.listing import commit_name
from tailer.formats.delta.log.paths import locate
from tailer.formats.delta.log.removes import file_key
from tailer.formats.delta.snapshot import Snapshot
from tailer.plan import (
    SNAPSHOT_TASKS,
    ChangePlan,
    ChangeTask,
    DeletionVectorRef,
    Regime,
    RowTracking,
    TaskKind,
)
from tailer.schema.columns import dropped_column, physical_name
from tailer.schema.identity import identified, renewed
from tailer.stores.location import is_readable

__all__ = ["plan_changes", "plan_snapshot", "reads_data_files", "resolve"]

STORAGE_TYPES: Final = frozenset("uip")
_UUID_CHARACTERS: Final = 20


def resolve(vector: DeletionVector, root: str, absolute: Callable[[str], str]) -> DeletionVectorRef:
    """Make a descriptor independent of its table. `absolute` resolves a path of the log, as for data files.

    Its storage type is one of `STORAGE_TYPES`. Raises `ValueError` for a descriptor that the protocol does not define.
    """
    size, count = vector.size_in_bytes, vector.cardinality
    match vector.storage_type:
        case "i":
            return DeletionVectorRef(None, vector.path_or_inline_dv, None, size, count)
        case "p":
            return DeletionVectorRef(absolute(vector.path_or_inline_dv), None, vector.offset, size, count)
        case _:
            text = vector.path_or_inline_dv
            prefix, encoded = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
            name = f"deletion_vector_{uuid.UUID(bytes=z85_decode(encoded, 16))}.bin"
            if "\0" in prefix or ".." in prefix.split("/"):
                raise ValueError(f"{prefix!r} is not a folder of the table")
            return DeletionVectorRef("/".join(filter(None, (root, prefix, name))), None, vector.offset, size, count)


_MERGE_METRICS: Final = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
# Of Spark, Databricks and delta-rs.
_OF_WHOLE_WRITES: Final = frozenset(["mode", "partitionBy", "canMergeSchema", "canOverwriteSchema", "statsOnLoad"])
File = TypeVar("File", AddFile, RemoveFile, CdcFile)
Key = TypeVar("Key", bound=Hashable)
_Paths: TypeAlias = tuple[tuple[str, ...], ...]


def plan_changes(
    commit: Commit,
    before: Snapshot | None,
    state: Snapshot,
    root: str,
    allowed_roots: tuple[str, ...] = (),
    *,
    compare: bool = False,
) -> ChangePlan:
    """Plan the changes of `commit`, which led from `before` (None: no table) to `state`. `root`: the table's location.

    `allowed_roots`: other locations that its files may be in; anywhere else is a `FileOutsideTable`. `compare`: whether
    to plan it by the files that it adds and removes, whatever is recorded of its changes (`ChangePlan.compared`).

    Its removes are complete (`tailer.formats.delta.log.removes`). Where several are of one path, the first goes with
    the add.

    Raises `LogCorrupt` for two adds or two cdcs of one path, two removes of one path and deletion vector, a file of a
    table without columns, or an invalid descriptor, and `UnsupportedFeature` for a descriptor of a newer form. Raises
    `ChangesUnavailable` where a removed file's partition values are not known, or where the commit drops a column that
    its change files may have.
    """
    numbers = count()
    new = _TaskMaker(state, state, root, allowed_roots, numbers)
    if commit.cdcs and not compare:
        dropped = None if before is None else dropped_column(*identified([before.schema, state.schema]))
        if dropped is not None:
            reason = f"it drops column {dropped}, which its change files may still have"
            raise ChangesUnavailable(state.table, state.version, reason)
        files = _by_key(commit.cdcs, state, "cdc", attrgetter("path")).values()
        deletes = [new.cdc(file, TaskKind.CDC_DELETES) for file in files]
        others = [new.cdc(file, TaskKind.CDC_OTHERS) for file in files]
        return _plan(commit, before, state, Regime.CDC, deletes + others)
    adds = _by_key([add for add in commit.adds if add.data_change], state, "add", attrgetter("path"))
    removes = _by_key([remove for remove in commit.removes if remove.data_change], state, "remove", file_key).values()
    if not reads_data_files(commit, compare) or not (adds or removes):
        return _plan(commit, before, state, Regime.NONE, [])
    old = _TaskMaker(before or state, state, root, allowed_roots, numbers) if removes else new
    paired = {remove.path: remove for remove in reversed(removes)}
    deleted = (
        task
        for remove in removes
        for task in old.deleted(remove, adds.get(remove.path) if paired[remove.path] is remove else None)
    )
    inserted = (task for path, add in adds.items() for task in new.inserted(add, paired.get(path)))
    plan = _plan(commit, before, state, Regime.FILES, chain(deleted, inserted))
    has_feed = commit.cdcs or (state.feed_enabled and removes)
    return replace(plan, compared=True) if compare and has_feed else plan


def plan_snapshot(
    files: Sequence[AddFile], first: int, state: Snapshot, root: str, allowed_roots: tuple[str, ...] = ()
) -> ChangePlan:
    """Plan the rows of the table at `state` as inserts. `files`: some of its live files, from the `first`th on."""
    make = _TaskMaker(state, state, root, allowed_roots, count(SNAPSHOT_TASKS + first))
    tasks = (task for add in files for task in make.inserted(add, None))
    return _plan(None, state, state, Regime.SNAPSHOT, tasks)


def reads_data_files(commit: Commit, compare: bool = False) -> bool:
    """Return whether the changes of `commit` are in the files that it adds and removes.

    They are not where it has change files, or is a MERGE that reports no inserted, updated or deleted row. A missing
    metric proves nothing, and with `compare` nothing does.
    """
    info = commit.info
    if compare or commit.cdcs:
        return compare
    if info is None or info.operation != "MERGE" or not isinstance(info.operation_metrics, dict):
        return True
    metrics = info.operation_metrics
    return any(metrics.get(name) != "0" for name in _MERGE_METRICS)


def _by_key(files: Sequence[File], state: Snapshot, action: str, key: Callable[[File], Key]) -> dict[Key, File]:
    by_key = {key(file): file for file in files}
    if len(by_key) != len(files):
        duplicate = next(file.path for file in files if by_key[key(file)] is not file)
        raise _corrupt(state, f"two {action} actions for {duplicate}")
    return by_key


def _corrupt(state: Snapshot, reason: str) -> LogCorrupt:
    return LogCorrupt(state.table, commit_name(state.version), reason, state.version)


def _plan(
    commit: Commit | None, before: Snapshot | None, state: Snapshot, regime: Regime, tasks: Iterable[ChangeTask]
) -> ChangePlan:
    operation = commit.info.operation_name if commit is not None and commit.info is not None else None
    replaced: _Paths = ()
    widened: _Paths = ()
    if (
        commit is not None
        and before is not None
        and before.schema is not state.schema
        and before.metadata.id == state.metadata.id
        and not _overwrites_all(commit)  # which removes all rows with the columns from before, as REPLACE TABLE does
    ):
        replaced, widened = renewed(before.schema, state.schema)
    return ChangePlan(
        table=state.table,
        table_id=state.metadata.id,
        version=state.version,
        timestamp_ms=state.timestamp_ms,
        operation=operation,
        regime=regime,
        schema=state.schema,
        tasks=tuple(tasks),
        feed=state.feed_enabled,
        replaced=replaced,
        widened=widened,
    )


def _overwrites_all(commit: Commit) -> bool:
    """Return whether a commit is a write that says that it overwrites all rows.

    Writes of a part, of some partitions or rows that fulfil a predicate, have parameters that say which. They can widen
    columns, too, and those of delta-rs replace the whole schema.
    """
    info = commit.info
    if info is None or info.operation_name != "WRITE" or not isinstance(info.operation_parameters, dict):
        return False
    parameters = {name: value for name, value in info.operation_parameters.items() if value is not None}
    overwrites = parameters.get("mode") == "Overwrite" and parameters.keys() <= _OF_WHOLE_WRITES
    return overwrites and any(remove.data_change for remove in commit.removes)


@dataclass(frozen=True, slots=True)
class _TaskMaker:
    """Builds tasks of the version that led to `state`, for files written with the schema of state `at`.

    Tasks get the next of `numbers`, so they must be built in the order of the plan.
    """

    at: Snapshot
    state: Snapshot
    root: str
    allowed_roots: tuple[str, ...]
    numbers: Iterator[int]
    partitions: tuple[str, ...] = field(init=False)
    tracked: tuple[str | None, str | None] | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "partitions", self.at.partition_names)
        object.__setattr__(self, "tracked", self.at.tracked_columns)

    def cdc(self, file: CdcFile, kind: TaskKind) -> ChangeTask:
        """Build a task for the rows of a change file that are of `kind`."""
        return self._task(kind, file, file.partition_values)

    def deleted(self, remove: RemoveFile, add: AddFile | None) -> list[ChangeTask]:
        """Build tasks for the rows that `remove` deleted. `add`: the file's new state, if it stays."""
        values = remove.partition_values or {}
        missing = next((name for name in self.partitions if name not in values), None)
        if missing is not None:
            column = self._column(missing)
            reason = f"the remove of {remove.path} has no value of {column}, and no add of it is in the log"
            raise ChangesUnavailable(self.state.table, self.state.version, reason)
        before = self._vector(remove.deletion_vector)
        after = self._vector(add.deletion_vector) if add is not None else None
        if add is not None and (after is None or after == before):
            return []
        return [self._task(TaskKind.DELETE, remove, values, include=after, exclude=before)]

    def inserted(self, add: AddFile, remove: RemoveFile | None) -> list[ChangeTask]:
        """Build tasks for the rows that `add` inserted. `remove`: the file's old state, if it had one."""
        after = self._vector(add.deletion_vector)
        before = self._vector(remove.deletion_vector) if remove is not None else None
        if remove is not None and (before is None or after == before):
            return []
        return [self._task(TaskKind.INSERT, add, add.partition_values, include=before, exclude=after)]

    def _column(self, stored: str) -> str:
        """Return the name of the column that the log knows by a name, or that name."""
        return next((column.name for column in self.at.schema if physical_name(column) == stored), stored)

    def _task(
        self,
        kind: TaskKind,
        file: AddFile | RemoveFile | CdcFile,
        partition_values: dict[str, str | None],
        include: DeletionVectorRef | None = None,
        exclude: DeletionVectorRef | None = None,
    ) -> ChangeTask:
        state = self.state
        if not self.at.schema.names:
            # A later schema would show columns of rows that were delivered without any.
            reason = f"{file.path} belongs to a table that has no columns"
            raise _corrupt(state, reason)
        for name in partition_values:
            if name not in self.partitions:
                reason = f"{file.path} has a value for {self._column(name)}, which is not a partition column"
                raise _corrupt(state, reason)
        tracking = None
        if self.tracked is not None and not isinstance(file, CdcFile):
            tracking = RowTracking(file.base_row_id, file.default_row_commit_version, *self.tracked)
        stats = file.stats if isinstance(file, AddWithStatistics | RemoveWithStatistics) else None
        return ChangeTask(
            table=state.table,
            table_id=state.metadata.id,
            version=state.version,
            timestamp_ms=state.timestamp_ms,
            index=next(self.numbers),
            kind=kind,
            uri=self._locate(file.path),
            size_bytes=file.size or 0,
            schema=self.at.schema,
            # Spark leaves nulls out of actions that it derives from its own state.
            partition_values=tuple((dict.fromkeys(self.partitions) | partition_values).items()),
            include=include,
            exclude=exclude,
            tracking=tracking,
            logged=file.path if "%" in file.path else None,
            stats=stats if isinstance(stats, str) else None,
        )

    def _locate(self, path: str) -> str:
        try:
            location = locate(path, self.root)
        except ValueError as error:
            raise _corrupt(self.state, f"path {path!r}: {error}") from error
        if not location.startswith(tuple(f"{root.rstrip('/')}/" for root in (self.root, *self.allowed_roots))):
            raise FileOutsideTable(self.state.table, self.state.version, location, is_readable(location))
        return location

    def _vector(self, vector: DeletionVector | None) -> DeletionVectorRef | None:
        if vector is None or vector.cardinality == 0:
            return None
        if vector.storage_type not in STORAGE_TYPES:
            form = f"deletion vectors of storage type {vector.storage_type!r}"
            raise UnsupportedFeature(self.state.table, form, self.state.version)
        try:
            return resolve(vector, self.root, self._locate)
        except ValueError as error:
            raise _corrupt(self.state, f"deletion vector: {error}") from error
