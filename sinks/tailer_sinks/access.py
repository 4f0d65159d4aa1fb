"""Secrets and stores of sinks, whose errors become those of a sink.

Secrets are read when a login needs them, so they may be renewed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tailer.errors import (
    SinkAccessRefused,
    SinkRejected,
    SinkUnavailable,
    StorageAccessRefused,
    StorageError,
    StorageRefused,
)
from tailer.stores.secrets import KeptSecret, NoSecret, Secret

__all__ = ["read_secret", "store_errors"]


def read_secret(name: str, secret: Secret | KeptSecret) -> str | None:
    """Return a secret of the sink called `name`; None: none is given. Blocks.

    Raises `SinkRejected` for a file or a command that cannot be used, `SinkUnavailable` for a command that fails.
    """
    try:
        return secret.read()
    except NoSecret as error:
        if error.remedy is None:
            raise SinkUnavailable(name, error.reason) from None
        raise SinkRejected(name, error.reason, error.remedy) from None


@contextmanager
def store_errors(sink: str) -> Iterator[None]:
    """Raise `SinkRejected` where the store refuses, and `SinkUnavailable` for every other error of it."""
    try:
        yield
    except StorageRefused as error:
        kind = SinkAccessRefused if isinstance(error, StorageAccessRefused) else SinkRejected
        raise kind(sink, f"{error.path}: {error.reason}", error.hint) from error
    except StorageError as error:
        raise SinkUnavailable(sink, str(error)) from error
