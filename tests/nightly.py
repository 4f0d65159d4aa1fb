"""The list of what only `make nightly` runs, read from the markers: `python -m tests.generate_docs` writes it.

A test marked `sampled(n)` leaves one case in n in its tier. A module with a test that only `make nightly` runs says in
a paragraph of its docstring that begins with "On every landing:" what shows the same there.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["Repetition", "repetitions"]

SHOWN: Final = "On every landing: "
_TESTS: Final = Path(__file__).resolve().parent


@dataclass
class Repetition:
    """The tests of a module that `make nightly` repeats. `sampled`: by the number of cases of which one is left.

    `shown`: what shows the same on every landing.
    """

    module: str
    whole: list[str] = field(default_factory=list)
    cases: list[str] = field(default_factory=list)
    sampled: dict[int, list[str]] = field(default_factory=dict)
    shown: str = ""


def repetitions() -> Iterator[Repetition]:
    """Yield the modules that have such tests."""
    for path in sorted(_TESTS.rglob("test_*.py")):
        text = path.read_text()
        if ("mark.nightly" in text or "mark.sampled" in text) and path.name != "test_tiers.py":
            yield _read(str(path.relative_to(_TESTS)), ast.parse(text))


def _read(module: str, tree: ast.Module) -> Repetition:
    found = Repetition(module)
    paragraphs = (ast.get_docstring(tree) or "").split("\n\n")
    joined = [" ".join(each.split()) for each in paragraphs]
    found.shown = next((each.removeprefix(SHOWN) for each in joined if each.startswith(SHOWN)), "")
    values = {ast.unparse(each.targets[0]): each.value for each in tree.body if isinstance(each, ast.Assign)}
    aliases = {name for name, value in values.items() if _is_nightly(value)}
    partly = {name for name, value in values.items() if "pytest.mark.nightly" in ast.unparse(value)} - aliases
    if "pytestmark" in aliases:
        found.whole.append("all")
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for mark in node.decorator_list:
            text = ast.unparse(mark)
            if text == "pytest.mark.nightly" or text in aliases:
                found.whole.append(node.name)
            elif isinstance(mark, ast.Call) and text.startswith("pytest.mark.sampled("):
                found.sampled.setdefault(ast.literal_eval(mark.args[0]), []).append(node.name)
            elif "pytest.mark.nightly" in text or text in partly:
                found.cases.append(node.name)
    return found


def _is_nightly(value: ast.expr) -> bool:
    marks = value.elts if isinstance(value, ast.List) else [value]
    return any(ast.unparse(mark) == "pytest.mark.nightly" for mark in marks)
