"""Tables of the toy format, and the package that brings it."""

import base64
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.formats import LOADED, registry
from tests.support.toy.format import LOG

__all__ = ["SCHEMA", "ToyTable", "installed"]

ROOT: Final = Path(__file__).resolve().parents[3]
SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string())])


@dataclass
class ToyTable:
    """A table of the toy format that is written, and that knows its rows at each version."""

    path: Path
    version: int = -1
    step: int = 1  # from the number of a version to the next one
    table_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    rows: dict[tuple[str, int], int] = field(default_factory=dict)
    history: list[list[int]] = field(default_factory=list)

    def commit(self, added: Mapping[str, Sequence[int]], deleted: Mapping[str, Sequence[int]] = {}) -> None:
        """Write a version that adds files of rows with these ids, and deletes the rows at these positions of files."""
        self.version += self.step
        (self.path / LOG).mkdir(parents=True, exist_ok=True)
        schema = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
        lines: list[dict[str, Any]] = [{"id": self.table_id, "timestamp_ms": 1000 * self.version, "schema": schema}]
        for name, ids in added.items():
            columns = [pa.array(ids, pa.int64()), pa.array([f"n{each}" for each in ids])]
            pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), self.path / name)
            lines.append({"add": name, "size_bytes": (self.path / name).stat().st_size})
            self.rows |= {(name, position): each for position, each in enumerate(ids)}
        for name, positions in deleted.items():
            lines.append({"delete": name, "rows": list(positions)})
            for position in positions:
                del self.rows[name, position]
        self.history.append(sorted(self.rows.values()))
        part = self.path / LOG / ".part"
        part.write_text("\n".join(map(json.dumps, lines)))
        part.rename(self.path / LOG / f"{self.version}.json")

    def write_history(self, versions: int = 6) -> "ToyTable":
        """Write versions that add rows, delete some of the last one's, or both."""
        self.commit({"0.parquet": range(10)})
        for version in range(1, versions):
            first = 10 * version
            added = {f"{version}.parquet": range(first, first + 10)} if version % 3 else {}
            last = f"{version - 1}.parquet"
            gone = {last: [1, version + 3]} if (last, 1) in self.rows else {"0.parquet": [version + 1]}
            self.commit(added, gone)
        return self


@contextmanager
def installed(folder: Path) -> Iterator[str]:
    """Install the format as a package would be, here and, with the yielded `PYTHONPATH`, in other processes."""
    package = folder / "toy-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{registry.ENTRY_POINTS}]\ntoy = tests.support.toy.format:TOY\n")
    path = os.pathsep.join([str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", path)
        registry._installed.cache_clear()
        try:
            yield path
        finally:
            LOADED.pop("toy", None)
            registry._installed.cache_clear()
