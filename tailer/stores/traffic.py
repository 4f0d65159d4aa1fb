"""Metrics of object stores: the requests, their faults, and the bytes of objects that were read.

Every attempt counts, also those that a client repeats by itself. A store is named as in the configuration, or after its
bucket.
"""

from enum import StrEnum
from typing import Final

from tailer.metrics import Counter

__all__ = ["FAULTS", "READ_BYTES", "REQUESTS", "Fault"]

REQUESTS: Final = Counter("lake_tailer_store_requests", "Attempts at a request to a store.", ("store", "verb"))
FAULTS: Final = Counter(
    "lake_tailer_store_faults",
    "Attempts at a request to a store that failed, and answers that were checked again.",
    ("store", "verb", "fault"),
)
READ_BYTES: Final = Counter("lake_tailer_store_read_bytes", "Bytes of objects read from a store.", ("store",))
METRICS: Final = (REQUESTS, FAULTS, READ_BYTES)


class Fault(StrEnum):
    """A kind of fault of one attempt."""

    THROTTLED = "throttled"  # the store asks for fewer requests
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    CONNECTION = "connection"  # not made, or broken before the answer
    TORN_BODY = "torn_body"  # the answer ended early
    NOT_FOUND_ONCE = "not_found_once"  # asked for again, because a store may be wrong
    EXPIRED_TOKEN = "expired_token"
    CONFLICT = "conflict"  # another writer was first, or an object was replaced while it was read
    LOST_ANSWER = "lost_answer"  # a write that seemed to fail was found to be done
    REFUSED = "refused"  # any other refusal: a permission, credentials, a setting
