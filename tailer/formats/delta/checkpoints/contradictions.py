"""Commits that contradict the table's state: they remove a file that is not live, or add one that is.

What such a commit deletes and inserts is delivered as its actions say, as in Spark's feed. But the table's state is
made by other rules: a remove counts for the logical file that it names, and adding a file again changes nothing
(PROTOCOL.md, "Action Reconciliation"). So the changes do not turn the state before the commit into the one after it.

A commit that removes one path with several deletion vectors does not count: see `tailer.formats.delta.log.removes`. Nor
does one that adds a live file without a change of data, as writers do for statistics.
"""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import chain, groupby
from math import inf
from operator import itemgetter
from typing import Final

import pyarrow as pa

from tailer.errors import LogCorrupt, VersionGone
from tailer.formats.delta.checkpoints.checkpoint import from_sound_checkpoint, read_adds
from tailer.formats.delta.checkpoints.live_files import scan_files, unique_ids
from tailer.formats.delta.checkpoints.sorted_runs import SpillingSort
from tailer.formats.delta.log.actions import AddFile, RemoveFile
from tailer.formats.delta.log.listing import CommitLog, LogSegment
from tailer.formats.delta.log.paths import locate_all
from tailer.formats.delta.log.removes import file_key
from tailer.formats.inspection import Contradiction
from tailer.stores.port import ObjectStore, in_thread

__all__ = ["newest_contradictions"]

MOST_COMMITS: Final = 1000
_BATCH_ROWS: Final = 4096
_CHECKPOINTED: Final = -1  # in the place of a version
# `is_add` sorts the adds of a version after its removes, which are about older files.
_ENTRIES: Final = pa.schema(
    {
        "location": pa.string(),
        "vector": pa.string(),
        "version": pa.int64(),
        "is_add": pa.int64(),
        "changes_data": pa.bool_(),
    }
)
_BY_FILE: Final = ("location", "vector", "version", "is_add")

Entry = tuple[str, str, int, int, bool]


class _TooManyFilesError(Exception):
    """More file entries would have to be read than the caller wants."""


async def newest_contradictions(
    store: ObjectStore, log: CommitLog, most_files: int | None = None
) -> tuple[Contradiction, ...]:
    """Find the versions after the newest checkpoint that contradict the state; none where it is not at hand.

    It is not where there are more than `MOST_COMMITS` of them, more than `most_files` file entries would have to be
    read, or the log has a gap or is damaged.
    """
    listing = await log.recent(0)
    with suppress(VersionGone, LogCorrupt, _TooManyFilesError):  # a damaged log is reported when it is read
        if len(listing.segment(listing.latest).commits) <= MOST_COMMITS:
            find = partial(_find, store, inf if most_files is None else most_files)
            return await from_sound_checkpoint(log.listing, listing, listing.latest, find)
    return ()


async def _find(store: ObjectStore, most_files: float, segment: LogSegment) -> tuple[Contradiction, ...]:
    """Find the commits of `segment` that contradict the state before them; of each, one of its files.

    Raises as `live_files` does, and `_TooManyFilesError`.
    """
    files, rows = 0, list[Entry]()
    with SpillingSort(_ENTRIES, _BY_FILE) as entries:

        def add(some: pa.RecordBatch) -> None:
            nonlocal files
            files += len(some)
            if files > most_files:
                raise _TooManyFilesError
            entries.add(some)

        def flush() -> None:
            if rows:
                columns = zip(*rows, strict=True)
                arrays = [pa.array(column, field.type) for column, field in zip(columns, _ENTRIES, strict=True)]
                rows.clear()
                add(pa.record_batch(arrays, schema=_ENTRIES))

        def note(version: int, file: AddFile | RemoveFile, location: str) -> None:
            rows.append((*file_key(file, location), version, int(isinstance(file, AddFile)), file.data_change))
            if len(rows) == _BATCH_ROWS:
                flush()

        for path in segment.commits:
            await scan_files(store, segment.table, path, partial(note, path.version), end=flush)

        def add_checkpointed(adds: pa.StructArray) -> None:
            keys = [locate_all(adds.field("path"), store.uri), unique_ids(adds.field("deletionVector"))]
            constants = (pa.scalar(_CHECKPOINTED, pa.int64()), pa.scalar(1, pa.int64()), pa.scalar(False))
            add(pa.record_batch([*keys, *(pa.repeat(one, len(adds)) for one in constants)], schema=_ENTRIES))

        await read_adds(store, segment, add_checkpointed)
        return await in_thread(_replay, entries)


def _replay(entries: SpillingSort) -> tuple[Contradiction, ...]:
    by_version: dict[int, Contradiction] = {}
    columns = ((column.to_pylist() for column in batch.columns) for batch in entries)
    entry_rows = chain.from_iterable(zip(*some, strict=True) for some in columns)
    for location, rows in groupby(entry_rows, key=itemgetter(0)):
        for contradiction in _of_location(location, list(rows)):
            by_version.setdefault(contradiction.version, contradiction)
    return tuple(by_version[version] for version in sorted(by_version))


def _of_location(location: str, rows: list[Entry]) -> Iterable[Contradiction]:
    removes = Counter(version for _, _, version, is_add, changes_data in rows if not is_add and changes_data)
    vector, is_live = "", False
    for _, named, version, is_add, changes_data in rows:
        if named != vector:
            vector, is_live = named, False
        if not is_add and not is_live and removes[version] < 2:
            yield Contradiction(
                version, location, "it removes a file that was not in the table, or was with another deletion vector"
            )
        if is_add and is_live and changes_data:
            yield Contradiction(version, location, "it adds a file that was in the table already")
        is_live = bool(is_add)
