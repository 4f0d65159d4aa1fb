"""The deleted rows of data files as bitmaps: files of positions, deletion vectors and keys.

A vector has the frame of Delta's: its size, the bitmap with a magic number, a checksum. Only this slice of its Puffin
file is read, which is all that the manifest names.
"""

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tailer.errors import DataCorrupt, FileVacuumed, ObjectNotFound, UnsupportedFeature
from tailer.formats.iceberg.deletes.applied import Applied
from tailer.formats.iceberg.deletes.keys import KeyDeletes, Pair
from tailer.formats.iceberg.files.manifests import Content, FileEntry
from tailer.formats.iceberg.files.places import Places
from tailer.formats.iceberg.kept import Kept
from tailer.formats.iceberg.tasks import State
from tailer.stores.port import OpenObject

__all__ = ["DeletedRows"]

_COLUMNS: Final = ("file_path", "pos")
_MAGIC: Final = 1681511377
_FRAME_BYTES: Final = 12  # size, magic number, checksum
_KEPT_POSITIONS: Final = 4_000_000  # about 30 MB
_FILE_POSITIONS: Final = 64  # a data file takes as much memory as so many of its positions
_VECTOR: Final = "PUFFIN"
_PARQUET: Final = "PARQUET"
_NOT_PARQUET: Final = (pa.ArrowException, KeyError, ValueError, TypeError, struct.error)


class Positions:
    """Reads the positions that delete files name. The last ones are kept: later versions often need them again."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._kept: Kept[tuple[str, int | None], Mapping[str, BitMap64]] = Kept(_KEPT_POSITIONS)

    async def files(self, entry: FileEntry, version: int) -> Set[str]:
        """Return the paths of the data files that a delete file names. Raises as `of`."""
        return {entry.referenced} if entry.referenced is not None else (await self._by_file(entry, version)).keys()

    async def of(self, entry: FileEntry, path: str, version: int) -> BitMap64:
        """Return the positions of the data file `path` that a delete file names.

        Raises `FileVacuumed` where it is gone, `DataCorrupt`, and `UnsupportedFeature` for a file of another format.
        """
        return (await self._by_file(entry, version)).get(path, BitMap64())

    async def _by_file(self, entry: FileEntry, version: int) -> Mapping[str, BitMap64]:
        bitmaps = self._kept.get(entry.key)
        if bitmaps is None:
            bitmaps = await self._read(entry, version)
            weight = sum(_FILE_POSITIONS + len(bitmap) for bitmap in bitmaps.values())
            self._kept.put(entry.key, bitmaps, weight)
        return bitmaps

    async def _read(self, entry: FileEntry, version: int) -> Mapping[str, BitMap64]:
        uri = self._places.uri
        if entry.format not in (_VECTOR, _PARQUET):
            raise UnsupportedFeature(uri, f"{entry.path}, a delete file in {entry.format}", version)

        def work(opened: OpenObject) -> Mapping[str, BitMap64]:
            return _vector(opened, entry) if entry.offset is not None else _positions(opened)

        try:
            return await self._places.scan(entry.path, version, work)
        except _NOT_PARQUET as error:
            raise DataCorrupt(uri, version, entry.path, f"not a delete file: {error}") from error
        except ObjectNotFound as error:
            raise FileVacuumed(uri, version, self._places.locate(entry.path, version)) from error


def _vector(opened: OpenObject, entry: FileEntry) -> Mapping[str, BitMap64]:
    length = entry.length or 0
    opened.file.seek(entry.offset or 0)
    data = opened.file.read(length)
    if len(data) != length or length <= _FRAME_BYTES:
        raise ValueError(f"the file ends before the vector at offset {entry.offset} does")
    (size,), (magic,) = struct.unpack_from(">i", data), struct.unpack_from("<i", data, 4)
    (checksum,) = struct.unpack_from(">I", data, length - 4)
    if size != length - 8 or magic != _MAGIC:
        raise ValueError(f"there is no vector of {length} bytes at offset {entry.offset}")
    if zlib.crc32(data[4:-4]) != checksum:
        raise ValueError("the checksum of the vector does not match")
    positions = BitMap64.deserialize(data[8:-4])
    if len(positions) != entry.records:
        raise ValueError(f"the vector holds {len(positions)} positions, the manifest says {entry.records}")
    return {entry.referenced or "": positions}


def _positions(opened: OpenObject) -> Mapping[str, BitMap64]:
    bitmaps: dict[str, BitMap64] = {}
    with pq.ParquetFile(pa.PythonFile(opened.file, mode="r"), arrow_extensions_enabled=False) as file:
        for batch in file.iter_batches(columns=list(_COLUMNS)):
            paths, positions = batch.column("file_path"), batch.column("pos")
            if paths.null_count or positions.null_count:
                raise ValueError("a file_path or a pos is null")
            rows = pa.table({"path": paths, "pos": positions})
            for group in rows.group_by("path").aggregate([("pos", "list")]).to_pylist():
                bitmaps.setdefault(group["path"], BitMap64()).update(group["pos_list"])
    return bitmaps


class DeletedRows:
    """Finds the deleted rows of the files of one table."""

    def __init__(self, places: Places) -> None:
        self._positions = Positions(places)
        self._keys = KeyDeletes()

    async def named_files(self, deletes: Iterable[FileEntry], version: int) -> set[str]:
        """Return the paths of the data files that deletes of positions name. Raises as `Positions.of`."""
        paths: set[str] = set()
        for entry in deletes:
            if entry.content is Content.POSITION_DELETES:
                paths |= await self._positions.files(entry, version)
        return paths

    async def of(self, files: Sequence[tuple[FileEntry, Applied]], state: State) -> list[BitMap64]:
        """Return the deleted rows of each data file. Raises as `Positions.of` and `KeyDeletes.of`."""
        pairs = [(file, delete) for file, applied in files for delete in applied.equality]
        by_key: Mapping[Pair, BitMap64] = {}
        if pairs:
            by_key = await self._keys.of(pairs, state)
        bitmaps: list[BitMap64] = []
        for file, applied in files:
            rows = BitMap64()
            for entry in filter(None, (applied.vector, *applied.positions)):
                rows |= await self._positions.of(entry, file.path, state.version)
            for delete in applied.equality:
                rows |= by_key[file.path, delete.path]
            bitmaps.append(rows)
        return bitmaps
