"""The port of a table's commits, and the commits of a table without a catalog: those in its log folder."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from tailer.errors import ObjectNotFound
from tailer.formats.delta.log.listing import LastListing, LogListing, commit_name, list_log, list_recent
from tailer.stores.port import ObjectStore, OpenObject

__all__ = ["CommitLog", "PublishedLog"]

T = TypeVar("T")


class CommitLog(Protocol):
    """The commits of one table."""

    async def listing(self) -> LogListing:
        """List all commits and checkpoints. Raises `NotATable`, `VersionGone`, `StorageUnavailable`, catalog errors."""
        ...

    async def recent(self, clock_window: int, version: int | None = None) -> LogListing:
        """List as far back as `list_recent` does with these arguments. Raises as `listing`."""
        ...

    def forget_listing(self) -> None:
        """Free the memory of the last listing, which makes one of the same objects quick."""
        ...

    async def read(self, version: int, decode: Callable[[OpenObject], T]) -> T | None:
        """Open the commit of `version` and decode it in a worker thread; None while it does not exist.

        Raises `VersionGone` where it exists but its file does not, `StorageUnavailable`, and what the catalog raises.
        """
        ...


class PublishedLog:
    """The commits of a table without a catalog: those in its log."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._last = LastListing()

    async def listing(self) -> LogListing:
        """See `CommitLog.listing`."""
        return await list_log(self._store, self._last)

    def forget_listing(self) -> None:
        """See `CommitLog.forget_listing`."""
        self._last.forget()

    async def recent(self, clock_window: int, version: int | None = None) -> LogListing:
        """See `CommitLog.recent`."""
        return await list_recent(self._store, clock_window, version, self._last)

    async def read(self, version: int, decode: Callable[[OpenObject], T]) -> T | None:
        """See `CommitLog.read`. Only a listing shows whether a missing file is lost."""
        try:
            return await self._store.scan(commit_name(version), decode)
        except ObjectNotFound:
            return None
