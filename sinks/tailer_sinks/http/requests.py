"""Requests: a batch of events as a body, with the id and the signature that Standard Webhooks 1.0 describes.

The id names the positions of the first and the last event, and a digest of the body. So the same batch has the same id
whenever it is sent, and a receiver that drops an id which it knows never drops other events.

The signature is HMAC-SHA256 of `<id>.<timestamp>.<body>`. The id has no point in it.
"""

import binascii
import hmac
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import Final

__all__ = ["Events", "Place", "Request", "cut", "request_of", "signature", "signing_keys"]

SECRET_PREFIX: Final = "whsec_"
KEY_BYTES: Final = range(24, 65)
DIGITS: Final = 16

# Version, task and row; of a control event, the version and its kind.
Place = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Events:
    """Consecutive events of one table: JSON objects, and the place of each."""

    table_id: str
    texts: Sequence[bytes]
    places: Sequence[Place]

    def __len__(self) -> int:
        return len(self.texts)

    def slice(self, start: int, end: int) -> "Events":
        """Return the events from `start` up to, without, `end`."""
        return Events(self.table_id, self.texts[start:end], self.places[start:end])

    def halves(self) -> tuple["Events", "Events"]:
        """Return the first and the second half of at least two events."""
        middle = len(self) // 2
        return self.slice(0, middle), self.slice(middle, len(self))


@dataclass(frozen=True, slots=True)
class Request:
    """The id and the body of a request."""

    id: str
    body: bytes


def cut(events: Events, most: int, most_bytes: int) -> Iterator[Events]:
    """Yield the events in batches of at most `most`, whose bodies have at most `most_bytes`, or one event."""
    ends = [0, *accumulate(len(text) + 1 for text in events.texts)]  # with a comma, or the last bracket
    start = 0
    while start < len(events):
        end = max(start + 1, bisect_right(ends, ends[start] + most_bytes - 1) - 1)
        end = min(end, start + most)
        yield events.slice(start, end)
        start = end


def request_of(events: Events) -> Request:
    body = b"[%b]" % b",".join(events.texts)
    first, last = ("-".join(map(str, place)) for place in (events.places[0], events.places[-1]))
    return Request(f"{first}_{last}_{sha256(body).hexdigest()[:DIGITS]}", body)


def signing_keys(secret: str) -> tuple[bytes, ...]:
    """Return the keys in a secret: base64 with or without `whsec_` before it, several with spaces between.

    Raises `ValueError`, whose text does not show the secret, if there is none, or one of the wrong length.
    """
    keys = []
    for part in secret.split():
        try:
            keys.append(b64decode(part.removeprefix(SECRET_PREFIX), validate=True))
        except (binascii.Error, ValueError):
            raise ValueError("is not base64") from None
        if len(keys[-1]) not in KEY_BYTES:
            raise ValueError(f"has a key of {len(keys[-1])} bytes")
    if not keys:
        raise ValueError("is empty")
    return tuple(keys)


def signature(keys: Sequence[bytes], request: Request, timestamp: int) -> str:
    """Return the header `webhook-signature` of a request that is sent at `timestamp`, in seconds since 1970."""
    signed = b"%b.%d.%b" % (request.id.encode(), timestamp, request.body)
    return " ".join(f"v1,{b64encode(hmac.digest(key, signed, 'sha256')).decode()}" for key in keys)
