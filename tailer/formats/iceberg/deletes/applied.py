"""The delete files that apply to a data file (Iceberg specification, "Scan Planning").

    deletion vector     of this file; then files of positions are ignored, because the vector has their positions
    positions           of the same partition, as old as the file or younger
    equality delete     of the same partition or without partitions, younger than the file

A partition is a tuple of values and its spec: tuples of different specs are never the same. Age is the data sequence
number, not the order of snapshots.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tailer.formats.iceberg.files.manifests import Content, FileEntry, Place

__all__ = ["Applied", "DeleteFiles"]


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
