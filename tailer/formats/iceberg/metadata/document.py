"""The content of a metadata file, as far as readers need it (Iceberg specification, "Table Metadata").

Each metadata file lists all snapshots that are kept, about a kilobyte each, and adds one at the end. So those that an
older file has listed are known by the checksum of their text, and only what follows is parsed.
"""

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from tailer.errors import ConfigError, LogCorrupt, NotATable, UnsupportedFeature
from tailer.stores.location import parse_location

__all__ = [
    "FOLDER",
    "MAIN",
    "TITLE",
    "Document",
    "PartitionSpec",
    "Snapshot",
    "noted_number",
    "parse_document",
    "root_of",
    "split_location",
]

FOLDER: Final = "metadata"
TITLE: Final = "an Iceberg table"
_NOWHERE: Final = Path("/")  # locations are absolute

_END: Final = b"] \t\r\n"
_BETWEEN: Final = b", \t\r\n"


class Summary(msgspec.Struct, rename="kebab", frozen=True, kw_only=True):
    """Notes of the writer about a snapshot, as far as somebody asks for them. Nothing checks them."""

    operation: Any = None
    engine_name: Any = None
    engine_version: Any = None
    added_files_size: Any = None
    added_records: Any = None
    deleted_records: Any = None
    total_records: Any = None
    added_position_deletes: Any = None
    added_equality_deletes: Any = None
    total_equality_deletes: Any = None


class Snapshot(msgspec.Struct, rename="kebab", frozen=True, kw_only=True):
    """The state of a table at a time. `manifests`: its manifests, where no `manifest_list` has them."""

    snapshot_id: int
    timestamp_ms: int
    parent_snapshot_id: int | None = None
    sequence_number: int = 0
    manifest_list: str | None = None
    manifests: tuple[str, ...] = ()
    summary: Summary = Summary()
    schema_id: int | None = None
    first_row_id: int | None = None
    key_id: str | None = None

    @property
    def operation(self) -> str | None:
        """The writer's name for what it did."""
        name = self.summary.operation
        return name if isinstance(name, str) else None

    @property
    def is_first(self) -> bool:
        """Return whether the table had no rows before: no snapshot, and no row that the snapshot did not add.

        PyIceberg forgets the parent of what follows an expired snapshot.
        """
        notes = self.summary
        added, deleted, total = map(noted_number, (notes.added_records, notes.deleted_records, notes.total_records))
        has_parent = self.parent_snapshot_id is not None and self.parent_snapshot_id >= 0
        return not has_parent and (total is None or total + (deleted or 0) <= (added or 0))


def noted_number(text: Any) -> int | None:
    """Return a number of a summary; None: there is none."""
    return int(text) if (text := str(text)).isdecimal() else None


@dataclass(frozen=True, slots=True)
class History:
    """The snapshots of a metadata file, by id.

    `line`: the same object in histories that only add to one another. `size`, `checksum`: of their text, without the
    end of the list.
    """

    by_id: Mapping[int, Snapshot]
    line: object
    size: int = 0
    checksum: bytes = b""


_SNAPSHOTS: Final = msgspec.json.Decoder(tuple[Snapshot, ...] | None, strict=False)


def read_history(text: msgspec.Raw, before: History | None) -> History:
    """Parse a list of snapshots. `before`: of an older file. Raises `msgspec.DecodeError`."""
    view = memoryview(text)
    size = len(view)
    while size and view[size - 1] in _END:
        size -= 1
    older = before if before is not None and before.by_id and before.size <= size else None
    start = 0 if older is None else older.size
    checksum = sha256(view[:start])
    is_continued = older is not None and checksum.digest() == older.checksum
    checksum.update(view[start:size])
    if older is None or not is_continued:
        return History(_by_id(view), object(), size, checksum.digest())
    added = _by_id(b"[" + bytes(view[start:]).lstrip(_BETWEEN))
    return History({**older.by_id, **added}, older.line, size, checksum.digest())


def _by_id(text: bytes | memoryview) -> Mapping[int, Snapshot]:
    return {snapshot.snapshot_id: snapshot for snapshot in (_SNAPSHOTS.decode(text) if text else None) or ()}


MAIN: Final = "main"
_NEWEST_FORMAT: Final = 3
_FIRST_FIELD_ID: Final = 1000  # of partition fields that have no id, in tables of the first format version
_GZIP: Final = b"\x1f\x8b"
_NO_SNAPSHOT: Final = -1
_NAME_MAPPING: Final = "schema.name-mapping.default"
_NO_HISTORY: Final = History({}, None)


class Reference(msgspec.Struct, rename="kebab", frozen=True, kw_only=True):
    """A branch or a tag."""

    snapshot_id: int
    type: str


