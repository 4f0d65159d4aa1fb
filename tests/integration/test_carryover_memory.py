"""Ten changed rows in two rewritten files of a million rows are twenty events, in bounded memory (invariant 7).

On every landing: a table with row ids, in this module.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tailer.__main__ import ALLOCATOR
from tests.bench.rewritten import changed_ids, write_by_hand

LIMIT_MB: Final = 400
# Where pandas is installed, as for Spark Connect, pyarrow imports it: 60 MB that are not measured here.
READER: Final = """
import runpy, sys

class NoPandas:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoPandas())
runpy.run_module("tests.integration.carryover_reader", run_name="__main__")
"""
DROP: Final[dict[str, Any]] = {}
BY_ROW_ID: Final = {"compute_updates": True}
BY_KEY: Final = {"compute_updates": True, "key": ["id"]}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same table twice: `tracked` with row tracking, `plain` without."""
    folder = tmp_path_factory.mktemp("rewritten")
    found = {name: folder / name for name in ("tracked", "plain")}
    write_by_hand(found["tracked"], found["plain"])
    return found


def found_in(table: Path, rules: dict[str, Any]) -> list[list[Any]]:
    """Return kind and id of each change that a separate process finds, in order, and check its peak memory."""
    command = [sys.executable, "-c", READER, str(table), json.dumps(rules)]
    started = time.monotonic()
    environment = os.environ | dict([ALLOCATOR])
    process = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[2], env=environment
    )
    found = json.loads(process.stdout)
    resident_mb = found["peak_bytes"] / 2**20
    print(f"{table.name}: {time.monotonic() - started:.1f} s, {resident_mb:.0f} MB resident at most")
    assert 0 < resident_mb < LIMIT_MB
    changes: list[list[Any]] = found["changes"]
    return changes


@pytest.mark.long
@pytest.mark.parametrize("name", ["tracked", pytest.param("plain", marks=pytest.mark.nightly)])
def test_rewritten_files_in_bounded_memory(tables: dict[str, Path], name: str) -> None:
    expected = [[kind, number] for kind in ("delete", "insert") for number in changed_ids()]
    assert found_in(tables[name], DROP) == expected


@pytest.mark.long
@pytest.mark.parametrize(("name", "rules"), [("tracked", BY_ROW_ID), ("plain", BY_KEY)])
def test_updates_in_bounded_memory(tables: dict[str, Path], name: str, rules: dict[str, Any]) -> None:
    images = ("update_preimage", "update_postimage")
    assert found_in(tables[name], rules) == [[image, number] for number in changed_ids() for image in images]
