"""Spilled preimages, delivered right before their postimages in bounded memory, however far apart the files are.

Preimages are read in file order and written to disk as runs. Each run is sorted by the rank of the postimage, which is
the postimage's number within the version. A batch of postimages has consecutive ranks, so it needs one slice of each
run. Both images of an update have the position of the postimage and come in one batch.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.changelog.spill.directory import SpillFolder, translated
from tailer.events import ChangeBatch
from tailer.files.row_bitmaps import Bitmaps, positions_of, span

__all__ = ["RUN_BYTES", "SpilledPreimages"]

RUN_BYTES: Final = 16 * 2**20
_RANK: Final = "rank"


@dataclass(frozen=True, slots=True)
class _Run:
    """A file of preimages. Its last column is the rank of the postimage, ascending."""

    path: str

    def between(self, first: int, end: int) -> pa.RecordBatch:
        """Read the preimages of the postimages with ranks from `first` to before `end`.

        The file is mapped only while they are in use, because mapped pages count as memory.
        """
        with translated(), pa.memory_map(self.path) as source:
            rows = pa.ipc.open_file(source).get_batch(0)
        ranks = rows[_RANK]
        start, stop = (bisect_left(range(len(ranks)), rank, key=lambda at: ranks[at].as_py()) for rank in (first, end))
        return rows.slice(start, stop - start)


class SpilledPreimages(SpillFolder):
    """Stores preimages until the block is left. Raises `ScratchUnavailable` where they cannot be written or read."""

    def __init__(self, run_bytes: int = RUN_BYTES) -> None:
        super().__init__()
        self._run_bytes = run_bytes
        self._runs: list[_Run] = []
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
        rows = pa.concat_batches([batch.rows, self._between(rank, rank + len(indices))])
        # A row's key is twice its index; a preimage's key is one less than that of its postimage.
        keys = [*range(0, 2 * len(batch), 2), *(2 * place - 1 for place in indices)]
        order = pc.sort_indices(pa.array(keys, pa.int64()))
        positions = pa.concat_arrays([batch.row_index, batch.row_index.take(pa.array(indices, pa.int64()))])
        return replace(batch, rows=rows.take(order), row_index=positions.take(order), kind=None)

    def _between(self, first: int, end: int) -> pa.RecordBatch:
        """Read the preimages of the postimages with ranks from `first` to before `end`, in rank order."""
        rows = pa.concat_batches([run.between(first, end) for run in self._runs])
        return rows.take(pc.sort_indices(rows[_RANK])).drop_columns([_RANK])

    def _write(self, batches: Sequence[pa.RecordBatch]) -> None:
        rows = pa.concat_batches(batches)
        self._row_bytes = max(self._row_bytes, rows.nbytes // len(rows))
        rows = rows.take(pc.sort_indices(rows[_RANK]))
        path = str(self.folder / f"{len(self._runs)}.arrow")
        with translated(), pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_batch(rows)
        self._runs.append(_Run(path))


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
