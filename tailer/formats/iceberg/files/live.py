"""The live files of snapshots, and how those of one differ from those of another.

A manifest never changes, so what was decoded is kept for the next snapshots, up to a number of files. Manifests that
two snapshots share have the same files in both: only the others are decoded to compare them.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tailer.errors import ChangesUnavailable, LogCorrupt, ObjectNotFound, UnsupportedFeature
from tailer.formats.iceberg.files.manifests import FileEntry, Manifest, parse_manifest, parse_manifest_list
from tailer.formats.iceberg.files.places import Places
from tailer.formats.iceberg.metadata.document import Snapshot

__all__ = ["Difference", "Kept", "LiveFiles"]

_KEPT_FILES: Final = 100_000  # of decoded manifests: about 50 MB
_KEPT_LISTS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Files that are live in one of two snapshots alone, by path; delete files by their key.

    A data file that was added again has another age, so other deletes apply to it: it is removed and added.
    `shared`: the keys of manifests that both have.
    """

    removed: Mapping[str, FileEntry]
    added: Mapping[str, FileEntry]
    dropped_deletes: Sequence[FileEntry]
    new_deletes: Sequence[FileEntry]
    shared: Set[tuple[str, int | None]]


class LiveFiles:
    """Reads the manifests of one table."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._entries: Kept[tuple[str, int | None], tuple[FileEntry, ...]] = Kept(_KEPT_FILES)
        self._lists: Kept[int, tuple[Manifest, ...]] = Kept(_KEPT_LISTS)
        self._newest: tuple[Manifest, ...] = ()  # of the last list that was read

    async def manifests(self, snapshot: Snapshot, version: int) -> tuple[Manifest, ...]:
        """Return the manifests of a snapshot. Raises `ChangesUnavailable` where the list is gone, `LogCorrupt`."""
        manifests = self._lists.get(snapshot.snapshot_id)
        if manifests is None:
            manifests = self._lists.put(snapshot.snapshot_id, await self._read_list(snapshot, version))
        return manifests

    async def entries(self, manifest: Manifest, version: int) -> tuple[FileEntry, ...]:
        """Return the live files of a manifest. Raises as `manifests`."""
        entries = self._entries.get(manifest.key)
        if entries is None:
            uri = self._places.uri
            try:
                entries = await self._places.read(
                    manifest.path, version, lambda stored: parse_manifest(stored.data, manifest, uri, version)
                )
            except ObjectNotFound as error:
                raise ChangesUnavailable(uri, version, f"its manifest {manifest.path} is gone") from error
            self._entries.put(manifest.key, entries, 1 + len(entries))
        return entries

    async def deletes(
        self, snapshot: Snapshot, version: int, is_wanted: Callable[[Manifest], bool] = lambda _: True
    ) -> list[FileEntry]:
        """Return the live delete files of a snapshot that are in wanted manifests. Raises as `manifests`."""
        manifests = await self.manifests(snapshot, version)
        return await self._all((one for one in manifests if one.has_deletes and is_wanted(one)), version)

    async def difference(self, before: Snapshot | None, after: Snapshot, version: int) -> Difference:
        """Compare two snapshots; None: no table. Raises as `manifests`."""
        old = () if before is None else await self.manifests(before, version)
        new = await self.manifests(after, version)
        shared = {manifest.key for manifest in old} & {manifest.key for manifest in new}
        gone, come = ([manifests for manifests in manifests if manifests.key not in shared] for manifests in (old, new))
        removed, added = [await self._data(manifests, version) for manifests in (gone, come)]
        dropped, new_deletes = [
            {entry.key: entry for entry in await self._all((one for one in manifests if one.has_deletes), version)}
            for manifests in (gone, come)
        ]
        return Difference(
            removed=_without(removed, added),
            added=_without(added, removed),
            dropped_deletes=[entry for key, entry in dropped.items() if key not in new_deletes],
            new_deletes=[entry for key, entry in new_deletes.items() if key not in dropped],
            shared=shared,
        )

    async def _data(self, manifests: Iterable[Manifest], version: int) -> dict[str, FileEntry]:
        by_path: dict[str, FileEntry] = {}
        for manifest in manifests:
            for entry in await self.entries(manifest, version) if not manifest.has_deletes else ():
                if entry.path in by_path:
                    reason = f"{entry.path} is in it, and in another manifest of the snapshot, or twice in it"
                    raise LogCorrupt(self._places.uri, manifest.path, reason, version)
                by_path[entry.path] = entry
        return by_path

    async def _all(self, manifests: Iterable[Manifest], version: int) -> list[FileEntry]:
        return [entry for manifest in manifests for entry in await self.entries(manifest, version)]

    async def _read_list(self, snapshot: Snapshot, version: int) -> tuple[Manifest, ...]:
        if snapshot.key_id is not None:
            raise UnsupportedFeature(self._places.uri, "encryption", version)
        if snapshot.manifest_list is None:
            paths = snapshot.manifests
            return tuple(
                Manifest(path=path, spec_id=0, has_deletes=False, sequence=0, first_row_id=None) for path in paths
            )
        uri, path, before = self._places.uri, snapshot.manifest_list, self._newest
        try:
            self._newest = await self._places.read(
                path, version, lambda stored: parse_manifest_list(stored.data, uri, path, version, before)
            )
        except ObjectNotFound as error:
            raise ChangesUnavailable(uri, version, f"its manifest list {path} is gone") from error
        return self._newest


def _without(entries: Mapping[str, FileEntry], others: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
    """Return the data files that are not among others with the same age."""
    return {
        path: entry for path, entry in entries.items() if path not in others or others[path].sequence != entry.sequence
    }


K = TypeVar("K")
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Keeps values by key; `most`: their weight in all. The newest one stays, however heavy."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return a value; None: it is not there any more."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: K, value: V, weight: int = 1) -> V:
        self._weight += weight - (self._values.pop(key)[1] if key in self._values else 0)
        self._values[key] = value, weight
        while self._weight > self._most and len(self._values) > 1:
            self._weight -= self._values.popitem(last=False)[1][1]
        return value
