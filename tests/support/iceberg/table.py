"""Iceberg tables that are written for tests: metadata, manifests and all kinds of delete files, without a catalog.

Every commit adds a manifest of its data files, and one of its delete files. Later ones list them again, as long as all
of their files are live; else manifests of the others are written.
"""

import gzip
import json
import struct
import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

__all__ = ["COLUMNS", "File", "IcebergTable"]

COLUMNS: Final = ({"id": 1, "name": "id", "type": "long"}, {"id": 2, "name": "name", "type": "string"})
_TYPES: Final = {
    "long": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp_ns": pa.timestamp("ns"),
}
_POSITIONS: Final = pa.schema([("file_path", pa.string()), ("pos", pa.int64())])
_LONG: Final = ["null", "long"]
_LIST: Final = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        {"name": "manifest_path", "type": "string"},
        {"name": "manifest_length", "type": "long"},
        {"name": "partition_spec_id", "type": "int"},
        {"name": "content", "type": "int"},
        {"name": "sequence_number", "type": "long"},
        {"name": "min_sequence_number", "type": "long"},
        {"name": "first_row_id", "type": _LONG, "default": None},
        {
            "name": "partitions",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "r508",
                    "fields": [
                        {"name": "contains_null", "type": "boolean"},
                        {"name": "lower_bound", "type": ["null", "bytes"]},
                        {"name": "upper_bound", "type": ["null", "bytes"]},
                    ],
                },
            },
        },
    ],
}


@dataclass(frozen=True, kw_only=True)
class File:
    """A data or delete file. `content`: 0 data, 1 positions, 2 keys. `partition`: values by name.

    `bounds`: field ids, each with the least and the greatest value, and the number of nulls.
    """

    path: str
    records: int
    size: int
    content: int = 0
    format: str = "PARQUET"
    spec: int = 0
    sequence: int | None = None
    partition: tuple[tuple[str, Any], ...] = ()
    keys: tuple[int, ...] = ()
    referenced: str | None = None
    offset: int | None = None
    length: int | None = None
    first_row_id: int | None = None
    bounds: tuple[tuple[int, tuple[bytes, bytes] | None, int], ...] = ()


