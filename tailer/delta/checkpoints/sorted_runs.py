"""External merge sort: sorted runs on disk, merged while they are read.

Runs are in one unnamed temporary file, which disappears when it is closed or the process ends. A run is a sequence of
blocks: a length and a MessagePack array of entries. Merging holds one block of every run in memory.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import merge
from types import TracebackType
from typing import IO, Any, Final, Generic, Self, TypeVar

import msgspec

from tailer.errors import ScratchUnavailable

__all__ = ["SpillingSort"]

Entry = TypeVar("Entry")

_RUN_ENTRIES: Final = 20_000
_BLOCK_ENTRIES: Final = 64
_LENGTH_BYTES: Final = 4


class SpillingSort(Generic[Entry]):
    """Collects entries of `kind`, a type that msgspec can encode, and yields them in the order of `key`.

    Entries with equal keys keep their insertion order. Every iteration starts at the first entry. Do not add entries
    after iterating. Methods raise `ScratchUnavailable` where a run cannot be written or read.
    """

    def __init__(self, kind: type[Entry], key: Callable[[Entry], Any], run_entries: int = _RUN_ENTRIES) -> None:
        self._key = key
        self._run_entries = run_entries
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]
        self._run: list[Entry] = []
        self._ends: list[int] = [0]
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Discard all entries and free the disk space."""
        self._run = []
        self._ends = [0]
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        self._run.append(entry)
        if len(self._run) == self._run_entries:
            self._spill()

    def __iter__(self) -> Iterator[Entry]:
        self._run.sort(key=self._key)
        if self._file is None:
            return iter(self._run)
        runs = (self._read(self._file.fileno(), *span) for span in zip(self._ends, self._ends[1:], strict=False))
        return merge(*runs, self._run, key=self._key)

    def _spill(self) -> None:
        self._run.sort(key=self._key)
        with _disk():
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
            for start in range(0, len(self._run), _BLOCK_ENTRIES):
                block = self._encoder.encode(self._run[start : start + _BLOCK_ENTRIES])
                self._file.write(len(block).to_bytes(_LENGTH_BYTES, "big") + block)
            self._file.flush()
            self._ends.append(self._file.tell())
        self._run = []

    def _read(self, handle: int, start: int, end: int) -> Iterator[Entry]:
        while start < end:
            with _disk():
                size = int.from_bytes(os.pread(handle, _LENGTH_BYTES, start), "big")
                block = os.pread(handle, size, start + _LENGTH_BYTES)
            yield from self._decoder.decode(block)
            start += _LENGTH_BYTES + size


@contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ScratchUnavailable(tempfile.gettempdir(), error.strerror or str(error)) from error
