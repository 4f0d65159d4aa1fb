"""The options of an `http` sink, checked before any I/O.

Secrets come from the environment, from files, or from commands (`tailer.stores.secrets`). An address may hold a secret,
too: no message shows more of it than `origin`.
"""

import binascii
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from tailer.errors import ConfigError, SinkRejected
from tailer.stores.secrets import WAYS, KeptSecret, Secret
from tailer_sinks import read_options
from tailer_sinks.access import read_secret
from tailer_sinks.options import Int64Option

__all__ = ["Options", "RequestSecrets", "Secrets", "origin", "read", "signing_keys"]

_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^`|~-]+")
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_OURS: Final = frozenset({"connection", "content-length", "content-type", "host", "transfer-encoding"})
_OUR_PREFIX: Final = "webhook-"
_SECRET_PREFIX: Final = "whsec_"
_KEY_BYTES: Final = range(24, 65)
_NO_KEY: Final = (
    'Give 24 to 64 bytes in base64, with or without "whsec_" before them; several keys with spaces between.'
)


class Options(Int64Option, msgspec.Struct, frozen=True, kw_only=True):
    """The options in the configuration."""

    remedies: ClassVar = {"headers": 'Give a table: headers = {"X-Team" = "lake"}.'}

    url: str  # gets a POST for each batch; keep it in the environment if it holds a token
    format: Literal["json", "cloudevents"] = "json"  # an array of rows, or CloudEvents
    batch_rows: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1000  # most events in a request
    batch_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**30)] = 1_000_000  # most bytes in a request
    headers: dict[str, Secret] = {}  # of each request
    signature_secret: Secret = Secret()  # signs requests (Standard Webhooks)
    timeout_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 30.0  # seconds for a request and its answer
    dead_letter_folder: str | None = None  # for refused events; default: they stop the pipeline

    def __repr__(self) -> str:
        """Return a text without the secrets."""
        return f"Options(format={self.format!r})"


class Secrets(msgspec.Struct, frozen=True):
    """The headers of each request, and the keys that sign it."""

    headers: dict[str, str]
    keys: tuple[bytes, ...]

    def __repr__(self) -> str:
        """Return the name of the class alone."""
        return "Secrets(...)"


def read(name: str, options: Mapping[str, Any]) -> Options:
    """Read the options of the sink called `name`; no I/O.

    Raises `ConfigError` naming the option; several as an `ExceptionGroup`.
    """
    return read_options(name, options, Options, _check_url, _check_headers, _check_secrets)


def origin(url: str) -> str:
    """Return the part of an address that may be shown: scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def signing_keys(secret: str) -> tuple[bytes, ...]:
    """Return the keys in a secret: base64 with or without `whsec_` before it, several with spaces between.

    Raises `ValueError`, whose text does not show the secret, if there is none, or one of the wrong length.
    """
    keys = []
    for part in secret.split():
        try:
            keys.append(b64decode(part.removeprefix(_SECRET_PREFIX), validate=True))
        except (binascii.Error, ValueError):
            raise ValueError("is not base64") from None
        if len(keys[-1]) not in _KEY_BYTES:
            raise ValueError(f"has a key of {len(keys[-1])} bytes")
    if not keys:
        raise ValueError("is empty")
    return tuple(keys)


class RequestSecrets:
    """The secrets of requests. `remedy`: how to correct them. Methods block.

    Each raises `SinkRejected` for a file or a command that cannot be used, `SinkUnavailable` for a command that fails.
    """

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._options = options
        headers, key = options.headers, options.signature_secret
        self._headers = {header: KeptSecret(secret) for header, secret in headers.items()}
        self._key = KeptSecret(key)
        self.may_change: Final = any(secret.may_change for secret in (key, *headers.values()))
        shown = {f"headers.{header}": secret for header, secret in headers.items() if secret.value is None}
        if not shown:
            shown = {"headers": Secret("set") if headers else Secret()}
        if key.is_given:
            shown["signature_secret"] = key
        self.remedy: Final = " ".join(secret.remedy(option) for option, secret in shown.items())

    def read(self) -> Secrets:
        """Return the secrets for the next request: see `KeptSecret`."""
        headers = {}
        for header, kept in self._headers.items():
            value = (read_secret(self._name, kept) or "").strip()
            if (fault := _header_fault(header, value)) is not None:
                reason = f"{self._options.headers[header].place}, for the header {header}, {fault[0]}"
                raise SinkRejected(self._name, reason, "It must give the value of the header alone: Bearer TOKEN.")
            headers[_spelled(header)] = value
        secret = read_secret(self._name, self._key)
        try:
            return Secrets(headers, () if secret is None else signing_keys(secret))
        except ValueError as error:
            raise SinkRejected(
                self._name, f"the signature secret in {self._options.signature_secret.place} {error}", _NO_KEY
            ) from None

    def forget(self) -> None:
        """Let the next `read` run the commands again: what they printed was refused."""
        for secret in (self._key, *self._headers.values()):
            secret.forget()


def _check_url(name: str, options: Options) -> Iterator[ConfigError]:
    where, remedy = f"{name}.url", "Give one such as https://api.example.com/changes."
    parts = _split(options.url)
    if parts is None:
        yield ConfigError(where, "is not an address of HTTP", remedy)
    elif "@" in parts.netloc:
        yield ConfigError(where, "contains a user name or a password", "Send them in a header: Authorization.")
    elif parts.fragment:
        yield ConfigError(where, "has a part after #, which is never sent", "Remove it.")


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an address, or a port that is not a number
        return None
    return parts if sound and url.isprintable() and " " not in url else None


def _check_headers(name: str, options: Options) -> Iterator[ConfigError]:
    for header, secret in options.headers.items():
        if header in WAYS:
            reason = "is not the name of a header: each header has a value or a place of its own"
            remedy = 'Write such as headers = {Authorization = {file = "token"}}.'
            yield ConfigError(f"{name}.headers.{header}", reason, remedy)
        elif (fault := _header_fault(header, secret.value)) is not None:
            yield ConfigError(f"{name}.headers.{header}", *fault)


def _header_fault(header: str, value: str | None) -> tuple[str, str] | None:
    """Return the reason and the next step for a header that cannot be sent, without its value (None: read later)."""
    header = _spelled(header)
    if _HEADER.fullmatch(header) is None:
        return "is not the name of a header", "Use letters, digits and hyphens."
    if header in _OURS or header.startswith(_OUR_PREFIX):
        return "is a header that the sink sets itself", "Leave it out."
    if value is not None and _VALUE.fullmatch(value) is None:
        return "has a value that a header cannot have", "Use one line of ASCII, without spaces around it."
    return None


def _spelled(header: str) -> str:
    """Return the name of a header in lower case. A variable of the environment has `_` for `-`."""
    return header.lower().replace("_", "-")


def _check_secrets(name: str, options: Options) -> Iterator[ConfigError]:
    secret = options.signature_secret.value
    if secret is None:
        return
    try:
        signing_keys(secret)
    except ValueError as error:
        yield ConfigError(f"{name}.signature_secret", str(error), _NO_KEY)
