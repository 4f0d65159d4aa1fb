"""The house rules as tests: layers and imports, sizes, names and docstrings.

`LAYERS` is the architecture as data. A room without a layer fails, so a new one is placed before it is written.
"""

import ast
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.support.measures import local_names

ROOT: Final = Path(__file__).resolve().parents[2]

MODULE_LINES: Final = 400
CLASS_LINES: Final = 250
FOLDER_MODULES: Final = 12
PACKAGE_NAMES: Final = 27  # in `tailer/`, so that it can be read at a glance
FUNCTION_LINES: Final = 70
FUNCTION_LINES_P90: Final = 30

# Words that stand for a noun: the noun says more.
PRONOUNS: Final = frozenset(["at", "each", "found", "known", "made", "met", "of", "takes", "tell_key"])
FIELDS_BY_NAME: Final = 5  # from so many on, a dataclass is written with the names of its fields
WIDTH: Final = 120
NEXT_WORD: Final = re.compile(r"[^`\s]*`[^`]*`\S*|\S+")  # a name in backticks is one
SPARE: Final = 5  # columns that a line of a paragraph may leave though the next word would fit

VAGUE_WORDS: Final = frozenset(["manager", "helper", "util", "common", "base", "handler", "processor", "info"])
TERMS_OF_THE_FORMATS: Final = frozenset(["BasePath", "CommitInfo"])
UNFINISHED: Final = re.compile(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b")
REGISTRY: Final = re.compile(
    r"pypi\.org|pythonhosted\.org|repo1?\.maven|npmjs\.(?:org|com)|golang\.org|crates\.io|deb\.debian\.org"
    r"|conda\.anaconda\.org|(?<![\w.])(?:ghcr|docker|quay|gcr)\.io"
)
QUESTION_WORDS: Final = frozenset(
    ["how", "that", "what", "whatever", "when", "where", "whether", "which", "who", "whoever", "whom", "whose", "why"]
)
# The beginning of a text that opens with one of them: few files have any, and only those are parsed.
QUESTION: Final = re.compile(rf"[\"']\s*(?:{'|'.join(QUESTION_WORDS)})\b", re.IGNORECASE)
MACHINE_PATH: Final = re.compile(r"(?<![\w.~-])/(?:root\b|work\b|home/)")


@dataclass(frozen=True)
class Layer:
    """A layer of rooms, and the libraries they may import besides the standard library.

    A room is a module or a folder at the top of `tailer`, or a format's folder in `tailer/formats`; it stands for
    everything inside.
    """

    rooms: str
    libraries: str = ""


# From the bottom up: a room imports itself and rooms of layers before its own.
LAYERS: Final = (
    Layer("errors metrics"),
    Layer("events start", "pyarrow"),
    Layer("variant", "msgspec numpy pyarrow"),
    Layer("schema", "pyarrow"),
    Layer("shape", "pyarrow sqlglot"),
    Layer("plan", "pyarrow"),
    Layer("stores", "aiobotocore aiohttp anyio botocore obstore urllib3 watchfiles"),
    Layer("table_log sink", "pyarrow"),
    Layer("files", "pyarrow pyroaring"),
    Layer("read", "msgspec pyarrow pyroaring"),
    Layer("formats", "pyarrow"),
    Layer(
        "formats.delta formats.iceberg formats.lance",
        "anyio duckdb fastavro httpx2 lance msgspec pyarrow pyiceberg pyroaring requests",
    ),
    Layer("engine", "anyio pyarrow"),
    Layer("changelog", "anyio duckdb pyarrow pyroaring"),
    Layer("progress", "msgspec pyarrow"),
    Layer("pipeline", "anyio pyarrow tenacity"),
    Layer("config", "msgspec"),
    Layer("shards", "anyio pyarrow"),
    Layer("spark", "anyio delta grpc msgspec py4j pyarrow pyspark tenacity"),
    Layer("daemon api", "anyio httpx2 msgspec opentelemetry pandas polars prometheus_client pyarrow starlette uvicorn"),
    Layer("cli", "anyio click msgspec pyarrow rich"),
    Layer("__main__", "click"),
)

PORTS: Final = "tailer.errors tailer.events tailer.plan tailer.sink"
# For sinks that write folders, here and in stores.
FOLDERS: Final = (
    "tailer.formats.delta.folders tailer.stores.* tailer_sinks.access tailer_sinks.heartbeats tailer_sinks.options"
)

# Sinks import the ports and nothing above them, like a third party's. The first row that matches a module is its row.
VARIANTS: Final = "tailer.variant tailer.variant.nested tailer.variant.text"
OWN: Final = "tailer_sinks"
TYPES: Final = "tailer.schema.exact_types"
JSON: Final = f"{OWN} {OWN}.encoding.* {OWN}.options"
SECRETS: Final = f"{OWN}.access tailer.stores.secrets"
SINKS: Final = (
    (f"{OWN}", "tailer.config.options", ""),
    (f"{OWN}.access", f"{PORTS} tailer.stores.secrets", ""),
    (f"{OWN}.options", f"{OWN}.encoding.values {PORTS}", "msgspec"),
    (f"{OWN}.mirrors", PORTS, "msgspec pyarrow"),
    (f"{OWN}.heartbeats", f"{FOLDERS} {PORTS}", "anyio msgspec"),
    (f"{OWN}.encoding.terminal", f"{OWN}.encoding.* tailer.errors tailer.events", "pyarrow rich"),
    (f"{OWN}.encoding.avro.registry", "tailer.errors", "httpx2 msgspec"),
    (
        f"{OWN}.encoding {OWN}.encoding.*",
        f"{OWN}.encoding.* tailer.errors tailer.events tailer.plan {VARIANTS}",
        "fastavro pyarrow",
    ),
    (f"{OWN}.delta.table", f"{OWN}.encoding.typed {OWN}.delta.* {FOLDERS} {PORTS}", "deltalake pyarrow"),
    (f"{OWN}.delta.writes", f"{PORTS} tailer.variant.nested", "deltalake pyarrow"),
    (f"{OWN}.delta.folder", f"{OWN}.delta.* {FOLDERS} {PORTS}", "anyio deltalake pyarrow"),
    (f"{OWN}.delta.txns", f"{OWN}.delta.* {FOLDERS} {PORTS}", "deltalake"),
    (
        f"{OWN}.delta.mirror.table {OWN}.delta.mirror.merges",
        f"{OWN}.encoding.typed {OWN}.mirrors {OWN}.delta.* {PORTS}",
        "deltalake pyarrow",
    ),
    (
        f"{OWN}.delta.mirror.changes",
        f"{OWN}.delta.mirror.columns {OWN}.delta.mirror.past {OWN}.delta.spool tailer.changelog.spill {PORTS}",
        "duckdb pyarrow",
    ),
    (
        f"{OWN}.delta.mirror.verified_rows {OWN}.delta.mirror.stored_rows",
        f"{OWN}.mirrors {OWN}.encoding.* {OWN}.delta.* tailer.changelog.spill {VARIANTS} {PORTS}",
        "pyarrow",
    ),
    (
        f"{OWN}.delta {OWN}.delta.*",
        f"{OWN} {OWN}.encoding.typed {OWN}.mirrors {OWN}.delta.* tailer.schema.exact_types {FOLDERS} {PORTS}",
        "anyio msgspec pyarrow",
    ),
    (f"{OWN}.files {OWN}.files.*", f"{JSON} {OWN}.files.* {FOLDERS} {PORTS}", "anyio msgspec pyarrow"),
    (f"{OWN}.http.endpoint", f"{OWN}.http.* {PORTS}", "anyio httpx2"),
    (
        f"{OWN}.http {OWN}.http.*",
        f"{JSON} {SECRETS} {OWN}.http.* {OWN}.files.port {PORTS}",
        "anyio msgspec pyarrow",
    ),
    (
        f"{OWN}.kafka.clients.confluent_producer {OWN}.kafka.clients.librdkafka*",
        f"{OWN}.kafka.* {OWN}.encoding.* {PORTS}",
        "confluent_kafka pyarrow",
    ),
    (f"{OWN}.kafka.clients.python_*", f"{OWN}.kafka.* {OWN}.encoding.* {PORTS}", "kafka pyarrow"),
    (
        f"{OWN}.kafka {OWN}.kafka.*",
        f"{JSON} {OWN}.heartbeats {SECRETS} {OWN}.kafka.* {PORTS}",
        "anyio msgspec pyarrow",
    ),
    (f"{OWN}.memory", f"{OWN} {PORTS}", "anyio msgspec pyarrow"),
    (
        f"{OWN}.sql.databases.duckdb_connection",
        f"{OWN}.sql.* {OWN}.encoding.* tailer.changelog.spill {PORTS}",
        "duckdb pyarrow",
    ),
    (f"{OWN}.sql.databases.postgresql", f"{OWN}.sql.* {OWN}.encoding.* {PORTS}", "psycopg pyarrow"),
    (
        f"{OWN}.sql {OWN}.sql.*",
        f"{OWN} {OWN}.mirrors {OWN}.heartbeats {SECRETS} {OWN}.sql.* {OWN}.encoding.* {TYPES} {PORTS} tailer.metrics",
        "anyio msgspec pyarrow",
    ),
    (f"{OWN}.stdout", f"{OWN} {OWN}.encoding.* {PORTS}", "anyio msgspec pyarrow rich"),
    (f"{OWN}.testing {OWN}.testing.*", f"{OWN}.testing.* {OWN}.encoding.* {PORTS}", "anyio pyarrow pytest"),
)

# The demonstration knows of the package what a program that starts the daemon needs.
DEMONSTRATION: Final = (
    "examples.demo examples.demo.*",
    "examples.demo.* tailer.config.* tailer.daemon.standing tailer.errors",
    "anyio delta deltalake lance pyarrow pyspark rich",
)

# Libraries that no module may import: anyio replaces asyncio, and the dataset scanner has its own order and memory.
FORBIDDEN: Final = frozenset({"asyncio", "pyarrow.dataset"})


# Yields what a module does against a rule.
Rule = Callable[[str], Iterator[str]]


def module_name(path: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "sinks" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES: Final = {
    module_name(path): path
    for folder in ("tailer", "sinks", "examples/demo")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


@cache
def tree(module: str) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(MODULES[module].read_text())


def matches(module: str, patterns: str) -> bool:
    """Return whether the module matches one of the patterns."""
    return any(fnmatchcase(module, pattern) for pattern in patterns.split())


def room(module: str) -> str:
    """Return the room of a module of `tailer`; empty for the package itself."""
    parts = module.split(".")[1:]
    in_format = parts[:1] == ["formats"] and (ROOT / "tailer" / Path(*parts[:2])).is_dir()
    return ".".join(parts[: 2 if in_format else 1])


def layer(module: str) -> int:
    """Return the number of the layer that a module of `tailer` is in."""
    numbers = [number for number, each in enumerate(LAYERS) if room(module) in each.rooms.split()]
    assert len(numbers) == 1, f"{module} is in no layer: add its room to LAYERS"
    return numbers[0]


def imports(module: str) -> Iterator[str]:
    """Yield every import of a module, also inside functions; `from a import b` is `a.b` if that is a module."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES or name in FORBIDDEN else str(node.module)


def functions(module: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method of a module."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the length of a function, its signature and docstring included."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def words(name: str) -> set[str]:
    """Return the words of a name in either case style, in the singular."""
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def check_every_module(rule: Rule) -> None:
    """Fail with the list of all that the modules do against a rule."""
    broken = [f"{module}: {what}" for module in MODULES for what in rule(module)]
    assert not broken, "\n".join(["", *broken])


def test_nothing_that_comes_from_outside_is_run() -> None:
    """Spark passes work, rows and errors pickled between our own processes; nothing else may be unpickled or run.

    But for the commands that print secrets: they are those of the configuration.
    """
    runs_code = {"code", "marshal", "pickle", "pty", "runpy", "shelve", "subprocess"}

    def rule(module: str) -> Iterator[str]:
        if matches(module, DEMONSTRATION[0]):
            return
        allowed = {"pickle"} if module.startswith(("tailer.spark.", "tailer.shards.")) else set[str]()
        allowed |= {"subprocess"} if module == "tailer.stores.secrets" else set()
        for name in imports(module):
            if (package := name.partition(".")[0]) in runs_code - allowed:
                yield f"may not import {package}"
        for node in ast.walk(tree(module)):
            called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if called in ("__import__", "compile", "eval", "exec"):
                yield f"may not call {called}"

    check_every_module(rule)


def test_imports_respect_the_layers() -> None:
    def rule(module: str) -> Iterator[str]:
        if module == "tailer":
            return  # the facade, which imports the API when it is used
        outside, ours = not module.startswith("tailer."), ""
        if outside:
            rows = (*SINKS, DEMONSTRATION)
            row = next(((ours, theirs) for modules, ours, theirs in rows if matches(module, modules)), None)
            if row is None:
                yield "has no row in SINKS: add one"
                return
            ours, theirs = row
        else:
            theirs = LAYERS[layer(module)].libraries
        for name in imports(module):
            package = name.partition(".")[0]
            if any(name == bad or name.startswith(f"{bad}.") for bad in FORBIDDEN):
                allowed = False
            elif outside and package in ("tailer", "tailer_sinks", "examples"):
                allowed = matches(name, ours)
            elif package == "tailer":
                allowed = name == "tailer" or room(name) == room(module) or layer(name) < layer(module)
            else:
                allowed = package in sys.stdlib_module_names | {"typing_extensions"} or package in theirs.split()
            if not allowed:
                yield f"may not import {name}"

    check_every_module(rule)


def test_tailer_imports_no_sink() -> None:
    assert not [
        name
        for module in MODULES
        if module.partition(".")[0] == "tailer"
        for name in imports(module)
        if name.partition(".")[0] == "tailer_sinks"
    ]


def test_the_architecture_page_shows_the_layers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    layers = "\n".join(f"{number:2} {row.rooms}" for number, row in enumerate(LAYERS))
    assert f"```text\n{layers}\n```" in page, f"the layers are\n{layers}"


def test_folders_are_small() -> None:
    support = (ROOT / "tests" / "support").rglob("*.py")
    for folder in {path.parent for path in [*MODULES.values(), *support]}:
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= FOLDER_MODULES, f"{folder.relative_to(ROOT)} has {len(modules)} modules"
    names = [path for path in (ROOT / "tailer").iterdir() if path.name != "__pycache__"]
    assert len(names) <= PACKAGE_NAMES


def test_classes_are_short() -> None:
    def rule(module: str) -> Iterator[str]:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ClassDef) and (node.end_lineno or node.lineno) - node.lineno >= CLASS_LINES:
                yield f"{node.name} has {CLASS_LINES} lines or more"

    check_every_module(rule)


def test_modules_are_short_and_say_why_they_exist() -> None:
    def rule(module: str) -> Iterator[str]:
        if len(MODULES[module].read_text().splitlines()) > MODULE_LINES:
            yield f"has more than {MODULE_LINES} lines"
        if not ast.get_docstring(tree(module)):
            yield "has no docstring"
        assigned = {
            target.id
            for node in tree(module).body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        if "__all__" not in assigned:
            yield "has no __all__"

    check_every_module(rule)


def test_functions_are_short_and_annotated() -> None:
    def rule(module: str) -> Iterator[str]:
        for function in functions(module):
            if lines(function) > FUNCTION_LINES:
                yield f"{function.name} has more than {FUNCTION_LINES} lines"
            if function.returns is None:
                yield f"{function.name} has no return annotation"

    check_every_module(rule)


def test_no_test_module_imports_another() -> None:
    importing = re.compile(r"^(?:from|import) tests\.\w+\.(?:\w+\.)*test_\w+", re.MULTILINE)
    modules = (ROOT / "tests").rglob("test_*.py")
    assert not [(path.name, found) for path in modules for found in importing.findall(path.read_text())]


def test_most_functions_are_very_short() -> None:
    lengths = sorted(lines(function) for module in MODULES for function in functions(module))
    assert lengths[math.ceil(0.9 * len(lengths)) - 1] <= FUNCTION_LINES_P90


def pronouns(module: str) -> Iterator[str]:
    """Yield the locals and parameters that are pronouns."""
    for function in functions(module):
        yield from (f"name the noun in {function.name}: {name}" for name in sorted(local_names(function) & PRONOUNS))


def splatted(module: str) -> Iterator[str]:
    """Yield the constructors that get some of their arguments as a tuple, and others by position."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call) and len(node.args) > 1 and any(isinstance(a, ast.Starred) for a in node.args):
            name = ast.unparse(node.func).partition("[")[0].rpartition(".")[2]
            if name.lstrip("_")[:1].isupper():
                yield f"line {node.lineno}: hand an object to {name} in place of a tuple of arguments"


def positional(module: str) -> Iterator[str]:
    """Yield the dataclasses of many fields that can be written without their names."""
    for node in ast.walk(tree(module)):
        if (
            isinstance(node, ast.ClassDef)
            and sum(isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line) for line in node.body)
            >= FIELDS_BY_NAME
        ):
            decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
            if any(text.startswith("dataclass") and "kw_only=True" not in text for text in decorators):
                yield f"{node.name} needs kw_only=True"


def asserted(module: str) -> Iterator[str]:
    """Yield the asserts that something is not None: of objects with two phases, as a rule."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Assert) and "is not None" in ast.unparse(node.test):
            yield f"line {node.lineno}: let what begins return what goes on"


def pointers(module: str) -> Iterator[str]:
    """Yield the functions whose docstring only points elsewhere: `@override` says it, and is checked."""
    for function in functions(module):
        if re.fullmatch(r"See `[^`]+`\.", ast.get_docstring(function) or ""):
            yield f"{function.name} needs @override in place of its docstring"


# The most places that break a rule: they only become fewer.
MOST: Final[dict[Rule, int]] = {pronouns: 0, splatted: 15, positional: 77, asserted: 54, pointers: 46}


@pytest.mark.parametrize("rule", MOST, ids=lambda rule: rule.__name__)
def test_the_code_says_it_in_nouns(rule: Rule) -> None:
    broken = [f"{module}: {what}" for module in MODULES for what in rule(module)]
    most, now = MOST[rule], len(broken)
    assert now <= most, "\n".join(["", *broken, f"{now} places, and at most {most} may be left"])
    assert now >= most * 3 // 4 - 10, f"lower the number of {rule.__name__} in MOST to {now}"


def paragraphs(module: str) -> Iterator[list[tuple[int, str]]]:
    """Yield the numbered lines of each paragraph of prose in docstrings and comments."""
    source = MODULES[module].read_text().splitlines()
    texts = [
        (" " * node.col_offset, range(node.lineno + 1, (node.end_lineno or 0) + 1))
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    comments = {number: line.partition("#")[0] for number, line in enumerate(source, 1) if line.lstrip()[:1] == "#"}
    texts += [
        (f"{indent}# ", range(number, number + 2)) for number, indent in comments.items() if number + 1 in comments
    ]
    for indent, text in texts:
        paragraph: list[tuple[int, str]] = []
        for number in text:
            line = source[number - 1]
            # Tables, lists and code have lines of their own.
            if re.match(rf"{indent}[`(\w]", line) and not re.search(r"\S  +\S|\S\(.*\)$", line):
                paragraph.append((number, line))
            else:
                yield paragraph
                paragraph = []
        yield paragraph


def test_paragraphs_are_wrapped_again() -> None:
    """A sentence that is put into a paragraph breaks its lines: each has as many words as fit."""

    def rule(module: str) -> Iterator[str]:
        for paragraph in paragraphs(module):
            for (number, line), (_, following) in pairwise(paragraph):
                word = NEXT_WORD.match(following.lstrip("# "))
                if word and line[-1] not in ".:;?!" and len(f"{line} {word[0]}") + SPARE <= WIDTH:
                    yield f"line {number}: {word[0]} fits: wrap the paragraph again"

    check_every_module(rule)


def test_names_say_something() -> None:
    def rule(module: str) -> Iterator[str]:
        classes = [node.name for node in ast.walk(tree(module)) if isinstance(node, ast.ClassDef)]
        for name in [module.rpartition(".")[2], *classes]:
            if name not in TERMS_OF_THE_FORMATS and words(name) & VAGUE_WORDS:
                yield f"{name} is a vague name"

    check_every_module(rule)


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of docstrings that may open with a question word, those of fields included."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source if QUESTION.search(source) else "")):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


@pytest.mark.parametrize("folder", ["tailer", "sinks", "tests", "examples"])
def test_docstrings_open_with_a_verb_or_a_noun(folder: str) -> None:
    questions = [
        f"{path.relative_to(ROOT)}:{number}: {text.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, text in docstrings(path)
        if re.split(r"\W", text, maxsplit=1)[0].lower() in QUESTION_WORDS
    ]
    assert not questions, "begin these with a verb or a noun:\n" + "\n".join(questions)


def test_nothing_is_left_unfinished() -> None:
    check_every_module(lambda module: iter(UNFINISHED.findall(MODULES[module].read_text())))


def test_only_the_command_line_prints() -> None:
    def rule(module: str) -> Iterator[str]:
        calls = [node.func for node in ast.walk(tree(module)) if isinstance(node, ast.Call)]
        printing = any(isinstance(func, ast.Name) and func.id == "print" for func in calls)
        if printing and not matches(module, "tailer.cli tailer.cli.*"):
            yield "prints"

    check_every_module(rule)


def test_no_file_names_a_registry_or_a_machine() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in sorted(set(listing.splitlines()) - {"uv.lock"}):
        path = ROOT / name
        text = path.read_bytes().decode(errors="replace") if path.is_file() else ""
        for number, line in enumerate(text.splitlines(), 1):
            assert not REGISTRY.search(line), f"{name}:{number}"
            assert not MACHINE_PATH.search(line), f"{name}:{number}"


@pytest.mark.parametrize("arguments", [["-c", "import tailer.cli"], ["-m", "tailer", "--help"]])
def test_the_command_line_starts_without_the_heavy_libraries(arguments: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", *arguments]
    report = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stderr
    imported = {line.rpartition("|")[2].strip() for line in report.splitlines()}
    assert "tailer.cli" in imported
    assert not imported & {"aiobotocore", "botocore", "obstore", "pyarrow", "pyspark", "deltalake"}
