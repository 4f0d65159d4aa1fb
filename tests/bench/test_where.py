"""Conditions over a table of 1,000 files in 100 partitions, beside reading all rows, and beside delta-rs.

Each reader is a process of its own, in turn with the one that reads all rows. delta-rs' `load_cdf` takes a predicate.
Nothing is asserted about time. `make bench` prints the table.
"""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tailer.__main__ import ALLOCATOR
from tests.bench.conftest import PutLine
from tests.bench.where_tables import CONDITIONS, write_table
from tests.support.follow import plans

RUNS: Final = 5
ROOT: Final = Path(__file__).parents[2]


def read(reader: str, table: Path, where: str | None) -> dict[str, float]:
    """Read the changes in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.where_reader", reader, str(table), where or ""]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | dict([ALLOCATOR]), stdout=subprocess.PIPE, check=True)
    taken: dict[str, float] = json.loads(done.stdout)
    return taken


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("where") / "t"
    write_table(path)
    return path


@pytest.mark.parametrize("title", CONDITIONS)
def test_conditions(table: Path, put_line: PutLine, title: str) -> None:
    where = CONDITIONS[title]
    triples = [
        (read("ours", table, where), read("ours", table, None), read("delta-rs", table, where)) for _ in range(RUNS)
    ]
    assert len({taken[0]["rows"] for taken in triples} | {taken[2]["rows"] for taken in triples}) == 1

    def median(name: str, who: int) -> float:
        return float(statistics.median(taken[who][name] for taken in triples))

    whole = statistics.median(taken[1]["seconds"] / taken[0]["seconds"] for taken in triples)
    peer = statistics.median(taken[2]["seconds"] / taken[0]["seconds"] for taken in triples)
    figures = f"{median('seconds', 0):.2f} s, {median('cpu_s', 0):.2f} s of CPU, {median('peak_mb', 0):.0f} MB"
    put_line(title, figures, f"all rows: {whole:.2f}; delta-rs: {median('seconds', 2):.2f} s, {peer:.2f}", "-")


def test_the_table(table: Path) -> None:
    assert sum(len(plan.tasks) for plan in plans(table)) == 1000
