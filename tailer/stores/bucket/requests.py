"""Requests to a bucket, with the further attempts that the clients do not make themselves.

The clients repeat a request without an answer a few times, and the pipeline retries after that. Neither looks for other
credentials, looks twice for a missing object, or reads an answer again whose body ended early.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio

from tailer.stores.bucket.port import Bucket, Client, Failure, RangeClient
from tailer.stores.traffic import FAULTS, Fault

__all__ = ["Attempts", "ask", "ask_now", "pause"]

T = TypeVar("T")
C = TypeVar("C", bound=RangeClient)

PAUSE_S: Final = 0.2
_REFUSED: Final = (Failure.EXPIRED, Failure.LOGIN)


@dataclass(slots=True)
class Attempts:
    """The further attempts left for one request, for each reason. `verb`: for metrics."""

    bucket: Bucket
    verb: str
    missing: int = 0
    expired: int = 1
    torn: int = 2

    def take(self, error: Exception) -> bool:
        """Return whether another attempt is due after this error, and count it. Count its fault, if nobody has."""
        if (fault := self.bucket.fault_of(error)) is not None:
            self._count(fault)
        match self.bucket.failure_of(error):
            case Failure.EXPIRED:
                self.expired -= 1
                return self.expired >= 0
            case Failure.TORN:
                self.torn -= 1
                return self.torn >= 0
            case Failure.MISSING:
                self.missing -= 1
                if self.missing >= 0:
                    self._count(Fault.NOT_FOUND_ONCE)
                return self.missing >= 0
            case _:
                return False

    def _count(self, fault: Fault) -> None:
        FAULTS.add((self.bucket.store_name, self.verb, fault), 1)


async def ask(bucket: Bucket, uri: str, verb: str, work: Callable[[Client], Awaitable[T]], missing: int = 0) -> T:
    """Send a request from the event loop, and read its answer. Raises `StorageError`.

    `uri`: of the object or the folder, for errors. `verb`: for metrics. `missing`: further looks for a missing object.
    """
    attempts = Attempts(bucket, verb, missing)
    while True:
        client: Client | None = None
        try:
            async with bucket.lend() as client:
                try:
                    return await work(client)
                except bucket.failures as error:
                    if bucket.failure_of(error) in _REFUSED:
                        client.retire()
                    raise
        except bucket.failures as error:
            if not attempts.take(error):
                raise (client or bucket).translate(error, uri) from error
        await pause()


def ask_now(
    bucket: Bucket, connect: Callable[[], C], uri: str, verb: str, work: Callable[[C], T], missing: int = 0
) -> T:
    """Send a request from a worker thread, and read its answer; see `ask`. `connect`: of the bucket."""
    attempts = Attempts(bucket, verb, missing)
    while True:
        client: C | None = None
        try:
            client = connect()
            return work(client)
        except bucket.failures as error:
            if client is not None and bucket.failure_of(error) in _REFUSED:
                client.retire()
            if not attempts.take(error):
                raise (client or bucket).translate(error, uri) from error
        time.sleep(PAUSE_S)


async def pause() -> None:
    """Wait between two attempts."""
    await anyio.sleep(PAUSE_S)
