"""Text that a file has once and thousands of rows have: through `tailer tail` in bounded memory (invariant 7)."""

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.integration.test_memory import peak_mb
from tests.logs import add, commit_info, inline_vector, metadata, parquet, protocol, remove, schema_string, write_commit

TAILER: Final = Path(sys.executable).with_name("tailer")
LIMIT_MB: Final = 300
ROWS: Final = 3_000
LENGTH: Final = 300_000


def repeated(kind: pa.DataType) -> pa.DictionaryArray:
    indices = pa.array([row % 2 for row in range(ROWS)], pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(["x" * LENGTH, "y"]).cast(kind))


def columns(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns of a file, and their types in the log."""
    ids, offsets = pa.array(range(ROWS), pa.int64()), pa.array(range(ROWS + 1), pa.int32())
    if kind == "nested":
        struct = pa.StructArray.from_arrays([repeated(pa.string())], ["x"])
        field = {"name": "x", "type": "string", "nullable": True, "metadata": {}}
        element = {"type": "struct", "fields": [field]}
        array = {"type": "array", "elementType": element, "containsNull": True}
        return {"id": ids, "a": pa.ListArray.from_arrays(offsets, struct)}, {"id": "long", "a": array}
    return {"id": ids, "a": repeated(pa.binary() if kind == "binary" else pa.string())}, {"id": "long", "a": kind}


@pytest.fixture(params=["string", "Arrow's dictionary", "binary", "nested"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Version 0 adds the rows, 1 writes all but the first and last anew, 2 deletes a third of them by a vector."""
    kind = "string" if request.param == "Arrow's dictionary" else request.param
    arrays, types = columns(kind)
    arrow, path = kind != request.param, tmp_path / "table"
    first = parquet(path / "a.parquet", pa.table(arrays), store_schema=arrow).stat().st_size
    rewritten = pa.table(arrays).slice(1, ROWS - 2)
    second = parquet(path / "b.parquet", rewritten, store_schema=arrow).stat().st_size
    write_commit(
        path, 0, protocol(3, ["deletionVectors"]), metadata(schema_string(**types)), add("a.parquet", size=first)
    )
    actions = [add("b.parquet", size=second), remove("a.parquet", size=first)]
    write_commit(path, 1, commit_info(operation="WRITE"), *actions)
    vector = inline_vector(range(0, ROWS - 2, 3))
    write_commit(path, 2, add("b.parquet", vector, size=second), remove("b.parquet", size=second))
    return path


def lines_and_peak(*arguments: str) -> tuple[int, float]:
    with (
        subprocess.Popen([str(TAILER), *arguments], stdout=subprocess.PIPE) as command,
        subprocess.Popen(["wc", "-l"], stdin=command.stdout, stdout=subprocess.PIPE) as counter,
    ):
        resident_mb = peak_mb(command)
        assert counter.stdout is not None
        lines = int(counter.stdout.read())
    assert command.returncode == 0
    return lines, resident_mb


def test_tail_with_vectors_and_comparisons(table: Path) -> None:
    plain = lines_and_peak("tail", str(table), "--from", "earliest", "--to", "latest")
    paired = ["--compute-updates", "--key", "id", "--from", "1", "--to", "1"]
    updates = lines_and_peak("tail", str(table), "--carryovers", "keep", *paired)
    third = len(range(0, ROWS - 2, 3))
    assert (plain[0], updates[0]) == (ROWS + 2 + third, 2 * ROWS - 2)
    assert max(plain[1], updates[1]) < LIMIT_MB
