"""The `delta` sink: change rows appended to a Delta table, exactly once.

A transaction is one Delta commit that adds the rows, of any number, and a `txn` action (PROTOCOL.md, "Transaction
Identifiers") whose version is the last source version the rows complete. Readers of the target therefore never see
half a version, and progress is what the table says. The target gets the columns of the source and Delta's three
metadata columns `_change_type`, `_commit_version` and `_commit_timestamp`; it is created by the first commit and grows
with the source (`sinks.delta_schema`). The rows of a Delta table have no order: `_commit_version` tells it.

    delta_table   the table, through delta-rs: what makes an append exactly once
    delta_schema  which rows fit which table
    delta_spool   rows before they are committed, in bounded memory

An aborted transaction has written nothing to the table; one that died while committing may leave data files that no
commit names: VACUUM removes them. The target is an ordinary Delta table, and each commit adds at least one file, so
it needs OPTIMIZE now and then: opening a table takes delta-rs time that grows with the number of files.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import msgspec
import pyarrow as pa
from anyio import to_thread

from sinks import read_options
from sinks.delta_schema import empty_partition
from sinks.delta_spool import Spool
from sinks.delta_table import Anchor, TargetTable
from tailer.errors import ConfigError, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch
from tailer.plan import Position
from tailer.sink import Progress

__all__ = ["DeltaSink"]


class _Options(msgspec.Struct, frozen=True):
    path: str
    partition_by: list[str] | None = None


class DeltaSink:
    """A `Sink` that appends to the Delta table at `path`.

    `partition_by`: columns to partition a new table by; None leaves a new table unpartitioned and takes any table.
    """

    splits_versions: Final = False

    def __init__(self, name: str, path: str, partition_by: Sequence[str] | None = None) -> None:
        self._table = TargetTable(name, path, partition_by)
        self._expected: dict[str, int | None] = {}

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Options: `path` (the target table) and, if wanted, `partition_by` (a list of columns). No I/O.

        Raises `ConfigError`.
        """
        chosen = read_options(name, options, _Options)
        if not chosen.path:
            raise ConfigError(f"{name}.path", "is empty", "Set path to the target table's folder.")
        if chosen.partition_by == []:
            raise ConfigError(f"{name}.partition_by", "is empty", "Leave it out, or name columns of the table.")
        return cls(name, chosen.path, chosen.partition_by)

    @property
    def name(self) -> str:
        """What messages call this sink."""
        return self._table.name

    async def progress(self, app_id: str) -> Progress | None:
        """The `txn` version of `app_id`, read from the table; None where there is none, or no table.

        Raises `SinkRejected` for a table that could forget its progress, `SinkUnavailable` where it cannot be read.
        """
        version = await to_thread.run_sync(self._table.txn_version, app_id)
        self._expected[app_id] = version
        return None if version is None else Progress(app_id, Position.end(version))

    async def reset(self, progress: Progress) -> None:
        """Commit `progress` without rows. Where there is no table, one with only the metadata columns is created.

        Raises as `SinkTransaction.commit` does.
        """
        version = _closed_version(self.name, progress)
        await to_thread.run_sync(self._table.reset, progress.app_id, version)
        self._expected[progress.app_id] = version

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator["_DeltaTransaction"]:
        """A transaction on top of what `progress` said last, or else of what the table says now.

        Entering raises `SinkFenced` where another instance has committed since, and `SinkRejected` where rows of
        `schema` do not fit the table.
        """
        if app_id not in self._expected:
            await self.progress(app_id)
        anchor = await to_thread.run_sync(self._table.anchor, app_id, schema, self._expected[app_id])
        spool = Spool(anchor.schema)
        try:
            yield _DeltaTransaction(self._table, anchor, schema, spool, self._expected)
        finally:
            spool.close()

    async def aclose(self) -> None:
        """Nothing is held between transactions."""


class _DeltaTransaction:
    """Rows in a spool until `commit` appends them to the table as it was when the transaction began."""

    def __init__(
        self,
        table: TargetTable,
        anchor: Anchor,
        schema: pa.Schema,
        spool: Spool,
        expected: dict[str, int | None],
    ) -> None:
        self._table = table
        self._anchor = anchor
        self._schema = schema
        self._spool = spool
        self._expected = expected

    async def write(self, batch: ChangeBatch) -> None:
        """See `SinkTransaction.write`. Raises `SinkUnavailable` where the spool's disk is full."""
        if not batch.rows.schema.equals(self._schema):
            remedy = "This is a defect of the pipeline: every batch must have the schema given to begin."
            raise SinkRejected(self._table.name, f"rows of another schema at version {batch.version}", remedy)
        try:
            await to_thread.run_sync(self._take, batch.rows)
        except OSError as error:
            raise SinkUnavailable(self._table.name, f"no room for the rows in TMPDIR: {error}") from error

    async def commit(self, progress: Progress) -> None:
        """See `SinkTransaction.commit`. Not cancelled once begun.

        Raises `SinkFenced`, `SinkRejected`, `SinkUnavailable` (nothing was committed) or `CommitUnknown`.
        """
        anchor, version = self._anchor, _closed_version(self._table.name, progress)
        if progress.app_id != anchor.app_id or (anchor.expected is not None and version <= anchor.expected):
            reason = f"progress must go on from {anchor.app_id} at version {anchor.expected}, not to {progress}"
            raise SinkRejected(self._table.name, reason, "Use `tailer progress reset` to go back.")
        await to_thread.run_sync(self._append, version)
        self._expected[anchor.app_id] = version

    def _take(self, rows: pa.RecordBatch) -> None:
        if column := empty_partition(rows, self._anchor.partition_by):
            reason = f"partition column {column} holds an empty string, which to Delta is null"
            raise SinkRejected(self._table.name, reason, "Partition the target by another column.")
        self._spool.add(rows)

    def _append(self, version: int) -> None:
        self._table.append(self._anchor, version, self._spool.reader())


def _closed_version(name: str, progress: Progress) -> int:
    if not progress.position.closes_version:
        remedy = "This is a defect of the pipeline: the delta sink does not split versions."
        raise SinkRejected(name, f"{progress.position} is in the middle of a version", remedy)
    return progress.position.version
