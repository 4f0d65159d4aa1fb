"""From one snapshot to the next: which rows of which files changed. No row is read, except keys of equality deletes.

The live files of both snapshots decide, never what the writer calls its operation:

    data file in the old one alone     its rows that were not deleted are deleted
    data file in the new one alone     its rows that are not deleted are inserted
    data file in both                  what is deleted now is deleted, what no longer is, is inserted

So a rewrite deletes and inserts the same rows, which comparing removes (`tailer.changelog`). Where the writer says that
it changed no row (`replace`), and as many rows went as came, the rows are not read: a compaction costs nothing.

Row ids (format version 3) make a deleted and an inserted row the images of an update, or no change if they are equal.
Deleted rows have the columns of before.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import replace
from typing import Final

from tailer.errors import ChangesUnavailable, LogCorrupt
from tailer.formats.iceberg.deletes.rows import Applied, DeletedRows, DeleteFiles
from tailer.formats.iceberg.files.live import Difference, LiveFiles
from tailer.formats.iceberg.files.manifests import Content, FileEntry, Manifest, may_hold
from tailer.formats.iceberg.files.places import Places
from tailer.formats.iceberg.metadata.schema import new_defaults
from tailer.formats.iceberg.tasks import State, rows_of
from tailer.plan import SNAPSHOT_TASKS, ChangePlan, ChangeTask, Regime, TaskKind
from tailer.schema.identity import renewed

__all__ = ["Changes"]

PAGE_FILES: Final = 1024  # of a snapshot, in one plan
_QUIET: Final = "replace"


class Changes:
    """Plans the snapshots of one table."""

    def __init__(self, places: Places) -> None:
        self._uri = places.uri
        self._files = LiveFiles(places)
        self._rows = DeletedRows(places)

    async def plan(self, before: State | None, after: State) -> ChangePlan:
        """Plan the changes from `before` (None: no table) to `after`.

        Raises `LogError`, `ChangeError`, and `ChangesUnavailable` where rows have a new column without being written.
        """
        old = None if before is None else before.snapshot
        difference = await self._files.difference(old, after.snapshot, after.version)
        if before is not None:
            await self._check_defaults(before, after)
        counted = [
            *(await self._whole(before, after, TaskKind.DELETE, difference) if before is not None else ()),
            *await self._whole(after, after, TaskKind.INSERT, difference),
            *(await self._marked(before, after, difference) if before is not None else ()),
        ]
        deletes, inserts = (
            [(task, rows) for task, rows in counted if rows and task.kind is kind]
            for kind in (TaskKind.DELETE, TaskKind.INSERT)
        )
        is_quiet = before is not None and after.snapshot.operation == _QUIET
        is_quiet = is_quiet and sum(rows for _, rows in deletes) == sum(rows for _, rows in inserts)
        tasks = () if is_quiet else _numbered([task for task, _ in deletes + inserts])
        plan = after.plan(Regime.FILES if tasks else Regime.NONE, tasks)
        plan = replace(plan, paired=any(task.tracking is not None for task in tasks))
        if before is None or before.schema is after.schema:
            return plan
        replaced, widened = renewed(before.schema, after.schema)
        return replace(plan, replaced=replaced, widened=widened)

    async def _check_defaults(self, before: State, after: State) -> None:
        """Raise `ChangesUnavailable` where rows of before get the default of a new column.

        All of them change at once, and whoever has them would keep null. Rows that the version writes anew are equal to
        those of before as they are read now, so they are no change either.
        """
        column = None if before.schema is after.schema else next(new_defaults(before.schema, after.schema), None)
        if column is None:
            return
        for manifest in await self._files.manifests(before.snapshot, after.version):
            if not manifest.has_deletes and await self._files.entries(manifest, after.version):
                reason = (
                    f"column {column} is new, and its default is the value of all rows of before: "
                    "their change is in no file"
                )
                raise ChangesUnavailable(self._uri, after.version, reason)

    async def snapshot(self, state: State) -> AsyncGenerator[ChangePlan, None]:
        """Yield the rows of a snapshot as inserts, in pages. Raises as `plan`."""
        deletes = self._index(state, await self._files.deletes(state.snapshot, state.version))
        number, page = 0, list[FileEntry]()
        for manifest in await self._files.manifests(state.snapshot, state.version):
            for entry in await self._files.entries(manifest, state.version) if not manifest.has_deletes else ():
                page.append(entry)
                if len(page) == PAGE_FILES:
                    yield await self._page(state, page, deletes, number)
                    number, page = number + len(page), []
        if page or number == 0:
            yield await self._page(state, page, deletes, number)

    async def _page(self, state: State, entries: list[FileEntry], deletes: DeleteFiles, first: int) -> ChangePlan:
        applied = [(entry, self._applied(deletes, entry, state)) for entry in entries]
        tasks = [
            state.task(entry, state.schema, exclude=rows)
            for entry, rows in zip(entries, await self._rows.of(applied, state), strict=True)
        ]
        return state.plan(Regime.SNAPSHOT, _numbered(tasks, SNAPSHOT_TASKS + first))

    async def _whole(
        self, holder: State, after: State, kind: TaskKind, difference: Difference
    ) -> list[tuple[ChangeTask, int]]:
        """Make tasks for the rows of files that are live in `holder` alone, each with its number of rows.

        Rows that are deleted in `holder` are not among them. Tasks are of the version `after`.
        """
        entries = list((difference.added if kind is TaskKind.INSERT else difference.removed).values())
        if not entries:
            return []
        deletes = await self._deletes(holder, entries, difference, after.version)
        applied = [(entry, self._applied(deletes, entry, after)) for entry in entries]
        rows = await self._rows.of(applied, after)
        tasks = [
            after.task(entry, holder.schema, kind, exclude=gone) for entry, gone in zip(entries, rows, strict=True)
        ]
        return [(task, rows_of(task, entry)) for task, entry in zip(tasks, entries, strict=True)]

    async def _marked(self, before: State, after: State, difference: Difference) -> list[tuple[ChangeTask, int]]:
        """Make the tasks of data files that stay, and have other deleted rows, each with its number of rows."""
        stayed = await self._touched(after, difference)
        if not stayed:
            return []
        old = await self._deletes(before, stayed, difference, after.version)
        new = await self._deletes(after, stayed, difference, after.version)
        then, now = [
            await self._rows.of([(entry, self._applied(index, entry, after)) for entry in stayed], after)
            for index in (old, new)
        ]
        counted: list[tuple[ChangeTask, int]] = []
        for entry, first, last in zip(stayed, then, now, strict=True):
            if gone := last - first:
                was = entry if before.has_ids else replace(entry, first_row_id=None)
                counted.append((after.task(was, before.schema, TaskKind.DELETE, include=gone), len(gone)))
            if back := first - last:
                counted.append((after.task(entry, after.schema, TaskKind.INSERT, include=back), len(back)))
        return counted

    async def _touched(self, after: State, difference: Difference) -> list[FileEntry]:
        """Return the data files that stay, and have rows that a delete names which came or went.

        Only manifests that may have them are read: those of the partitions of these deletes, as far as the paths that
        they name are not found yet.
        """
        changed = [*difference.new_deletes, *difference.dropped_deletes]
        if not changed:
            return []
        indexes = [self._index(after, entries) for entries in (difference.new_deletes, difference.dropped_deletes)]
        named = await self._rows.named_files(changed, after.version)
        missing = named - difference.added.keys() - difference.removed.keys()
        vectors = {entry.referenced for entry in changed if entry.offset is not None}
        by_key = [entry for entry in changed if entry.content is Content.EQUALITY_DELETES]
        newest, places = max(entry.sequence for entry in changed), {entry.place for entry in changed}
        is_everywhere = any(after.spec(entry).is_unpartitioned for entry in by_key)
        touched: list[tuple[FileEntry, list[Applied]]] = []
        manifests = [one for one in await self._files.manifests(after.snapshot, after.version) if not one.has_deletes]
        may_have = {one.key: one.oldest <= newest and (is_everywhere or may_hold(one, places)) for one in manifests}
        for manifest in sorted(manifests, key=lambda one: not may_have[one.key]):
            # A vector that names a file of another partition is an error, so its file is looked for everywhere.
            wanted = missing if may_have[manifest.key] else missing & vectors
            if not wanted and not (by_key and may_have[manifest.key]):
                break
            for entry in await self._files.entries(manifest, after.version):
                missing.discard(entry.path)
                if entry.path in difference.added or not (by_key or entry.path in named):
                    continue
                applied = [self._applied(index, entry, after) for index in indexes]
                if any(one.equality or (one and entry.path in named) for one in applied):
                    touched.append((entry, applied))
        # Only these need all of their deletes: most have no key of an upsert.
        new, dropped = [
            await self._rows.of([(entry, applied[place]) for entry, applied in touched], after) for place in (0, 1)
        ]
        return [entry for (entry, _), *rows in zip(touched, new, dropped, strict=True) if any(rows)]

    async def _deletes(
        self, state: State, entries: Sequence[FileEntry], difference: Difference, version: int
    ) -> DeleteFiles:
        """Return the delete files of a snapshot that may apply to some data files.

        A manifest is as young as the youngest of its files, or younger. One that the commit has brought is read, too:
        its vectors may contradict their files.
        """
        since, places = min(entry.sequence for entry in entries), {entry.place for entry in entries}
        everywhere = {number for number, spec in state.specs.items() if spec.is_unpartitioned}

        def may_apply(manifest: Manifest) -> bool:
            is_near = manifest.key not in difference.shared or manifest.spec_id in everywhere
            return manifest.sequence >= since and (is_near or may_hold(manifest, places))

        return self._index(state, await self._files.deletes(state.snapshot, version, may_apply))

    def _index(self, state: State, entries: Iterable[FileEntry]) -> DeleteFiles:
        try:
            return DeleteFiles(entries, lambda entry: state.spec(entry).is_unpartitioned)
        except ValueError as error:
            raise self._corrupt(state, error) from error

    def _applied(self, deletes: DeleteFiles, entry: FileEntry, state: State) -> Applied:
        try:
            return deletes.of(entry)
        except ValueError as error:
            raise self._corrupt(state, error) from error

    def _corrupt(self, state: State, error: ValueError) -> LogCorrupt:
        return LogCorrupt(self._uri, state.snapshot.manifest_list or "metadata", str(error), state.version)


def _numbered(tasks: Sequence[ChangeTask], first: int = 0) -> tuple[ChangeTask, ...]:
    return tuple(replace(task, index=first + index) for index, task in enumerate(tasks))
