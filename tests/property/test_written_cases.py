"""The cases of `test_cases.py` and `test_more_cases.py`, recorded by `tests.generate_cases` with Spark's answers.

Each table is judged again, version by version and from every start, without Spark.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.generate_cases import CASES
from tests.support.oracle.recorded import CASES_DATA, judge, read

WRITTEN: Final = sorted(CASES_DATA.glob("*.tar.xz"))
# A shallow clone refers to another table's files by absolute paths, so it cannot be unpacked elsewhere.
LIVE_ONLY: Final = {"unpaired_add_with_vector_via_shallow_clone"}


@pytest.mark.parametrize("archive", WRITTEN, ids=lambda archive: archive.name.removesuffix(".tar.xz"))
def test_written_cases(archive: Path, tmp_path: Path) -> None:
    assert judge(read(archive, tmp_path))


def checking(module: Path) -> Iterator[str]:
    """Return the names of the tests in a module that check a table as Spark has written it."""
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and ".check(" in ast.unparse(node):
            yield node.name.removeprefix("test_")


def test_every_case_was_written() -> None:
    names = {name for module in CASES for name in checking(module)} - LIVE_ONLY
    # After a test's name come its parameters and the number of the check.
    written = {re.match("|".join(sorted(names, reverse=True)), archive.name) for archive in WRITTEN}
    assert {found[0] if found else None for found in written} == names
