"""The house as data: the spine, the rooms, and the modules to read first.

The spine is what every row of every pipeline passes. A room is a folder, or a few modules, that someone who does not
use it never opens. `tests/unit/test_house.py` holds both, and `docs/architecture.md` shows them
(`python -m tests.generate_docs`).
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

__all__ = [
    "MODULES",
    "PRODUCT_LINES",
    "READING_ORDER",
    "ROOMS",
    "ROOT",
    "SPINE",
    "SPINE_LINES",
    "Part",
    "imported",
    "known",
    "lines",
    "part_of",
    "sizes",
]

ROOT: Final = Path(__file__).resolve().parents[1]

# Most lines. Who raises one says in docs/architecture.md what was refused in its place; who deletes lowers them.
SPINE_LINES: Final = 28_400
PRODUCT_LINES: Final = 79_600


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the house. `prefixes`: its modules and folders, without what is in a part with a longer prefix.

    `text`: its content, and of a room when to read it. `page`: the page of docs about a room.
    `known_by`: modules of the spine that import the room at import time, for the reason `because`.
    """

    prefixes: str
    text: str
    page: str = ""
    known_by: str = ""
    because: str = ""


# The program, in the order to read it.
READING_ORDER: Final = {
    "tailer.events": "the change row; batches and control events of a stream",
    "tailer.plan.task": "a task: rows of one file, and their kind of change",
    "tailer.table_log": "the port of a format: versions in order, a plan for each",
    "tailer.sink.ports": "the port of a destination: transactions of rows and their progress",
    "tailer.formats.delta.changes": "the rules of Delta: from a commit to a plan",
    "tailer.formats.delta.table": "the log of a Delta table behind the port",
    "tailer.read.execute": "a task becomes rows: one function for threads and executors",
    "tailer.engine.local": "tasks on worker threads, in order and in bounded memory",
    "tailer.changelog.carryovers": "the rules of rewritten files: which of their rows changed",
    "tailer.pipeline.loop": "the loop: wait, plan, deliver, commit",
    "tailer.pipeline.row_delivery": "rows of versions to the writer, in order",
    "tailer.pipeline.sink_writer": "one open transaction, its size and its schema",
    "tailer.daemon.serve": "pipelines put together and run",
}

SPINE: Final = (
    Part(
        prefixes="tailer.errors tailer.events tailer.plan tailer.start tailer.metrics",
        text="values: errors, the change row, plan and position, counters",
    ),
    Part(prefixes="tailer.table_log tailer.sink", text="the ports of a table format and of a destination"),
    Part(
        prefixes="tailer.stores",
        text="the ports `ObjectStore` (logs), `ObjectRanges` (data files) and `UploadStore` (what sinks write); local "
        "folders; wake-ups",
    ),
    Part(
        prefixes="tailer.formats",
        text="the port of formats, and their registry",
    ),
    Part(
        prefixes="tailer.formats.delta tailer.formats.delta.catalog.port",
        text="from the files of a log to plans",
    ),
    Part(prefixes="tailer.schema", text="the identity of columns over time, in any format"),
    Part(prefixes="tailer.files", text="deletion vectors, bitmaps of rows, partition values"),
    Part(prefixes="tailer.read", text="a task becomes change rows; the reader of Parquet"),
    Part(prefixes="tailer.engine", text="the tasks of a plan on worker threads; look-ahead over a backlog"),
    Part(prefixes="tailer.changelog", text="rewritten files become changed rows: carry-overs, updates, net changes"),
    Part(
        prefixes="tailer.progress",
        text="progress under any id that a table has had; the state table",
    ),
    Part(
        prefixes="tailer.pipeline",
        text="the loop of one table and one sink, retries and policies",
    ),
    Part(
        prefixes="tailer.config",
        text="settings, read and checked; `tables` opens tables",
    ),
    Part(
        prefixes="tailer tailer.__main__ tailer.api tailer.daemon tailer.cli",
        text="the daemon, the Python API, a file for each verb",
    ),
)

