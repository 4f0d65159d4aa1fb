"""The house rules as tests: who may import what, how long things may be, what they may be called.

`BOUNDARIES` is the architecture as data. A module without a row fails, so a new one is placed before it is written.
"""

import ast
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]

MODULE_LINES: Final = 400
FUNCTION_LINES: Final = 70
FUNCTION_LINES_P90: Final = 30

VAGUE_WORDS: Final = frozenset(["manager", "helper", "util", "common", "base", "handler", "processor", "info"])
TERMS_OF_THE_FORMATS: Final = frozenset(["CommitInfo"])
UNFINISHED: Final = re.compile(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b")
REGISTRY: Final = re.compile(
    r"pypi\.org|pythonhosted\.org|repo1?\.maven|npmjs\.(?:org|com)|golang\.org|crates\.io|deb\.debian\.org"
    r"|conda\.anaconda\.org|(?<![\w.])(?:ghcr|docker|quay|gcr)\.io"
)
MACHINE_PATH: Final = re.compile(r"(?<![\w.~-])/(?:root\b|work\b|home/)")


@dataclass(frozen=True)
class Boundary:
    """What the modules that match `modules` may import besides the standard library."""

    modules: str
    ours: str = ""
    theirs: str = ""


PORTS: Final = "tailer.errors tailer.events tailer.folders tailer.plan tailer.sink"

# The first row that matches a module is its row. Patterns are separated by blanks; `x.*` does not include `x`.
BOUNDARIES: Final = (
    Boundary("tailer.errors"),
    Boundary("tailer.spelling"),
    Boundary("tailer.events tailer.variant", "tailer.errors", "pyarrow"),
    Boundary("tailer.start", "tailer.errors"),
    Boundary("tailer.policy"),
    Boundary("tailer.placement"),
    Boundary("tailer.plan", "tailer.errors tailer.events tailer.spelling", "pyarrow"),
    Boundary("tailer.folders"),
    Boundary("tailer.plan", "tailer.errors tailer.events", "pyarrow"),
    Boundary("tailer.table_log", "tailer.errors tailer.plan tailer.start", "pyarrow"),
    Boundary("tailer.schema_changes", "tailer.delta.identity tailer.delta.schema", "pyarrow"),
    Boundary("tailer.calendars", "tailer.errors tailer.plan", "pyarrow"),
    Boundary(
        "tailer.columns",
        "tailer.calendars tailer.errors tailer.events tailer.int96 tailer.plan tailer.delta.schema",
        "pyarrow",
    ),
    Boundary("tailer.filters", "tailer.errors tailer.events", "duckdb pyarrow"),
    Boundary("tailer.batch_sizes", "tailer.thrift", "pyarrow"),
    Boundary("tailer.int96", "tailer.thrift", "pyarrow"),
    Boundary("tailer.thrift", ""),
    Boundary("tailer.bitmaps", "", "pyarrow pyroaring"),
    Boundary("tailer.scratch", "tailer.errors"),
    Boundary("tailer.preimages", "tailer.bitmaps tailer.errors tailer.events tailer.scratch", "pyarrow"),
    Boundary("tailer.selections", "tailer.delta.deletion_vector tailer.errors tailer.plan tailer.scratch", "pyroaring"),
    Boundary("tailer.matches", "tailer.bitmaps tailer.errors tailer.events tailer.scratch", "duckdb pyarrow pyroaring"),
    Boundary(
        "tailer.pairing",
        "tailer.bitmaps tailer.compared_columns tailer.delta.schema tailer.errors tailer.events tailer.execute"
        " tailer.matches tailer.partitions tailer.plan tailer.policy tailer.preimages tailer.selections",
        "tailer.bitmaps tailer.delta.schema tailer.errors tailer.events tailer.execute tailer.matches"
        " tailer.partitions tailer.plan tailer.policy tailer.preimages tailer.selections tailer.spelling",
        "pyarrow pyroaring",
    ),
    Boundary("tailer.compared_columns", "tailer.delta.identity tailer.delta.schema tailer.plan", "pyarrow"),
    Boundary("tailer.partitions", "tailer.delta.schema tailer.plan", "pyarrow"),
    Boundary(
        "tailer.pairing_engine",
        "tailer.comparing tailer.engine tailer.errors tailer.events tailer.pairing tailer.plan"
        " tailer.policy tailer.preimages tailer.readings tailer.selections",
        "anyio",
    ),
    Boundary("tailer.storage", "tailer.errors tailer.folders", "anyio"),
    Boundary("tailer.s3", "tailer.errors tailer.storage", "anyio aiobotocore botocore"),
    Boundary("tailer.unity", "tailer.delta.catalog tailer.errors tailer.storage", "anyio httpx2 msgspec"),
    Boundary(
        "tailer.delta.state",
        "tailer.delta.* tailer.errors tailer.events tailer.plan tailer.sink tailer.storage",
        "pyarrow pyroaring msgspec",
    ),
    Boundary(
        "tailer.delta tailer.delta.*",
        "tailer.delta.* tailer.errors tailer.events tailer.plan tailer.start tailer.storage",
        "pyarrow pyroaring msgspec",
    ),
    Boundary(
        "tailer.lance tailer.lance.*",
        "tailer.lance.* tailer.errors tailer.events tailer.plan tailer.storage",
        "pyarrow pyroaring msgspec",
    ),
    Boundary(
        "tailer.execute",
        "tailer.batch_sizes tailer.bitmaps tailer.errors tailer.events tailer.folders tailer.plan tailer.calendars"
        " tailer.columns tailer.int96 tailer.variant tailer.delta.deletion_vector tailer.delta.schema",
        "pyarrow pyroaring",
    ),
    Boundary("tailer.background", "", "anyio"),
    Boundary(
        "tailer.engine", "tailer.background tailer.errors tailer.events tailer.execute tailer.plan", "anyio pyarrow"
    ),
    Boundary("tailer.spark", "tailer.spark.source", "pyspark"),
    Boundary("tailer.spark.places", "tailer.ahead tailer.errors tailer.plan"),
    Boundary(
        "tailer.spark.views",
        "tailer.ahead tailer.delta.identity tailer.delta.schema tailer.errors tailer.events tailer.filters tailer.plan"
        " tailer.spark.envelope tailer.spark.typed",
        "pyarrow pyspark",
    ),
    Boundary(
        "tailer.spark.source",
        "tailer.ahead tailer.delta.table tailer.errors tailer.events tailer.feed tailer.pieces tailer.plan"
        " tailer.spark.options"
        " tailer.spark.places tailer.spark.views tailer.spark.worker tailer.start tailer.storage tailer.table_log",
        "anyio pyarrow pyspark",
    ),
    Boundary(
        "tailer.spark.engine",
        "tailer.events tailer.pieces tailer.plan tailer.selections tailer.spark.executors",
        "anyio pyarrow",
    ),
    Boundary("tailer.spark.shared", "tailer.placement tailer.spark.executors tailer.spark.session", "pyspark"),
    Boundary(
        "tailer.spark.session tailer.spark.executors",
        "tailer.errors tailer.placement tailer.spark.session tailer.spark.worker",
        "grpc py4j pyarrow pyspark",
    ),
    Boundary("tailer.spark.worker", "", "pyspark"),
    Boundary("tailer.status", "", "prometheus_client"),
    Boundary("tailer.monitor", "tailer.status", "anyio prometheus_client"),
    Boundary("tailer.attempts", "tailer.errors tailer.status", "anyio tenacity"),
    Boundary(
        "tailer.spans",
        "tailer.errors tailer.pairing tailer.pieces tailer.plan tailer.policy tailer.schema_changes tailer.table_log",
        "pyarrow",
    ),
    Boundary("tailer.spark.delta_session", "tailer.errors tailer.placement", "py4j pyspark"),
    Boundary(
        "tailer.spark.appends",
        "tailer.errors tailer.pieces tailer.sink tailer.spark.session",
        "py4j pyarrow pyspark",
    ),
    Boundary(
        "tailer.spark.delta_writer",
        "tailer.attempts tailer.background tailer.config tailer.engine tailer.errors tailer.lineage tailer.pipeline"
        " tailer.plan tailer.policy tailer.row_ids tailer.sink tailer.spans tailer.spark.appends"
        " tailer.spark.delta_session"
        " tailer.start tailer.status tailer.table_log tailer.vacuum_watch tailer.watch",
        "anyio pyarrow pyspark",
    ),
    Boundary("tailer.spark.recipes", "tailer.errors tailer.events", "pyspark"),
    Boundary(
        "tailer.spark.typed",
        "tailer.delta.identity tailer.delta.schema tailer.errors tailer.events tailer.plan",
        "pyarrow pyspark",
    ),
    Boundary(
        "tailer.spark.options",
        "tailer.errors tailer.events tailer.feed tailer.filters tailer.policy tailer.start",
    ),
    Boundary("tailer.spark.envelope", "tailer.encodings tailer.errors tailer.events", "pyarrow pyspark"),
    Boundary("tailer.encodings", "tailer.errors", "pyarrow"),
    Boundary("tailer.readings", "tailer.errors tailer.plan tailer.policy"),
    Boundary(
        "tailer.pieces",
        "tailer.engine tailer.events tailer.execute tailer.matches_pool tailer.pairing tailer.plan tailer.policy"
        " tailer.preimages tailer.selections",
    ),
    Boundary("tailer.ahead", "tailer.errors tailer.plan tailer.table_log", "pyarrow"),
    Boundary(
        "tailer.feed",
        "tailer.ahead tailer.errors tailer.events tailer.execute tailer.pairing tailer.pieces tailer.plan"
        " tailer.policy tailer.readings tailer.schema_changes tailer.start tailer.storage tailer.table_log",
    ),
    Boundary(
        "tailer.engines",
        "tailer.engine tailer.errors tailer.events tailer.pairing tailer.pairing_engine tailer.placement tailer.plan"
        " tailer.policy tailer.spark.delta_session tailer.spark.engine tailer.spark.shared",
        "anyio",
    ),
    Boundary("tailer.arrivals", "tailer.background tailer.engine tailer.events tailer.plan", "anyio"),
    Boundary("tailer.matches_pool", "tailer.matches"),
    Boundary("tailer.comparing", "tailer.background tailer.matches tailer.matches_pool", "anyio"),
    Boundary(
        "tailer.net_changes",
        "tailer.comparing tailer.engine tailer.events tailer.pairing tailer.plan tailer.policy"
        " tailer.selections tailer.table_log",
        "anyio",
    ),
    Boundary("tailer.pairing_report", "tailer.pairing tailer.plan", "prometheus_client"),
    Boundary("tailer.sink", "tailer.errors tailer.events tailer.plan tailer.spelling", "pyarrow"),
    Boundary("tailer.watch", "tailer.background tailer.errors tailer.plan", "anyio watchfiles"),
    Boundary("tailer.lineage", "tailer.errors tailer.plan tailer.sink tailer.table_log"),
    Boundary("tailer.obstacle", "tailer.errors tailer.table_log"),
    Boundary("tailer.obstacle", "tailer.errors"),
    Boundary("tailer.row_ids", "tailer.events tailer.plan"),
    Boundary("tailer.vacuum_watch", "", "prometheus_client"),
    Boundary(
        "tailer.delivery",
        "tailer.arrivals tailer.engine tailer.errors tailer.events tailer.lineage tailer.plan tailer.schema_changes"
        " tailer.sink",
        "anyio pyarrow",
    ),
    Boundary(
        "tailer.pipeline",
        "tailer.attempts tailer.delivery tailer.engine tailer.errors tailer.events tailer.lineage tailer.obstacle"
        " tailer.plan tailer.policy tailer.row_ids tailer.schema_changes tailer.sink tailer.start tailer.status"
        " tailer.table_log tailer.vacuum_watch tailer.watch",
        "pyarrow",
    ),
    Boundary("tailer.shards", "tailer.engine tailer.errors tailer.events tailer.plan tailer.spelling", "anyio pyarrow"),
    Boundary(
        "tailer.shard_layout",
        "tailer.errors tailer.events tailer.lineage tailer.plan tailer.sink tailer.start tailer.table_log",
        "anyio pyarrow",
    ),
    Boundary(
        "tailer.shard_delivery",
        "tailer.config tailer.delta.table tailer.engine tailer.errors tailer.lineage tailer.pairing"
        " tailer.pairing_engine tailer.pipeline tailer.plan tailer.shard_layout tailer.shards tailer.sink tailer.start"
        " tailer.status tailer.storage tailer.watch",
        "anyio",
    ),
    Boundary(
        "tailer.spark.sharded",
        "tailer.attempts tailer.background tailer.config tailer.errors tailer.pairing_report tailer.pipeline"
        " tailer.plan tailer.policy tailer.shard_delivery tailer.shard_layout tailer.sink tailer.status"
        " tailer.table_log tailer.vacuum_watch tailer.watch",
        "anyio",
    ),
    # The edge where everything is put together.
    Boundary("tailer.demo tailer.demo.*", "tailer tailer.*", "anyio delta pyspark rich"),
    Boundary("tailer tailer.__main__ tailer.cli tailer.cli.*", "tailer tailer.*", "anyio click rich"),
    Boundary(
        "tailer.config tailer.config_file tailer.config_spark", "tailer.*", "pydantic pydantic_core pydantic_settings"
    ),
    Boundary("tailer.daemon", "tailer.*", "anyio prometheus_client"),
    Boundary("tailer.api", "tailer.*", "anyio pandas polars pyarrow"),
    Boundary("tailer.daemon", "tailer.*", "anyio"),
    # Sinks see the ports and nothing behind them, as a third party's would.
    Boundary("sinks", "tailer.errors tailer.spelling", "msgspec"),
    Boundary("sinks.encoding.terminal", "sinks.encoding.* tailer.errors tailer.events", "pyarrow rich"),
    Boundary("sinks.encoding.avro", "sinks.encoding.* tailer.errors tailer.events", "fastavro pyarrow"),
    Boundary("sinks.schema_registry", "tailer.errors", "httpx2 msgspec"),
    Boundary("sinks.encoding sinks.encoding.*", "sinks.encoding.* tailer.errors tailer.events tailer.plan", "pyarrow"),
    Boundary("sinks.typed", "tailer.events", "pyarrow"),
    Boundary("sinks.delta_table", f"sinks.typed sinks.delta_* {PORTS}", "deltalake pyarrow"),
    Boundary("sinks.delta sinks.delta_*", f"sinks sinks.typed sinks.delta_* {PORTS}", "anyio msgspec pyarrow"),
    Boundary(
        "sinks.files sinks.files_*",
        f"sinks sinks.typed sinks.files_* sinks.encoding.* {PORTS}",
        "anyio msgspec pyarrow",
    ),
    Boundary("sinks.kafka.confluent_producer", f"sinks.kafka.* sinks.encoding.* {PORTS}", "confluent_kafka pyarrow"),
    Boundary("sinks.kafka.python_*", f"sinks.kafka.* sinks.encoding.* {PORTS}", "kafka pyarrow"),
    Boundary(
        "sinks.kafka sinks.kafka.*",
        f"sinks sinks.kafka.* sinks.encoding.* sinks.schema_registry {PORTS}",
        "anyio msgspec pyarrow",
    ),
    Boundary("sinks.memory", PORTS, "anyio pyarrow"),
    Boundary("sinks.stdout", f"sinks sinks.encoding.* {PORTS}", "anyio msgspec rich"),
    Boundary("sinks.testing sinks.testing.*", f"sinks.testing.* sinks.encoding.* {PORTS}", "anyio pyarrow pytest"),
)

# Ours to use nowhere: anyio is the one way to wait, and the dataset scanner's order and memory are its own.
FORBIDDEN: Final = frozenset({"asyncio", "pyarrow.dataset"})


def module_name(path: Path) -> str:
    """The dotted name of a source file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES: Final = {
    module_name(path): path for package in ("tailer", "sinks") for path in sorted((ROOT / package).rglob("*.py"))
}

every_module = pytest.mark.parametrize("module", MODULES)


@cache
def tree(module: str) -> ast.Module:
    """The syntax of a module of ours."""
    return ast.parse(MODULES[module].read_text())


def matches(module: str, patterns: str) -> bool:
    """Whether a module is one of those named."""
    return any(fnmatchcase(module, pattern) for pattern in patterns.split())


def boundary(module: str) -> Boundary:
    """The row of a module."""
    rows = [row for row in BOUNDARIES if matches(module, row.modules)]
    assert rows, f"{module} has no row in BOUNDARIES: say what it may import"
    return rows[0]


def imports(module: str) -> Iterator[str]:
    """Every module a module imports, at the top or inside a function; `from a import b` is `a.b` if that is one."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES or name in FORBIDDEN else str(node.module)


def functions(module: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a module."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The length of a function, its signature and docstring included."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def words(name: str) -> set[str]:
    """The words of a name in either case style, in the singular."""
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


@every_module
def test_imports_stay_within_the_boundaries(module: str) -> None:
    row = boundary(module)
    for name in imports(module):
        package = name.partition(".")[0]
        assert not any(name == bad or name.startswith(f"{bad}.") for bad in FORBIDDEN), name
        if package in ("tailer", "sinks"):
            assert matches(name, row.ours), f"{module} may not import {name}"
        else:
            assert package in sys.stdlib_module_names or package in row.theirs.split(), (
                f"{module} may not import {name}"
            )


def test_tailer_does_not_know_the_sinks() -> None:
    for row in BOUNDARIES:
        if not matches(row.modules.split()[0], "sinks sinks.*"):
            assert "sinks" not in row.ours


@every_module
def test_module_is_short_and_says_why_it_exists(module: str) -> None:
    assert len(MODULES[module].read_text().splitlines()) <= MODULE_LINES
    assert ast.get_docstring(tree(module))
    assigned = {
        target.id
        for node in tree(module).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    assert "__all__" in assigned


@every_module
def test_functions_are_short_and_annotated(module: str) -> None:
    for function in functions(module):
        assert lines(function) <= FUNCTION_LINES, function.name
        assert function.returns is not None, function.name


def test_most_functions_are_very_short() -> None:
    lengths = sorted(lines(function) for module in MODULES for function in functions(module))
    assert lengths[math.ceil(0.9 * len(lengths)) - 1] <= FUNCTION_LINES_P90


@every_module
def test_names_say_something(module: str) -> None:
    classes = [node.name for node in ast.walk(tree(module)) if isinstance(node, ast.ClassDef)]
    for name in [module.rpartition(".")[2], *classes]:
        assert name in TERMS_OF_THE_FORMATS or not words(name) & VAGUE_WORDS, name


@every_module
def test_nothing_is_left_unfinished(module: str) -> None:
    assert not UNFINISHED.search(MODULES[module].read_text())


@every_module
def test_only_the_command_line_prints(module: str) -> None:
    calls = [node.func for node in ast.walk(tree(module)) if isinstance(node, ast.Call)]
    printing = any(isinstance(func, ast.Name) and func.id == "print" for func in calls)
    assert not printing or matches(module, "tailer.cli tailer.cli.*")


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
    assert not imported & {"pyarrow", "pyspark", "deltalake"}
