"""Row selections of refined plans, spilled as deletion vectors to a temporary file that tasks refer to.

So a selection of a million rows takes no space in a plan, and `tailer.read.execute` needs no second kind of row
selection. Only the plan that was refined with the file refers to it.
"""

from pathlib import Path
from typing import Final

from pyroaring import BitMap64

from tailer.changelog.spill.directory import SpillFolder, translated
from tailer.files.deletion_vector import VERSION, encode
from tailer.plan import DeletionVectorRef

__all__ = ["SpilledBitmaps"]

_FRAME_BYTES: Final = 8


class SpilledBitmaps(SpillFolder):
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
        with translated():
            if self._end == 0:
                self._end = path.write_bytes(bytes([VERSION]))
            with path.open("ab") as file:
                file.write(framed)
        offset, self._end = self._end, self._end + len(framed)
        return DeletionVectorRef(str(path), None, offset, len(framed) - _FRAME_BYTES, cardinality)

    @staticmethod
    def read_framed(ref: DeletionVectorRef) -> bytes:
        """Read the bitmap at `ref` for `store_framed`. Raises `ScratchUnavailable` where it cannot be read."""
        with translated(), Path(ref.uri or "").open("rb") as file:
            file.seek(ref.offset or 0)
            return file.read(ref.size_bytes + _FRAME_BYTES)