ROOMS: Final = (
    Part(
        prefixes="tailer.shape",
        text="`where` or `select` is wrong or slow",
        page="shape",
    ),
    Part(
        prefixes="tailer.variant",
        text="Variants, or numbers and dates in JSON, are wrong",
        page="delta",
        known_by="tailer.changelog.equal_rows.comparable_values "
        "tailer.read.parquet.legacy_datetimes tailer.read.projection tailer.schema.text_types "
        "tailer.schema.variant_paths",
        because="a library without any import of ours; rows are compared by the values of Variants",
    ),
    Part(
        prefixes="tailer.stores.bucket tailer.stores.cloud tailer.stores.s3",
        text="a bucket does not answer, is slow, or announces nothing",
        page="stores",
        known_by="tailer.config.stores tailer.stores.stores",
        because="their options, which are values; clients are imported when a store is opened",
    ),
    Part(
        prefixes="tailer.stores.glue tailer.formats.delta.catalog",
        text="a table is named or committed by a catalog: Glue, Unity",
        page="stores",
        known_by="tailer.config.pipelines tailer.config.stores tailer.formats.delta.format tailer.stores.stores",
        because="names in a catalog are locations; clients are imported when one is asked",
    ),
    Part(
        prefixes="tailer.daemon.fleet",
        text="tables come and go: templates, reload, awaited tables",
        page="many_tables",
        known_by="tailer.cli.progress tailer.daemon.serve tailer.daemon.standing",
        because="the daemon runs a fleet, also of one pipeline",
    ),
    Part(prefixes="tailer.daemon.standby", text="several processes run one configuration", page="standby"),
    Part(
        prefixes="tailer.daemon.checks", text="`tailer check --connect` says too much or too little", page="operations"
    ),
    Part(
        prefixes="tailer.daemon.observe",
        text="OpenTelemetry, or a metric of `tailer verify`, is wrong",
        page="monitoring",
        known_by="tailer.daemon.serve",
        because="the daemon reports from its start",
    ),
    Part(prefixes="tailer.daemon.page", text="the status page shows something wrong", page="monitoring"),
    Part(
        prefixes="tailer.cli.display",
        text="a terminal shows lines, tables or bars wrong",
        page="tail",
        known_by="tailer.cli.plan tailer.cli.progress tailer.cli.run tailer.cli.status tailer.cli.tail.output",
        because="verbs print by it",
    ),
    Part(prefixes="tailer.cli.doctor", text="`tailer doctor` says too much or too little", page="doctor"),
    Part(prefixes="tailer.cli.history", text="`tailer history` shows commits wrong", page="history"),
    Part(
        prefixes="tailer.pipeline.verification tailer.cli.verify",
        text="`tailer verify` compares a mirror with its source, or repairs it",
        page="verify",
    ),
    Part(
        prefixes="tailer.pipeline.backfill tailer.cli.backfill",
        text="rows of a version come again between two versions",
        page="backfill",
        known_by="tailer.daemon.control tailer.daemon.runs tailer.daemon.status_report tailer.pipeline.delivery "
        "tailer.pipeline.loop tailer.pipeline.row_delivery tailer.pipeline.status",
        because="the loop delivers a backfill between two versions, and its state is reported",
    ),
    Part(
        prefixes="tailer.formats.iceberg",
        text="the table is an Iceberg table",
        page="iceberg",
    ),
    Part(
        prefixes="tailer.formats.lance",
        text="the table is a Lance dataset",
        page="lance",
    ),
    Part(
        prefixes="tailer.spark tailer.shards",
        text="executors compare or write, or Spark queries a table",
        page="spark",
        known_by="tailer.daemon.standing",
        because="progress of a pipeline with shards is that of the slowest shard",
    ),
    Part(
        prefixes="tailer_sinks tailer_sinks.encoding",
        text="rows become wrong bytes in any sink",
        page="sinks",
    ),
    Part(prefixes="tailer_sinks.kafka", text="the target is Kafka", page="kafka"),
    Part(prefixes="tailer_sinks.delta", text="the target is a Delta table", page="delta"),
    Part(prefixes="tailer_sinks.sql", text="the target is SQLite, DuckDB or PostgreSQL", page="sql"),
    Part(prefixes="tailer_sinks.files", text="the target is a folder of files", page="files"),
    Part(prefixes="tailer_sinks.http", text="the target takes POST requests", page="http"),
    Part(
        prefixes="tailer_sinks.stdout tailer_sinks.memory",
        text="the target is standard output, or a test's memory",
        page="tail",
    ),
    Part(prefixes="tailer_sinks.testing", text="a sink of your own must keep the contract", page="sinks"),
)


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "sinks" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES: Final = {_name(path): path for folder in ("tailer", "sinks") for path in sorted((ROOT / folder).rglob("*.py"))}
_OF_ROOMS: Final = ("tailer", "tailer.formats", "tailer_sinks")
_PARTS: Final = {prefix: part for part in (*SPINE, *ROOMS) for prefix in part.prefixes.split()}


def part_of(module: str) -> Part | None:
    """Return the part that a module of `tailer` or of the sinks belongs to: the one with the longest prefix."""
    names = module.split(".")
    prefixes = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((_PARTS[prefix] for prefix in prefixes if prefix in _PARTS and _has(prefix, module)), None)


def _has(prefix: str, module: str) -> bool:
    """Return whether a prefix is about a module in it. New folders of `_OF_ROOMS` are placed first."""
    if prefix not in _OF_ROOMS or module == prefix:
        return True
    is_folder = MODULES[module].stem == "__init__" or module.count(".") > prefix.count(".") + 1
    return prefix != "tailer" and not is_folder


@cache
def sizes() -> dict[str, int]:
    """Return the number of lines of each module."""
    return {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}


def lines(*parts: Part) -> int:
    """Return the number of lines of some parts."""
    return sum(size for module, size in sizes().items() if part_of(module) in parts)


@cache
def imported(module: str) -> frozenset[str]:
    """Return the modules of the house that a module imports when it is imported."""
    return _named(_at_import(ast.parse(MODULES[module].read_text())))


def known(module: str) -> frozenset[str]:
    """Return the modules of the house that a module names in any import: also of functions, and for types alone."""
    return _named(ast.walk(ast.parse(MODULES[module].read_text())))


def _named(nodes: Iterable[ast.AST]) -> frozenset[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            attributes = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= attributes | {str(node.module)}
    return frozenset(names & MODULES.keys())


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below one that run when a module is imported: without functions, and types alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield from (other, *_at_import(other))
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from (child, *_at_import(child))
