"""Secrets of sinks (`tailer.stores.secrets`). They are read when a login needs them, so they may be renewed."""

from tailer.errors import SinkRejected, SinkUnavailable
from tailer.stores.secrets import WAYS, KeptSecret, NoSecret, Secret

__all__ = ["WAYS", "KeptSecret", "Secret", "read_secret"]


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
