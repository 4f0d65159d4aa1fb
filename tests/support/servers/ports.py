"""Loopback ports for servers that stop and restart.

They are outside the range for outgoing connections: while a server is down, the system could give its port to any
connection, even to the client that tries to reach the server.
"""

import random
import socket
from contextlib import ExitStack
from typing import Final

__all__ = ["free_ports"]

_FROM: Final = 16_384
_TO: Final = 32_000


def free_ports(count: int) -> list[int]:
    """Return so many different ports on which nothing listens."""
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = random.randrange(_FROM, _TO)
            probe = stack.enter_context(socket.socket())
            # With the server's own socket option, so that closed connections do not occupy a port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
    return found
