"""Errors of object stores as those of a sink."""

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

__all__ = ["store_errors"]


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
