"""Version checksum files: protocol and metadata at a version, without the log before it (PROTOCOL.md, "Version
Checksum File").

A writer may leave one beside a commit, before or after it, and one of an attempt that failed may stay. So it is
believed only where it names the transaction of the commit that is there.
"""

import msgspec

from tailer.delta.log.actions import MALFORMED, Commit, Metadata, Protocol
from tailer.delta.log.listing import LOG
from tailer.errors import ObjectNotFound
from tailer.stores.local import ObjectStore, StoredObject

__all__ = ["VersionChecksum", "read_checksum"]


class VersionChecksum(msgspec.Struct, frozen=True, rename="camel"):
    """The fields that tell a state; the others are about the table's files."""

    protocol: Protocol
    metadata: Metadata
    txn_id: str


_CHECKSUM = msgspec.json.Decoder(VersionChecksum)


async def read_checksum(store: ObjectStore, commit: Commit) -> VersionChecksum | None:
    """Read the checksum file of `commit`; None where there is none that is sound and says that it belongs to it.

    Raises `StorageUnavailable`.
    """
    txn_id = commit.info.txn_id if commit.info is not None else None
    if not isinstance(txn_id, str):
        return None
    try:
        found = await store.read(f"{LOG}/{commit.version:020d}.crc", _decoded)
    except ObjectNotFound:
        return None
    return found if found is not None and found.txn_id == txn_id else None


def _decoded(stored: StoredObject) -> VersionChecksum | None:
    try:
        return _CHECKSUM.decode(stored.data)
    except MALFORMED:
        return None
