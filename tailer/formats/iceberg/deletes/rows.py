"""The deleted rows of data files as bitmaps: files of positions, deletion vectors and keys.

What applies to a data file (Iceberg specification, "Scan Planning"):

    deletion vector     of this file; then files of positions are ignored, because the vector has their positions
    positions           of the same partition, as old as the file or younger
    equality delete     of the same partition or without partitions, younger than the file

A partition is a tuple of values and its spec: tuples of different specs are never the same. Age is the data sequence
number, not the order of snapshots.

A vector has the frame of Delta's: its size, the bitmap with a magic number, a checksum. Only this slice of its Puffin
file is read, which is all that the manifest names.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tailer.errors import DataCorrupt, FileVacuumed, ObjectNotFound, UnsupportedFeature
from tailer.formats.iceberg.deletes.keys import KeyDeletes, Pair
from tailer.formats.iceberg.files.live import Kept
from tailer.formats.iceberg.files.manifests import Content, FileEntry, Place
from tailer.formats.iceberg.files.places import Places
from tailer.formats.iceberg.tasks import State
from tailer.stores.port import OpenObject

__all__ = ["Applied", "DeleteFiles", "DeletedRows"]


@dataclass(frozen=True, slots=True)
class Applied:
    """The delete files that apply to one data file. `equality`: those with keys, which are looked up in the file."""

    vector: FileEntry | None = None
    positions: tuple[FileEntry, ...] = ()
    equality: tuple[FileEntry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.vector or self.positions or self.equality)


class DeleteFiles:
    """The delete files of one snapshot, or some of them. `is_global`: whether a file is in no partition."""

    def __init__(self, entries: Iterable[FileEntry], is_global: Callable[[FileEntry], bool]) -> None:
        self._vectors: dict[str, FileEntry] = {}
        self._positions: dict[Place, list[FileEntry]] = {}
        self._equality: dict[Place, list[FileEntry]] = {}
        self._everywhere: list[FileEntry] = []
        for entry in entries:
            if entry.content is Content.EQUALITY_DELETES:
                of_place = self._everywhere if is_global(entry) else self._equality.setdefault(entry.place, [])
                of_place.append(entry)
            elif entry.offset is not None and entry.referenced is not None:
                if entry.referenced in self._vectors:
                    raise ValueError(f"two deletion vectors of {entry.referenced}")
                self._vectors[entry.referenced] = entry
            else:
                self._positions.setdefault(entry.place, []).append(entry)

    def __bool__(self) -> bool:
        return bool(self._vectors or self._positions or self._equality or self._everywhere)

    def of(self, file: FileEntry) -> Applied:
        """Return what applies to a data file. Raises `ValueError` for a vector that contradicts it."""
        place = file.place
        vector = self._vectors.get(file.path)
        if vector is not None and vector.place != place:
            raise ValueError(f"the deletion vector of {file.path} is in another partition")
        if vector is not None and vector.sequence < file.sequence:
            vector = None
        positions = [
            entry
            for entry in self._positions.get(place, ())
            if entry.sequence >= file.sequence and entry.referenced in (None, file.path)
        ]
        equality = [*self._equality.get(place, ()), *self._everywhere]
        younger = tuple(entry for entry in equality if entry.sequence > file.sequence)
        return Applied(vector, () if vector is not None else tuple(positions), younger)


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
        kept, uri = self._kept.get(entry.key), self._places.uri
        if kept is not None:
            return kept
        if entry.format not in (_VECTOR, _PARQUET):
            raise UnsupportedFeature(uri, f"{entry.path}, a delete file in {entry.format}", version)

        def work(opened: OpenObject) -> Mapping[str, BitMap64]:
            return _vector(opened, entry) if entry.offset is not None else _positions(opened)

        try:
            bitmaps = await self._places.scan(entry.path, version, work)
        except _NOT_PARQUET as error:
            raise DataCorrupt(uri, version, entry.path, f"not a delete file: {error}") from error
        except ObjectNotFound as error:
            raise FileVacuumed(uri, version, self._places.locate(entry.path, version)) from error
        return self._kept.put(entry.key, bitmaps, sum(_FILE_POSITIONS + len(bitmap) for bitmap in bitmaps.values()))


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
