"""Delta tables written by hand, action by action: for histories that no writer makes, and for damage.

Independent of the code under test: Parquet by pyarrow, commits as JSON text, deletion vectors framed here.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tests.support.tables.log_files import z85

__all__ = ["HandwrittenTable"]


@dataclass
class HandwrittenTable:
    """A table at `path` with the column `id` (long), created by commit 0. `texts`: more columns, of texts."""

    path: Path
    version: int = -1
    texts: Sequence[str] = ()

    def __post_init__(self) -> None:
        (self.path / "_delta_log").mkdir(parents=True)
        kinds = {"id": "long", **dict.fromkeys(self.texts, "string")}
        fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
        schema = {"type": "struct", "fields": fields}
        self.metadata: dict[str, Any] = {
            "id": "11111111-2222-3333-4444-555555555555",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema),
            "partitionColumns": [],
            "configuration": {"delta.enableChangeDataFeed": "true"},
        }
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}
        self.commit({"protocol": {**protocol, "writerFeatures": ["deletionVectors"]}}, {"metaData": self.metadata})

    def commit_file(self, version: int | None = None) -> Path:
        """Return the commit file of a version (None: the newest)."""
        return self.path / "_delta_log" / f"{self.version if version is None else version:020d}.json"

    def commit(self, *actions: dict[str, Any]) -> int:
        """Write the next commit; return its version."""
        return self.commit_text("".join(json.dumps(action) + "\n" for action in actions))

    def commit_text(self, text: str) -> int:
        """Write the next commit with any text; return its version."""
        self.version += 1
        self.commit_file().write_text(text)
        return self.version

    def data(self, name: str, ids: Iterable[int], row_group_size: int | None = None, **more: Any) -> str:
        """Write a data file and return its name."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": pa.array(list(ids), pa.int64()), **more}), file, row_group_size=row_group_size)
        return name

    def vector(self, number: int, rows: Iterable[int]) -> dict[str, Any]:
        """Write a separate deletion vector file and return its descriptor."""
        data = struct.pack("<i", 1681511377) + BitMap64(rows).serialize()
        return self.raw_vector(number, data, len(set(rows)))

    def raw_vector(self, number: int, data: bytes, cardinality: int) -> dict[str, Any]:
        """Write `data`, framed as a deletion vector file, and return its descriptor."""
        framed = b"\x01" + struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        self.vector_file(number).write_bytes(framed)
        return {
            "storageType": "u",
            "pathOrInlineDv": z85(UUID(int=number).bytes),
            "offset": 1,
            "sizeInBytes": len(data),
            "cardinality": cardinality,
        }

    def vector_file(self, number: int) -> Path:
        """Return the path of the vector called `number`."""
        return self.path / f"deletion_vector_{UUID(int=number)}.bin"

    def add(self, name: str, vector: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """Make an add action for a data file."""
        return {"add": self._file(name, vector, modificationTime=1, **more)}

    def remove(self, name: str, vector: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        """Make a remove action for a data file."""
        return {"remove": self._file(name, vector, extendedFileMetadata=True, **more)}

    def _file(self, name: str, vector: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
        there = self.path / name
        size = there.stat().st_size if there.exists() else 1
        found: dict[str, Any] = {"path": name, "partitionValues": {}, "size": size, "dataChange": True, **more}
        return found if vector is None else {**found, "deletionVector": vector}
