"""The faults of `tests.mutants` can still be planted, and the tests that find them are there."""

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.mutants.run import MUTANTS, Mutant

ROOT: Final = Path(__file__).resolve().parents[2]


@cache
def names_in(module: Path) -> frozenset[str]:
    """Return the functions of a module, and its classes with and without their methods."""
    found: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if hasattr(each, "name")}
    return frozenset(found)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_planted(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    assert text.count(mutant.old) == 1, f"plant it in {mutant.file} as that is now"
    ast.parse(text.replace(mutant.old, mutant.new))
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists(), path
        assert not name or name in names_in(ROOT / path), test


def test_names_are_different() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
