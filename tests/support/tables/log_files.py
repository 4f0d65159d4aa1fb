"""Delta logs and files written by hand, for what no available writer writes on demand."""

import json
import os
import struct
import uuid
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tailer.formats.delta.log.listing import commit_name
from tailer.plan import ChangeTask, DeletionVectorRef, TaskKind

__all__ = [
    "add",
    "cdc",
    "checkpoint",
    "commit_info",
    "inline_vector",
    "marked",
    "metadata",
    "parquet",
    "protocol",
    "remove",
    "schema_string",
    "task",
    "vector_data",
    "vector_file",
    "write_commit",
    "z85",
]

Action = dict[str, Any]

_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
PORTABLE_MAGIC: Final = 1681511377


def protocol(reader: int = 1, features: list[str] | None = None) -> Action:
    """Make a `protocol` action."""
    value: Action = {"minReaderVersion": reader, "minWriterVersion": 2 if features is None else 7}
    lists = {} if features is None else {"readerFeatures": features, "writerFeatures": features}
    return {"protocol": value | lists}


def schema_string(**columns: Any) -> str:
    """Make the `schemaString` of columns given as name and Delta type."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


def metadata(
    schema: str = "", partitioned_by: Iterable[str] = (), table_id: str = "id", **configuration: str
) -> Action:
    """Make a `metaData` action; by default of a table with one column, `a: long`."""
    value: Action = {"id": table_id, "schemaString": schema or schema_string(a="long")}
    value |= {"partitionColumns": list(partitioned_by), "format": {"provider": "parquet"}}
    return {"metaData": value | {"configuration": configuration}}


def commit_info(**values: Any) -> Action:
    """Make a `commitInfo` action."""
    return {"commitInfo": values}


def add(path: str, vector: Action | None = None, data_change: bool = True, **values: Any) -> Action:
    """Make an `add` action; `values` are fields of it by their names in the log."""
    file: Action = {"path": path, "partitionValues": {}, "size": 1, "dataChange": data_change, "modificationTime": 1}
    return {"add": file | ({"deletionVector": vector} if vector else {}) | values}


def remove(path: str, vector: Action | None = None, data_change: bool = True, **values: Any) -> Action:
    """Make a `remove` action with extended file metadata; `values` are fields of it by their names in the log."""
    file: Action = {"path": path, "dataChange": data_change, "extendedFileMetadata": True, "partitionValues": {}}
    return {"remove": file | ({"deletionVector": vector} if vector else {}) | values}


def cdc(path: str, **values: Any) -> Action:
    """Make a `cdc` action."""
    return {"cdc": {"path": path, "partitionValues": {}, "size": 1, "dataChange": False} | values}


def write_commit(table: Path, version: int, *actions: Action | str, modified_ms: int | None = None) -> Path:
    """Write a version's commit file: actions, or text as it is, a line each."""
    path = table / commit_name(version)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in actions))
    if modified_ms is not None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))
    return path


def checkpoint(path: Path, *actions: Action) -> Path:
    """Write a Parquet checkpoint, a part of one or a sidecar, with the present fields of each action."""
    text = pa.map_(pa.string(), pa.string())
    vector = {"storageType": pa.string(), "pathOrInlineDv": pa.string(), "offset": pa.int32()}
    vector |= {"sizeInBytes": pa.int32(), "cardinality": pa.int64()}
    file = {"path": pa.string(), "partitionValues": text, "size": pa.int64(), "modificationTime": pa.int64()}
    file |= {"dataChange": pa.bool_(), "stats": pa.string(), "deletionVector": pa.struct(vector)}
    file |= {"baseRowId": pa.int64(), "defaultRowCommitVersion": pa.int64()}
    table = {"id": pa.string(), "schemaString": pa.string(), "partitionColumns": pa.list_(pa.string())}
    table |= {"configuration": text, "format": pa.struct({"provider": pa.string(), "options": text})}
    features = pa.list_(pa.string())
    gate = {"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32(), "readerFeatures": features}
    sidecar = {"path": pa.string(), "sizeInBytes": pa.int64()}
    kinds = {"add": file, "metaData": table, "protocol": gate, "sidecar": sidecar}
    kinds["checkpointMetadata"] = {"version": pa.int64()}
    schema = pa.schema({name: pa.struct(fields) for name, fields in kinds.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(actions), schema), path)
    return path


def parquet(path: Path, table: pa.Table, **options: Any) -> Path:
    """Write a data file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path


def task(
    path: Path | str,
    schema: pa.Schema,
    kind: TaskKind = TaskKind.INSERT,
    partition_values: Iterable[tuple[str, str | None]] = (),
    include: DeletionVectorRef | None = None,
    exclude: DeletionVectorRef | None = None,
) -> ChangeTask:
    """Make a task of version 3 that reads a file."""
    values = tuple(partition_values)
    return ChangeTask("t", "id", 3, 1000, 0, kind, str(path), 1, schema, values, include, exclude)


def z85(data: bytes) -> str:
    """Encode Z85 text, its last block padded with zero bytes as Spark does it."""
    text = ""
    for start in range(0, len(data), 4):
        number = int.from_bytes(data[start : start + 4].ljust(4, b"\0"), "big")
        text += "".join(_Z85[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text


def vector_data(rows: Iterable[int]) -> bytes:
    """Encode a deletion vector: magic number and bitmap."""
    return struct.pack("<i", PORTABLE_MAGIC) + BitMap64(rows).serialize()


def marked(rows: Iterable[int]) -> DeletionVectorRef:
    """Make a resolved inline deletion vector of these rows."""
    rows = list(rows)
    data = vector_data(rows)
    return DeletionVectorRef(None, z85(data), None, len(data), len(rows))


def inline_vector(rows: Iterable[int]) -> Action:
    """Make an inline deletion vector descriptor of these rows."""
    ref = marked(rows)
    value = {"storageType": "i", "pathOrInlineDv": ref.inline}
    return value | {"sizeInBytes": ref.size_bytes, "cardinality": ref.cardinality}


def vector_file(folder: Path, *vectors: Iterable[int]) -> list[Action]:
    """Write deletion vectors to one file in `folder`; return their descriptors, of storage type `u`."""
    name = uuid.uuid4()
    content, descriptors = b"\x01", []
    for rows in map(list, vectors):
        data = vector_data(rows)
        value = {"storageType": "u", "pathOrInlineDv": z85(name.bytes), "offset": len(content)}
        descriptors.append(value | {"sizeInBytes": len(data), "cardinality": len(rows)})
        content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    (folder / f"deletion_vector_{name}.bin").write_bytes(content)
    return descriptors
