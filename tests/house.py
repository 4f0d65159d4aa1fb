"""Figures of the size of the product: how much a newcomer has to read.

    python -m tests.house [FOLDER]      of the tree in FOLDER, by default this one

The modules and functions on the way of one file into Kafka are counted by `tests/unit/pipeline/test_delivery_path.py`.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("tailer", "sinks")


class House:
    """The source files of the product below `root`."""

    def __init__(self, root: Path) -> None:
        paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
        self._root = root
        self._texts = {path: path.read_text() for path in paths}
        self._trees = {path: ast.parse(text) for path, text in self._texts.items()}

    def figures(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the value of each figure."""
        top = [path for path in (self._root / "tailer").iterdir() if path.name not in ("__pycache__", "py.typed")]
        yield "lines of the product", str(sum(len(text.splitlines()) for text in self._texts.values()))
        yield "modules", str(len(self._texts))
        yield "names at the top of tailer/", str(len(top) - 1)
        yield "modules that name Lance, besides its own and the registry", str(len(list(self._with_lance())))
        yield (
            "places that ask whether a task has a fragment",
            str(
                sum(
                    text.count("fragment is not None") + text.count("fragment is None") for text in self._texts.values()
                )
            ),
        )
        private = list(self._callers())
        once = sum(callers == 1 for callers in private)
        yield "private functions with one caller", f"{once} of {len(private)}, {100 * once / len(private):.0f} %"
        kinds = list(self._implementations())
        yield "protocols with at most one implementation", f"{sum(each <= 1 for each in kinds)} of {len(kinds)}"

    def _with_lance(self) -> Iterator[Path]:
        for path, text in self._texts.items():
            if "lance" in text.lower() and "lance" not in path.parts and path.name != "registry.py":
                yield path

    def _callers(self) -> Iterator[int]:
        """Yield, for each private function and method, how often its module uses its name."""
        for tree in self._trees.values():
            nodes = list(ast.walk(tree))
            used = Counter(node.id for node in nodes if isinstance(node, ast.Name))
            used += Counter(node.attr for node in nodes if isinstance(node, ast.Attribute))
            functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
            yield from (used[each.name] for each in functions if each.name[0] == "_" and each.name[:2] != "__")

    def _implementations(self) -> Iterator[int]:
        """Yield, for each protocol with methods, how many classes and modules implement it.

        A class has all of its names, by itself or from its bases, or names it as a base. A method may be an attribute.
        """
        classes = [node for tree in self._trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        protocols = [each for each in classes if "Protocol" in _bases(each)]
        families = [_family(each, classes) for each in classes if each not in protocols]
        made = [set().union(*map(_names, family)) for family in families] + list(map(_names, self._trees.values()))
        named = [set().union(*map(_bases, family)) for family in families]
        for protocol in protocols:
            if wanted := _functions(protocol):
                yield sum(wanted <= each for each in made) or sum(protocol.name in each for each in named)


def _bases(node: ast.ClassDef) -> set[str]:
    found = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return {base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in found}


def _family(node: ast.ClassDef, classes: Sequence[ast.ClassDef]) -> list[ast.ClassDef]:
    """Return a class and its bases."""
    above = [each for each in classes if each.name in _bases(node) - {node.name}]
    return [node, *(each for base in above for each in _family(base, classes))]


def _functions(node: ast.ClassDef | ast.Module) -> set[str]:
    return {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def _names(node: ast.ClassDef | ast.Module) -> set[str]:
    """Return the names of functions, and those assigned in the class or module, or to `self`."""
    annotated = {each.target for each in node.body if isinstance(each, ast.AnnAssign)}
    plain = {target for each in node.body if isinstance(each, ast.Assign) for target in each.targets}
    found = {each.id for each in annotated | plain if isinstance(each, ast.Name)} | _functions(node)
    if isinstance(node, ast.Module):
        return found
    stored = (each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
    return found | {each.attr for each in stored if isinstance(each.value, ast.Name) and each.value.id == "self"}


if __name__ == "__main__":
    for name, value in House(Path(sys.argv[1]) if sys.argv[1:] else ROOT).figures():
        print(f"{name:55} {value}")
