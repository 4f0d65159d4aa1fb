"""Identity of a commit file, to detect that it changed after it was read.

Commit files do not change, and most writers create them atomically. With a writer that does not, the first lines alone
are a valid commit too. Only the file's growth reveals that it was incomplete.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import BinaryIO, Final

from tailer.stores.port import ObjectMeta, ObjectStore, OpenObject

__all__ = ["CommitContent", "CommitFile", "read_whole"]

_CHUNK_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class CommitFile:
    """Identity of a commit file: its time and length, and the digest of its content where that was read."""

    meta: ObjectMeta
    digest: bytes | None

    async def is_still(self, store: ObjectStore) -> bool:
        """Return whether the file in the store is this one. Raises `ObjectNotFound`, `StorageUnavailable`."""
        found = await store.stat(self.meta.name)
        if found == self.meta:
            return True
        if self.digest is None:
            return False
        file, _ = await store.scan(self.meta.name, read_whole)
        return file.digest == self.digest


class CommitContent:
    """Digesting reader of a commit file. `is_ended`: whether the last line read ends with a newline."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = blake2b(digest_size=16)
        self.is_ended = False

    def read(self, size: int = -1) -> bytes:
        """Read the next bytes."""
        data = self._file.read(size)
        if data:
            self._digest.update(data)
            self.is_ended = data.endswith(b"\n")
        return data

    def read_all(self) -> None:
        """Read the rest of the file."""
        while self.read(_CHUNK_BYTES):
            pass

    @property
    def digest(self) -> bytes:
        """Digest of the bytes read so far."""
        return self._digest.digest()


def read_whole(opened: OpenObject) -> tuple[CommitFile, bool]:
    """Read an open commit file; return its identity and whether its last line ends with a newline."""
    content = CommitContent(opened.file)
    content.read_all()
    return CommitFile(opened.meta, content.digest), content.is_ended
