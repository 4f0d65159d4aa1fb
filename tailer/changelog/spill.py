"""Temporary files of comparisons, below the folder that `TMPDIR` names: selections of rows, preimages, and databases.

A process deletes its spill directory when it exits. A killed process cannot. So the next process that needs a directory
deletes those whose lock file is not locked.

Selections are stored as deletion vectors, so one of a million rows takes no space in a plan, and `tailer.read.execute`
needs no second kind. Only the plan that was refined with the file refers to it.

Preimages are delivered right before their postimages in bounded memory, however far apart the files are. They are read
in file order and written as runs. Each run is sorted by the rank of the postimage, which is the postimage's number
within the version. A batch of postimages has consecutive ranks, so it needs one slice of each run. Both images of an
update have the position of the postimage and come in one batch.

A DuckDB database holds rows that wait or are compared: in memory up to a limit, and beyond it in a folder.
"""

import atexit
import fcntl
import os
import re
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.errors import ScratchUnavailable
from tailer.events import ChangeBatch
from tailer.files.deletion_vector import VERSION, encode
from tailer.files.row_bitmaps import Bitmaps, positions_of, span
from tailer.plan import DeletionVectorRef

if TYPE_CHECKING:
    import duckdb

__all__ = [
    "MEMORY_BYTES",
    "RUN_BYTES",
    "SpilledBitmaps",
    "SpilledPreimages",
    "open_database",
    "scratch_folder",
    "spill_failure",
]

_PREFIX: Final = "lake-tailer-"
_LOCK: Final = "lock"
_lock: Final = Lock()
_folders: Final[dict[int, Path]] = {}  # by process: a forked child has none


