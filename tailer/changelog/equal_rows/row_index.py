"""Index of rows of one process: few rows are compared in memory, more in a database that spills to disk.

A comparison begins in memory (`memory_index`). When its rows become too many, they move to a database
(`database_index`), where the comparison then stays. Results do not depend on where rows are compared. A process that
only compares few rows never imports DuckDB.

Each comparison borrows an index of its own. So an error, a full disk or a cancellation in one comparison does not
affect the others. Opening a database takes longer than comparing a few rows. So up to `MAX_IDLE` unused indexes stay
open for the next comparison, for `IDLE_S` seconds.

Comparisons run on worker threads, at most `AT_ONCE` of an event loop at a time; others wait in arrival order.
"""

import atexit
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from threading import Lock, Timer
from typing import Final, Protocol, TypeVar

import anyio
import pyarrow as pa
from anyio import CapacityLimiter, lowlevel, to_thread
from anyio.lowlevel import RunVar
from typing_extensions import override

from tailer.changelog.equal_rows.comparable_values import Wanted
from tailer.changelog.equal_rows.database_index import DatabaseIndex
from tailer.changelog.equal_rows.memory_index import FEW_ROWS, MemoryIndex
from tailer.changelog.equal_rows.port import Stopped, TaskIndex
from tailer.changelog.spill import MEMORY_BYTES
from tailer.engine import background
from tailer.events import ChangeBatch, ChangeType
from tailer.files.row_bitmaps import Bitmaps
from tailer.plan import ChangePlan, ChangeTask
from tailer.read.decoded_files import ReadTask

__all__ = ["AT_ONCE", "MAX_IDLE", "RowIndex", "SharedIndexes", "borrowed_index", "close_idle", "compare"]

T = TypeVar("T")

MAX_IDLE: Final = 2
IDLE_S: Final = 10.0

_lock: Final = Lock()
_idle: Final[dict[int, dict["RowIndex", Timer]]] = {}  # by process: a forked child has none


class RowIndex(TaskIndex):
    """A `tailer.changelog.equal_rows.port.TaskIndex`. Not thread-safe, except `stop`.

    Methods raise `ScratchUnavailable` where spilling to disk fails, `Stopped`, and what the source of rows raises.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES, few_rows: int = FEW_ROWS) -> None:
        self._memory_bytes = memory_bytes  # of the database
        self._nulls_differ = False  # for the rows added last
        self._maps_in_order = False
        self._memory = MemoryIndex(few_rows)
        self._database: DatabaseIndex | None = None
        self._in_database = False
        self._stopped = self._closed = False

    @property
    def is_worth_keeping(self) -> bool:
        """Return whether it has a database, so that creating another index takes longer, and takes little memory."""
        return self._database is not None and not self._database.has_grown

    @property
    def stopped(self) -> bool:
        """Return whether `stop` was called."""
        return self._stopped

    @property
    def closed(self) -> bool:
        """Return whether the index can no longer be used."""
        return self._stopped or self._closed or (self._database is not None and self._database.closed)

    def close(self) -> None:
        """Free memory and disk space."""
        self._closed = True
        self._memory.begin()
        if self._database is not None:
            self._database.close()

    def stop(self) -> None:
        """Have the running query raise `Stopped`, soon, and all later ones. May be called from another thread."""
        self._stopped = True
        if self._database is not None:
            self._database.stop()

    @override
    def begin(self, maps_in_order: bool = False) -> None:
        self._maps_in_order = maps_in_order
        self._current().begin()
        self._memory.begin()
        self._in_database = False

    @override
    def clear(self) -> None:
        self._current().clear()

    def add(
        self,
        sources: Iterable[tuple[int, Iterator[ChangeBatch]]],
        types: tuple[ChangeType, ...],
        nulls_differ: bool = False,
    ) -> Bitmaps:
        """Add the rows of `sources` whose change type is one of `types`; return their positions by source.

        Columns are compared by position. `nulls_differ`: leave out rows with a null in one of them; the same until
        `clear`.
        """
        positions: Bitmaps = {}
        self._nulls_differ = nulls_differ
        batches = Wanted(types, nulls_differ, self._maps_in_order).of_sources(sources, positions)
        try:
            for batch in batches if self._in_database else self._beyond_memory(batches):
                self._move_to_database().add(chain([batch], batches), nulls_differ)
        except Exception:
            if self._stopped:
                raise Stopped from None
            raise
        return positions

    @override
    def add_tasks(
        self,
        tasks: Sequence[tuple[int, ChangeTask]],
        read: ReadTask,
        types: tuple[ChangeType, ...],
        nulls_differ: bool = False,
    ) -> Bitmaps:
        return self.add(((number, read(task)) for number, task in tasks), types, nulls_differ)

    def add_partners(self, partners: pa.Table) -> None:
        """Add partners that were found elsewhere: their addresses, in the int64 columns `deleted` and `inserted`."""
        if self._in_database or not self._memory.add_partners(partners):
            self._move_to_database().add_partners(partners)

    def partners(self) -> pa.Table:
        """Return the partners, as `add_partners` takes them."""
        return self._current().partners()

    @override
    def unmatched(self) -> Bitmaps:
        return self._unless_stopped(self._current().unmatched())

    @override
    def unmatched_singles(self) -> Bitmaps:
        return self._unless_stopped(self._current().unmatched_singles())

    @override
    def pair(self, in_turn: bool = False) -> tuple[Bitmaps, Bitmaps, int]:
        return self._unless_stopped(self._current().pair(in_turn))

    @override
    def unpair_equal(self) -> Bitmaps:
        return self._unless_stopped(self._current().unpair_equal())

    @override
    def partner_ranks(self) -> Generator[pa.RecordBatch, None, None]:
        yield from self._current().partner_ranks()

    def _beyond_memory(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take batches into memory while they fit; yield the first that does not."""
        for batch in batches:
            self._check()
            if not self._memory.add(batch):
                yield batch
                return

    def _current(self) -> MemoryIndex | DatabaseIndex:
        """Return where the comparison is now. Raises `Stopped`."""
        self._check()
        if not self._in_database:
            return self._memory
        assert self._database is not None, "a comparison is in it"
        return self._database

    def _move_to_database(self) -> DatabaseIndex:
        """Have the comparison continue in the database, and return that."""
        if self._database is None:
            self._database = DatabaseIndex(self._memory_bytes)
        self._check()  # after it is known to `stop`
        if not self._in_database:
            self._in_database = True
            batches, partners = self._memory.contents()
            self._database.begin()
            self._database.add(batches, self._nulls_differ)
            self._database.add_partners(partners)
            self._memory.begin()
        return self._database

    def _unless_stopped(self, answer: T) -> T:
        self._check()
        return answer

    def _check(self) -> None:
        if self._stopped:
            raise Stopped


