"""Heartbeats: what a process that delivers a pipeline leaves at the destination, so that standbys see that it works.

They only say who should deliver. That no row is lost or doubled by two who do is up to the sink's transactions
(invariant 6), so a place for heartbeats needs no lock and no order: it is one value that the last writer replaces.
"""

import os
import secrets
import socket
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Heartbeat", "Heartbeats", "instance_name", "process_of"]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life of the active instance of a pipeline.

    `instance`: a name that no other instance has. `term`: grows with each takeover. `count`: grows with each heartbeat
    of a term. `released`: whether the instance has ended, so that nobody has to wait.
    """

    instance: str
    term: int
    count: int = 0
    released: bool = False

    @property
    def rank(self) -> tuple[int, str]:
        """The order of instances: of two that are both active, the one with the higher rank stays so."""
        return self.term, self.instance


class Heartbeats(Protocol):
    """The place of the heartbeats of one pipeline. One call at a time; each may be cancelled.

    Methods raise `SinkUnavailable` and `SinkRejected`.
    """

    async def read(self) -> Heartbeat | None:
        """Return what was written last; None: nothing."""
        ...

    async def write(self, heartbeat: Heartbeat) -> None:
        """Replace what was written last."""
        ...

    async def aclose(self) -> None:
        """Release connections."""
        ...


def instance_name() -> str:
    """Return a name that no other instance has, and that tells people where this process runs."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"


def process_of(instance: str) -> str:
    """Return the process and the host of a name for people; the name itself where it is not one of `instance_name`."""
    host, _, rest = instance.rpartition("-")[0].rpartition("-")
    return f"process {rest} on {host}" if host and rest.isdigit() else instance
