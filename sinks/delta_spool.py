"""Rows of one transaction on their way into the table, in bounded memory.

The `txn` version is known when a transaction commits, but delta-rs wants it when a write begins. So rows wait here:
in memory while they are few, then in a temporary file (Arrow IPC, LZ4) that has no name, so that no crash leaves it
behind. Nothing reaches the table before `commit`; an abort only lets go of the spool. `TMPDIR` says where the file
lies.
"""

import tempfile
from typing import IO, Final

import pyarrow as pa

__all__ = ["Spool"]

_MEMORY_BYTES: Final = 32 * 1024 * 1024


class Spool:
    """Record batches of one schema, written once and then read once. Blocking; one caller at a time.

    `memory_bytes`: how much Arrow memory may be held before rows go to disk.
    """

    def __init__(self, schema: pa.Schema, memory_bytes: int = _MEMORY_BYTES) -> None:
        self._schema = schema
        self._memory_bytes = memory_bytes
        self._batches: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    @property
    def on_disk(self) -> bool:
        """Whether rows have been written to the temporary file."""
        return self._writer is not None

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch, converted to the spool's schema without changing any value.

        Raises `pa.ArrowInvalid` or `pa.ArrowNotImplementedError` where it cannot be, `OSError` where the disk is full.
        """
        batch = batch.cast(self._schema)
        # What a slice keeps alive counts, not what it shows.
        self._held_bytes += batch.get_total_buffer_size()
        if self._writer is None and self._held_bytes > self._memory_bytes:
            self._writer = self._open_file()
        if self._writer is None:
            self._batches.append(batch)
        else:
            self._writer.write_batch(batch)

    def reader(self) -> pa.RecordBatchReader:
        """Everything that was added, in order. Nothing may be added after it."""
        if self._writer is None or self._file is None:
            return pa.RecordBatchReader.from_batches(self._schema, self._batches)
        self._writer.close()
        self._file.seek(0)
        return pa.ipc.open_stream(self._file)

    def close(self) -> None:
        """Let go of memory and file."""
        self._batches.clear()
        if self._file is not None:
            self._file.close()

    def _open_file(self) -> pa.ipc.RecordBatchStreamWriter:
        # Closed by close(), which the transaction's end always reaches.
        self._file = tempfile.TemporaryFile(prefix="lake-tailer-")  # noqa: SIM115
        writer = pa.ipc.new_stream(self._file, self._schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        for batch in self._batches:
            writer.write_batch(batch)
        self._batches.clear()
        return writer
