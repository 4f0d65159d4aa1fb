"""An Iceberg table's snapshots behind the `TableLog` port.

A metadata file has all snapshots that are kept. The next one is found by requesting the next metadata file, and many
new snapshots cost one file. Each has its own schema, and its own list of manifests: what changed is the difference of
two lists (`tailer.formats.iceberg.changes`).

Numbers of versions have gaps (`tailer.formats.iceberg.lineage`). A snapshot that was delivered must stay part of the
branch: after a rollback its changes would have to be taken back, so the pipeline stops.
"""

import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from typing_extensions import override

from tailer.errors import (
    ChangesUnavailable,
    ConfigError,
    FileVacuumed,
    LogCorrupt,
    TailerError,
    VersionAhead,
    VersionGone,
)
from tailer.formats.iceberg.catalogs.names import CatalogTable
from tailer.formats.iceberg.changes import Changes
from tailer.formats.iceberg.files.places import Places
from tailer.formats.iceberg.lineage import Lineage, Step, refuse_first_format
from tailer.formats.iceberg.metadata.current import (
    NAMES,
    CatalogPointer,
    CurrentDocument,
    FolderPointer,
    OneFile,
    is_metadata_file,
)
from tailer.formats.iceberg.metadata.document import FOLDER, MAIN, Document
from tailer.formats.iceberg.metadata.schema import SchemaReader, identifier_columns
from tailer.formats.iceberg.tasks import State
from tailer.plan import ChangePlan, Regime
from tailer.start import Start, StartKind, StartPoint
from tailer.stores.port import ObjectStore
from tailer.stores.wakeup import TimerWake, Wake
from tailer.table_log import TableLog

__all__ = ["IcebergTableLog"]

_ROW_IDS_SINCE: Final = 3  # version of the format


