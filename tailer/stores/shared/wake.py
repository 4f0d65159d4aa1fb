"""Waits for one table that end together, so that the looks that follow them can be one request."""

from types import TracebackType
from weakref import WeakSet

from tailer.stores.wakeup import Wake, WakeWrapper

__all__ = ["SharedWake"]


class SharedWake(WakeWrapper):
    """The wait of one of the pipelines that follow a table: where it ends, it ends those of its `peers`.

    A wait that a peer has ended ends no other one, or the pipelines would wake each other for ever.
    """

    def __init__(self, wake: Wake, peers: "WeakSet[SharedWake]") -> None:
        super().__init__(wake)
        self._peers = peers
        self._is_waiting = False
        self._is_ended = False
        peers.add(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._peers.discard(self)
        return await super().__aexit__(kind, error, trace)

    async def wait(self, timeout_s: float) -> None:
        """See `Wake.wait`."""
        self._is_waiting, self._is_ended = True, False
        try:
            await super().wait(timeout_s)
        finally:
            self._is_waiting = False
        if not self._is_ended:
            for peer in list(self._peers):
                peer.end()

    def end(self) -> None:
        """End the wait, if there is one, because a peer's has ended."""
        if self._is_waiting:
            self._is_ended = True
            self._wake.ring()
