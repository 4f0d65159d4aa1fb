"""`LocalEngine`: runs the tasks of plans on worker threads of this process.

Batches come in task order and, within a task, in row order, although tasks run concurrently. The error of a failed task
is raised at its place in that order, after all earlier rows. Memory is bounded by the batches in flight (invariant 7):
at most `threads` + 1 files are open, each at most one read ahead of the consumer. Tiny files are read by one thread,
many at a time, when the consumer asks for them.

The columns of a local file are decoded beside each other by Arrow's threads, of which a process has one for each
processor. So one large file keeps all processors busy, and half as many files need to be open.

All plans that run at a time share the threads, in the order in which they ask, and the memory that they may read ahead
into. Where rows of the process take more, each plan reads only the batch that its consumer waits for. That one never
waits for memory: a plan whose sink does not take rows cannot hold up the others.

Small versions of a backlog are read by one call of a thread: to call it takes as long as to read a file of a few rows.
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from itertools import islice
from typing import Final

import pyarrow as pa
from anyio import CapacityLimiter, Event, to_thread
from anyio.abc import TaskGroup
from typing_extensions import override

from tailer.engine import Engine, background
from tailer.events import ChangeBatch
from tailer.formats.rows import execute, needed_files
from tailer.plan import ChangePlan, ChangeTask, Position, Regime, remaining
from tailer.read.data_files import LOCAL, DataFiles, Files
from tailer.read.decoded_files import Budget, DecodedFiles, change_file_tasks

__all__ = ["LocalEngine"]

MAX_THREADS: Final = 8  # default limit: each thread holds a read
# For files of stores: enough to wait for some answers, although the first bytes of files are fetched by other threads.
# On two processors, eight threads take twice as long as four: they wait for memory and for the interpreter's lock.
_STORE_THREADS: Final = 4
_OPEN_CHUNKS: Final = 4  # opened in a store before a thread is free for them
READ_BYTES: Final = 4 * 2**20  # of Arrow memory, per read
CHUNK_BYTES: Final = 2**20  # of files, read sequentially by one thread
_OPEN_BYTES: Final = 16 * 2**10  # cost of opening a file, as bytes
_TINY_BYTES: Final = 4 * 2**10  # a file of this size is hardly more than a footer

_Tasks = list[tuple[ChangeTask, int]]

# Batches, whether there may be more, and the error that ended them.
_ReadResult = tuple[list[ChangeBatch], bool, Exception | None]


class LocalEngine(Engine):
    """Runs tasks on worker threads: decoding Parquet releases the interpreter lock, so threads run in parallel.

    `threads`: number of threads; None: one for each processor, up to `MAX_THREADS`, and for files of stores at least
    `_STORE_THREADS`. `files`: opens what tasks name. `ahead_bytes`: of Arrow memory of the process, up to which is read
    ahead; None: any, as where the caller may hold all rows.
    """

    reads_here = True

    def __init__(self, threads: int | None = None, files: DataFiles = LOCAL, ahead_bytes: int | None = None) -> None:
        self._files = files
        self._ahead_bytes = ahead_bytes
        self.budget = Budget(self._has_room)
        own = min(os.cpu_count() or 1, MAX_THREADS)
        self._threads = {True: threads or own, False: threads or max(own, _STORE_THREADS)}
        self._limiters: dict[bool, CapacityLimiter] = {}  # which all plans share

    @asynccontextmanager
    @override
    async def run(
        self, plans: Sequence[ChangePlan], after: Position | None = None
    ) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        tasks = [task for plan in plans for task in remaining(plan, after)]
        are_local = all(self._files.is_local(task.uri) for task, _ in tasks[:1])
        threads = self._threads[are_local]
        limiter = self._limiters.setdefault(are_local, CapacityLimiter(threads))
        # For few or tiny files, reading ahead costs more than it gains: threads wait for the interpreter lock. In a
        # store, they wait for the answer.
        small = len(plans) > 1 or _cost_bytes(tasks) < CHUNK_BYTES or (are_local and _are_tiny(tasks))
        decoded: DecodedFiles | None = None
        if any(plan.regime is Regime.CDC for plan in plans):
            decoded = DecodedFiles(execute, self.budget)
            decoded.expect(change_file_tasks(tasks))
        use_threads = threads > 1 and len(plans) == 1
        chunks = [
            _TaskChunk(chunk, decoded, limiter, self._files, are_local, self._has_room, use_threads)
            for chunk in (filter(None, [tasks]) if small else _split(tasks, decoded))
        ]
        ahead = threads // 2 + 1 if are_local else threads + 1
        try:
            async with (
                nullcontext() if small else background() as group,
                aclosing(self._read_in_order(chunks, group, max(ahead, 2))) as batches,
            ):
                yield batches
        finally:
            for chunk in chunks:
                chunk.close()
            if decoded is not None:
                decoded.release()

    def _has_room(self) -> bool:
        """Return whether rows that no consumer waits for may be held."""
        return self._ahead_bytes is None or bool(pa.total_allocated_bytes() < self._ahead_bytes)

    async def _read_in_order(
        self, chunks: Sequence["_TaskChunk"], group: TaskGroup | None, at_once: int
    ) -> AsyncGenerator[ChangeBatch, None]:
        """Yield batches in order, while `group`, if any, reads `at_once` chunks: the current one and the next."""
        waiting, unopened = iter(chunks), iter(chunks)
        for ahead in islice(unopened, at_once + _OPEN_CHUNKS if group is not None else 0):
            ahead.open_ahead()
        for ahead in islice(waiting, at_once):
            ahead.start(group)
        for chunk in chunks:
            more = True
            while more:
                batches, more, error = await chunk.take()
                if more:
                    chunk.start(group)
                for batch in batches:
                    yield batch
                if error is not None:
                    raise error
            for ahead in islice(unopened, 1):
                ahead.open_ahead()
            for ahead in islice(waiting, 1):
                ahead.start(group)


def _cost_bytes(tasks: _Tasks) -> int:
    return sum(max(task.size_bytes, _OPEN_BYTES) for task, _ in tasks)


def _are_tiny(tasks: _Tasks) -> bool:
    """Return whether the files are tiny on average; a size of 0 is unknown."""
    sizes = [task.size_bytes for task, _ in tasks]
    return min(sizes, default=0) > 0 and sum(sizes) < len(sizes) * _TINY_BYTES


def _split(tasks: _Tasks, decoded: DecodedFiles | None) -> Iterator[_Tasks]:
    """Split consecutive tasks into chunks of about `CHUNK_BYTES`.

    The tasks of a chunk are either all of those whose rows are decoded with others, or none is.
    """
    chunk: _Tasks = []
    size = 0
    for task in tasks:
        if decoded is not None and chunk and decoded.is_second(task[0]) is not decoded.is_second(chunk[0][0]):
            yield chunk
            chunk, size = [], 0
        chunk.append(task)
        size += _cost_bytes([task])
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _TaskChunk:
    """Consecutive tasks, read by one thread at a time, at most one read ahead of the consumer.

    Files that are not local (`are_local`) are opened ahead. Rows that are kept are not read before they are due.
    """

    def __init__(
        self,
        tasks: _Tasks,
        decoded: DecodedFiles | None,
        limiter: CapacityLimiter,
        files: DataFiles,
        are_local: bool,
        has_room: Callable[[], bool],
        use_threads: bool,
    ) -> None:
        self._keeps = decoded is not None and decoded.is_second(tasks[0][0])
        self._in_turn = None if are_local else files.in_turn(_needed(tasks, decoded))
        self._batches = _execute_all(tasks, decoded, self._in_turn or files, use_threads)
        self._limiter = limiter
        self._has_room = has_room
        self._results: list[_ReadResult] = []
        self._finished: Event | None = None

    def open_ahead(self) -> None:
        """Begin to open its first files, if they are in a store."""
        if self._in_turn is not None:
            self._in_turn.open_ahead()

    def start(self, group: TaskGroup | None) -> None:
        """Start the next read in the background; without a group, or without room, `take` reads."""
        if group is not None and not self._keeps and self._has_room():
            self._finished = Event()
            group.start_soon(self._read_some, self._finished)

    async def take(self) -> _ReadResult:
        finished, self._finished = self._finished, None
        if finished is None:
            await self._read_some(Event())
        else:
            await finished.wait()
        return self._results.pop()

    async def _read_some(self, finished: Event) -> None:
        most_bytes = READ_BYTES if self._has_room() else 1
        self._results.append(await to_thread.run_sync(_read_some, self._batches, most_bytes, limiter=self._limiter))
        finished.set()

    def close(self) -> None:
        """Close the open file, and give up those that are being opened."""
        # A thread may still be reading only after a cancellation outside anyio; its result is dropped.
        with suppress(ValueError):
            self._batches.close()
        if self._in_turn is not None:
            self._in_turn.close()


def _needed(tasks: _Tasks, decoded: DecodedFiles | None) -> Iterator[tuple[str, int]]:
    for task, after_row in tasks:
        if decoded is None or not decoded.expects(task):
            yield from needed_files(task, after_row)
        elif not decoded.is_second(task):
            yield task.uri, max(task.size_bytes, 0)


def _execute_all(
    tasks: _Tasks, decoded: DecodedFiles | None, files: Files, use_threads: bool
) -> Generator[ChangeBatch, None, None]:
    read = execute if decoded is None else decoded.deliver
    for task, after_row in tasks:
        yield from read(task, after_row, files=files, use_threads=use_threads)


def _read_some(batches: Iterator[ChangeBatch], most_bytes: int) -> _ReadResult:
    """Read batches of about `most_bytes`, at least one. Any error is returned, to be raised after these rows."""
    read: list[ChangeBatch] = []
    size = 0
    try:
        for batch in batches:
            read.append(batch)
            size += batch.size_bytes
            if size >= most_bytes:
                return read, True, None
    except Exception as error:  # noqa: BLE001 - raised after the rows by the consumer
        return read, False, error
    return read, False, None
