"""The rows of one transaction before they are written to the table, in bounded memory.

The `txn` version is known only when a transaction commits, but delta-rs wants it when a write begins. So rows wait
here: in memory while they are few, then in a temporary file (Arrow IPC, LZ4) without a name, so that it does not
survive a crash. Nothing reaches the table before `commit`, and an abort only discards the spool. The file is in
`TMPDIR`.
"""

import tempfile
from collections.abc import Iterator
from typing import IO, Final

import pyarrow as pa

from tailer_sinks.encoding.typed import conform

__all__ = ["Spool"]

_MEMORY_BYTES: Final = 32 * 1024 * 1024


class Spool:
    """A store of record batches, of one schema after another, written once and then read once.

    Blocking; one caller at a time. `memory_bytes`: how much Arrow memory may be held before rows go to disk.
    """

    def __init__(self, memory_bytes: int = _MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._batches: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None
        self._schema: pa.Schema | None = None
        self._starts: list[int] = []

    def __bool__(self) -> bool:
        """Return whether there are any rows."""
        return bool(self._batches or self._starts)

    @property
    def on_disk(self) -> bool:
        """Return whether rows have been written to the temporary file."""
        return self._file is not None

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch. Raises `OSError` if the disk is full."""
        # Count the memory that a slice keeps alive, not its own.
        self._held_bytes += batch.get_total_buffer_size()
        if self._file is None and self._held_bytes > self._memory_bytes:
            # Closed by close(), which the transaction's end always reaches.
            self._file = tempfile.TemporaryFile(prefix="lake-tailer-")  # noqa: SIM115
            for held in self._batches:
                self._write(self._file, held)
            self._batches.clear()
        if self._file is None:
            self._batches.append(batch)
        else:
            self._write(self._file, batch)

    def reader(self, schema: pa.Schema) -> pa.RecordBatchReader:
        """Read all batches in order, in a union of all their schemas. Nothing may be added after it."""
        return pa.RecordBatchReader.from_batches(schema, (conform(batch, schema) for batch in self._all()))

    def close(self) -> None:
        """Release memory and file."""
        self._batches.clear()
        if self._file is not None:
            self._file.close()

    def _write(self, file: IO[bytes], batch: pa.RecordBatch) -> None:
        """Append to the file, in which streams follow each other, one for each schema."""
        if self._writer is None or not batch.schema.equals(self._schema):
            if self._writer is not None:
                self._writer.close()
            self._schema = batch.schema
            self._starts.append(file.tell())
            self._writer = pa.ipc.new_stream(file, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        self._writer.write_batch(batch)

    def _all(self) -> Iterator[pa.RecordBatch]:
        if self._file is None or self._writer is None:
            yield from self._batches
            return
        self._writer.close()
        for start in self._starts:
            self._file.seek(start)
            yield from pa.ipc.open_stream(self._file)