class _SpillFolder:
    """A folder that is created when it is first needed, and deleted when the block is left."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def folder(self) -> Path:
        """The folder. Raises `ScratchUnavailable` where it cannot be created."""
        if self._folder is None:
            self._folder = scratch_folder()
        return self._folder


def scratch_folder() -> Path:
    """Create an empty folder. Raises `ScratchUnavailable` where that is not possible."""
    with _translated():
        with _lock:
            folder = _folders.get(os.getpid())
            if folder is None or folder.parent != Path(tempfile.gettempdir()) or not folder.is_dir():
                folder = _create()
        return Path(tempfile.mkdtemp(dir=folder))


@contextmanager
def _translated() -> Iterator[None]:
    """Raise `ScratchUnavailable` where reading or writing spilled data fails."""
    try:
        yield
    except OSError as error:
        raise ScratchUnavailable(tempfile.gettempdir(), error.strerror or str(error)) from error


def _create() -> Path:
    parent = Path(tempfile.gettempdir())
    for other in parent.glob(f"{_PREFIX}*"):
        if _is_abandoned(other):
            shutil.rmtree(other, ignore_errors=True)
    # Lock it under a hidden name, which is never deleted, and hold the lock until the process exits.
    draft = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    fcntl.flock(os.open(draft / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC), fcntl.LOCK_EX)
    folder = draft.rename(parent / draft.name.removeprefix("."))
    _folders[os.getpid()] = folder
    atexit.register(_delete, folder, os.getpid())
    return folder


def _delete(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a forked child
        shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # without a readable lock file it may not be ours
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


MEMORY_BYTES: Final = 96 * 2**20
_THREADS: Final = 2
_DISK_IS_FULL: Final = "failed to offload data block"


def open_database(folder: str, memory_bytes: int = MEMORY_BYTES) -> "duckdb.DuckDBPyConnection":
    """Open an empty database that spills to `folder`. The first one of a process takes 0.1 s and 40 MB."""
    import duckdb  # noqa: PLC0415 - see above

    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{memory_bytes}B",
        "threads": _THREADS,
        "async_threads": 0,  # eight by default, for remote files
        "temp_directory": folder,
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    database = duckdb.connect(":memory:", config=settings)
    # Otherwise queries over two seconds write to standard output, which may be used for rows.
    database.execute("SET enable_progress_bar = false").fetchall()
    return database


def spill_failure(folder: str, error: Exception) -> ScratchUnavailable:
    """Return the error where spilling to `folder` failed: with DuckDB's reason, without its advice on settings.

    DuckDB calls a full disk "Out of Memory", as it does a lack of memory.
    """
    if _DISK_IS_FULL in str(error):
        return ScratchUnavailable(folder, f"comparing rows: {_disk(folder)} has no space for more of them")
    reason = re.split(r"\.?\s*\n|\.\s", str(error), maxsplit=1)[0]
    return ScratchUnavailable(folder, f"comparing rows: {reason}")


def _disk(folder: str) -> str:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:  # the folder is gone
        return "its disk"
    return f"its disk, of which {usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB are free,"


_FRAME_BYTES: Final = 8


class SpilledBitmaps(_SpillFolder):
    """Stores bitmaps until the block is left. Raises `ScratchUnavailable` where they cannot be written."""

    def __init__(self) -> None:
        super().__init__()
        self._end = 0

    def store(self, rows: BitMap64 | None) -> DeletionVectorRef | None:
        """Store `rows` and return a reference for tasks; None where `rows` is empty."""
        return self.store_framed(encode(rows), len(rows)) if rows else None

    def store_framed(self, framed: bytes, cardinality: int) -> DeletionVectorRef:
        """Store `cardinality` rows in the form that `read_framed` returns, and return a reference for tasks."""
        path = self.folder / "rows.bin"
        with _translated():
            if self._end == 0:
                self._end = path.write_bytes(bytes([VERSION]))
            with path.open("ab") as file:
                file.write(framed)
        offset, self._end = self._end, self._end + len(framed)
        return DeletionVectorRef(str(path), None, offset, len(framed) - _FRAME_BYTES, cardinality)

    @staticmethod
    def read_framed(ref: DeletionVectorRef) -> bytes:
        """Read the bitmap at `ref` for `store_framed`. Raises `ScratchUnavailable` where it cannot be read."""
        with _translated(), Path(ref.uri or "").open("rb") as file:
            file.seek(ref.offset or 0)
            return file.read(ref.size_bytes + _FRAME_BYTES)


RUN_BYTES: Final = 16 * 2**20
_RANK: Final = "rank"


def _read_run(path: str, first: int, end: int) -> pa.RecordBatch:
    """Read the preimages of the postimages with ranks from `first` to before `end` from a run.

    Its last column is the rank, ascending. It is mapped only while they are in use: mapped pages count as memory.
    """
    with _translated(), pa.memory_map(path) as source:
        rows = pa.ipc.open_file(source).get_batch(0)
    ranks = rows[_RANK]
    start, stop = (bisect_left(range(len(ranks)), rank, key=lambda at: ranks[at].as_py()) for rank in (first, end))
    return rows.slice(start, stop - start)


class SpilledPreimages(_SpillFolder):
    """Stores preimages until the block is left. Raises `ScratchUnavailable` where they cannot be written or read."""

    def __init__(self, run_bytes: int = RUN_BYTES) -> None:
        super().__init__()
        self._run_bytes = run_bytes
        self._runs: list[str] = []  # files
        self._postimages: Bitmaps = {}
        self._before: dict[int, int] = {}
        self._row_bytes = 0  # largest average of a run

    def __bool__(self) -> bool:
        return bool(self._runs)

    def keep(self, rows: Iterable[pa.RecordBatch], ranks: Iterator[pa.RecordBatch], postimages: Bitmaps) -> None:
        """Store all preimages, in any order, each with its rank, in place of any before.

        `postimages`: their positions, by task index.
        """
        self._postimages, self._runs, self._before = postimages, [], {}
        before = 0
        for task in sorted(postimages):
            self._before[task] = before
            before += len(postimages[task])
        ranked = _Ranks(ranks)
        waiting: list[pa.RecordBatch] = []
        size = 0
        for batch in rows:
            waiting.append(batch.append_column(_RANK, ranked.read(batch.num_rows)))
            size += batch.nbytes
            if size >= self._run_bytes:
                self._write(waiting)
                waiting, size = [], 0
        if waiting:
            self._write(waiting)

    def joined(self, batch: ChangeBatch) -> Iterator[ChangeBatch]:
        """Insert the preimage of each postimage before it; yield slices with about `run_bytes` of preimages each."""
        postimages = self._postimages.get(batch.task)
        if postimages is None or len(batch) == 0:
            yield batch
            return
        first = batch.row_index[0].as_py()
        rank = self._before[batch.task] + (postimages.rank(first - 1) if first > 0 else 0)
        updated = positions_of(postimages & span(first, batch.last_row + 1))
        indices = pc.indices_nonzero(pc.is_in(batch.row_index, value_set=updated)).to_pylist()
        step = max(1, self._run_bytes // max(1, self._row_bytes))
        start = 0
        for begun in range(0, len(indices), step):
            some, end = (
                indices[begun : begun + step],
                len(batch) if begun + step >= len(indices) else indices[begun + step],
            )
            yield self._with_images(batch.slice(start, end - start), [place - start for place in some], rank + begun)
            start = end
        if start < len(batch):
            yield batch.slice(start, len(batch) - start)

    def _with_images(self, batch: ChangeBatch, indices: Sequence[int], rank: int) -> ChangeBatch:
        """Insert preimages before the rows at `indices`, the first of which is the postimage with `rank`."""
        runs = pa.concat_batches([_read_run(path, rank, rank + len(indices)) for path in self._runs])
        images = runs.take(pc.sort_indices(runs[_RANK])).drop_columns([_RANK])
        rows = pa.concat_batches([batch.rows, images])
        # A row's key is twice its index; a preimage's key is one less than that of its postimage.
        keys = [*range(0, 2 * len(batch), 2), *(2 * place - 1 for place in indices)]
        order = pc.sort_indices(pa.array(keys, pa.int64()))
        positions = pa.concat_arrays([batch.row_index, batch.row_index.take(pa.array(indices, pa.int64()))])
        return replace(batch, rows=rows.take(order), row_index=positions.take(order), kind=None)

    def _write(self, batches: Sequence[pa.RecordBatch]) -> None:
        rows = pa.concat_batches(batches)
        self._row_bytes = max(self._row_bytes, rows.nbytes // len(rows))
        rows = rows.take(pc.sort_indices(rows[_RANK]))
        path = str(self.folder / f"{len(self._runs)}.arrow")
        with _translated(), pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_batch(rows)
        self._runs.append(path)


class _Ranks:
    """A stream of ranks, read in requested numbers."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest = pa.array([], pa.int64())

    def read(self, count: int) -> pa.Array:
        while len(self._rest) < count:
            self._rest = pa.concat_arrays([self._rest, next(self._batches)[_RANK]])
        ranks, self._rest = self._rest[:count], self._rest[count:]
        return ranks
