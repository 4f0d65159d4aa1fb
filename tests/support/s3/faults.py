"""A link to an S3 server that fails at random: the faults a gateway, a network or a server may show.

A fault lasts for a few requests for the same object, so that some of them outlast the retries of S3's clients. The
requests themselves are the source of chance, so a seed gives about the same faults in each run, not exactly the same.
"""

import random
import re
import threading
from collections import Counter
from collections.abc import Set
from enum import StrEnum
from typing import Final

from tests.support.s3.link import Fault, Request, S3Link
from tests.support.s3.server import S3Server

__all__ = ["FaultKind", "FaultyS3Link"]

_COMMIT: Final = re.compile(r"/_delta_log/[0-9]{20}\.json$")
_ENTRY: Final = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
# More than the three requests that a client makes by itself.
_LONGEST: Final = 4

_Answer = tuple[int, list[tuple[str, str]], bytes]


class FaultKind(StrEnum):
    """A fault of one request."""

    SLOW_DOWN = "503 SlowDown"
    INTERNAL = "500 InternalError"
    RESET = "connection reset before the answer"
    TORN = "connection closed in the body"
    STALL = "no answer in time"
    STALL_IN_BODY = "the body stops, the connection stays"
    EXPIRED = "403 ExpiredToken"
    NO_COMMIT = "404 for a commit"
    NO_FILE = "404 for a data file, once"
    REPLACED = "412: a data file was replaced between two ranges"
    STALE_LIST = "a listing without the newest objects"


_RULES: Final = {
    FaultKind.SLOW_DOWN: {"status": 503, "code": "SlowDown"},
    FaultKind.INTERNAL: {"status": 500, "code": "InternalError"},
    FaultKind.EXPIRED: {"status": 403, "code": "ExpiredToken"},
    FaultKind.NO_COMMIT: {"status": 404, "code": "NoSuchKey"},
    FaultKind.NO_FILE: {"status": 404, "code": "NoSuchKey"},
    FaultKind.REPLACED: {"status": 412, "code": "PreconditionFailed"},
    FaultKind.RESET: {"is_lost": True},
}
# A second time in a row they would mean something else.
_ONCE: Final = {FaultKind.EXPIRED, FaultKind.NO_FILE, FaultKind.REPLACED, FaultKind.NO_COMMIT}


class FaultyS3Link(S3Link):
    """A link that makes a fault of one request in `every`, while `is_faulty`. `injected` counts the faults.

    `stall_s`: longer than the timeout of the clients. `without`: faults to leave out.
    """

    def __init__(
        self, server: S3Server, seed: int, every: int, stall_s: float, without: Set[FaultKind] = frozenset()
    ) -> None:
        self.injected: Counter[FaultKind] = Counter()
        self.is_faulty = True
        self._random = random.Random(seed)
        self._every = every
        self._stall_s = stall_s
        self._without = without
        self._choice = threading.Lock()
        self._lasting: dict[tuple[str, str], tuple[FaultKind, int]] = {}
        self._cut: dict[int, FaultKind] = {}
        super().__init__(server)

    def arrive(self, request: Request) -> Fault:
        """See `S3Link.arrive`. A rule that a test made comes before chance."""
        fault = super().arrive(request)
        if fault in self.faults or not self.is_faulty:
            return fault
        with self._choice:
            kind = self._choose(request)
            if kind is None:
                return fault
            self.injected[kind] += 1
            if kind in _RULES:
                return Fault(**_RULES[kind])  # type: ignore[arg-type]
            if kind is FaultKind.STALL:
                return Fault(stall_s=self._stall_s, is_lost=True)
            if kind is FaultKind.TORN:
                return Fault(torn_at=self._random.randrange(64))
            self._cut[id(request)] = kind
            return fault

    def forward(self, request: Request, target: str, body: bytes) -> _Answer:
        """See `S3Link.forward`."""
        status, headers, data = super().forward(request, target, body)
        kind = self._cut.pop(id(request), None)
        if kind is FaultKind.STALE_LIST:
            data = self._stale(data)
            headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
        elif kind is FaultKind.STALL_IN_BODY:
            headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
            headers.append(("Content-Length", str(len(data))))
            data = data[: len(data) // 2]
        return status, headers, data

    def _choose(self, request: Request) -> FaultKind | None:
        """Return the fault of a request: the one that lasts for its object, or by chance a new one."""
        about = request.method, request.path
        kind, left = self._lasting.get(about, (None, 0))
        if left:
            self._lasting[about] = kind, left - 1  # type: ignore[assignment]
            return kind
        # The rarest so far, and soon one that there was not yet, so that there is each of them.
        rarest = min(self._possible(request), key=lambda each: (self.injected[each], self._random.random()))
        if kind is not None or self._random.randrange(self._every if self.injected[rarest] else 3):
            self._lasting.pop(about, None)
            return None
        kind = rarest
        self._lasting[about] = kind, 0 if kind in _ONCE else self._random.randrange(_LONGEST)
        return kind

    def _possible(self, request: Request) -> list[FaultKind]:
        """Return the faults that a request may have."""
        found = [FaultKind.SLOW_DOWN, FaultKind.INTERNAL, FaultKind.RESET, FaultKind.STALL]
        if request.method == "GET":
            found += [FaultKind.TORN, FaultKind.STALL_IN_BODY, FaultKind.EXPIRED]
        if "list-type=" in request.query:
            found.append(FaultKind.STALE_LIST)
        elif _COMMIT.search(request.path):
            found.append(FaultKind.NO_COMMIT)
        elif request.method == "GET" and "_delta_log" not in request.path:
            found.append(FaultKind.NO_FILE)
            if "If-Match" in request.headers:
                found.append(FaultKind.REPLACED)
        return [kind for kind in found if kind not in self._without]

    def _stale(self, listing: bytes) -> bytes:
        """Return a listing without its last entries."""
        entries = list(_ENTRY.finditer(listing))
        kept = self._random.randrange(max(len(entries) - 3, 1), max(len(entries), 2))
        return listing if kept >= len(entries) else listing[: entries[kept].start()] + listing[entries[-1].end() :]
