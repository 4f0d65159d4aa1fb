"""The versions of a dataset in a store: listed, read, and found by time. All I/O of the format is here.

The name of the operation that made a version (Lance format, "Conflict resolution", `protos/transaction.proto`) decides
which of its changes are only moves. It may be missing or unknown, so nothing else may depend on it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from anyio import sleep
from pyroaring import BitMap

from tailer.errors import (
    ChangesUnavailable,
    ConfigError,
    FileOutsideTable,
    LogCorrupt,
    ObjectNotFound,
    VersionGone,
)
from tailer.formats.lance.changes import Deletions, Version, deletion_files, plan_changes
from tailer.formats.lance.fragment import DeletionFile, Fragment, read_deletions
from tailer.formats.lance.manifest import (
    LARGEST,
    Manifest,
    manifests,
    parse_manifest,
    refuse_unknown,
    uses_stable_row_ids,
)
from tailer.formats.lance.protobuf import InvalidMessage, Message
from tailer.formats.lance.schema import ColumnNames, arrow_schema, is_plain
from tailer.formats.registry import no_table
from tailer.plan import ChangePlan
from tailer.stores.location import is_readable, lies_in, parse_location
from tailer.stores.port import BlockingScans, ObjectMeta, ObjectStore, OpenObject, StoredObject

__all__ = ["VERSIONS", "History", "version_gone"]

OPERATIONS: Final = {
    100: "Append",
    101: "Delete",
    102: "Overwrite",
    103: "CreateIndex",
    104: "Rewrite",
    105: "Merge",
    106: "Restore",
    107: "ReserveFragments",
    108: "Update",
    109: "Project",
    110: "UpdateConfig",
    111: "DataReplacement",
    112: "UpdateMemWalState",
    113: "Clone",
    114: "UpdateBases",
}
_FIRST_OPERATION: Final = min(OPERATIONS)


def parse_operation(data: bytes) -> str | None:
    """Return the operation of a transaction, from a `.txn` file or from a manifest. Raises `InvalidMessage`.

    None: it is unknown or missing. Several operations in one transaction count as unknown.
    """
    operations = [field for field in Message(data).fields() if field >= _FIRST_OPERATION]
    return OPERATIONS.get(operations[0]) if len(operations) == 1 else None


VERSIONS: Final = "_versions"
_TOGETHER_BYTES: Final = 2**20  # of manifests that are planned in one call of a thread
_LOOKS: Final = 5
_RENAMING_S: Final = 0.5
_NOWHERE: Final = Path("/")  # base paths are absolute
_KEPT_DELETIONS: Final = 256  # bitmaps of the last versions: a fragment that loses rows often loses more

# What a bitmap was read from: the folder of the dataset or of a base path, and the file below it.
_DeletionPath = tuple[str, str]


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A manifest, and the file it was read from."""

    meta: ObjectMeta
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Planned:
    """A version with its plan. `meta`: the file of its manifest."""

    version: Version
    meta: ObjectMeta
    plan: ChangePlan


