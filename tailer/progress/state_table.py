"""A small Delta table without data, whose log keeps the progress of sinks that cannot store it themselves.

Progress is a `txn` action (PROTOCOL.md, "Transaction Identifiers"), as in the `delta` sink, so any Delta reader can
read it. The progress of an app_id consists of four of them in one commit:

    txn(app_id)            the last complete version; everything up to it is delivered
    txn(app_id "#task")    END, or the last task reached in the version after that one
    txn(app_id "#row")     END, or the last row reached in that task
    txn(app_id "#writer")  a random number that identifies the instance that wrote them

So `Position.end(7)` is (7, END, END). A position inside version 8, or inside the snapshot of version 8, is (7, task,
row): task numbers distinguish snapshots (`tailer.plan`). Inside version 0 the complete version is -1. The four share
one `lastUpdated`. If it differs, they were not written together and mean nothing: `LogCorrupt`.

Who may write (invariant 6): a commit is made at exactly the version after the log we know, in which our txns are those
that this instance saw last. If that version already exists, the log is read further. A commit of another app_id moves
our next version by one. A commit with our app_id raises `SinkFenced`, unless this instance wrote it: then it is a put
that counted as failed and arrived late. One with another app_id of our pipeline is of an instance that follows the
table which this one replaced, or that replaced it: the pipeline looks again where to go on.

The log stays small: every `CHECKPOINT_EVERY` commits a checkpoint is written, then everything older than the previous
checkpoint is deleted. Two generations are kept, for readers that have just begun with the older one and for a
checkpoint that turns out to be corrupt. A writer that slept through both could create a version before the kept ones,
which no reader would see. So the log is listed again after each commit, and must contain it. That makes three requests
for each commit: a look at the version before it, without which the table is gone; the commit; and the listing. The
commit itself is not read back: its content is known.
"""

import json
import logging
import secrets
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import to_builtins

from tailer.errors import (
    LogCorrupt,
    NotATable,
    ObjectAlreadyExists,
    ObjectNotFound,
    SinkAccessRefused,
    SinkFenced,
    SinkRejected,
    SinkUnavailable,
    StorageAccessRefused,
    StorageError,
    StorageRefused,
    StorageUnavailable,
    UnsupportedFeature,
    VersionAhead,
    VersionGone,
)
from tailer.formats.delta.checkpoints.checkpoint import read_state
from tailer.formats.delta.log.actions import Commit, Metadata, Protocol, Txn
from tailer.formats.delta.log.listing import LOG, CommitLog, LogPath, LogSegment, commit_name
from tailer.plan import END, Position
from tailer.progress.delta_commit import now_ms, read_commit, write_checkpoint, write_commit
from tailer.sink import Progress, pipeline_of
from tailer.stores.port import ObjectStore, OpenObject

__all__ = ["CHECKPOINT_EVERY", "StateTable"]

_logger = logging.getLogger(__name__)

CHECKPOINT_EVERY: Final = 50
_ATTEMPTS: Final = 5
_PROTOCOL: Final = Protocol(1, 2)
# The table property that marks a table as ours and gives the format of its progress.
_FORMAT: Final = "lakeTailer.progress"
_FORMAT_VERSION: Final = "1"
_RETENTION: Final = "delta.settransactionretentionduration"
# Delta readers refuse a table without columns. It never has rows.
_SCHEMA: Final = {
    "type": "struct",
    "fields": [{"name": "app_id", "type": "string", "nullable": True, "metadata": {}}],
}


@dataclass(frozen=True, slots=True)
class _Log:
    """The state of the table at `version`, and the version of its newest checkpoint (-1: none)."""

    version: int = -1
    checkpoint: int = -1
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: Mapping[str, Txn] = field(default_factory=dict)

    def of(self, app_id: str) -> "_Txns":
        """Return the txns of an app_id."""
        return tuple(self.txns.get(name) for name in _names(app_id))

    def of_pipeline(self, pipeline: str) -> Mapping[str, "_Txns"]:
        """Return the txns of all tables of a pipeline, by app_id."""
        return {name: self.of(name) for name in self.txns if "#" not in name and pipeline_of(name) == pipeline}