class PartitionField(msgspec.Struct, rename="kebab", frozen=True, kw_only=True):
    """A value that all rows of a file share. `field_id`: None in some tables of the first format version."""

    name: str
    transform: str
    source_id: int | None = None
    field_id: int | None = None


class PartitionSpec(msgspec.Struct, rename="kebab", frozen=True, kw_only=True):
    """The fields of a partition."""

    spec_id: int
    fields: tuple[PartitionField, ...] = ()

    @property
    def field_ids(self) -> tuple[int, ...]:
        numbered = enumerate(self.fields)
        return tuple(_FIRST_FIELD_ID + place if field.field_id is None else field.field_id for place, field in numbered)

    @property
    def is_unpartitioned(self) -> bool:
        """True where all files are in one partition: a dropped field of the first format version stays as `void`."""
        return all(field.transform == "void" for field in self.fields)


class Document(msgspec.Struct, rename="kebab", frozen=True, kw_only=True):
    """A metadata file. `field_schema`, `partition_spec`: of tables of the first format version without lists.

    `history`: its snapshots. `listed`: their text, until it is parsed.
    """

    format_version: int
    location: str
    table_uuid: str | None = None
    last_updated_ms: int = 0
    current_snapshot_id: int | None = None
    current_schema_id: int = 0
    default_spec_id: int = 0
    schemas: tuple[dict[str, Any], ...] = ()
    field_schema: dict[str, Any] | None = msgspec.field(default=None, name="schema")
    partition_specs: tuple[PartitionSpec, ...] = ()
    partition_spec: tuple[PartitionField, ...] = ()
    properties: dict[str, str | None] = {}
    listed: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="snapshots")
    history: History = msgspec.field(default=_NO_HISTORY, name="")
    refs: dict[str, Reference] | None = None

    def schema(self, schema_id: int | None) -> dict[str, Any]:
        """Return a schema; that of now where snapshots of old tables name none. Raises `KeyError`."""
        wanted = self.current_schema_id if schema_id is None else schema_id
        for schema in self.schemas:
            if schema.get("schema-id", 0) == wanted:
                return schema
        if self.field_schema is not None and (not self.schemas or schema_id is None):
            return self.field_schema
        raise KeyError(f"schema {wanted}")

    def spec(self, spec_id: int) -> PartitionSpec:
        """Return a partition spec. Raises `KeyError`."""
        for spec in self.partition_specs:
            if spec.spec_id == spec_id:
                return spec
        if not self.partition_specs:
            return PartitionSpec(spec_id=spec_id, fields=self.partition_spec)
        raise KeyError(f"partition spec {spec_id}")

    @property
    def name_mapping(self) -> str | None:
        """The names of columns in files without field ids, as JSON."""
        return self.properties.get(_NAME_MAPPING)

    def head(self, branch: str) -> int | None:
        """Return the id of the newest snapshot of a branch; None where it has none."""
        reference = (self.refs or {}).get(branch)
        if reference is not None and reference.type == "branch":
            return reference.snapshot_id
        current = self.current_snapshot_id if branch == MAIN else None
        return None if current == _NO_SNAPSHOT else current


_DECODER: Final = msgspec.json.Decoder(Document, strict=False)


def parse_document(data: bytes, table: str, name: str, before: Document | None = None) -> Document:
    """Parse a metadata file, which may be compressed. `before`: an older one, whose snapshots are not parsed again.

    Raises `LogCorrupt`, and `UnsupportedFeature` for a newer format version.
    """
    try:
        document = _DECODER.decode(gzip.decompress(data) if data.startswith(_GZIP) else data)
        history = read_history(document.listed, None if before is None else before.history)
    except (msgspec.DecodeError, ValueError, OSError, EOFError, zlib.error) as error:
        raise LogCorrupt(table, name, f"not the metadata of a table: {error}") from error
    if document.format_version > _NEWEST_FORMAT:
        raise UnsupportedFeature(table, f"format version {document.format_version}", 0)
    return msgspec.structs.replace(document, listed=msgspec.Raw(), history=history)


def root_of(location: str) -> str:
    """Return the folder of the table whose metadata file is at `location`. Raises `NotATable`."""
    return split_location(location)[0]


def split_location(location: str) -> tuple[str, str]:
    """Return the folder of a table and the name of its metadata file in it. Raises as `root_of`."""
    try:
        parsed = parse_location(f"file:{location}" if location.startswith("/") else location, _NOWHERE, "table")
    except ConfigError as error:
        remedy = "The catalog has its metadata where lake-tailer cannot read."
        raise NotATable(location, error.reason, TITLE, remedy) from None
    folder, _, name = parsed.rpartition("/")
    root = folder.removesuffix(f"/{FOLDER}")
    return root, name if root == folder else f"{FOLDER}/{name}"