@dataclass
class IcebergTable:
    """A table that is written. `columns`: of its schema now.

    `specs`: fields of each partition spec; `avro`: the type in new manifests, if it is not that of the column.
    """

    path: Path
    version: int = 2
    columns: Sequence[Mapping[str, Any]] = COLUMNS
    specs: list[Sequence[Mapping[str, Any]]] = field(default_factory=lambda: [()])
    properties: dict[str, str] = field(default_factory=dict)
    compressed: bool = False
    files: list[File] = field(default_factory=list)
    sequence: int = 0
    next_row_id: int = 0
    table_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    schemas: list[dict[str, Any]] = field(default_factory=list)
    snapshots: list[dict[str, Any]] = field(default_factory=list)
    refs: dict[str, dict[str, Any]] = field(default_factory=dict)
    states: dict[int, list[File]] = field(default_factory=dict)
    written: int = 0
    names: Any = field(default_factory=count)
    manifests: dict[tuple[File, ...], Path] = field(default_factory=dict)

    def data(self, rows: Mapping[str, Sequence[Any]], ids: Mapping[str, int] | None = None, **more: Any) -> File:
        """Write a data file. `ids`: of its columns; None: those of the table."""
        known = {column["name"]: column["id"] for column in self.columns}
        return self._parquet(self._table(rows, known if ids is None else ids), **more)

    def positions(self, marks: Iterable[tuple[File, int]], **more: Any) -> File:
        """Write a file of positions."""
        pairs = [(file.path, position) for file, position in marks]
        table = pa.table([pa.array([each[number] for each in pairs]) for number in range(2)], schema=_POSITIONS)
        return self._parquet(table, content=1, **more)

    def vector(self, file: File, positions: Iterable[int], at: int = 4) -> File:
        """Write a deletion vector, at some place of a file."""
        bitmap = BitMap64(positions)
        data = struct.pack("<i", 1681511377) + bitmap.serialize()
        framed = struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        path = self._name("puffin")
        path.write_bytes(bytes(at) + framed)
        return File(
            path=str(path),
            records=len(bitmap),
            size=at + len(framed),
            content=1,
            format="PUFFIN",
            spec=file.spec,
            partition=file.partition,
            referenced=file.path,
            offset=at,
            length=len(framed),
        )

    def equality(self, rows: Mapping[str, Sequence[Any]], keys: Mapping[str, int], **more: Any) -> File:
        """Write an equality delete. `keys`: the ids of its columns."""
        return self._parquet(self._table(rows, keys), content=2, keys=tuple(keys.values()), **more)

    def commit(
        self,
        add: Sequence[File] = (),
        remove: Sequence[File] = (),
        operation: str = "overwrite",
        branch: str = "main",
    ) -> int:
        """Make a snapshot on a branch; return its number."""
        parent = self.refs.get(branch, self.refs.get("main"))
        before = [] if parent is None else self.states[parent["snapshot-id"]]
        self.sequence += 1
        first_row_id = self.next_row_id
        added = [self._numbered(replace(file, sequence=file.sequence or self.sequence)) for file in add]
        gone = {(file.path, file.offset) for file in remove}
        after = [*(file for file in before if (file.path, file.offset) not in gone), *added]
        snapshot_id = 1000 + self.written * 7 % 13 + 100 * self.sequence
        self._schema()
        snapshot = {
            "snapshot-id": snapshot_id,
            "sequence-number": self.sequence,
            "timestamp-ms": 1000 * self.sequence,
            "manifest-list": self._list(after),
            "summary": {"operation": operation},
            "schema-id": self._schema(),
        }
        if parent is not None:
            snapshot["parent-snapshot-id"] = parent["snapshot-id"]
        if self.version > 2:
            snapshot |= {"first-row-id": first_row_id, "added-rows": self.next_row_id - first_row_id}
        self.snapshots.append(snapshot)
        self.states[snapshot_id] = after
        self.refs[branch] = {"snapshot-id": snapshot_id, "type": "branch"}
        self.publish()
        return self.sequence

    def file(self, path: str) -> File:
        """Return a live file of the main branch as the last snapshot has it."""
        return next(file for file in self.states[self.refs["main"]["snapshot-id"]] if file.path == path)

    def set_branch(self, branch: str, number: int) -> None:
        """Set a branch to another snapshot."""
        self.refs[branch] = {"snapshot-id": self.id_of(number), "type": "branch"}
        self.publish()

    def tag(self, name: str, number: int) -> None:
        """Tag a snapshot."""
        self.refs[name] = {"snapshot-id": self.id_of(number), "type": "tag"}
        self.publish()

    def expire(self, *numbers: int) -> None:
        """Remove snapshots."""
        self.snapshots = [each for each in self.snapshots if each["sequence-number"] not in numbers]
        self.publish()

    def lose(self, number: int) -> None:
        """Delete the last file of a snapshot."""
        Path(self.states[self.id_of(number)][-1].path).unlink()

    def id_of(self, number: int) -> int:
        """Return the id of a snapshot."""
        found: int = next(each["snapshot-id"] for each in self.snapshots if each["sequence-number"] == number)
        return found

    def publish(self) -> None:
        """Write the next metadata file."""
        self.written += 1
        schema_id = self._schema()
        content = {
            "format-version": self.version,
            "table-uuid": self.table_id,
            "location": str(self.path),
            "last-sequence-number": self.sequence,
            "last-updated-ms": 1000 * self.sequence,
            "current-snapshot-id": self.refs.get("main", {}).get("snapshot-id", -1),
            "current-schema-id": schema_id,
            "schemas": self.schemas,
            "default-spec-id": len(self.specs) - 1,
            "partition-specs": [{"spec-id": each, "fields": list(spec)} for each, spec in enumerate(self.specs)],
            "properties": self.properties,
            "snapshots": self.snapshots,
            "refs": self.refs,
        }
        data = json.dumps(content).encode()
        name = f"v{self.written}.gz.metadata.json" if self.compressed else f"v{self.written}.metadata.json"
        part = self._name("part", "metadata")
        part.write_bytes(gzip.compress(data) if self.compressed else data)
        part.rename(self.path / "metadata" / name)

    def _schema(self) -> int:
        fields = list(self.columns)
        for schema in self.schemas:
            if schema["fields"] == fields:
                return int(schema["schema-id"])
        self.schemas.append({"type": "struct", "schema-id": len(self.schemas), "fields": fields})
        return len(self.schemas) - 1

    def _numbered(self, file: File) -> File:
        if self.version < 3 or file.content or file.first_row_id is not None:
            return file
        self.next_row_id += file.records
        return replace(file, first_row_id=self.next_row_id - file.records)

    def _table(self, rows: Mapping[str, Sequence[Any]], ids: Mapping[str, int]) -> pa.Table:
        kinds = {column["name"]: column["type"] for column in self.columns}
        arrays = {
            name: values if isinstance(values, pa.Array) else pa.array(values, _TYPES[kinds[name]])
            for name, values in rows.items()
        }
        fields = [
            pa.field(name, array.type, metadata={"PARQUET:field_id": str(ids[name])} if name in ids else None)
            for name, array in arrays.items()
        ]
        return pa.table(list(arrays.values()), schema=pa.schema(fields))

    def _parquet(self, table: pa.Table, **more: Any) -> File:
        path = self._name("parquet")
        pq.write_table(table, path)
        bounds = tuple(
            (int(column.metadata[b"PARQUET:field_id"]), _bounds(table[column.name]), table[column.name].null_count)
            for column in table.schema
            if b"PARQUET:field_id" in (column.metadata or {})
        )
        return File(path=str(path), records=len(table), size=path.stat().st_size, bounds=bounds, **more)

    def _name(self, suffix: str, folder: str = "data") -> Path:
        (self.path / folder).mkdir(parents=True, exist_ok=True)
        return self.path / folder / f"{next(self.names)}.{suffix}"

    def _list(self, files: Sequence[File]) -> str:
        groups: dict[tuple[bool, int, int | None], list[File]] = {}
        for file in files:
            groups.setdefault((file.content > 0, file.spec, file.sequence), []).append(file)
        records = [
            {
                "manifest_path": str(self.manifest(group)),
                "manifest_length": 0,
                "partition_spec_id": spec,
                "content": int(deletes),
                "sequence_number": sequence,
                "min_sequence_number": sequence,
                "first_row_id": None,
                "partitions": [
                    _range([dict(file.partition)[each["name"]] for file in group]) for each in self.specs[spec]
                ],
            }
            for (deletes, spec, sequence), group in groups.items()
        ]
        path = self._name("avro", "metadata")
        with path.open("wb") as target:
            fastavro.writer(target, _LIST, records)
        return str(path)

    def manifest(self, files: Sequence[File]) -> Path:
        """Return the manifest of some files, which is written once."""
        if tuple(files) not in self.manifests:
            self.manifests[tuple(files)] = self._manifest(files)
        return self.manifests[tuple(files)]

    def _manifest(self, files: Sequence[File]) -> Path:
        spec = self.specs[files[0].spec]
        kinds = {column["id"]: column["type"] for column in self.columns}
        partition = [
            {
                "name": each["name"],
                "type": ["null", each.get("avro") or kinds[each["source-id"]]],
                "field-id": each["field-id"],
            }
            for each in spec
        ]
        schema = {"type": "record", "name": "manifest_entry", "fields": [
            {"name": "status", "type": "int"},
            {"name": "snapshot_id", "type": _LONG},
            {"name": "sequence_number", "type": _LONG},
            {"name": "data_file", "type": {"type": "record", "name": "r2", "fields": [
                {"name": "content", "type": "int"},
                {"name": "file_path", "type": "string"},
                {"name": "file_format", "type": "string"},
                {"name": "partition", "type": {"type": "record", "name": "r102", "fields": partition}},
                {"name": "record_count", "type": "long"},
                {"name": "file_size_in_bytes", "type": "long"},
                {"name": "lower_bounds", "type": _pairs("bytes", "lower")},
                {"name": "upper_bounds", "type": _pairs("bytes", "upper")},
                {"name": "null_value_counts", "type": _pairs("long", "nulls")},
                {"name": "equality_ids", "type": ["null", {"type": "array", "items": "int"}]},
                {"name": "referenced_data_file", "type": ["null", "string"]},
                {"name": "content_offset", "type": _LONG},
                {"name": "content_size_in_bytes", "type": _LONG},
                {"name": "first_row_id", "type": _LONG},
            ]}},
        ]}  # fmt: skip
        records = [
            {
                "status": 1 if file.sequence == self.sequence else 0,
                "snapshot_id": None,
                "sequence_number": file.sequence,
                "data_file": {
                    "content": file.content,
                    "file_path": file.path,
                    "file_format": file.format,
                    "partition": dict(file.partition),
                    "record_count": file.records,
                    "file_size_in_bytes": file.size,
                    "lower_bounds": [{"key": number, "value": pair[0]} for number, pair, _ in file.bounds if pair],
                    "upper_bounds": [{"key": number, "value": pair[1]} for number, pair, _ in file.bounds if pair],
                    "null_value_counts": [{"key": number, "value": nulls} for number, _, nulls in file.bounds],
                    "equality_ids": list(file.keys) or None,
                    "referenced_data_file": file.referenced,
                    "content_offset": file.offset,
                    "content_size_in_bytes": file.length,
                    "first_row_id": file.first_row_id,
                },
            }
            for file in files
        ]
        path = self._name("avro", "metadata")
        with path.open("wb") as target:
            fastavro.writer(target, schema, records)
        return path


def _range(values: Sequence[Any]) -> dict[str, Any]:
    """Return the summary of a partition field in a manifest list."""
    there = [
        value.encode() if isinstance(value, str) else struct.pack("<q", value)
        for value in values
        if isinstance(value, str | int)
    ]
    bounds = (min(there), max(there)) if there else (None, None)
    return {"contains_null": None in values, "lower_bound": bounds[0], "upper_bound": bounds[1]}


def _bounds(column: pa.ChunkedArray) -> tuple[bytes, bytes] | None:
    """Return the bounds of numbers and texts as bytes; None: there are none."""
    form = {pa.int64(): "<q", pa.int32(): "<i"}.get(column.type)
    if (form is None and column.type != pa.string()) or column.null_count == len(column):
        return None
    least, greatest = pc.min_max(column).as_py().values()
    if form is None:
        return least.encode(), greatest.encode()
    return struct.pack(form, least), struct.pack(form, greatest)


def _pairs(kind: str, name: str) -> dict[str, Any]:
    """Return the Avro type of a map by field id."""
    fields = [{"name": "key", "type": "int"}, {"name": "value", "type": kind}]
    return {"type": "array", "items": {"type": "record", "name": name, "fields": fields}}
