"""Names of instances: what a process writes at a destination so that others, and people, know who it is."""

import os
import secrets
import socket

__all__ = ["instance_name", "process_of"]


def instance_name() -> str:
    """Return a name that no other instance has, and that tells people where this process runs."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"


def process_of(instance: str) -> str:
    """Return the process and the host of a name for people; the name itself where it is not one of `instance_name`."""
    host, _, rest = instance.rpartition("-")[0].rpartition("-")
    return f"process {rest} on {host}" if host and rest.isdigit() else instance
