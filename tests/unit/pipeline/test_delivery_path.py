"""Limits on the code that rows run through on their way to Kafka and to readers, to be lowered with each cut.

`tests/support/paths/executed.py` says what is counted, and `python -m tests.support.paths KIND` prints it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import ROOT
from tests.support.paths.delivery import execute

INSERTED = [(each, "insert") for each in (1, 2, 3)]


@pytest.mark.parametrize(
    ("kind", "modules", "functions", "changes"),
    [("append", 50, 245, INSERTED), ("update", 64, 380, [(0, "delete"), (3, "insert")])],
)
def test_one_more_version_runs_few_modules_and_functions(
    tmp_path: Path, kind: str, modules: int, functions: int, changes: list[tuple[int, str]]
) -> None:
    found = execute(kind, tmp_path)
    assert [(row["id"], row["_change_type"]) for row in found.messages] == changes
    assert len(found.modules) <= modules, found.modules
    assert len(found.functions) <= functions, found.functions


# In a process of their own, because a verb decides where the log goes.
@pytest.mark.parametrize(
    ("kind", "modules", "functions", "output"),
    [
        ("tail", 89, 641, "'id': 3, '_change_type': 'insert', '_commit_version': 2"),
        ("verify", 83, 442, "'equal': True, 'source_rows': 3"),
        ("spark", 53, 324, "{'splits': 2}"),
    ],
)
def test_a_reader_runs_few_modules_and_functions(kind: str, modules: int, functions: int, output: str) -> None:
    command = [sys.executable, "-m", "tests.support.paths", kind]
    report = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    *_, message, _, numbers = report.splitlines()
    assert output in message
    counted = [int(word) for word in numbers.split() if word.isdigit()]
    assert counted[0] <= modules, command
    assert counted[1] <= functions, command


def test_five_objects_hand_the_rows_of_an_appended_file_on(tmp_path: Path) -> None:
    five = {"_TaskChunk", "LocalEngine", "PrefetchedBatches", "RowSession", "SinkWriter"}
    assert execute("append", tmp_path).carriers == five
