"""Extras: errors name existing ones, and code without an extra does not import its libraries."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tailer.errors import how_to_install
from tests.support.cases import cases

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DAEMON: Final = {"prometheus_client", "click", "rich"}
STORES: Final = {"aiobotocore", "aiohttp", "botocore"}
SINKS: Final = {"kafka", "crc32c", "lz4", "confluent_kafka", "deltalake", "fastavro", "httpx2", "psycopg"}

# Libraries that must not be imported: an executor, or an installation without extras, may lack them.
ON_EXECUTORS: Final = "tailer.spark.release, tailer.spark.source.data_source"
IMPORTED: Final = {
    "tailer.read.execute": {*DAEMON, *SINKS, *STORES, "anyio", "tenacity", "watchfiles", "duckdb", "pyspark"},
    ON_EXECUTORS: {*DAEMON, *SINKS, *STORES, "tenacity", "watchfiles", "duckdb"},
    "tailer.shards.worker": {*DAEMON, *SINKS, *STORES, "duckdb", "pyspark"},
    "tailer.api": {*DAEMON, *SINKS, *STORES, "duckdb", "pyspark"},
    "tailer.daemon.serve": {"opentelemetry", "google"},
    "tailer.cli.outcome": {"anyio", "asyncio", "msgspec", "pyarrow", "typing_extensions"},  # `tailer --help`
    "tailer.cli.tail": {*DAEMON, *SINKS, *STORES, "duckdb", "pyspark"} - {"click", "rich"},
}


def named_extras() -> Iterator[str]:
    """Return every extra that an error names."""
    for folder in ("tailer", "sinks", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == how_to_install.__name__:
                    yield from (str(each.value) for each in node.args if isinstance(each, ast.Constant))


def test_errors_name_extras_that_exist() -> None:
    named = set(named_extras())
    assert {"daemon", "kafka-fast", "spark"} <= named <= set(PROJECT["optional-dependencies"])


def test_the_command_is_written_in_one_place() -> None:
    found = [
        path.relative_to(ROOT)
        for package in ("tailer", "sinks")
        for path in (ROOT / package).rglob("*.py")
        if "pip install" in path.read_text()
    ]
    assert found == [Path("tailer/errors/general.py")]


def test_every_dependency_has_its_reason_beside_it() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    extras = PROJECT["optional-dependencies"].values()
    wanted = [*PROJECT["dependencies"], *(each for extra in extras for each in extra)]
    lines = text.splitlines()
    for requirement in wanted:
        if not requirement.startswith("lake-tailer["):
            assert [line for line in lines if f'"{requirement}"' in line and "# " in line], requirement


@cases("modules", IMPORTED)
def test_no_module_imports_a_library_that_its_users_may_not_have(modules: str) -> None:
    script = f"import sys, {modules}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert not set(found.split()) & IMPORTED[modules]
