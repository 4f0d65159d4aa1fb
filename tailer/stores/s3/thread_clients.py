"""The S3 client of worker threads: one of each process and `S3Options`. It may be used by all threads at once."""

import os
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from botocore.config import Config

from tailer.stores.s3.options import S3Options
from tailer.stores.s3.sessions import client_arguments, credentials_name, sync_session

__all__ = ["ThreadClient", "thread_client"]


@dataclass(frozen=True, eq=False)
class ThreadClient:
    """A client for threads. `credentials`: its login, for errors; `keys`: botocore's credentials; None: anonymous."""

    client: Any
    credentials: str
    options: S3Options
    keys: Any = field(default=None, repr=False)

    def retire(self) -> None:
        """Let the next request make a new client: this one's credentials are refused."""
        with _MAKING:
            if _CLIENTS.get(key := (os.getpid(), self.options)) is self:
                del _CLIENTS[key]


# A child process must not use the connections of its parent.
_CLIENTS: Final[dict[tuple[int, S3Options], ThreadClient]] = {}
# Making clients is not safe among threads.
_MAKING: Final = threading.Lock()


def thread_client(options: S3Options) -> ThreadClient:
    """Return this process's client. Raises botocore's errors, `OSError` and `ValueError` where none can be made."""
    with _MAKING:
        key = os.getpid(), options
        if key not in _CLIENTS:
            session = sync_session(options)
            client = session.create_client("s3", **client_arguments(options, Config))
            found = None if options.anonymous else session.get_credentials()
            _CLIENTS[key] = ThreadClient(client, credentials_name(options, found and found.method), options, found)
        return _CLIENTS[key]
