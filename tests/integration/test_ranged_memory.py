"""Memory of reading from a store is bounded by what is fetched ahead, not by a row group (invariant 7)."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.stores.pieces import Limits
from tests.support.ranges import PREFIX

ROOT: Final = Path(__file__).resolve().parents[2]
ROWS: Final = 5_500_000
COLUMNS: Final = 12
SLACK_BYTES: Final = 32 * 2**20  # of pieces being read, and of threads


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a row group of more than 500 MB, of values without a pattern."""
    values = pa.Array.from_buffers(pa.int64(), ROWS, [None, pa.py_buffer(Random(1).randbytes(8 * ROWS))])
    table = pa.table({f"c{number}": values for number in range(COLUMNS)})
    path = tmp_path_factory.mktemp("large") / "f"
    pq.write_table(table, path, use_dictionary=False, compression="none", row_group_size=ROWS)
    return path


def read(file: Path, prefix: str) -> dict[str, Any]:
    """Read the file in a process of its own."""
    command = [sys.executable, "-m", "tests.integration.ranged_reader", str(file), prefix]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["rows"] == ROWS
    return found


@pytest.mark.long
def test_a_row_group_of_500_mb(file: Path) -> None:
    local, ranged = read(file, ""), read(file, PREFIX)
    more = ranged["peak_bytes"] - local["peak_bytes"]
    print(f"resident at most: {local['peak_bytes'] >> 20} MB locally, {ranged['peak_bytes'] >> 20} MB through ranges")
    assert ranged["fetched_bytes"] <= file.stat().st_size
    assert more < Limits().held_bytes + SLACK_BYTES
