"""Tasks for rows of data files. Pure; no I/O."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyroaring import BitMap64

from tailer.errors import LogCorrupt, UnsupportedFeature
from tailer.files.deletion_vector import inline
from tailer.formats.iceberg.files.manifests import FileEntry, statistics
from tailer.formats.iceberg.files.places import Places
from tailer.formats.iceberg.metadata.document import PartitionSpec, Snapshot
from tailer.formats.iceberg.metadata.schema import partition_text
from tailer.plan import ChangePlan, ChangeTask, DeletionVectorRef, Regime, RowTracking, TaskKind
from tailer.schema.columns import physical_name

__all__ = ["State", "rows_of"]

PARQUET: Final = "PARQUET"
_ROW_ID: Final = "_row_id"
_LAST_UPDATED: Final = "_last_updated_sequence_number"
_IDENTITY: Final = "identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The table at `version`, its `snapshot`. `schema`: as in `ChangeTask.schema`. `specs`: by id.

    `schemas`: yields all that the table has had, the one of now first. `has_ids`: whether the snapshot numbers its
    rows, as all do from format version 3 on. `has_statistics`: whether tasks have those of files.
    """

    places: Places
    table_id: str
    version: int
    snapshot: Snapshot
    schema: pa.Schema
    schemas: Callable[[], Iterator[pa.Schema]]
    specs: Mapping[int, PartitionSpec]
    has_ids: bool
    has_statistics: bool

    def spec(self, entry: FileEntry) -> PartitionSpec:
        """Return the partition spec of a file. Raises `LogCorrupt`."""
        spec = self.specs.get(entry.spec_id)
        if spec is None:
            reason = f"its partition spec {entry.spec_id} is not in the metadata"
            raise LogCorrupt(self.places.uri, entry.path, reason, self.version)
        return spec

    def plan(self, regime: Regime, tasks: tuple[ChangeTask, ...]) -> ChangePlan:
        """Make the plan of the version."""
        return ChangePlan(
            table=self.places.uri,
            table_id=self.table_id,
            version=self.version,
            timestamp_ms=self.snapshot.timestamp_ms,
            operation=self.snapshot.operation,
            regime=regime,
            schema=self.schema,
            tasks=tasks,
        )

    def task(
        self,
        entry: FileEntry,
        schema: pa.Schema,
        kind: TaskKind = TaskKind.INSERT,
        include: BitMap64 | None = None,
        exclude: BitMap64 | None = None,
    ) -> ChangeTask:
        """Make a task of the version for rows of a file with the columns of `schema`.

        Raises `UnsupportedFeature` for a file that is not Parquet, `FileOutsideTable`, `LogCorrupt`.
        """
        uri, version = self.places.uri, self.version
        if entry.format != PARQUET:
            reason = "of data and delete files, lake-tailer reads Parquet and deletion vectors"
            remedy = "Rewrite the files as Parquet, and start after that version; no row of this version was delivered."
            raise UnsupportedFeature(uri, f"{entry.path}, a file in {entry.format}", version, reason, remedy)
        return ChangeTask(
            table=uri,
            table_id=self.table_id,
            version=version,
            timestamp_ms=self.snapshot.timestamp_ms,
            index=0,
            kind=kind,
            uri=self.places.locate(entry.path, version),
            size_bytes=entry.size_bytes,
            schema=schema,
            partition_values=self._constants(entry, schema),
            include=None if include is None else inline(include),
            exclude=inline(exclude) if exclude else None,
            tracking=_tracking(entry) if self.has_ids else None,
            stats=statistics(entry, schema) if self.has_statistics else None,
        )

    def _constants(self, entry: FileEntry, schema: pa.Schema) -> tuple[tuple[str, str | None], ...]:
        """Return the columns that have one value in the file, which need not have it, by physical name."""
        spec, values = self.spec(entry), dict(entry.partition or ())
        kinds = {physical_name(field): field.type for field in schema}
        constants: list[tuple[str, str | None]] = []
        for number, field in zip(spec.field_ids, spec.fields, strict=True):
            name = str(field.source_id)
            if field.transform == _IDENTITY and number in values and name in kinds:
                try:
                    constants.append((name, partition_text(values[number], kinds[name])))
                except (ValueError, OverflowError) as error:
                    raise LogCorrupt(self.places.uri, entry.path, str(error), self.version) from error
        return tuple(constants)


def rows_of(task: ChangeTask, entry: FileEntry) -> int:
    """Return the number of rows that a task means."""
    return entry.records - _count(task.exclude) if task.include is None else _count(task.include)


def _count(vector: DeletionVectorRef | None) -> int:
    return 0 if vector is None else vector.cardinality


def _tracking(entry: FileEntry) -> RowTracking:
    """Return where the row ids of a file are: rows of before the upgrade that brought them have none."""
    if entry.first_row_id is None:
        return RowTracking()
    return RowTracking(entry.first_row_id, entry.sequence, _ROW_ID, _LAST_UPDATED)
