"""What a commit file was when it was read, and so whether it has changed since.

Files of a log do not change, and most writers make them appear whole. Where one does not, its first lines are a commit
as good as any: only that it is longer a moment later tells.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import BinaryIO, Final

from tailer.stores.local import ObjectMeta, ObjectStore, OpenObject

__all__ = ["CommitContent", "CommitFile", "read_whole"]

_PIECE_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class CommitFile:
    """How to tell a commit file from another one: by its time and length, or else its content, where that was read."""

    meta: ObjectMeta
    digest: bytes | None

    async def is_still(self, store: ObjectStore) -> bool:
        """Whether the file in the store is this one. Raises `ObjectNotFound`, `StorageUnavailable`."""
        found = await store.stat(self.meta.name)
        if found == self.meta:
            return True
        if self.digest is None:
            return False
        file, _ = await store.scan(self.meta.name, read_whole)
        return file.digest == self.digest


class CommitContent:
    """A file being read from its beginning to its end: what it holds, as a digest, and whether its last line ends."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = blake2b(digest_size=16)
        self.is_ended = False

    def read(self, size: int = -1) -> bytes:
        """The next bytes, as of any file."""
        data = self._file.read(size)
        if data:
            self._digest.update(data)
            self.is_ended = data.endswith(b"\n")
        return data

    def read_all(self) -> None:
        """Read what is left."""
        while self.read(_PIECE_BYTES):
            pass

    @property
    def digest(self) -> bytes:
        """The digest of what was read."""
        return self._digest.digest()


def read_whole(opened: OpenObject) -> tuple[CommitFile, bool]:
    """What an open commit file is, and whether its last line ends."""
    content = CommitContent(opened.file)
    content.read_all()
    return CommitFile(opened.meta, content.digest), content.is_ended
