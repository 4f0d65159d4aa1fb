"""The port of a store for sinks: files of this machine become new objects, whole or not at all.

A store has no lock. Two writers exclude each other because only one of them can create an object of a certain name.
Attributes are the object's user metadata; they appear with it and cannot be changed. Names are lower-case letters and
`-`, values are ASCII.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tailer.stores.port import ObjectStore

__all__ = ["UploadStore"]


class UploadStore(ObjectStore, Protocol):
    """An `ObjectStore` that sinks can write to."""

    async def upload_if_absent(self, name: str, source: Path, attributes: Mapping[str, str]) -> None:
        """Create an object with the content of the file `source`, durably and in bounded memory.

        Raises `ObjectAlreadyExists` where another writer's object exists, and `StorageUnavailable` where it cannot be
        known whether the object was created.
        """
        ...

    async def attributes(self, name: str) -> Mapping[str, str]:
        """Return an object's attributes, and possibly others. Raises `ObjectNotFound`, `StorageUnavailable`."""
        ...

    async def names_below(self, prefix: str, start_after: str = "") -> Sequence[str]:
        """List the first objects, up to a thousand, in the folder `prefix` and all folders in it, in order.

        Only names greater than `start_after` are returned; none: there are no more.
        """
        ...

    async def holds(self, prefix: str, is_wanted: Callable[[str], bool]) -> bool:
        """See `ObjectStore.holds`; looks at the first thousand objects, also of folders in the folder."""
        return any(is_wanted(name.removeprefix(f"{prefix}/")) for name in await self.names_below(prefix))
