"""Keyed hashes of values, by a secret that only this process reads: expressions have no more than where it is."""

import hmac
import os
from functools import lru_cache
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import ConfigError
from tailer.shape.rows import Values
from tailer.shape.types import STRING

__all__ = ["keyed_hash", "read_secret"]

_OPTION: Final = "hmac_sha256"
_REMEDY: Final = "Name it as 'env:VARIABLE' or 'file:/path'."


def keyed_hash(values: Values, place: str) -> Values:
    """Return the HMAC-SHA-256 of texts or bytes, as hexadecimal text. `place`: of the secret.

    Raises `ConfigError` where there is no secret.
    """
    secret, raw = read_secret(place), pc.cast(values, pa.binary())
    if isinstance(raw, pa.Scalar):
        return pa.scalar(hmac.new(secret, raw.as_py(), "sha256").hexdigest() if raw.is_valid else None, STRING)
    # Most columns that need a mask have each value several times.
    distinct = raw.dictionary_encode()
    hashes = [hmac.new(secret, value, "sha256").hexdigest() for value in distinct.dictionary.to_pylist()]
    return pa.array(hashes, STRING).take(distinct.indices)


@lru_cache(maxsize=16)
def read_secret(place: str) -> bytes:
    """Return the secret at `place`: `env:VARIABLE`, or `file:/path`, whose last newline does not count.

    Each process reads it once. Raises `ConfigError` where there is none.
    """
    kind, _, name = place.partition(":")
    if kind == "env" and name:
        secret = os.environ.get(name, "").encode()
        missing = f"the environment has no {name}"
    elif kind == "file" and name:
        try:
            secret = Path(name).read_bytes().removesuffix(b"\n")
        except OSError as error:
            raise ConfigError(_OPTION, f"the secret in {name} cannot be read: {error.strerror}", _REMEDY) from None
        missing = f"{name} is empty"
    else:
        raise ConfigError(_OPTION, f"{place!r} is no place of a secret", _REMEDY)
    if not secret:
        raise ConfigError(_OPTION, missing, "Give it a secret that nobody can guess, such as 32 random bytes in hex.")
    return secret
