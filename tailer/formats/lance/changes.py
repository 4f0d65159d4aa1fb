"""From one version of a dataset to the next: which rows of which fragments changed. Pure; no I/O, and no row is read.

The fragments of both versions are compared by id (Lance format, "Fragments"):

    only before                                   its rows are deleted
    only after                                    its rows are inserted
    both, without a common data file              deleted and inserted: old writers use ids again
    both, a column in another file                each row is deleted and inserted, and compared by its row id
    both, other deletion files                    what is deleted now is deleted, what is no longer is inserted
    both, only new columns                        no row changes

A row id makes a deleted and an inserted row of one version the images of an update, or no change if they are equal: the
row only moved (`ChangePlan.paired`). Datasets with stable row ids have them for all rows. In others, the address of a
row is its id as long as its fragment stays. All other rows that a version deletes and inserts with equal values cancel
out (`tailer.changelog`), as those of rewritten files of a Delta table do.

Operations that only move rows, or touch none, are not looked at. An operation that is not known proves nothing: then
the rows are compared.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyroaring import BitMap

from tailer.formats.lance.fragment import DataFile, Fragment
from tailer.formats.lance.manifest import Manifest
from tailer.formats.lance.schema import ColumnNames
from tailer.plan import SNAPSHOT_TASKS, ChangePlan, ChangeTask, FragmentRef, Regime, RowTracking, TaskKind
from tailer.schema.identity import renewed

__all__ = ["Deletions", "Version", "deletion_files", "plan_changes", "plan_snapshot"]

Deletions = Mapping[int, BitMap]  # offsets of deleted rows, by fragment

_QUIET: Final = frozenset(
    {
        "Rewrite",
        "CreateIndex",
        "UpdateConfig",
        "ReserveFragments",
        "UpdateMemWalState",
        "UpdateBases",
        "Clone",
    }
)
_ANY_ROWS: Final = 2**32  # the most that a fragment can have
_READER: Final = "lance"  # the name of the format, by which other processes find its reader
_SMALL_ROWS: Final = 1024
_SMALL_BYTES: Final = 64 * 2**10
_READABLE_ALONE: Final = 2  # version of the files that name their columns themselves
_ROW_ID: Final = RowTracking(id_column="_rowid")


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the dataset at `uri`. `schema`: with physical names, as in `ChangeTask.schema`.

    `stable_ids`: whether rows keep their ids when they move. `is_plain`: see `is_plain` of the schema.
    """

    uri: str
    table_id: str
    manifest: Manifest
    schema: pa.Schema
    names: ColumnNames
    fragments: Mapping[int, Fragment]
    stable_ids: bool
    is_plain: bool


def deletion_files(before: Version | None, after: Version, operation: str | None) -> Iterator[tuple[Version, Fragment]]:
    """Yield each fragment whose deletion file `plan_changes` needs, with its version."""
    if before is not None and operation not in _QUIET:
        columns = _common_columns(before, after)
        for number in _differing(before.fragments, after.fragments):
            old, new = before.fragments.get(number), after.fragments.get(number)
            if old is None or new is None or _is_rewritten(old, new, columns):
                continue
            if old.deletion != new.deletion:
                yield from (side for side in ((before, old), (after, new)) if side[1].deletion)


def plan_changes(
    before: Version | None, after: Version, operation: str | None, deleted: Deletions, remains: Deletions
) -> ChangePlan:
    """Plan the changes from `before` (None: no dataset) to `after`, which `operation` made; None: not known.

    `deleted`, `remains`: the deleted offsets before and after, of the fragments that `deletion_files` names.
    """
    # The first version of a clone has all rows, though a clone is an operation that changes none.
    if before is not None and operation in _QUIET:
        return _plan(after, operation, Regime.NONE, [])
    old, new = {} if before is None else before.fragments, after.fragments
    tracked = before is not None and before.stable_ids and after.stable_ids
    columns = frozenset() if before is None else _common_columns(before, after)
    deletes: list[ChangeTask] = []
    inserts: list[ChangeTask] = []
    for number in _differing(old, new):
        was, now = old.get(number), new.get(number)
        if before is None or was is None:
            assert now is not None, "it is in one of the two"
            inserts.append(_task(after, after, now, TaskKind.INSERT, None, tracked))
        elif now is None:
            deletes.append(_task(before, after, was, TaskKind.DELETE, None, tracked))
        elif _is_rewritten(was, now, columns):
            by_address = tracked or not _is_replaced(was, now)
            deletes.append(_task(before, after, was, TaskKind.DELETE, None, by_address))
            inserts.append(_task(after, after, now, TaskKind.INSERT, None, by_address))
        elif was.deletion != now.deletion:
            first, last = deleted.get(number, BitMap()), remains.get(number, BitMap())
            if gone := last - first:
                deletes.append(_task(before, after, was, TaskKind.DELETE, gone, tracked))
            if back := first - last:
                inserts.append(_task(after, after, now, TaskKind.INSERT, back, tracked))
    tasks = deletes + inserts
    plan = _plan(after, operation, Regime.FILES if tasks else Regime.NONE, tasks)
    if before is None or before.schema is after.schema or old.keys().isdisjoint(new):
        return plan
    replaced, widened = renewed(before.schema, after.schema)
    return replace(plan, replaced=replaced, widened=widened)


