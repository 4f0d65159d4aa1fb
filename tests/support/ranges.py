"""Objects in memory, read through ranges: every request is recorded, and any one of them can fail."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.errors import ObjectNotFound
from tailer.stores.ranges import ObjectEnd, ObjectRanges

__all__ = ["PREFIX", "Request", "StoredObjects", "long_footer"]

PREFIX: Final = "memory:/"


@dataclass(frozen=True, slots=True)
class Request:
    """A request for the bytes from `begin` to before `end` of the object at `uri`."""

    uri: str
    begin: int
    end: int


@dataclass(eq=False)
class StoredObjects:
    """The local files below `memory:/`, as objects. `delay_s`: of each request.

    `spoil`: is called with the number of each request, from 1 on, and with the bytes to answer; it may raise.
    """

    spoil: Callable[[int, bytes], bytes] = lambda _number, data: data
    delay_s: float = 0
    requests: list[Request] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, uri: str) -> ObjectRanges:
        """Return what reads one object, without a request."""
        return _Object(self, uri)

    @property
    def fetched_bytes(self) -> int:
        """The bytes of all answers."""
        return sum(request.end - request.begin for request in self.requests)

    def answer(self, uri: str, begin: int, length: int) -> ObjectEnd:
        """Answer one request; a negative begin counts from the end."""
        path = Path(uri.removeprefix(PREFIX))
        with self._lock:
            self.running += 1
            self.most_running = max(self.running, self.most_running)
        try:
            if self.delay_s:
                time.sleep(self.delay_s)
            if not path.is_file():
                raise ObjectNotFound(uri)
            size = path.stat().st_size
            begin = max(size + begin, 0) if begin < 0 else begin
            with path.open("rb") as file:
                file.seek(begin)
                data = file.read(length)
            with self._lock:
                self.requests.append(Request(uri, begin, begin + len(data)))
                number = len(self.requests)
            return ObjectEnd(size, self.spoil(number, data))
        finally:
            with self._lock:
                self.running -= 1


def long_footer(path: Path, table: pa.Table, row_group_size: int, **options: Any) -> Path:
    """Write a data file with a footer of more than 64 kB, of which Arrow reads nothing but the footer when it opens it.

    Of any other file it reads the last 64 kB at once.
    """
    with pq.ParquetWriter(path, table.schema, **options) as writer:
        writer.write_table(table, row_group_size=row_group_size)
        writer.add_key_value_metadata({"long": "x" * 2**16})
    return path


@dataclass(frozen=True)
class _Object:
    objects: StoredObjects
    uri: str

    def end(self, length: int) -> ObjectEnd:
        return self.objects.answer(self.uri, -length, length)

    def read(self, offset: int, length: int) -> bytes:
        assert offset >= 0 < length, "no store answers that"
        return self.objects.answer(self.uri, offset, length).data