class IcebergTableLog(TableLog):
    """The snapshots of a branch of the Iceberg table at the root of `store`, or up to the metadata file that this is.

    `open_store`: opens another root. `allowed_roots`: where files of the table may be, besides its folder.
    `catalog`: knows which metadata file is the newest. `statistics`: whether tasks have those of files.
    """

    def __init__(
        self,
        store: ObjectStore,
        open_store: Callable[[str], ObjectStore],
        allowed_roots: tuple[str, ...] = (),
        branch: str | None = None,
        catalog: CatalogTable | None = None,
        statistics: bool = False,
    ) -> None:
        root, _, only = store.uri.rpartition(f"/{FOLDER}/")
        is_file = bool(root) and is_metadata_file(only)
        self._store = open_store(root) if is_file else store
        self.uri = self._store.uri
        self._branch = branch or MAIN
        self._statistics = statistics
        self._places = Places(self._store, open_store, allowed_roots)
        self._catalog = catalog
        pointer = OneFile(self._store, only) if is_file else FolderPointer(self._store)
        named = None if catalog is None else CatalogPointer(catalog, self._store, open_store, self._places)
        self._current = CurrentDocument(named or pointer)
        self._schemas = SchemaReader(self.uri)
        self._changes = Changes(self._places)
        self._lineage: Lineage | None = None
        self._next = 0
        self._before: State | None = None
        self._sought: Document | None = None  # the metadata of the last `seek` or plan

    @property
    def retention_ms(self) -> int | None:
        """See `TableLog.retention_ms`. Snapshots are kept until somebody expires them."""
        return None

    @property
    @override
    def state_id(self) -> str | None:
        return None if self._sought is None else self._id(self._sought)

    @override
    async def table_id(self) -> str:
        return self._id((await self.newest()).document)

    async def key(self, version: int) -> tuple[str, ...]:
        """See `TableLog.key`: the identifier fields of the schema, which no writer enforces."""
        lineage = await self.newest()
        step = lineage.at_or_before(version)
        document = lineage.document
        return identifier_columns(document.schema(step.snapshot.schema_id if step is not None else None))

    @override
    async def ids(self, since: int) -> tuple[str, ...]:
        return (await self.table_id(),)

    @override
    async def latest(self) -> int:
        return (await self.newest()).latest

    @override
    async def check_delivered(self, version: int) -> None:
        (await self.newest()).check_delivered(version)

    @override
    async def resolve(self, start: Start) -> StartPoint:
        lineage = await self.newest()
        match start.kind:
            case StartKind.SNAPSHOT:
                return StartPoint(lineage.latest, snapshot=True)
            case StartKind.EARLIEST:
                return StartPoint(lineage.start_at(lineage.first_readable))
            case StartKind.LATEST:
                return StartPoint(lineage.latest + 1)
            case StartKind.TAG:
                return StartPoint(self._tagged(lineage, start, "start").number + 1)
            case StartKind.VERSION:
                if start.value > lineage.latest + 1:
                    raise VersionAhead(self.uri, start.value, lineage.latest, is_start=True)
                return StartPoint(lineage.start_at(start.value))
        for step in lineage.steps:
            if step.snapshot.timestamp_ms >= start.value:
                return StartPoint(lineage.start_at(step.number))
        remedy = "Give an earlier time, or `latest`."
        raise ConfigError("start", f"{self.uri} has no version after that time", remedy)

    @override
    async def resolve_end(self, end: Start) -> int:
        lineage = await self.newest()
        match end.kind:
            case StartKind.VERSION:
                return end.value
            case StartKind.EARLIEST:
                return lineage.steps[0].number if lineage.steps else 0
            case StartKind.TAG:
                return self._tagged(lineage, end, "end").number
            case StartKind.TIMESTAMP:
                until = [step.number for step in lineage.steps if step.snapshot.timestamp_ms <= end.value]
                if not until:
                    raise ConfigError("end", f"{self.uri} has no version before that time", "Give a later time.")
                return until[-1]
        return lineage.latest

    @override
    async def seek(self, version: int) -> pa.Schema | None:
        lineage = await self.newest()
        refuse_first_format(lineage.document, self.uri, version)
        if version > lineage.latest + 1:
            if lineage.has_number(version - 1):
                lineage.check_delivered(version - 1)
            raise VersionAhead(self.uri, version - 1, lineage.latest)
        before = lineage.at_or_before(version - 1)
        if before is None and lineage.steps and not lineage.steps[0].is_first:
            raise lineage.gone(version)
        self._before = None if before is None else self._state(lineage, before)
        self._next, self._sought = version, lineage.document
        if self._before is not None:
            return self._before.schema
        # Before its first snapshot a table is at version 0, without rows.
        first = lineage.steps[0] if lineage.steps else None
        return self.schema_of(lineage, first) if version > 0 else None

    @override
    async def next_plans(self, most: int) -> Sequence[ChangePlan]:
        step = None if self._lineage is None else self._followed(self._lineage)
        if step is None:
            document = await self._current.advance()
            if document is None:
                return ()
            self._lineage = self._opened(document)
            step = self._followed(self._lineage)
        lineage = self._lineage
        if step is None or lineage is None:
            return ()
        after = self._state(lineage, step)
        plan = await self._changes.plan(self._before, after)
        self._before, self._sought, self._next = after, lineage.document, step.number + 1
        return (plan,)

    async def snapshot_plans(self, version: int) -> AsyncGenerator[ChangePlan, None]:
        """See `TableLog.snapshot_plans`. Files are in the order of the manifests."""
        lineage = await self.newest()
        if not lineage.steps and version == 0:
            document = lineage.document
            schema = self._schemas.schema(document, None, 0)
            yield ChangePlan(
                table=self.uri,
                table_id=self._id(document),
                version=0,
                timestamp_ms=document.last_updated_ms,
                operation=None,
                regime=Regime.SNAPSHOT,
                schema=schema,
                tasks=(),
            )
            return
        step = lineage.existing(version)
        state = self._state(lineage, step)
        async for plan in self._changes.snapshot(state):
            yield plan

    @override
    async def after_loss(self, error: TailerError, version: int) -> int:
        if isinstance(error, FileVacuumed | ChangesUnavailable | VersionGone | LogCorrupt):
            lineage = await self.newest()
            later = lineage.at_or_after(max(version + 1, lineage.first_readable))
            if later is None:
                return max(version, lineage.latest) + 1
            first = lineage.start_at(later.number)
            return first if first > version else later.number + 1
        raise error

    @override
    def make_wake(self) -> Wake:
        # A catalog names a file of metadata after that is there: no sign of a new version.
        return self._store.make_wake(FOLDER, NAMES) if self._catalog is None else TimerWake()

    async def newest(self) -> Lineage:
        """Return the snapshots of the branch as they are now."""
        document = await self._current.newest()
        if self._lineage is None or self._lineage.document is not document:
            self._lineage = self._opened(document)
        return self._lineage

    def schema_of(self, lineage: Lineage, step: Step | None) -> pa.Schema:
        """Return the schema of a snapshot; None: that of now."""
        schema_id, number = (None, 0) if step is None else (step.snapshot.schema_id, step.number)
        return self._schemas.schema(lineage.document, schema_id, number)

    def _opened(self, document: Document) -> Lineage:
        if self._branch != MAIN and document.head(self._branch) is None:
            branches = [name for name, ref in (document.refs or {}).items() if ref.type == "branch"]
            remedy = f"Its branches are {', '.join(sorted(branches))}." if branches else "It has none but main."
            raise ConfigError("branch", f"{self.uri} has no branch {self._branch!r}", remedy)
        return Lineage(document, self._branch, self.uri, self._lineage)

    def _followed(self, lineage: Lineage) -> Step | None:
        """Return the next snapshot; None: there is none yet. Raises where the last one that was read is gone."""
        document, sought = lineage.document, self._sought
        if sought is not None and document is not sought:  # newer metadata, whoever has read it
            if self._id(document) != self._id(sought):
                # Planned as the first version of another table, which whoever follows this one refuses.
                self._before, self._next = None, 0
            elif self._before is not None:
                lineage.check_delivered(self._before.version, self._before.snapshot.snapshot_id)
        return lineage.at_or_after(self._next) if self._before is None else lineage.following(self._next)

    def _id(self, document: Document) -> str:
        """Return the id of the branch. It is part of progress, so it never changes."""
        table_id = document.table_uuid or str(uuid.uuid5(uuid.NAMESPACE_URL, f"iceberg:{document.location}"))
        if self._branch == MAIN:
            return table_id
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"iceberg:{table_id}@{self._branch}"))

    def _state(self, lineage: Lineage, step: Step) -> State:
        document, snapshot = lineage.document, step.snapshot
        numbers = {spec.spec_id for spec in document.partition_specs} or {0}
        return State(
            places=self._places,
            table_id=self._id(document),
            version=step.number,
            snapshot=snapshot,
            schema=self.schema_of(lineage, step),
            schemas=partial(self._schemas.all, document, step.number),
            specs={number: document.spec(number) for number in numbers},
            has_statistics=self._statistics,
            has_ids=document.format_version >= _ROW_IDS_SINCE and snapshot.first_row_id is not None,
        )

    def _tagged(self, lineage: Lineage, place: Start, where: str) -> Step:
        reference = (lineage.document.refs or {}).get(place.tag)
        if reference is None or reference.type != "tag":
            tags = sorted(name for name, ref in (lineage.document.refs or {}).items() if ref.type == "tag")
            remedy = f"Its tags are {', '.join(tags)}." if tags else "It has no tags."
            raise ConfigError(where, f"{self.uri} has no tag {place.tag!r}", remedy)
        for step in lineage.steps:
            if step.snapshot.snapshot_id == reference.snapshot_id:
                return step
        reason = f"the tag {place.tag!r} is of a snapshot that is not one of the branch {self._branch}"
        raise ConfigError(where, reason, "Give a version or a time, or follow the branch that has it.")
