"""Tests for `tailer.formats.lance.schema`; pylance is the oracle for datasets with every type that it writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import lance
import pyarrow as pa
import pytest
from lance import blob_field
from lance._arrow.bf16 import BFloat16Type

from tailer.errors import LogCorrupt, UnsupportedFeature
from tailer.formats.lance.manifest import Manifest, parse_manifest
from tailer.formats.lance.schema import EXTENSION, FIELD_ID, arrow_schema, field_id
from tests.support.cases import cases
from tests.support.tables.lance_files import field, manifest_file
from tests.support.tables.lance_oracle import compare

X: Final = pa.struct([("x", pa.int32())])
TYPES: Final = [
    *(pa.null(), pa.bool_(), pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64()),
    *(pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary()),
    *(pa.large_binary(), pa.binary(7), pa.date32(), pa.date64()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp("us", "UTC"), pa.timestamp("ns", "America/New_York"), pa.timestamp("ms", "+01:00")),
    *(pa.decimal128(10, 2), pa.decimal128(38, 0), pa.decimal128(10, -2), pa.decimal256(40, 3)),
    *(pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.uint8(), pa.large_string())),
    *(pa.dictionary(pa.int8(), pa.int64()), pa.dictionary(pa.int16(), pa.string(), ordered=True)),
    *(pa.list_(pa.int32()), pa.large_list(pa.string()), pa.list_(X), pa.large_list(X), pa.list_(pa.list_(pa.int8()))),
    *(pa.list_(pa.field("element", pa.int32(), nullable=False)), pa.list_(pa.list_(pa.float32(), 2))),
    *(pa.list_(kind, 3) for kind in (pa.float16(), pa.float32(), pa.float64(), pa.uint8(), pa.bool_(), pa.string(), X)),
    *(pa.list_(pa.list_(pa.float32(), 2), 3), pa.list_(pa.field("own", pa.float32(), nullable=False), 3)),
    *(pa.struct([]), pa.struct([("x", pa.int32()), pa.field("y", X, nullable=False)])),
    *(pa.map_(pa.string(), pa.int32()), pa.map_(pa.int64(), pa.list_(X))),
    *(pa.string_view(), pa.binary_view(), pa.json_(), pa.json_(pa.large_string()), pa.uuid(), BFloat16Type()),  # type: ignore[no-untyped-call]
    *(
        pa.list_(pa.json_()),
        pa.struct([("j", pa.json_()), ("u", pa.uuid())]),
        pa.list_(pa.timestamp("us", "+01:00"), 2),
    ),
]


def written(path: Path, schema: pa.Schema, version: str) -> pa.Schema:
    """Write a dataset without rows, compare it with what pylance says, and return its schema in our reading."""
    empty = pa.Table.from_batches([], schema)
    lance.write_dataset(empty, path, data_storage_version=version)  # type: ignore[arg-type]
    (manifest,) = compare(path)
    return arrow_schema(manifest, str(path))


def test_every_type(tmp_path: Path) -> None:
    schema = pa.schema([pa.field(f"c{at}", kind) for at, kind in enumerate(TYPES)])
    assert len(written(tmp_path, schema, "2.2")) == len(TYPES)


@pytest.mark.parametrize("version", ["legacy", "2.0", "2.1", "2.3"])
def test_data_files_of_other_versions(tmp_path: Path, version: str) -> None:
    assert written(tmp_path, pa.schema([("v", pa.list_(pa.float32(), 3)), ("x", X)]), version).names == ["v", "x"]


def test_blobs_are_bytes(tmp_path: Path) -> None:
    schema = pa.schema([blob_field("b"), pa.field("n", pa.int8(), nullable=False)])
    found = written(tmp_path / "v2", schema, "2.2")
    assert (found.field("b").type, found.field("b").metadata[EXTENSION]) == (pa.large_binary(), b"lance.blob.v2")
    assert [each.nullable for each in found] == [True, False]
    old = pa.schema([pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    assert written(tmp_path / "v1", old, "2.0").field("b").type == pa.large_binary()


def test_ids_and_metadata_of_fields_and_schema(tmp_path: Path) -> None:
    nested = pa.struct([pa.field("x", pa.int32(), metadata={"k": "v"}), pa.field("y", pa.list_(pa.int8()))])
    schema = pa.schema([pa.field("s", nested), pa.field("u", pa.uuid())], metadata={"of": "schema"})
    found = written(tmp_path, schema, "2.2")
    s, u = found
    assert [field_id(each) for each in (s, s.type.field("x"), s.type.field("y"), u)] == [0, 1, 2, 4]
    assert field_id(s.type.field("y").type.value_field) == 3
    assert s.type.field("x").metadata == {b"k": b"v", FIELD_ID: b"1"}
    assert u.metadata == {EXTENSION: b"arrow.uuid", FIELD_ID: b"4"}
    assert found.metadata == {b"of": b"schema"}


def test_the_unenforced_primary_key(tmp_path: Path) -> None:
    key = "lance-schema:unenforced-primary-key"
    metadata: Sequence[dict[str, str] | None] = (
        {f"{key}:position": "2"},
        None,
        {f"{key}:position": "1"},
        {key: "true"},
    )
    fields = [pa.field(f"c{at}", pa.int64(), False, each) for at, each in enumerate(metadata)]
    lance.write_dataset(pa.schema(fields).empty_table(), tmp_path)
    (manifest,) = compare(tmp_path)
    assert [each.key_position for each in manifest.fields] == [2, None, 1, 0]


def of_types(*logical_types: str) -> Manifest:
    """Return a manifest with columns of logical types."""
    fields = [
        field(2, f"c{at}") + field(3, at) + field(4, -1) + field(5, each) for at, each in enumerate(logical_types)
    ]
    return manifest_of(*fields)


def manifest_of(*fields: bytes) -> Manifest:
    """Return a manifest with encoded fields."""
    return parse_manifest(
        manifest_file(field(3, 8) + b"".join(field(1, each) for each in fields)), "t/_versions/8.manifest"
    )


def test_types_that_only_other_writers_use() -> None:
    found = arrow_schema(of_types("blob", "fixed_size_list:lance.bfloat16:3", "dict:string:int32:true"), "t")
    bfloat16 = pa.list_(pa.binary(2), 3)
    assert found.types == [pa.large_binary(), bfloat16, pa.dictionary(pa.int32(), pa.string())]


@cases(
    "logical",
    [
        *("", "interval", "decimal:32:5:1", "decimal:128:99:0", "timestamp:us", "time32:us", "fixed_size_list:float:x"),
        *("list", "map", "large_list.struct", "list.struct", "dict:string:float:false", "fixed_size_list:json:2"),
        *(
            "fixed_size_binary:99999999999",
            "fixed_size_list:float:99999999999",
            "fixed_size_list:" * 5000 + "int8" + ":1" * 5000,
        ),
    ],
)
def test_a_type_that_is_not_known_is_refused_by_name(logical: str) -> None:
    with pytest.raises(UnsupportedFeature, match=r"t: version 8 needs the type '.*' of the field 'c1'"):
        arrow_schema(of_types("int8", logical), "t")


def child(number: int, parent: int, logical: str) -> bytes:
    """Encode a field in another one."""
    return field(2, "n") + field(3, number) + field(4, parent) + field(5, logical)


@pytest.mark.parametrize("logical", ["int8", "map", "list"])
def test_a_type_that_cannot_have_these_fields_is_refused(logical: str) -> None:
    fields = [child(0, -1, logical), child(1, 0, "int8"), *([child(2, 0, "int8")] if logical == "list" else [])]
    with pytest.raises(UnsupportedFeature, match="nested fields"):
        arrow_schema(manifest_of(*fields), "t")


@cases(
    "fields",
    [
        [child(0, 5, "int8")],
        [child(0, -1, "int8"), child(0, -1, "int8")],
        [child(0, 0, "struct")],
        [child(1, 0, "int8"), child(0, -1, "struct")],
        [child(-2, -1, "int8")],
        [child(at, at - 1, "struct") for at in range(65)],
    ],
)
def test_fields_that_are_no_tree_are_refused(fields: list[bytes]) -> None:
    with pytest.raises(LogCorrupt, match="is not part of a tree"):
        arrow_schema(manifest_of(*fields), "t")
