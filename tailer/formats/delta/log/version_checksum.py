"""Version checksum files (PROTOCOL.md, "Version Checksum File"): protocol and metadata at a version, without the log.

A writer may write one before or after the commit, and a failed attempt may leave one. So a checksum file is used only
if it names the transaction of the commit.
"""

import msgspec

from tailer.errors import ObjectNotFound
from tailer.formats.delta.log.actions import MALFORMED, Commit, Metadata, Protocol
from tailer.formats.delta.log.listing import LOG
from tailer.stores.port import ObjectStore, StoredObject

__all__ = ["VersionChecksum", "read_checksum"]


class VersionChecksum(msgspec.Struct, frozen=True, rename="camel"):
    """The fields that define the state; the others describe the table's files."""

    protocol: Protocol
    metadata: Metadata
    txn_id: str


_CHECKSUM = msgspec.json.Decoder(VersionChecksum)


async def read_checksum(store: ObjectStore, commit: Commit) -> VersionChecksum | None:
    """Read the checksum file of `commit`; None where it is missing, malformed or of another transaction.

    Raises `StorageUnavailable`.
    """
    txn_id = commit.info.txn_id if commit.info is not None else None
    if not isinstance(txn_id, str):
        return None
    try:
        found = await store.read(f"{LOG}/{commit.version:020d}.crc", _decode)
    except ObjectNotFound:
        return None
    return found if found is not None and found.txn_id == txn_id else None


def _decode(stored: StoredObject) -> VersionChecksum | None:
    try:
        return _CHECKSUM.decode(stored.data)
    except MALFORMED:
        return None