_Txns = tuple[Txn | None, ...]


class StateTable:
    """A `ProgressStore` in the Delta table at the root of `store`, which the first `record` creates.

    Several instances, in one process or many, may share a table for different app_ids.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._writer = secrets.randbits(63)
        self._log: _Log | None = None
        self._seen: dict[str, _Txns] = {}
        self._looks: dict[str, Mapping[str, _Txns]] = {}  # by pipeline: all of it at the last look

    async def progress(self, app_id: str) -> Progress | None:
        """Read the progress recorded last for `app_id` from the log. None: nothing recorded, or no table yet.

        Raises `NotATable` for another kind of table, `LogCorrupt`, `VersionGone` or `UnsupportedFeature` for a log that
        cannot be trusted, `SinkRejected` if known progress has disappeared, `StorageUnavailable`.
        """
        self._log = await self._read(None)
        txns = (self._log or _Log()).of(app_id)
        if not any(txns) and any(self._seen.get(app_id, ())):
            raise self._gone(f"it has no progress of {app_id}")
        self._seen[app_id] = txns
        self._looks[pipeline_of(app_id)] = (self._log or _Log()).of_pipeline(pipeline_of(app_id))
        if not any(txns):
            return None
        if not _are_together(txns):
            raise LogCorrupt(self._store.uri, LOG, f"the txns of {app_id} were not written together")
        closed, task, row, _ = (txn.version for txn in txns if txn is not None)
        return Progress(app_id, Position.end(closed) if task == END else Position(closed + 1, task, row))

    async def has_delivered(self, pipeline: str) -> bool:
        """Return whether anything is recorded for `pipeline`, in any table. Raises as `progress` does."""
        self._log = await self._read(None)
        return any(pipeline_of(app_id) == pipeline for app_id in (self._log or _Log()).txns)

    async def record(self, progress: Progress) -> None:
        """Replace the recorded progress in one commit.

        Raises `SinkFenced` if another instance has recorded for the app_id since it was read, `SinkRejected` if the
        store cannot be written or the table is gone, and `SinkUnavailable` if it did not answer: read the progress
        again then.
        """
        app_id = progress.app_id
        if app_id not in self._seen:
            # The pipeline has not asked for this progress, so it goes on from what it saw before.
            look = self._looks.get(pipeline_of(app_id))
            await self.progress(app_id)
            if look is not None:
                self._looks[pipeline_of(app_id)] = look
        try:
            log = self._log or await self._create()
            ours = _encode(progress, self._writer)
            while log.of(app_id) != ours:
                if not any(log.of(app_id)) and any(self._seen[app_id]):
                    raise self._gone(f"it has no progress of {app_id}")
                if log.of(app_id) != self._seen[app_id] and not self._wrote(log.of(app_id)):
                    raise SinkFenced(self._store.uri, f"{app_id} was recorded by another instance")
                self._check_others(app_id, log)
                log = self._log = await self._add(log, ours)
        except StorageUnavailable as error:
            raise SinkUnavailable(self._store.uri, str(error)) from error
        except (VersionAhead, VersionGone) as error:
            raise self._gone(str(error)) from error
        except StorageRefused as error:
            kind = SinkAccessRefused if isinstance(error, StorageAccessRefused) else SinkRejected
            raise kind(self._store.uri, f"progress cannot be kept: {error}", error.hint) from error
        self._seen[app_id] = ours
        if log.version - log.checkpoint >= CHECKPOINT_EVERY:
            await self._shorten(log)

    def _check_others(self, app_id: str, log: _Log) -> None:
        """Raise `SinkUnavailable` if another instance has recorded for another table of the pipeline since our look."""
        look = self._looks[pipeline_of(app_id)]
        for other, txns in log.of_pipeline(pipeline_of(app_id)).items():
            if other != app_id and txns != look.get(other) and not self._wrote(txns):
                raise SinkUnavailable(self._store.uri, f"another instance has delivered {other} meanwhile")

    async def aclose(self) -> None:
        """Do nothing: no resources are held."""

    async def _add(self, log: _Log, txns: _Txns) -> _Log:
        """Try to commit `txns` as the next version. Return the log as it is afterwards, with them or without."""
        if not await self._is_there(log.version):
            # The table is gone, and a commit would begin a new log.
            return await self._read_on(log)
        actions = [{"txn": to_builtins(txn)} for txn in txns]
        with suppress(ObjectAlreadyExists):
            await write_commit(self._store, log.version + 1, actions, "RECORD PROGRESS")
            ours = {txn.app_id: txn for txn in txns if txn is not None}
            log = replace(log, version=log.version + 1, txns={**log.txns, **ours})
        return await self._read_on(log)

    async def _create(self) -> _Log:
        metadata = {
            "id": str(uuid.uuid4()),
            "name": "progress",
            "description": "Progress of lake-tailer: txn actions in the log, no data",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(_SCHEMA),
            "partitionColumns": [],
            "configuration": {_FORMAT: _FORMAT_VERSION},
            "createdTime": now_ms(),
        }
        with suppress(ObjectAlreadyExists):
            await write_commit(
                self._store, 0, [{"protocol": to_builtins(_PROTOCOL)}, {"metaData": metadata}], "CREATE TABLE"
            )
        return await self._read_on(_Log())

    async def _read_on(self, former: _Log) -> _Log:
        log = await self._read(former)
        if log is None:
            raise self._gone("its log is gone")
        return log

    def _gone(self, reason: str) -> SinkRejected:
        """Make the error for a table that is no longer the one in which this instance recorded."""
        remedy = "Restore the state table. To deliver again from the pipeline's start, run it again."
        return SinkRejected(self._store.uri, f"the state table was deleted or replaced while in use: {reason}", remedy)

    async def _read(self, log: _Log | None) -> _Log | None:
        """Read the state at the newest version, starting from `log` if that is still valid. None: there is no log."""
        for _ in range(_ATTEMPTS):
            try:
                listing = await CommitLog(self._store).listing()
            except NotATable:
                objects = await self._store.list(LOG)
                if all(meta.name.rpartition("/")[2].startswith(".") for meta in objects):
                    return None
                if any(map(LogPath.parse, objects)):
                    continue  # it was created just now
                raise
            try:
                return await self._replay(log, listing.segment(listing.latest))
            except ObjectNotFound:
                pass  # others may write so fast that listed files are deleted before they are read
            except VersionGone as error:
                if not await self._is_there(error.version):
                    raise
        raise StorageUnavailable(f"{self._store.uri}/{LOG}", "the listing and the files do not agree")

    async def _replay(self, log: _Log | None, segment: LogSegment) -> _Log:
        checkpoint = segment.checkpoint[0].version if segment.checkpoint else -1
        if log is not None and log.version > segment.version:
            # A gateway's listing may be behind what can be read.
            if await self._is_there(log.version):
                return log
            raise VersionAhead(self._store.uri, log.version, segment.version)
        is_new = log is None
        if log is None or log.version < checkpoint:
            log = await self._read_checkpoint(segment) if segment.checkpoint else _Log()
        for path in segment.commits:
            if path.version > log.version:
                log = self._advance(log, await read_commit(self._store, path.version))
        # A listing may be older than one that was seen before: what is known must never become less.
        with suppress(ObjectNotFound):
            while is_new:
                log = self._advance(log, await read_commit(self._store, log.version + 1))
        return self._checked(replace(log, checkpoint=checkpoint))

    async def _is_there(self, version: int) -> bool:
        try:
            await self._store.stat(commit_name(version))
        except ObjectNotFound:
            return False
        return True

    async def _read_checkpoint(self, segment: LogSegment) -> _Log:
        txns: dict[str, Txn] = {}
        for path in segment.checkpoint:
            for txn in await self._store.scan(path.name, partial(_read_txns, self._store.uri, path)):
                txns[txn.app_id] = txn
        protocol, metadata = await read_state(self._store, segment)
        version = segment.checkpoint[0].version
        return _Log(version, version, protocol, metadata, txns)

    def _advance(self, log: _Log, commit: Commit) -> _Log:
        if commit.adds or commit.removes or commit.cdcs:
            raise NotATable(self._store.uri, f"version {commit.version} holds data, so it is not for keeping progress")
        return _Log(
            commit.version,
            log.checkpoint,
            commit.protocol or log.protocol,
            commit.metadata or log.metadata,
            {**log.txns, **{txn.app_id: txn for txn in commit.txns}},
        )

    def _checked(self, log: _Log) -> _Log:
        """Return the log itself if it is one of ours, in a format we write."""
        uri = self._store.uri
        if log.protocol is None or log.metadata is None:
            raise LogCorrupt(uri, LOG, "no protocol or metaData action", log.version)
        if _FORMAT not in log.metadata.configuration:
            raise NotATable(uri, "it is a Delta table, but not one that keeps lake-tailer's progress")
        if any(name.lower() == _RETENTION for name in log.metadata.configuration):
            # Readers and writers of checkpoints may then drop our txns by age: progress would be lost.
            reason = "progress would be forgotten; unset it with ALTER TABLE ... UNSET TBLPROPERTIES"
            raise UnsupportedFeature(uri, "delta.setTransactionRetentionDuration", log.version, reason)
        if log.protocol != _PROTOCOL or log.metadata.configuration[_FORMAT] != _FORMAT_VERSION:
            feature = f"protocol {log.protocol}, {_FORMAT} {log.metadata.configuration[_FORMAT]}"
            raise UnsupportedFeature(uri, feature, log.version, "lake-tailer writes progress in another format")
        return log

    def _wrote(self, txns: _Txns) -> bool:
        return _are_together(txns) and txns[-1] is not None and txns[-1].version == self._writer

    async def _shorten(self, log: _Log) -> None:
        """Write a checkpoint, then delete everything before the previous one. A failure does no harm."""
        if log.protocol is None or log.metadata is None:
            return
        try:
            await write_checkpoint(self._store, log.version, log.protocol, log.metadata, log.txns.values())
            self._log = replace(log, checkpoint=log.version)
            for meta in await self._store.list(LOG):
                path = LogPath.parse(meta)
                if path is not None and path.version < log.checkpoint:
                    await self._store.delete(path.name)
        except StorageError as error:
            _logger.warning("%s: the log of the state table was not shortened: %s", self._store.uri, error)


def _names(app_id: str) -> tuple[str, ...]:
    return app_id, f"{app_id}#task", f"{app_id}#row", f"{app_id}#writer"


def _are_together(txns: _Txns) -> bool:
    return len({txn and txn.last_updated for txn in txns}) == 1


def _encode(progress: Progress, writer: int) -> _Txns:
    last, updated_ms = progress.position, now_ms()
    place = (last.version, END, END) if last.closes_version else (last.version - 1, last.task, last.row)
    return tuple(
        Txn(name, value, updated_ms) for name, value in zip(_names(progress.app_id), (*place, writer), strict=True)
    )


def _read_txns(table: str, path: LogPath, opened: OpenObject) -> list[Txn]:
    try:
        column = pq.ParquetFile(opened.file, page_checksum_verification=True).read(columns=["txn"])["txn"]
        values = column.filter(column.is_valid()).to_pylist()
        return [Txn(value["appId"], value["version"], value["lastUpdated"]) for value in values]
    except (pa.ArrowException, KeyError, OSError, UnicodeDecodeError) as error:
        raise LogCorrupt(table, path.name, f"unreadable checkpoint: {error}", path.version) from error
