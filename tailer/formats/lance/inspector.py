"""The profile of a dataset, and summaries of its versions by their plans."""

import base64
from collections.abc import Callable
from typing import Final

from pyroaring import BitMap
from typing_extensions import override

from tailer.formats.inspection import DeclaredKey, PlanInspector, RowCounts, TableProfile, total
from tailer.formats.lance.history import History
from tailer.formats.lance.manifest import FLAGS, Manifest, uses_stable_row_ids
from tailer.formats.lance.schema import arrow_schema
from tailer.formats.lance.table import LanceTableLog, dataset_id
from tailer.plan import ChangePlan, ChangeTask, TaskKind
from tailer.stores.port import ObjectStore

__all__ = ["LanceInspector"]

_CLEANUP: Final = "lance.auto_cleanup."


class LanceInspector(PlanInspector):
    """Inspects the dataset, or the branch of one, at the root of `store`. Arguments: as for `LanceTableLog`."""

    def __init__(
        self,
        store: ObjectStore,
        open_store: Callable[[str], ObjectStore],
        allowed_roots: tuple[str, ...] = (),
        branch: str | None = None,
    ) -> None:
        super().__init__(LanceTableLog(store, open_store, allowed_roots, branch))
        self._history = History(store, dataset_id(store.uri), open_store, allowed_roots)
        self._manifests: dict[int, Manifest] = {}  # the last one read

    @override
    async def profile(self) -> TableProfile:
        latest = max(await self._history.listed())
        manifest = (await self._history.existing(latest)).manifest
        key = [field for field in manifest.fields if field.key_position is not None]
        key.sort(key=lambda field: (not field.key_position, field.key_position or field.id))
        columns = tuple(field.name for field in key)
        cleanup = [f"{name} = {text}" for name, text in manifest.config.items() if name.startswith(_CLEANUP)]
        hazard = f"its writers delete old versions by themselves ({', '.join(sorted(cleanup))})"
        return TableProfile(
            version=latest,
            timestamp_ms=manifest.timestamp_ms,
            schema=arrow_schema(manifest, self._history.uri),
            features=tuple(flag.name for bit, flag in FLAGS.items() if manifest.reader_feature_flags & bit),
            row_ids=uses_stable_row_ids(manifest),
            keys=(DeclaredKey(columns, "the primary key, which writers do not enforce"),) if key else (),
            hazards=(hazard,) if cleanup else (),
        )

    @override
    async def rows(self, plan: ChangePlan) -> RowCounts:
        """Return none where row ids pair deleted and inserted rows: only these would tell updates."""
        kinds = {task.kind for task in plan.tasks}
        if plan.paired and len(kinds) > 1:
            return RowCounts()
        counts: dict[TaskKind, list[int | None]] = {TaskKind.INSERT: [], TaskKind.DELETE: []}
        for task in plan.tasks:
            counts[task.kind].append(await self._count(task))
        return RowCounts(total(counts[TaskKind.INSERT]), 0, total(counts[TaskKind.DELETE]))

    @override
    async def author(self, version: int) -> str | None:
        """The version of the library that wrote."""
        writer = (await self._manifest(version)).writer
        return f"lance {writer}" if writer else None

    async def _manifest(self, version: int) -> Manifest:
        if version not in self._manifests:
            self._manifests = {version: (await self._history.existing(version)).manifest}
        return self._manifests[version]

    async def _count(self, task: ChangeTask) -> int | None:
        """Return the number of rows of a task; None where the manifest does not say it."""
        part = task.fragment
        assert part is not None, "tasks of datasets name fragments"
        if part.chosen is not None:
            return len(BitMap.deserialize(base64.b64decode(part.chosen)))
        manifest = await self._manifest(part.version)
        fragment = next(candidate for candidate in manifest.fragments if candidate.id == part.number)
        if fragment.physical_rows is None or not manifest.data_format:  # old writers noted wrong numbers
            return None
        if fragment.deletion is None:
            return fragment.physical_rows
        deleted = fragment.deletion.num_deleted_rows
        return None if deleted is None else fragment.physical_rows - deleted
