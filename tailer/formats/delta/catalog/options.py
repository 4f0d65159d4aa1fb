"""The options of a `unity` catalog, apart from its client, which is an extra."""

from collections.abc import Iterator
from typing import ClassVar, Final

import msgspec

from tailer.errors import ConfigError
from tailer.stores.location import address_faults
from tailer.stores.secrets import Secret

__all__ = ["UnityOptions", "fits_header", "unity_faults"]

_URI_REMEDIES: Final = (
    "Give one such as https://catalog.example or http://127.0.0.1:8080.",
    "Remove them; use `token`.",
)


class UnityOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options in the configuration."""

    missing: ClassVar = {
        "uri": "Give the server's address, such as http://127.0.0.1:8080.",
        "table": "Give the table's full name, such as main.sales.orders.",
    }

    uri: str  # address of the server
    table: str  # name in the catalog: catalog.schema.name
    token: Secret = Secret()  # a bearer token; default: none

    def __repr__(self) -> str:
        """Return a text without the token."""
        return f"UnityOptions(uri={self.uri!r}, table={self.table!r})"


def unity_faults(name: str, options: UnityOptions) -> Iterator[ConfigError]:
    """Yield the faults of the catalog called `name`, whose options have the right types."""
    yield from (ConfigError(f"{name}.uri", *fault) for fault in address_faults(options.uri, *_URI_REMEDIES))
    if options.table.count(".") != 2 or not all(options.table.split(".")):
        yield ConfigError(f"{name}.table", f"{options.table!r} is not a full name", "Give catalog.schema.table.")
    if options.token.value is not None and not fits_header(options.token.value):
        yield ConfigError(f"{name}.token", "is not a token: it is empty or contains spaces", "Set it again.")


def fits_header(token: str) -> bool:
    """Return whether `token` can be sent."""
    return token.isascii() and token.isprintable() and bool(token) and " " not in token
