"""The faults of `tests.mutants` and of the simulation can still be planted, and the tests that find them are there."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tests.mutants.run import MUTANTS, Mutant
from tests.simulation.planted import PLANTED

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


def faults(mutant: Mutant) -> Iterator[str]:
    """Yield what is wrong with a mutant, but for its tests."""
    text = (ROOT / mutant.file).read_text()
    if text.count(mutant.old) != 1:
        yield f"plant it in {mutant.file} as that is now"
    ast.parse(text.replace(mutant.old, mutant.new))


def missing_tests(mutant: Mutant) -> Iterator[str]:
    """Yield the tests of a mutant that are not there."""
    if not mutant.tests:
        yield "no test is named"
    for test in mutant.tests:
        path, _, name = test.partition("::")
        if not (ROOT / path).exists() or (name and name not in names_in(ROOT / path)):
            yield f"there is no {test}"


def test_mutants_can_be_planted() -> None:
    simulated = [mutant for _, mutant in PLANTED.values()]
    assert not [f"{mutant.name}: {what}" for mutant in (*MUTANTS, *simulated) for what in faults(mutant)]


def test_the_tests_of_mutants_are_there() -> None:
    assert not [f"{mutant.name}: {what}" for mutant in MUTANTS for what in missing_tests(mutant)]


def test_names_are_different() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
