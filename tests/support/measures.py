"""Figures of how much there is to read and to run: `python -m tests.support.measures` prints a table.

`--items` also counts the tests of a landing, which takes a minute. `python -m tests.support.paths KIND` prints the
functions of a path.
"""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from tests.generate_docs import SECTIONS
from tests.house import MODULES, ROOT, SPINE, lines, sizes
from tests.support.paths import delivery, reading
from tests.tiers import TIERS

__all__ = ["figures", "local_names"]

PRONOUNS: Final = ("found", "each", "at", "known")
# What a process of each imports when it starts; more comes with what it is asked for.
STARTS: Final = {
    "tailer tail": "tailer.__main__, tailer.cli.tail.verb",
    "tailer verify": "tailer.__main__, tailer.cli.verify",
    "the Spark source": "tailer.spark.source.data_source",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def figures() -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each measure."""
    tests = sum(len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("*.py"))
    yield "lines of the product; of the spine", f"{sum(sizes().values()):,}; {lines(*SPINE):,}"
    yield "lines of the tests", f"{tests:,}"
    for kind in (*delivery.KINDS, *reading.READERS):
        with TemporaryDirectory() as folder:
            executed = (delivery if kind in delivery.KINDS else reading).execute(kind, Path(folder))
        yield f"{kind}: modules / functions", f"{len(executed.modules)} / {len(executed.functions)}"
    for name, modules in STARTS.items():
        yield f"our modules that {name} imports", str(_imported(modules))
    trees = [ast.parse(path.read_text()) for path in MODULES.values()]
    yield "methods of ports", str(sum(map(_methods, trees)))
    yield "exported names", str(sum(map(_exported, trees)))
    yield "options", str(sum(len(msgspec.structs.fields(kind)) for *_, kind in SECTIONS))
    callers = [number for tree in trees for number in _callers(tree)]
    share = 100 * callers.count(1) / len(callers)
    yield "private functions with one caller", f"{callers.count(1)} of {len(callers)}, {share:.0f} %"
    names = Counter(name for tree in trees for function in _functions(tree) for name in local_names(function))
    yield f"functions with a local {', '.join(PRONOUNS)}", ", ".join(str(names[name]) for name in PRONOUNS)


def _imported(modules: str) -> int:
    ours = "sum(name.startswith(('tailer.', 'tailer_sinks.')) for name in sys.modules)"
    script = f"import sys, {modules}; print({ours})"
    return int(subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True).stdout)


def _functions(node: ast.AST) -> Iterator[Function]:
    return (child for child in ast.walk(node) if isinstance(child, Function))


def _methods(tree: ast.Module) -> int:
    """Return the number of methods without `_` of protocols and abstract classes."""
    ports = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and _is_port(node))
    return sum(isinstance(child, Function) and child.name[0] != "_" for port in ports for child in port.body)


def _is_port(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).partition("[")[0] in ("ABC", "Protocol") for base in node.bases)


def _exported(tree: ast.Module) -> int:
    names = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return sum(len(value.elts) for value in names if isinstance(value, ast.List))


def _callers(tree: ast.Module) -> Iterator[int]:
    """Yield, for each private function and method, how often its module uses its name."""
    used = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    used += Counter(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    yield from (used[each.name] for each in _functions(tree) if each.name[0] == "_" and each.name[:2] != "__")


def local_names(function: Function) -> set[str]:
    """Return the names that a function takes or assigns, without those of functions in it."""
    inner = {
        node
        for child in ast.walk(function)
        if isinstance(child, Function) and child is not function
        for node in ast.walk(child)
    }
    stored = (node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    arguments = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    return arguments | {node.id for node in stored if node not in inner}


def _items() -> str:
    command = [sys.executable, "-m", "pytest", "tests", "-p", "no:cacheprovider", "--collect-only", "-q"]
    command += [f"--tier={tier}" for tier in TIERS]
    report = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return report.stdout.rstrip().rpartition("\n")[2]


if __name__ == "__main__":
    for name, value in figures():
        print(f"{name:60} {value}", flush=True)
    if sys.argv[1:] == ["--items"]:
        print(f"{'items on a landing':60} {_items()}")
