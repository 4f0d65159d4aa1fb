"""The rules of the change feed: a commit, and the state it led to, become a `ChangePlan`. Pure; no I/O.

In order (PROTOCOL.md, "Add CDC File", "Change Data Files", "Deletion Vectors"):

1. A commit with `cdc` actions says itself what changed: those files, and nothing else, are read. Their `delete` rows
   come first, then all others in file order, so that both images of an update stay together.
2. A MERGE whose metrics say that it changed no row may still have rewritten files: nothing changed.
3. Otherwise added and removed files with `dataChange` are compared, by the path as written in the log:

   | remove | add  | deleted rows | inserted rows |
   |--------|------|--------------|---------------|
   | -      | A    |              | all \\ A      |
   | R      | -    | all \\ R     |               |
   | R      | A    | A \\ R       | R \\ A        |

   where A and R are the rows marked by the deletion vectors (none: the empty set). Deletes come before inserts.

Whether the feed was enabled does not matter here: a writer that had it off wrote no `cdc` actions, and its rewritten
files carry unchanged rows over as a delete and an insert.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from urllib.parse import unquote

from tailer.delta import deletion_vector
from tailer.delta.actions import AddFile, CdcFile, Commit, DeletionVector, RemoveFile
from tailer.delta.schema import physical_name
from tailer.delta.snapshot import Snapshot
from tailer.errors import ChangesUnavailable, LogCorrupt
from tailer.plan import SNAPSHOT_TASKS, ChangePlan, ChangeTask, DeletionVectorRef, Regime, TaskKind

__all__ = ["locate", "plan_changes", "plan_snapshot"]

_MERGE_METRICS: Final = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
File = TypeVar("File", AddFile, RemoveFile, CdcFile)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def plan_changes(commit: Commit, state: Snapshot, root: str, storage: str | None = None) -> ChangePlan:
    """What `commit` changed. `state` is the table's at that version, `root` its location.

    Raises `LogCorrupt` for two adds, two removes or two cdcs of one path, or a broken descriptor; `ChangesUnavailable`
    where a removed file's partition values are not in the log.
    """
    make = _TaskMaker(state, root, storage, _partition_names(state))
    if commit.cdcs:
        files = _by_path(commit.cdcs, state, "cdc").values()
        deletes = [make.cdc(file, TaskKind.CDC_DELETES) for file in files]
        return make.plan(commit, Regime.CDC, deletes + [make.cdc(file, TaskKind.CDC_OTHERS) for file in files])
    adds = _by_path([add for add in commit.adds if add.data_change], state, "add")
    removes = _by_path([remove for remove in commit.removes if remove.data_change], state, "remove")
    if _changed_nothing(commit) or not (adds or removes):
        return make.plan(commit, Regime.NONE, [])
    tasks: list[ChangeTask] = []
    for path, remove in removes.items():
        tasks.extend(make.deleted(remove, adds.get(path)))
    for path, add in adds.items():
        tasks.extend(make.inserted(add, removes.get(path)))
    return make.plan(commit, Regime.FILES, tasks)


def plan_snapshot(files: Iterable[AddFile], state: Snapshot, root: str, storage: str | None = None) -> ChangePlan:
    """All rows of the table at `state` as inserts. `files` are its live files."""
    make = _TaskMaker(state, root, storage, _partition_names(state))
    ordered = sorted(files, key=lambda add: (add.modification_time, add.path))
    tasks = [task for add in ordered for task in make.inserted(add, None)]
    return make.plan(None, Regime.SNAPSHOT, tasks)


def locate(path: str, root: str) -> str:
    """Where a path of the log points: percent-decoded once; joined to the table's root unless it is absolute."""
    if path.startswith("file:"):
        return "/" + unquote(path.removeprefix("file:")).lstrip("/")
    if _SCHEME.match(path) or path.startswith("/"):
        return unquote(path)
    return f"{root}/{unquote(path)}"


def _changed_nothing(commit: Commit) -> bool:
    """Whether this is a MERGE that says it inserted, updated and deleted no row. A missing metric proves nothing."""
    info = commit.info
    if info is None or info.operation != "MERGE" or not isinstance(info.operation_metrics, dict):
        return False
    metrics = info.operation_metrics
    return all(metrics.get(name) == "0" for name in _MERGE_METRICS)


