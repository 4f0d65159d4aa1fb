"""Loopback ports for servers that go down and come back.

Not from the range that the system hands out to outgoing connections: there, while a server is down, the port may become
the near end of anybody's connection, even of the very client that tries to reach the server, and is taken when the
server comes back.
"""

import random
import socket
from contextlib import ExitStack
from typing import Final

__all__ = ["free_ports"]

_FROM: Final = 16_384
_TO: Final = 32_000


def free_ports(count: int) -> list[int]:
    """So many different ports nobody listens at now."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = random.randrange(_FROM, _TO)
            probe = stack.enter_context(socket.socket())
            # As the server will bind: what is left of closed connections does not keep a port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found