class SharedIndexes(Protocol):
    """Indexes of other machines, for versions that one process should not compare.

    Those of Spark have it; no module outside of `tailer.spark` imports PySpark.
    """

    def is_worth(self, plan: ChangePlan) -> bool:
        """Return whether other machines should compare the rows of a version. May raise `EngineUnavailable`."""
        ...

    def index(self, local: RowIndex) -> AbstractContextManager[TaskIndex]:
        """Open an index, which may use `local` besides; if `local` is stopped, it raises `Stopped`.

        Entering and leaving the block may raise `EngineUnavailable`.
        """
        ...


@contextmanager
def borrowed_index() -> Iterator[RowIndex]:
    """Borrow a row index for the block, on any thread. It is emptied after it.

    It is closed if the block fails, or if it is not worth keeping.
    """
    row_index = _take_idle() or RowIndex()
    try:
        yield row_index
        if not row_index.closed:
            row_index.begin()
    except BaseException:
        row_index.close()
        raise
    if row_index.closed or not row_index.is_worth_keeping or not _keep_idle(row_index):
        row_index.close()


def close_idle() -> None:
    """Close the unused row indexes of this process."""
    while (row_index := _take_idle()) is not None:
        row_index.close()


def _take_idle() -> RowIndex | None:
    while True:
        with _lock:
            idle = _idle.get(os.getpid())
            if not idle:
                return None
            row_index, timer = idle.popitem()
        timer.cancel()
        if not row_index.closed:
            return row_index
        row_index.close()


def _keep_idle(row_index: RowIndex) -> bool:
    """Keep an unused index for `IDLE_S` seconds; return False where the pool is full."""
    with _lock:
        if os.getpid() not in _idle:
            _idle[os.getpid()] = {}
            atexit.register(close_idle)
        idle = _idle[os.getpid()]
        if len(idle) >= MAX_IDLE:
            return False
        idle[row_index] = timer = Timer(IDLE_S, _expire, [row_index])
        timer.daemon = True
        timer.start()
    return True


def _expire(row_index: RowIndex) -> None:
    with _lock:
        if _idle.get(os.getpid(), {}).pop(row_index, None) is not None:
            row_index.close()


AT_ONCE: Final = 4
_limiter: Final[RunVar[CapacityLimiter]] = RunVar("comparisons")


async def compare(work: Callable[[RowIndex], T]) -> T:
    """Run `work` on a worker thread with a row index. On cancellation, stop the index and wait until `work` ends."""
    cancellable = _CancellableWork()
    if (limiter := _limiter.get(None)) is None:
        _limiter.set(limiter := CapacityLimiter(AT_ONCE))
    async with background() as group:
        group.start_soon(cancellable.stop_when_cancelled)
        try:
            return await to_thread.run_sync(cancellable.run, work, limiter=limiter)
        except Stopped:
            await lowlevel.checkpoint()  # raises the cancellation that stopped it
            raise


class _CancellableWork:
    """Runs work on one thread; another thread stops it, but only while it owns the row index."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._row_index: RowIndex | None = None
        self._stopped = False

    def run(self, work: Callable[[RowIndex], T]) -> T:
        with borrowed_index() as row_index:
            try:
                self._set_row_index(row_index)
                return work(row_index)
            finally:
                self._set_row_index(None)

    async def stop_when_cancelled(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with self._lock:
                self._stopped = True
                if self._row_index is not None:
                    self._row_index.stop()

    def _set_row_index(self, row_index: RowIndex | None) -> None:
        with self._lock:
            self._row_index = row_index
            if row_index is not None and self._stopped:
                row_index.stop()