class History:
    """The versions of the dataset at the root of `store`. `table_id`: its id in plans from now on.

    `open_store`: opens another root, where base paths lead. `allowed_roots`: those that they may lead to.
    """

    def __init__(
        self,
        store: ObjectStore,
        table_id: str,
        open_store: Callable[[str], ObjectStore],
        allowed_roots: tuple[str, ...] = (),
    ) -> None:
        self._store = store
        self.table_id = table_id
        self._open_store = open_store
        self._allowed_roots = allowed_roots
        self._padded = True  # whether names of manifests count down from the largest number
        self._bitmaps: OrderedDict[_DeletionPath, BitMap] = OrderedDict()

    @property
    def uri(self) -> str:
        """The dataset's location."""
        return self._store.uri

    async def listed(self) -> Mapping[int, str]:
        """Return the name of each version's manifest, in ascending order. Raises `NotATable` where there is none.

        While a writer renames all manifests, there are names of both schemes: that is waited for.
        """
        for _ in range(_LOOKS - 1):
            with suppress(LogCorrupt):
                return self._note(await self._list())
            await sleep(_RENAMING_S)
        return self._note(await self._list())

    async def _list(self) -> Mapping[int, str]:
        objects = await self._store.list(VERSIONS)
        return manifests(self.uri, (file.name.rpartition("/")[2] for file in objects))

    def _note(self, names: Mapping[int, str]) -> Mapping[int, str]:
        if not names:
            raise no_table(self.uri, VERSIONS, "no manifest in _versions", "a Lance dataset")
        version, name = next(iter(names.items()))
        self._padded = name != f"{version}.manifest"
        return names

    def name(self, version: int) -> str:
        """Return the name of a version's manifest, in the scheme of the last listing."""
        return f"{VERSIONS}/{LARGEST - version:020d}.manifest" if self._padded else f"{VERSIONS}/{version}.manifest"

    async def read(self, version: int, before: Version | None = None) -> StoredManifest | None:
        """Read a version's manifest; None where it is missing. Raises `LogCorrupt`, `UnsupportedFeature`.

        `before`: an earlier version, with which it may have most in common.
        """

        def decode(stored: StoredObject) -> StoredManifest:
            return self._decode(version, before, stored.meta, stored.data)

        try:
            return await self._store.read(self.name(version), decode)
        except ObjectNotFound:
            return None

    def _decode(self, version: int, before: Version | None, meta: ObjectMeta, data: bytes) -> StoredManifest:
        earlier = None if before is None else before.manifest
        manifest = parse_manifest(data, f"{self.uri}/{self.name(version)}", earlier)
        if manifest.version != version:
            raise LogCorrupt(self.uri, self.name(version), f"it is of version {manifest.version}", version)
        refuse_unknown(manifest, self.uri)
        return StoredManifest(meta, manifest)

    async def existing(self, version: int) -> StoredManifest:
        """Read the manifest of a version that a listing showed. Raises `VersionGone` where it is gone since."""
        stored = await self.read(version)
        if stored is None:
            raise await self.gone(version)
        return stored

    async def gone(self, version: int) -> VersionGone:
        """Build the error for a missing version, with those that there are."""
        return version_gone(self.uri, version, await self.listed())

    def version(self, manifest: Manifest, before: Version | None, operation: str | None) -> Version:
        """Return a version with its schema. `before`: the one that `operation` changed; None: not known."""
        for path in manifest.base_paths.values():
            self._root(path, manifest.version)
        if before is not None and operation != "Overwrite" and manifest.has_columns_of(before.manifest):
            names, schema, plain = before.names, before.schema, before.is_plain
        else:
            fields = arrow_schema(manifest, self.uri)
            if before is None:
                names = ColumnNames()
            elif operation == "Overwrite":
                former = arrow_schema(before.manifest, self.uri)
                names = before.names.after_overwrite(former, fields, manifest.version)
            else:
                names = before.names.extended(fields)
            schema, plain = names.schema(fields), is_plain(manifest.fields)
        fragments, stable = manifest.fragments_by_id(self.uri), uses_stable_row_ids(manifest)
        return Version(self.uri, self.table_id, manifest, schema, names, fragments, stable, plain)

    async def operation(self, manifest: Manifest) -> str | None:
        """Return the operation that made a version; None where it is not known."""
        with suppress(InvalidMessage, ObjectNotFound):
            if manifest.transaction is not None:
                return parse_operation(manifest.transaction)
            if manifest.transaction_file:
                name = f"_transactions/{manifest.transaction_file}"
                return await self._store.read(name, lambda stored: parse_operation(stored.data))
        return None

    def plan_in_turn(
        self, reads: BlockingScans, version: int, before: Version | None, read: ObjectMeta | None, most: int
    ) -> list[Planned]:
        """Plan `version` and the next ones, at most `most`, in this thread: those that need their manifests alone.

        `before`: the version before; `read`: its manifest's file. Stop where more must be read or known, and where the
        manifests are no longer small.
        """
        planned: list[Planned] = []
        size_bytes = 0
        with suppress(Exception):  # raised again when the version is the first
            while len(planned) < most and size_bytes < _TOGETHER_BYTES:
                next_one = reads.scan_now(self.name(version), partial(self._decode_open, version, before))
                manifest = next_one.manifest
                if (read is not None and reads.stat_now(read.name) != read) or manifest.transaction is None:
                    break
                operation = parse_operation(manifest.transaction)
                after = self.version(manifest, before, operation)
                if any(deletion_files(before, after, operation)):
                    break
                planned.append(Planned(after, next_one.meta, plan_changes(before, after, operation, {}, {})))
                before, read, version = after, next_one.meta, version + 1
                size_bytes += read.size_bytes
        return planned

    def _decode_open(self, version: int, before: Version | None, opened: OpenObject) -> StoredManifest:
        data = opened.file.read()
        return self._decode(version, before, opened.meta._replace(size_bytes=len(data)), data)

    async def deletions(
        self, before: Version | None, after: Version, operation: str | None
    ) -> tuple[Deletions, Deletions]:
        """Read the deletion files that a plan needs: of the version before, and of the one after."""
        bitmaps: tuple[dict[int, BitMap], dict[int, BitMap]] = {}, {}
        for version, fragment in deletion_files(before, after, operation):
            assert fragment.deletion is not None, "deletion_files yields no other"
            bitmap = await self._deleted(version, fragment, fragment.deletion, after.manifest.version)
            bitmaps[version is after][fragment.id] = bitmap
        return bitmaps

    async def _deleted(self, version: Version, fragment: Fragment, file: DeletionFile, planned: int) -> BitMap:
        manifest, path = version.manifest, file.path(fragment.id)
        store = self._store
        if file.base_id is not None:
            base = manifest.base_paths.get(file.base_id)
            if base is None:
                reason = f"{path} is in the base path {file.base_id}, which it does not have"
                raise LogCorrupt(self.uri, self.name(manifest.version), reason, planned)
            store = self._open_store(self._root(base, planned))
        key = store.uri, path
        if key not in self._bitmaps:
            try:
                self._bitmaps[key] = await store.read(path, lambda stored: read_deletions(file.kind, stored.data))
            except InvalidMessage as error:
                raise LogCorrupt(self.uri, path, str(error), planned) from error
            except ObjectNotFound as error:
                raise ChangesUnavailable(self.uri, planned, f"its deletion file {path} is gone") from error
            while len(self._bitmaps) > _KEPT_DELETIONS:
                self._bitmaps.popitem(last=False)
        self._bitmaps.move_to_end(key)
        return self._bitmaps[key]

    def _root(self, path: str, version: int) -> str:
        """Return the location of a base path. Raises `FileOutsideTable` where it is not allowed."""
        try:
            location = parse_location(path, beside=_NOWHERE, where="base path")
        except ConfigError as error:
            raise FileOutsideTable(self.uri, version, path, is_readable(path)) from error
        if not any(lies_in(location, root) for root in (self.uri, *self._allowed_roots)):
            raise FileOutsideTable(self.uri, version, location, is_readable(location))
        return location


def version_gone(uri: str, version: int, listed: Iterable[int]) -> VersionGone:
    """Build the error for a missing version of the dataset at `uri`, with the versions that were `listed`."""
    versions = sorted(listed)
    resume = next((later for later in versions if later > version and later - 1 in versions), versions[-1] + 1)
    return VersionGone(uri, version, versions[0], versions[-1], resume, ("latest", "snapshot"))
