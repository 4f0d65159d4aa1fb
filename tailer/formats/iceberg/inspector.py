"""The profile of a table, and summaries of its snapshots by what their writers noted."""

from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Final

from typing_extensions import override

from tailer.formats.iceberg.catalogs.names import CatalogTable
from tailer.formats.iceberg.lineage import Lineage
from tailer.formats.iceberg.metadata.document import Snapshot, noted_number
from tailer.formats.iceberg.metadata.schema import identifier_columns
from tailer.formats.iceberg.table import IcebergTableLog
from tailer.formats.inspection import NO_ROWS, CommitSummary, DeclaredKey, RowCounts, TableInspector, TableProfile
from tailer.stores.port import ObjectStore

__all__ = ["IcebergInspector"]

_LINEAGE_FORMAT: Final = 3
_EXPIRES: Final = "history.expire.max-snapshot-age-ms"
_REFUSED: Final = (
    "its snapshots have no numbers (format version 1): they can be read, but not followed. Set its property "
    "format-version to 2, which changes its metadata only"
)
_BY_KEY: Final = (
    "it has equality deletes: for each new one, the key columns of the older files that it applies to are read. "
    "Compact the table often, and give its partitions and files narrow ranges of the key"
)


class IcebergInspector(TableInspector):
    """Inspects the Iceberg table at the root of `store`. Arguments: as for `IcebergTableLog`."""

    has_gaps = True

    def __init__(
        self,
        store: ObjectStore,
        open_store: Callable[[str], ObjectStore],
        allowed_roots: tuple[str, ...] = (),
        branch: str | None = None,
        catalog: CatalogTable | None = None,
    ) -> None:
        self._log = IcebergTableLog(store, open_store, allowed_roots, branch, catalog)

    @override
    async def profile(self) -> TableProfile:
        lineage = await self._log.newest()
        document, newest = lineage.document, lineage.steps[-1] if lineage.steps else None
        schema = self._log.schema_of(lineage, newest)
        key = identifier_columns(document.schema(None if newest is None else newest.snapshot.schema_id))
        kept_ms = document.properties.get(_EXPIRES) or ""
        return TableProfile(
            version=lineage.latest,
            timestamp_ms=document.last_updated_ms if newest is None else newest.snapshot.timestamp_ms,
            schema=schema,
            features=(f"format version {document.format_version}",),
            row_ids=document.format_version >= _LINEAGE_FORMAT,
            keys=(DeclaredKey(key, "the identifier fields, which writers do not enforce"),) if key else (),
            log_kept_ms=int(kept_ms) if kept_ms.isdecimal() else None,
            hazards=tuple(_hazards(lineage)),
        )

    @override
    async def summaries(self, first: int, last: int) -> AsyncGenerator[CommitSummary, None]:
        lineage = await self._log.newest()
        for step in lineage.steps:
            if first <= step.number <= last:
                snapshot, summary = step.snapshot, step.snapshot.summary
                engine = (summary.engine_name, summary.engine_version)
                yield CommitSummary(
                    version=step.number,
                    timestamp_ms=snapshot.timestamp_ms,
                    operation=snapshot.operation,
                    author=" ".join(str(text) for text in engine if text is not None) or None,
                    rows=_rows(snapshot),
                    added_bytes=noted_number(summary.added_files_size) or 0,
                )


def _hazards(lineage: Lineage) -> Iterator[str]:
    if lineage.document.format_version == 1:
        yield _REFUSED
    if lineage.steps and noted_number(lineage.steps[-1].snapshot.summary.total_equality_deletes):
        yield _BY_KEY


def _rows(snapshot: Snapshot) -> RowCounts:
    """Return the numbers of rows that only an append or a delete of whole files notes exactly."""
    if snapshot.operation == "replace" and snapshot.parent_snapshot_id is not None:
        return NO_ROWS
    summary = snapshot.summary
    added, deleted = noted_number(summary.added_records) or 0, noted_number(summary.deleted_records) or 0
    is_marked = noted_number(summary.added_position_deletes) or noted_number(summary.added_equality_deletes)
    return RowCounts() if is_marked or (added and deleted) else RowCounts(added, 0, deleted)
