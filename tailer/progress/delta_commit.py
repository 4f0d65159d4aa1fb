"""Writes to a Delta log: commits, which exactly one writer wins, and checkpoints of a table without files.

A commit creates the file of its version by put-if-absent (PROTOCOL.md, "Delta Log Entries"). This module keeps no
state: the caller knows the next version and how to react if another writer was faster. Only the writer can know one
thing: whether a put was ours if its answer was lost or the store's client repeated it. So every commit carries its own
id in `commitInfo.txnId`, and is read back in doubt.
"""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tailer.errors import ObjectAlreadyExists, ObjectNotFound, StorageUnavailable
from tailer.formats.delta.checkpoints.hint import LAST_CHECKPOINT, json_checksum
from tailer.formats.delta.log.actions import Commit, Metadata, Protocol, Txn, parse_commit
from tailer.formats.delta.log.listing import LOG, commit_name
from tailer.stores.port import ObjectStore, StoredObject, in_thread

__all__ = ["now_ms", "read_commit", "write_checkpoint", "write_commit"]

Action = Mapping[str, Any]

_ENGINE: Final = "lake-tailer"


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


async def read_commit(store: ObjectStore, version: int) -> Commit:
    """Read the commit file of a version. Raises `ObjectNotFound`, `StorageUnavailable`, `LogCorrupt`."""
    name = commit_name(version)

    def decode(stored: StoredObject) -> Commit:
        return parse_commit(stored.data, store.uri, name, version, stored.meta.modified_ms)

    return await store.read(name, decode)


async def write_commit(store: ObjectStore, version: int, actions: Sequence[Action], operation: str) -> None:
    """Commit `actions` as `version` of the table, all of them or none.

    `actions` are JSON-ready and come without `commitInfo`. Raises `ObjectAlreadyExists` if another writer has made that
    version: nothing of ours was written. Raises `StorageUnavailable` if nothing was written for another reason, or if
    the outcome is unknown: read the log again before the next attempt.
    """
    write_id = str(uuid.uuid4())
    provenance = {
        "timestamp": now_ms(),
        "operation": operation,
        "operationParameters": {},
        "isBlindAppend": True,
        "engineInfo": _ENGINE,
        "txnId": write_id,
    }
    lines = [msgspec.json.encode(action) for action in ({"commitInfo": provenance}, *actions)]
    try:
        await store.put_if_absent(commit_name(version), b"\n".join(lines) + b"\n")
    except (ObjectAlreadyExists, StorageUnavailable) as error:
        try:
            commit = await read_commit(store, version)
        except ObjectNotFound:
            raise error from None
        if commit.info is None or commit.info.txn_id != write_id:
            raise ObjectAlreadyExists(f"{store.uri}/{commit_name(version)}") from error


async def write_checkpoint(
    store: ObjectStore, version: int, protocol: Protocol, metadata: Metadata, txns: Iterable[Txn]
) -> None:
    """Write the classic checkpoint of a table without files at `version`, then point `_last_checkpoint` to it.

    PROTOCOL.md, "Checkpoints" and "Last Checkpoint File". Repeated and concurrent writes do no harm.
    """
    actions = [{"protocol": _fields(protocol)}, {"metaData": _fields(metadata)}]
    actions += [{"txn": _fields(txn)} for txn in txns]
    data = await in_thread(_parquet, actions)
    await store.put(f"{LOG}/{version:020d}.checkpoint.parquet", data)
    hint = {"version": version, "size": len(actions), "sizeInBytes": len(data), "numOfAddFiles": 0}
    checksum = json_checksum(msgspec.json.encode(hint))
    await store.put(LAST_CHECKPOINT, msgspec.json.encode({**hint, "checksum": checksum}))


def _fields(action: msgspec.Struct) -> dict[str, Any]:
    """Return all fields of an action by their names in the log, defaults included."""
    names = {field.name: field.encode_name for field in msgspec.structs.fields(action)}
    values = {names[name]: value for name, value in msgspec.structs.asdict(action).items()}
    return {name: _fields(value) if isinstance(value, msgspec.Struct) else value for name, value in values.items()}


def _parquet(actions: list[Action]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(actions, schema=_CHECKPOINT), sink, write_page_checksum=True)
    data: bytes = sink.getvalue().to_pybytes()
    return data


_TEXTS: Final = pa.map_(pa.string(), pa.string())
_FORMAT: Final = pa.struct([("provider", pa.string()), ("options", _TEXTS)])
# The columns readers look for, files' included though there are none. Columns a reader does not find are null to it.
_CHECKPOINT: Final = pa.schema(
    {
        "txn": pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": _TEXTS,
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": _FORMAT,
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _TEXTS,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
    }
)
