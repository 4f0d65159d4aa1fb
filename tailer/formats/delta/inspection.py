"""A Delta table for people: its profile, summaries of its commits, and contradictions in its log."""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Final

from typing_extensions import override

from tailer.errors import ObjectNotFound
from tailer.formats.delta.catalog.port import CommitCatalog, RatifiedLog
from tailer.formats.delta.checkpoints.contradictions import newest_contradictions
from tailer.formats.delta.history import TableHistory
from tailer.formats.delta.log.actions import scan_commit
from tailer.formats.delta.log.commit_reader import read_together, window
from tailer.formats.delta.log.commit_summary import FileTally, summarize
from tailer.formats.delta.log.listing import CommitLog, LogPath
from tailer.formats.delta.snapshot import CLOCK_WINDOW, Snapshot, clock_ms, kept_ms, lower_names
from tailer.formats.inspection import CommitSummary, Contradiction, DeclaredKey, TableInspector, TableProfile
from tailer.stores.port import ObjectStore, OpenObject

__all__ = ["DeltaInspector"]

_LEGACY_FEATURES: Final = {2: ("columnMapping",)}  # of reader versions without a list
_IDENTITY: Final = "delta.identity.start"
_MAPPING: Final = "delta.columnMapping.mode"
_CONSTRAINT: Final = "delta.constraints."


class DeltaInspector(TableInspector):
    """Inspects the Delta table at the root of `store`. `catalog`: the one that manages it, if any."""

    def __init__(self, store: ObjectStore, catalog: CommitCatalog | None = None) -> None:
        self._store = store
        self._log = CommitLog(store) if catalog is None else RatifiedLog(store, catalog)
        self._history = TableHistory(store, self._log, catalog is not None)

    @override
    async def profile(self) -> TableProfile:
        listing = await self._log.recent(CLOCK_WINDOW)
        state = await self._history.dated_state(listing, listing.latest)
        files_ms, log_ms = kept_ms(lower_names(state.metadata.configuration))
        protocol = state.protocol
        listed = [*(protocol.reader_features or ()), *(protocol.writer_features or ())]
        columns = json.loads(state.metadata.schema_string or '{"fields": []}')["fields"]
        counted = [column["name"] for column in columns if _IDENTITY in (column.get("metadata") or {})]
        return TableProfile(
            version=state.version,
            timestamp_ms=state.timestamp_ms,
            schema=state.schema,
            features=tuple(dict.fromkeys([*_LEGACY_FEATURES.get(protocol.min_reader_version, ()), *listed])),
            feed=state.feed_enabled,
            row_ids=state.tracked_columns is not None,
            # The log declares no other keys than columns whose values the writer counts up.
            keys=tuple(DeclaredKey((name,), "an identity column") for name in counted),
            files_kept_ms=files_ms,
            log_kept_ms=log_ms,
            hazards=tuple(_hazards(state)),
        )

    @override
    async def summaries(self, first: int, last: int) -> AsyncGenerator[CommitSummary, None]:
        listing = await self._log.recent(CLOCK_WINDOW, first - 1)
        times = {path.version: path.modified_ms for path in listing.commits}
        wanted = [path for path in listing.commits if first <= path.version <= last]
        while wanted:
            together = window(wanted)
            for summary in await read_together(together, lambda path: self._summarize(path, times)):
                if summary is not None:
                    yield summary
                wanted = wanted[1:]

    async def contradictions(self, most_files: int | None = None) -> tuple[Contradiction, ...]:
        """See `TableInspector.contradictions`. Reads the newest checkpoint and the commits after it, if few."""
        return await newest_contradictions(self._store, self._log, most_files)

    async def _summarize(self, path: LogPath, times: Mapping[int, int]) -> CommitSummary | None:
        """Summarize a commit; None where it was cleaned up since the log was listed."""

        def read(opened: OpenObject) -> CommitSummary:
            meta, tally = opened.meta, FileTally()
            commit = scan_commit(
                opened.file, self._store.uri, path.name, path.version, meta.modified_ms, tally.note, statistics=True
            )
            dated_ms = None if commit.info is None else commit.info.in_commit_timestamp
            if dated_ms is None:  # the times of the files up to it say, as in `Snapshot`
                numbers = range(path.version - CLOCK_WINDOW, path.version + 1)
                dated_ms = clock_ms([times[number] for number in numbers if number in times])
            return summarize(commit, tally, dated_ms)

        try:
            return await self._store.scan(path.name, read)
        except ObjectNotFound:
            return None


def _hazards(state: Snapshot) -> Iterator[str]:
    configuration = state.metadata.configuration
    mode = (configuration.get(_MAPPING) or "none").lower()
    if mode != "none":
        yield (
            f"columns are mapped (mode {mode}): whoever removes the mapping rewrites every file in one commit, which "
            "is compared as a whole"
        )
    constraints = [name.removeprefix(_CONSTRAINT) for name in configuration if name.startswith(_CONSTRAINT)]
    if constraints:
        yield f"it has the constraints {', '.join(sorted(constraints))}: the target gets the rows, not the constraints"
