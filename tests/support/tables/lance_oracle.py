"""Lance's own library as the oracle of our reading of its metadata: each version of a dataset, compared in full.

pylance reads the same files independently. It reports fragments as JSON, the rows that are left with their addresses,
and the schema as Arrow types.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa
from pyroaring import BitMap

from tailer.formats.lance.fragment import DataFile, DeletionFile, Fragment, read_deletions
from tailer.formats.lance.history import OPERATIONS, parse_operation
from tailer.formats.lance.manifest import Manifest, manifests, parse_manifest, refuse_unknown, uses_stable_row_ids
from tailer.formats.lance.schema import EXTENSION, FIELD_ID, arrow_schema, field_id

__all__ = ["compare", "read_manifests"]

_FILE_TYPES: Final = {"arrow": "array", "bin": "bitmap"}
_BLOB: Final = "lance.blob.v2"


def read_manifests(dataset: Path) -> Iterator[Manifest]:
    """Read the manifests of all versions of a dataset, oldest first."""
    folder = dataset / "_versions"
    for version, name in manifests(str(dataset), [path.name for path in folder.iterdir()]).items():
        manifest = parse_manifest((folder / name).read_bytes(), str(folder / name))
        assert manifest.version == version
        yield manifest


def compare(dataset: Path) -> list[Manifest]:
    """Compare all versions of a dataset with what pylance says of them; return their manifests."""
    found = list(read_manifests(dataset))
    listed = {each["version"]: each["timestamp"] for each in lance.dataset(dataset).versions()}
    assert [each.version for each in found] == sorted(listed)
    for manifest in found:
        refuse_unknown(manifest, str(dataset))
        opened = lance.dataset(dataset, version=manifest.version)
        assert opened.version == manifest.version
        _compare_times(manifest.timestamp_ns, listed[manifest.version])  # type: ignore[arg-type]
        _compare_tables(manifest, opened)
        _compare_operation(dataset, manifest, opened)
        for ours, fragment in zip(manifest.fragments, opened.get_fragments(), strict=True):
            assert _json(ours).items() <= _known_of(fragment.metadata.to_json()).items()
            assert (ours.overlays, ours.row_ids_are_apart) == ((), False)
            _compare_rows(dataset, manifest, ours, fragment)
    return found


def _compare_times(timestamp_ns: int, shown: datetime) -> None:
    """Compare with a time of pylance: local time without a zone, from a floating-point number of seconds."""
    seconds, rest = divmod(timestamp_ns, 1_000_000_000)
    local = datetime.fromtimestamp(seconds, UTC).astimezone().replace(tzinfo=None, microsecond=rest // 1000)
    assert abs(local - shown) <= timedelta(microseconds=1)


def _compare_tables(manifest: Manifest, opened: lance.LanceDataset) -> None:
    schema = arrow_schema(manifest, opened.uri)
    assert schema.remove_metadata() == pa.schema([_as_stored(each) for each in opened.schema])
    assert schema.metadata == opened.schema.metadata or not (schema.metadata or opened.schema.metadata)
    for field, theirs in zip(schema, opened.schema, strict=True):
        own = {key: value for key, value in field.metadata.items() if key not in (FIELD_ID, EXTENSION)}
        assert own == (theirs.metadata or {}) or isinstance(theirs.type, pa.BaseExtensionType)
    columns = [(each.name, each.id, each.key_position) for each in manifest.fields if each.parent_id == -1]
    assert columns == [_their_column(each) for each in opened.lance_schema.fields()]
    assert [(each.name, field_id(each)) for each in schema] == [(name, number) for name, number, _ in columns]
    assert manifest.config == opened.config()
    assert manifest.data_format in ("", opened.data_storage_version)
    assert uses_stable_row_ids(manifest) == opened.has_stable_row_ids
    assert manifest.base_paths == {number: base.path for number, base in opened.base_paths().items()}


def _as_stored(field: pa.Field) -> pa.Field:
    """Return the field without metadata, and with extension types as they are stored, blobs as bytes."""
    return pa.field(field.name, _stored_type(field.type), field.nullable)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.large_binary() if kind.extension_name == _BLOB else _stored_type(kind.storage_type)
    if pa.types.is_struct(kind):
        return pa.struct([_as_stored(each) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_as_stored(kind.key_field), _as_stored(kind.item_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_as_stored(kind.value_field), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(_as_stored(kind.value_field))
    return pa.list_(_as_stored(kind.value_field)) if pa.types.is_list(kind) else kind


def _their_column(field: Any) -> tuple[str, int, int | None]:
    """Return name and id of a column, and its place in the unenforced primary key."""
    in_key = 0 if field.is_unenforced_primary_key() else None
    return field.name(), field.id(), field.unenforced_primary_key_position() or in_key


def _compare_operation(dataset: Path, manifest: Manifest, opened: lance.LanceDataset) -> None:
    """Compare the transaction, from the manifest and from its file, with what pylance makes of it."""
    try:
        theirs = opened.read_transaction(manifest.version)
    except (TypeError, ValueError, OSError):  # pylance cannot show every operation
        theirs = None
    name = manifest.transaction_file
    file = dataset / "_transactions" / name
    encoded = [manifest.transaction, file.read_bytes() if name and file.exists() else None]
    for ours in (parse_operation(each) for each in encoded if each is not None):
        assert ours in OPERATIONS.values()
        if theirs is not None:
            assert type(theirs.operation).__name__ in (ours, "BaseOperation")


def _known_of(theirs: dict[str, Any]) -> dict[str, Any]:
    """Return pylance's JSON of a fragment without what we do not read of its files."""
    return theirs | {
        "files": [{key: file[key] for key in file if key != "file_minor_version"} for file in theirs["files"]]
    }


def _json(fragment: Fragment) -> dict[str, Any]:
    """Return what we know of the fragment, as pylance's JSON has it."""
    return {
        "id": fragment.id,
        "files": [_file_json(each) for each in fragment.files],
        "physical_rows": fragment.physical_rows,
        "deletion_file": None if fragment.deletion is None else _deletion_json(fragment.deletion),
    }


def _file_json(file: DataFile) -> dict[str, Any]:
    return {
        "fields": list(file.field_ids),
        "column_indices": list(file.column_indices),
        "file_major_version": file.major_version,
        "file_size_bytes": file.size_bytes,
        "base_id": file.base_id,
        "path": file.path,
    }


def _deletion_json(deletion: DeletionFile) -> dict[str, Any]:
    return {
        "read_version": deletion.read_version,
        "id": deletion.id,
        "file_type": _FILE_TYPES[deletion.kind],
        "num_deleted_rows": deletion.num_deleted_rows,
        "base_id": deletion.base_id,
    }


def _compare_rows(dataset: Path, manifest: Manifest, ours: Fragment, theirs: lance.LanceFragment) -> None:
    """Compare the offsets of the live rows of a fragment."""
    rows = theirs.scanner(columns=[], with_row_id=True, with_row_address=True).to_table()
    live = BitMap(range(theirs.physical_rows)) - _deleted(dataset, manifest, ours)
    assert rows["_rowaddr"].to_pylist() == [(ours.id << 32) + offset for offset in live]


def _deleted(dataset: Path, manifest: Manifest, fragment: Fragment) -> BitMap:
    deletion = fragment.deletion
    if deletion is None:
        return BitMap()
    root = dataset if deletion.base_id is None else Path(manifest.base_paths[deletion.base_id])
    return read_deletions(deletion.kind, (root / deletion.path(fragment.id)).read_bytes())