def plan_snapshot(version: Version, first: int, fragments: list[Fragment]) -> ChangePlan:
    """Plan the rows of some fragments as inserts, from task `first` on."""
    tasks = [_task(version, version, fragment, TaskKind.INSERT, None, version.stable_ids) for fragment in fragments]
    return replace(_plan(version, None, Regime.SNAPSHOT, tasks, SNAPSHOT_TASKS + first), paired=False)


def _differing(old: Mapping[int, Fragment], new: Mapping[int, Fragment]) -> list[int]:
    """Return the ids of fragments that may differ. Equal ones of consecutive versions are mostly one object."""
    gone = old.keys() - new.keys()
    return sorted(gone.union(number for number, fragment in new.items() if old.get(number) is not fragment))


def _common_columns(before: Version, after: Version) -> frozenset[int]:
    """Return the field ids that both versions have. Old writers give the id of a dropped column to a new one."""
    old, new = ({field.id for field in version.manifest.fields} for version in (before, after))
    return frozenset(old & new)


def _files(fragment: Fragment, columns: frozenset[int]) -> dict[int, tuple[int | None, str]]:
    return {
        number: (file.base_id, file.path) for file in fragment.files for number in file.field_ids if number in columns
    }


def _is_replaced(old: Fragment, new: Fragment) -> bool:
    """Return whether two fragments with one id have nothing else in common."""
    if old is new:
        return False
    return not {(file.base_id, file.path) for file in old.files} & {(file.base_id, file.path) for file in new.files}


def _is_rewritten(old: Fragment, new: Fragment, columns: frozenset[int]) -> bool:
    """Return whether the fragment has other rows, or one of the columns was written anew."""
    if old is new or (old.files == new.files and old.overlays == new.overlays):
        return False
    was, now = _files(old, columns), _files(new, columns)
    changed = any(was[number] != now[number] for number in was.keys() & now.keys())
    return changed or old.overlays != new.overlays or _is_replaced(old, new)


def _plan(
    version: Version, operation: str | None, regime: Regime, tasks: list[ChangeTask], first: int = 0
) -> ChangePlan:
    return ChangePlan(
        table=version.uri,
        table_id=version.table_id,
        version=version.manifest.version,
        timestamp_ms=version.manifest.timestamp_ms,
        operation=operation,
        regime=regime,
        schema=version.schema,
        tasks=tuple(replace(task, index=first + index) for index, task in enumerate(tasks)),
        paired=any(task.tracking is not None for task in tasks),
    )


def _task(
    source: Version, version: Version, fragment: Fragment, kind: TaskKind, chosen: BitMap | None, tracked: bool
) -> ChangeTask:
    """Build a task of `version` for rows of a fragment as it is at the version `source`."""
    # Old writers noted wrong numbers of rows.
    is_counted = fragment.physical_rows is not None and bool(source.manifest.data_format)
    reference = FragmentRef(
        version=source.manifest.version,
        number=fragment.id,
        rows=fragment.physical_rows or _ANY_ROWS if is_counted else _ANY_ROWS,
        chosen=None if chosen is None else base64.b64encode(chosen.serialize()).decode("ascii"),
        columns=source.names.renamed,
    )
    if (file := _file_alone(source, fragment, reference)) is not None:
        reference = replace(reference, path=file.path, fields=file.field_ids)
    return ChangeTask(
        table=version.uri,
        table_id=version.table_id,
        version=version.manifest.version,
        timestamp_ms=version.manifest.timestamp_ms,
        index=0,
        kind=kind,
        uri=version.uri,
        size_bytes=sum(file.size_bytes or 0 for file in fragment.files),
        schema=source.schema,
        tracking=_ROW_ID if tracked else None,
        reader=_READER,
        fragment=reference,
    )


def _file_alone(source: Version, fragment: Fragment, rows: FragmentRef) -> DataFile | None:
    """Return the file that has all `rows` of a small fragment just as they are delivered; None: there is none."""
    file = fragment.files[0] if len(fragment.files) == 1 else None
    if file is None or fragment.overlays or (fragment.deletion is not None and rows.chosen is None):
        return None
    is_small = rows.rows <= _SMALL_ROWS and 0 < (file.size_bytes or 0) <= _SMALL_BYTES
    is_own = file.base_id is None and file.major_version == _READABLE_ALONE
    in_order = file.column_indices == tuple(range(len(file.field_ids)))
    return file if source.is_plain and is_small and is_own and in_order else None
