"""Limits on the code that one more version runs through on its way to Kafka, to be lowered with each cut.

`tests/support/delivery_path.py` says what is counted, and prints it.
"""

from pathlib import Path

import pytest

from tests.support.delivery_path import Kind, execute

INSERTED = [(each, "insert") for each in (1, 2, 3)]


@pytest.mark.parametrize(
    ("kind", "modules", "functions", "changes"),
    [("append", 50, 249, INSERTED), ("update", 69, 384, [(0, "delete"), (3, "insert")])],
)
def test_one_more_version_runs_few_modules_and_functions(
    tmp_path: Path, kind: Kind, modules: int, functions: int, changes: list[tuple[int, str]]
) -> None:
    found = execute(kind, tmp_path)
    assert [(row["id"], row["_change_type"]) for row in found.messages] == changes
    assert len(found.modules) <= modules, found.modules
    assert len(found.functions) <= functions, found.functions


def test_five_objects_hand_the_rows_of_an_appended_file_on(tmp_path: Path) -> None:
    five = {"_TaskChunk", "LocalEngine", "PrefetchedBatches", "RowSession", "SinkWriter"}
    assert execute("append", tmp_path).carriers == five