def _by_path(files: Sequence[File], state: Snapshot, action: str) -> dict[str, File]:
    found = {file.path: file for file in files}
    if len(found) != len(files):
        twice = next(path for path, count in Counter(file.path for file in files).items() if count > 1)
        name = f"_delta_log/{state.version:020d}.json"
        raise LogCorrupt(state.table, name, f"two {action} actions for {twice}", state.version)
    return found


def _partition_names(state: Snapshot) -> tuple[str, ...]:
    return tuple(physical_name(field) for field in state.schema if field.name in state.metadata.partition_columns)


@dataclass(frozen=True, slots=True)
class _TaskMaker:
    """Builds the tasks of one version. `partitions` are the physical names of the partition columns."""

    state: Snapshot
    root: str
    storage: str | None
    partitions: tuple[str, ...]

    def plan(self, commit: Commit | None, regime: Regime, tasks: list[ChangeTask]) -> ChangePlan:
        """Number the tasks, in the order given."""
        first = SNAPSHOT_TASKS if regime is Regime.SNAPSHOT else 0
        numbered = tuple(replace(task, index=first + index) for index, task in enumerate(tasks))
        state = self.state
        operation = commit.info.operation_name if commit is not None and commit.info is not None else None
        return ChangePlan(
            table=state.table,
            table_id=state.metadata.id,
            version=state.version,
            timestamp_ms=state.timestamp_ms,
            operation=operation,
            regime=regime,
            schema=state.schema,
            tasks=numbered,
        )

    def cdc(self, file: CdcFile, kind: TaskKind) -> ChangeTask:
        """Some rows of a change file."""
        return self._task(kind, file.path, file.size, file.partition_values)

    def deleted(self, remove: RemoveFile, add: AddFile | None) -> list[ChangeTask]:
        """The rows that `remove` deleted, given the file's new state if it stays."""
        if self.partitions and remove.partition_values is None:
            reason = f"the remove of {remove.path} has no partition values, so its rows cannot be told"
            raise ChangesUnavailable(self.state.table, self.state.version, reason)
        before = self._vector(remove.deletion_vector)
        after = self._vector(add.deletion_vector) if add is not None else None
        if add is not None and (after is None or after == before):
            return []
        size, values = remove.size or 0, remove.partition_values or {}
        return [self._task(TaskKind.DELETE, remove.path, size, values, include=after, exclude=before)]

    def inserted(self, add: AddFile, remove: RemoveFile | None) -> list[ChangeTask]:
        """The rows that `add` inserted, given the file's old state if it was there before."""
        after = self._vector(add.deletion_vector)
        before = self._vector(remove.deletion_vector) if remove is not None else None
        if remove is not None and (before is None or after == before):
            return []
        return [self._task(TaskKind.INSERT, add.path, add.size, add.partition_values, include=before, exclude=after)]

    def _task(
        self,
        kind: TaskKind,
        path: str,
        size_bytes: int,
        partition_values: dict[str, str | None],
        include: DeletionVectorRef | None = None,
        exclude: DeletionVectorRef | None = None,
    ) -> ChangeTask:
        state = self.state
        return ChangeTask(
            table=state.table,
            table_id=state.metadata.id,
            version=state.version,
            timestamp_ms=state.timestamp_ms,
            index=0,
            kind=kind,
            uri=locate(path, self.root),
            size_bytes=size_bytes,
            schema=state.schema,
            partition_values=tuple(self._all_values(partition_values).items()),
            include=include,
            exclude=exclude,
            storage=self.storage,
        )

    def _all_values(self, given: dict[str, str | None]) -> dict[str, str | None]:
        """A value for every partition column: Spark leaves nulls out of actions that it made from its own state.

        Where the commit changed the partitioning, a removed file was written for other partition columns and holds
        today's itself, so nothing is made up for it.
        """
        return given if self.state.repartitioned else dict.fromkeys(self.partitions) | given

    def _vector(self, vector: DeletionVector | None) -> DeletionVectorRef | None:
        if vector is None or vector.cardinality == 0:
            return None
        try:
            return deletion_vector.resolve(vector, self.root, lambda path: locate(path, self.root))
        except ValueError as error:
            name = f"_delta_log/{self.state.version:020d}.json"
            raise LogCorrupt(self.state.table, name, f"deletion vector: {error}", self.state.version) from error
