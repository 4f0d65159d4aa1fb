"""Rows chosen while a version is prepared, as deletion vectors in a temporary file, for tasks to refer to.

So what was found out about a million rows takes no room in a plan, and `tailer.read.execute` needs no second way to be
told which rows it is about. Nothing refers to the file but the plan that was prepared with it.
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

__all__ = ["Selections"]

_FRAME_BYTES: Final = 8


class Selections:
    """Stores bitmaps until the block is left. Raises `ScratchUnavailable` where the disk does not take them."""

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
        """How a task is to refer to `rows`; None where there are none."""
        return self.put(encode(rows), len(rows)) if rows else None

    def put(self, framed: bytes, cardinality: int) -> DeletionVectorRef:
        """How a task is to refer to that many rows, given as `taken` gave them."""
        try:
            path = self._begun()
            with path.open("ab") as file:
                file.write(framed)
        except OSError as error:
            raise ScratchUnavailable(tempfile.gettempdir(), error.strerror or str(error)) from error
        offset, self._end = self._end, self._end + len(framed)
        return DeletionVectorRef(str(path), None, offset, len(framed) - _FRAME_BYTES, cardinality)

    @staticmethod
    def taken(ref: DeletionVectorRef) -> bytes:
        """What was stored as `ref`, to be put elsewhere. Raises `ScratchUnavailable` where it is gone."""
        try:
            with Path(ref.uri or "").open("rb") as file:
                file.seek(ref.offset or 0)
                return file.read(ref.size_bytes + _FRAME_BYTES)
        except OSError as error:
            raise ScratchUnavailable(tempfile.gettempdir(), error.strerror or str(error)) from error

    def _begun(self) -> Path:
        if self._path is None:
            self._path = scratch_folder() / "rows.bin"
            self._end = self._path.write_bytes(bytes([VERSION]))
        return self._path
