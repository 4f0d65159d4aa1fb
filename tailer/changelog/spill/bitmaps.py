"""Row selections of refined plans, spilled as deletion vectors to a temporary file that tasks refer to.

So a selection of a million rows takes no space in a plan, and `tailer.read.execute` needs no second kind of row
selection. Only the plan that was refined with the file refers to it.
"""

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pyroaring import BitMap64

from tailer.changelog.spill.directory import scratch_folder
from tailer.delta.deletion_vector import VERSION, encode
from tailer.errors import ScratchUnavailable
from tailer.plan import DeletionVectorRef

__all__ = ["SpilledBitmaps"]

_FRAME_BYTES: Final = 8


class SpilledBitmaps:
    """Stores bitmaps until the block is left. Raises `ScratchUnavailable` where they cannot be written."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path is not None:
            shutil.rmtree(self._path.parent, ignore_errors=True)

    def store(self, rows: BitMap64 | None) -> DeletionVectorRef | None:
        """Store `rows` and return a reference for tasks; None where `rows` is empty."""
        return self.store_framed(encode(rows), len(rows)) if rows else None

    def store_framed(self, framed: bytes, cardinality: int) -> DeletionVectorRef:
        """Store `cardinality` rows in the form that `read_framed` returns, and return a reference for tasks."""
        try:
            path = self._open_path()
            with path.open("ab") as file:
                file.write(framed)
        except OSError as error:
            raise ScratchUnavailable(tempfile.gettempdir(), error.strerror or str(error)) from error
        offset, self._end = self._end, self._end + len(framed)
        return DeletionVectorRef(str(path), None, offset, len(framed) - _FRAME_BYTES, cardinality)

    @staticmethod
    def read_framed(ref: DeletionVectorRef) -> bytes:
        """Read the bitmap at `ref` for `store_framed`. Raises `ScratchUnavailable` where it cannot be read."""
        try:
            with Path(ref.uri or "").open("rb") as file:
                file.seek(ref.offset or 0)
                return file.read(ref.size_bytes + _FRAME_BYTES)
        except OSError as error:
            raise ScratchUnavailable(tempfile.gettempdir(), error.strerror or str(error)) from error

    def _open_path(self) -> Path:
        if self._path is None:
            self._path = scratch_folder() / "rows.bin"
            self._end = self._path.write_bytes(bytes([VERSION]))
        return self._path
