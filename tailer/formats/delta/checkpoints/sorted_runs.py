"""External merge sort of record batches: sorted runs on disk, merged while they are read.

Runs are in one unnamed temporary file, which disappears when it is closed or the process ends. A run is a sequence of
blocks: a length and a record batch in Arrow's IPC format. Merging holds a few blocks of each of a few runs in memory.
More runs are merged into fewer ones before.
"""

import os
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice, pairwise
from types import TracebackType
from typing import IO, Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import ScratchUnavailable

__all__ = ["SpillingSort"]

_RUN_BYTES: Final = 16 * 2**20
_BLOCK_BYTES: Final = 64 * 2**10
_MOST_RUNS: Final = 16
_MERGED_BLOCKS: Final = 128  # held by a merge
_LENGTH_BYTES: Final = 4


class SpillingSort:
    """Collects record batches of `schema` and yields their rows in the order of the columns `keys`, without nulls.

    Texts are in the order of their code points. Rows with equal keys keep their insertion order. Every iteration starts
    at the first row. Do not add rows after iterating. Methods raise `ScratchUnavailable` where a run cannot be written
    or read.
    """

    def __init__(
        self, schema: pa.Schema, keys: Sequence[str], run_bytes: int = _RUN_BYTES, block_bytes: int = _BLOCK_BYTES
    ) -> None:
        self._schema = schema
        self._keys = tuple(keys)
        self._run_bytes = run_bytes
        self._block_bytes = block_bytes
        self._run: list[pa.RecordBatch] = []
        self._size_bytes = 0
        self._ends: list[int] = [0]
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Discard all rows and free the disk space."""
        self._run, self._size_bytes = [], 0
        self._ends = [0]
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(self, batch: pa.RecordBatch) -> None:
        self._run.append(batch)
        self._size_bytes += batch.nbytes
        if self._size_bytes < self._run_bytes:
            return
        with _disk():
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
            self._ends.append(self._write(self._file, self._sorted_run()))
        self._run, self._size_bytes = [], 0
        pa.default_memory_pool().release_unused()  # or the memory of every run stays resident

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        last = self._sorted_run()
        if self._file is None:
            return last
        while len(self._ends) - 1 > _MOST_RUNS:
            self._merge_runs(self._file)
        return self._merge([*self._runs(self._ends, self._file), last])

    def _sorted_run(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in memory in order, a block at a time."""
        if self._run:
            self._run = [pa.concat_batches(self._run)]
            yield from self._sort(self._run[0])

    def _sort(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        indices = pc.sort_indices(rows, sort_keys=[(key, "ascending") for key in self._keys])
        step = self._block_rows(rows)
        for begin in range(0, len(indices), step):
            yield rows.take(indices.slice(begin, step))

    def _block_rows(self, rows: pa.RecordBatch) -> int:
        return max(self._block_bytes * len(rows) // max(int(rows.nbytes), 1), 1)

    def _merge_runs(self, file: IO[bytes]) -> None:
        """Merge runs that follow each other, `_MOST_RUNS` at a time, into another file."""
        ends = [0]
        with _disk():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
            with file:
                for begin in range(0, len(self._ends) - 1, _MOST_RUNS):
                    runs = self._runs(self._ends[begin : begin + _MOST_RUNS + 1], file)
                    ends.append(self._write(self._file, self._merge(runs)))
        self._ends = ends

    def _write(self, file: IO[bytes], batches: Iterable[pa.RecordBatch]) -> int:
        """Write a run; return where it ends."""
        for batch in batches:
            step = self._block_rows(batch)
            for begin in range(0, len(batch), step):
                data = batch.slice(begin, step).serialize()
                file.write(data.size.to_bytes(_LENGTH_BYTES, "big"))
                file.write(data)
        file.flush()
        return file.tell()

    def _runs(self, ends: Sequence[int], file: IO[bytes]) -> list[Iterator[pa.RecordBatch]]:
        """Read runs, each from one end to the next."""
        handle, at_once = file.fileno(), max(_MERGED_BLOCKS // len(ends), 1)
        return [self._read(handle, begin, end, at_once) for begin, end in pairwise(ends)]

    def _read(self, handle: int, begin: int, end: int, at_once: int) -> Iterator[pa.RecordBatch]:
        blocks: list[pa.RecordBatch] = []
        while begin < end:
            with _disk():
                size = int.from_bytes(os.pread(handle, _LENGTH_BYTES, begin), "big")
                block = os.pread(handle, size, begin + _LENGTH_BYTES)
            blocks.append(pa.ipc.read_record_batch(pa.py_buffer(block), self._schema))
            begin += _LENGTH_BYTES + size
            if len(blocks) == at_once or begin >= end:
                yield pa.concat_batches(blocks)
                blocks = []

    def _merge(self, runs: list[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of sorted runs in order; of equal rows, those of an earlier run come first.

        Each step takes from every run the rows up to the least of the last rows held: no later row comes before them.
        """
        heads = [(head, run) for run in runs for head in islice(run, 1)]
        while heads:
            bound, number = min((self._key(head, len(head) - 1), index) for index, (head, _) in enumerate(heads))
            parts, left = [], []
            for index, (head, run) in enumerate(heads):
                bisect = bisect_right if index <= number else bisect_left  # which of equal rows come before the bound
                end = bisect(range(len(head)), bound, key=partial(self._key, head))
                parts.append(head.slice(0, end))
                left += [(rest, run) for rest in ((head.slice(end),) if end < len(head) else islice(run, 1))]
            heads = left
            filled = [part for part in parts if len(part)]
            yield from filled if len(filled) == 1 else self._sort(pa.concat_batches(filled))

    def _key(self, rows: pa.RecordBatch, row: int) -> tuple[Any, ...]:
        return tuple(rows.column(key)[row].as_py() for key in self._keys)


@contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ScratchUnavailable(tempfile.gettempdir(), error.strerror or str(error)) from error
