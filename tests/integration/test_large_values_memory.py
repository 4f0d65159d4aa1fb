"""A string stored once for thousands of rows: through `tail` and `run` in bounded memory (invariant 7).

On every landing: the same with texts, in this module; their rows in `property/test_large_values.py`.
"""

import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.daemon.process import peak_mb
from tests.support.tables.log_files import (
    add,
    commit_info,
    inline_vector,
    metadata,
    parquet,
    protocol,
    remove,
    schema_string,
    write_commit,
)

TAILER: Final = Path(sys.executable).with_name("tailer")
LIMIT_MB: Final = 330
ROWS: Final = 3_000
LENGTH: Final = 300_000
WAIT_S: Final = 200.0


def repeated(kind: pa.DataType) -> pa.DictionaryArray:
    indices = pa.array([row % 2 for row in range(ROWS)], pa.int32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(["x" * LENGTH, "y"]).cast(kind))


def columns(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make the columns of a file, and their types in the log."""
    ids, offsets = pa.array(range(ROWS), pa.int64()), pa.array(range(ROWS + 1), pa.int32())
    if kind == "nested":
        struct = pa.StructArray.from_arrays([repeated(pa.string())], ["x"])
        field = {"name": "x", "type": "string", "nullable": True, "metadata": {}}
        element = {"type": "struct", "fields": [field]}
        array = {"type": "array", "elementType": element, "containsNull": True}
        return {"id": ids, "a": pa.ListArray.from_arrays(offsets, struct)}, {"id": "long", "a": array}
    return {"id": ids, "a": repeated(pa.binary() if kind == "binary" else pa.string())}, {"id": "long", "a": kind}


def first_version(path: Path, kind: str, arrow: bool = False) -> int:
    """Make a table whose version 0 adds the rows in one file; return the size of that."""
    arrays, types = columns(kind)
    size = parquet(path / "a.parquet", pa.table(arrays), store_schema=arrow).stat().st_size
    write_commit(
        path, 0, protocol(3, ["deletionVectors"]), metadata(schema_string(**types)), add("a.parquet", size=size)
    )
    return size


@pytest.fixture(
    params=[
        "string",
        *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("Arrow's dictionary", "binary", "nested")),
    ]
)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A table: version 0 adds the rows, 1 rewrites all but the first and last, 2 deletes a third by a vector."""
    kind = "string" if request.param == "Arrow's dictionary" else request.param
    arrow, path = kind != request.param, tmp_path / "table"
    first = first_version(path, kind, arrow)
    rewritten = pa.table(columns(kind)[0]).slice(1, ROWS - 2)
    second = parquet(path / "b.parquet", rewritten, store_schema=arrow).stat().st_size
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


@pytest.mark.long
def test_tail_with_vectors_and_comparisons(table: Path) -> None:
    plain = lines_and_peak("tail", str(table), "--from", "earliest", "--to", "latest")
    paired = ["--compute-updates", "--key", "id", "--from", "1", "--to", "1"]
    updates = lines_and_peak("tail", str(table), "--carryovers", "keep", *paired)
    third = len(range(0, ROWS - 2, 3))
    assert (plain[0], updates[0]) == (ROWS + 2 + third, 2 * ROWS - 2)
    assert max(plain[1], updates[1]) < LIMIT_MB


@pytest.mark.long
def test_run_into_files(tmp_path: Path) -> None:
    first_version(tmp_path / "table", "string")
    config = tmp_path / "tailer.toml"
    config.write_text('[pipelines.copy]\ntable = "table"\nstart = "earliest"\nsink = {kind = "files", path = "out"}\n')
    with subprocess.Popen([str(TAILER), "run", "--config", str(config)]) as daemon:
        stopping = Thread(target=stop_when_delivered, args=(daemon, tmp_path / "out"))
        stopping.start()
        resident_mb = peak_mb(daemon)
        stopping.join()
    assert daemon.returncode == 0
    (file,) = (tmp_path / "out").rglob("*.jsonl")
    with file.open() as lines:
        assert sum(1 for _ in lines) == ROWS
    assert resident_mb < LIMIT_MB


@pytest.mark.long
def test_run_into_delta(tmp_path: Path) -> None:
    first_version(tmp_path / "table", "string")
    config = tmp_path / "tailer.toml"
    config.write_text('[pipelines.copy]\ntable = "table"\nstart = "earliest"\nsink = {kind = "delta", path = "out"}\n')
    with subprocess.Popen([str(TAILER), "run", "--config", str(config)]) as daemon:
        stopping = Thread(target=stop_when_delivered, args=(daemon, tmp_path / "out", "*.parquet"))
        stopping.start()
        resident_mb = peak_mb(daemon)
        stopping.join()
    assert daemon.returncode == 0
    assert sum(pq.read_metadata(file).num_rows for file in (tmp_path / "out").glob("*.parquet")) == ROWS
    assert resident_mb < LIMIT_MB


def stop_when_delivered(daemon: subprocess.Popen[bytes], target: Path, names: str = "*.jsonl") -> None:
    """Ask the daemon to stop once a file is visible; incomplete files are hidden."""
    end = time.monotonic() + WAIT_S
    while daemon.poll() is None and time.monotonic() < end:
        if any(not path.name.startswith(".") for path in target.rglob(names)):
            break
        time.sleep(0.1)
    daemon.terminate()
