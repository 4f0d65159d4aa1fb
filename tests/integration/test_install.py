"""The package as a user gets it: wheel and sdist, each in an otherwise empty environment.

Versions are those of `uv.lock`, from uv's cache if possible, else from the registry.
"""

import json
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.uv import build_wheel, make_environment, uv
from tests.test_readme import blocks, compare

pytestmark = pytest.mark.long

ROOT: Final = Path(__file__).resolve().parents[2]
VERSION: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PACKAGES: Final = 16  # at most, with indirect dependencies

# Modules that need an extra, by the library that is missing without it.
NEED_EXTRAS: Final = {
    "aiobotocore": {"tailer.stores.glue.", "tailer.stores.s3."},
    "aiohttp": {"tailer.stores.glue.", "tailer.stores.s3."},
    "botocore": {"tailer.stores.glue.", "tailer.stores.s3."},
    "urllib3": {"tailer.stores.glue.", "tailer.stores.s3."},
    "obstore": {"tailer.stores.cloud."},
    "deltalake": {"tailer_sinks.delta."},
    "psycopg": {"tailer_sinks.sql.databases.postgresql."},
    "lance": {"tailer.formats.lance.rows.fragments."},
    "numpy": {"tailer.variant.batch."},
    "fastavro": {"tailer.formats.iceberg.", "tailer_sinks.encoding.avro."},
    "pyiceberg": {"tailer.formats.iceberg.catalogs."},
    "httpx2": {
        "tailer_sinks.encoding.avro.",
        "tailer_sinks.http.",
        "tailer.daemon.client",
        "tailer.formats.delta.catalog.unity",
    },
    "kafka": {"tailer_sinks.kafka."},
    "confluent_kafka": {"tailer_sinks.kafka.clients.confluent_producer", "tailer_sinks.kafka.clients.librdkafka"},
    "prometheus_client": {
        "tailer.daemon.monitor",
        "tailer.daemon.observe.verified",
    },
    "starlette": {"tailer.daemon.control", "tailer.daemon.http_server", "tailer.daemon.page."},
    "py4j": {"tailer.spark."},
    "pyspark": {"tailer.spark."},
    "pytest": {"tailer_sinks.testing."},
}
IMPORT_ALL: Final = """
import importlib, json, pkgutil, tailer, tailer_sinks
missing = {}
for package in (tailer, tailer_sinks):
    for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda name: None):
        if each.name != "tailer.__main__":
            try:
                importlib.import_module(each.name)
            except ModuleNotFoundError as error:
                missing[each.name] = error.name.partition(".")[0]
print(json.dumps(missing))
"""
CHANGES: Final = """
import tailer
rows = tailer.changes("shop").to_arrow()
print(tailer.__version__, rows.num_rows, sum(rows["amount"].to_pylist()))
"""
OPEN_S3: Final = """
from tailer.errors import ConfigError
from tailer.stores.stores import Stores
stores = Stores()
for open_it in (stores.ranges, stores.open):
    try:
        open_it("s3://shop/orders")
    except ConfigError as error:
        print(error.hint)
"""
OPEN_CLOUD: Final = """
from tailer.errors import ConfigError
from tailer.stores.stores import Stores
stores = Stores()
for location in ("gs://shop/orders", "abfss://lake@shop1.dfs.core.windows.net/orders"):
    for open_it in (stores.ranges, stores.open):
        try:
            open_it(location)
        except ConfigError as error:
            print(error.hint)
"""
CONFIG: Final = """
metrics = "127.0.0.1:0"
engine = "spark"
[pipelines.messages]
table = "shop"
sink = {kind = "kafka", bootstrap_servers = "127.0.0.1:1", topic = "shop"}
[pipelines.managed]
table = "shop"
sink = {kind = "files", path = "out"}
catalog = {kind = "unity", uri = "http://127.0.0.1:1", table = "a.b.c"}
"""

FILES: Final = """
[pipelines.files]
table = "shop"
sink = {kind = "files", path = "out"}
"""


@dataclass(frozen=True)
class Installed:
    """An environment with the package in it; commands run in `folder`, which is outside our sources."""

    environment: Path
    folder: Path

    def run(self, command: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment to its end."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TAILER_"))}
        return subprocess.run(
            [self.environment / "bin" / command, *map(str, arguments)],
            cwd=self.folder,
            env=inherited | variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def output(self, command: str, *arguments: object) -> str:
        """Run a command that must succeed; return its standard output."""
        result = self.run(command, *arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("built")
    uv("build", "--out-dir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The wheel."""
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    """The sdist."""
    (found,) = built.glob("*.tar.gz")
    return found


def install(package: Path, extra: str, folder: Path) -> Installed:
    """Install a built file with an extra into a new environment, every other package as in `uv.lock`."""
    make_environment(folder / "environment", package, extra)
    (folder / "work").mkdir()
    return Installed(folder / "environment", folder / "work")


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An installation by `pip install lake-tailer`, and a table of another writer."""
    installed = install(wheel, "", tmp_path_factory.mktemp("bare"))
    table = str(installed.folder / "shop")
    write_deltalake(table, pa.table({"id": [1, 2, 3], "amount": [10.0, 20.0, 30.0]}))
    DeltaTable(table).update(updates={"amount": "amount + 1"}, predicate="id = 2")
    return installed


@pytest.fixture(scope="module")
def with_delta(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """An installation by `pip install 'lake-tailer[delta]'`, from the sdist."""
    return install(sdist, "[delta]", tmp_path_factory.mktemp("delta"))


def test_the_wheel_has_the_code_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"tailer", "tailer_sinks", f"lake_tailer-{VERSION}.dist-info"}
    assert {"tailer/py.typed", "tailer_sinks/py.typed"} <= set(names)
    assert f"lake_tailer-{VERSION}.dist-info/licenses/LICENSE" in names
    assert not [name for name in names if "test_" in name or "__pycache__" in name]


def copy_sources(copy: Path) -> None:
    """Copy what packages are built from, with new times."""
    left_out = shutil.ignore_patterns(".git", ".venv", "tests", "dist", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=left_out, copy_function=shutil.copy)


def page_of(wheel: Path) -> tuple[list[str], list[str]]:
    """Return the project's addresses in a wheel, and the targets of the links of its page."""
    metadata = Parser().parsestr(zipfile.ZipFile(wheel).read(f"lake_tailer-{VERSION}.dist-info/METADATA").decode())
    page = metadata.get_payload()
    assert isinstance(page, str)
    assert page.startswith("# lake-tailer\n")
    return metadata.get_all("Project-URL", []), re.findall(r"\]\(([^)]+)\)", page)


def test_the_page_of_the_package_has_no_link_into_the_repository(wheel: Path) -> None:
    addresses, targets = page_of(wheel)
    assert addresses == []
    assert [target for target in targets if "://" not in target] == []


def test_the_page_of_the_package_leads_to_the_repository_that_is_filled_in(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy_sources(copy)
    project = copy / "pyproject.toml"
    text = project.read_text()
    fields = re.findall(r'^# (\w+ = "https://github.com/OWNER/.*)$', text, re.MULTILINE)
    assert len(fields) == 4
    for field in fields:
        text = text.replace(f"# {field}", field.replace("OWNER", "someone"))
    project.write_text(text)
    addresses, targets = page_of(build_wheel(tmp_path / "built", copy))
    assert "Repository, https://github.com/someone/lake-tailer" in addresses
    assert len(addresses) == 4
    written = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    repository = f"https://github.com/someone/lake-tailer/blob/v{VERSION}/"
    assert targets == [target if "://" in target else repository + target for target in written]


def test_the_same_sources_give_the_same_bytes(built: Path, tmp_path: Path) -> None:
    """Whenever, wherever and by whomever they are built."""
    copy, again = tmp_path / "copy", tmp_path / "again"
    copy_sources(copy)
    uv("build", "--out-dir", again, copy)
    names = sorted(package.name for package in built.glob("lake*"))
    assert sorted(package.name for package in again.glob("lake*")) == names
    for name in names:
        assert (again / name).read_bytes() == (built / name).read_bytes(), name


def test_the_sdist_has_the_sources_and_the_documentation(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "hatch_build.py",
        "CHANGELOG.md",
        "docs/README.md",
        "examples/README.md",
        "tailer/py.typed",
    } <= names
    assert not [name for name in names if name.startswith(("tests", "uv.lock", ".ci"))]


def test_the_plain_install_is_small(bare: Installed) -> None:
    packages = {
        each["name"] for each in json.loads(uv("pip", "list", "--format", "json", "--python", bare.environment))
    }
    assert len(packages) <= PACKAGES, packages
    assert not packages & {"prometheus-client", "kafka-python", "deltalake", "pyspark", "pandas", "pytest"}


def test_the_plain_install_imports_nothing_that_is_missing(bare: Installed) -> None:
    for module, library in json.loads(bare.output("python", "-c", IMPORT_ALL)).items():
        assert library in NEED_EXTRAS, f"{module} needs {library}"
        assert f"{module}.".startswith(tuple(NEED_EXTRAS[library])), f"{module} needs {library}"


def test_the_plain_install_tails_a_table(bare: Installed) -> None:
    assert "tail " in bare.output("tailer", "--help")
    assert VERSION in bare.output("tailer", "--version")
    lines = bare.output("tailer", "tail", "shop", "--from", "earliest", "--to", "latest").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["id"], row["amount"], row["_change_type"]) for row in rows[-2:]] == [
        (2, 20.0, "delete"),
        (2, 21.0, "insert"),
    ]
    shown = bare.output("tailer", "tail", "shop", "--from", "1", "--to", "1", "--format", "table", "--compute-updates")
    assert "version 1" in shown
    assert json.loads(bare.output("tailer", "plan", "shop", "1", "--json"))


def test_the_plain_install_gives_changes_to_python(bare: Installed) -> None:
    assert bare.output("python", "-c", CHANGES) == f"{VERSION} 5 {10 + 20 + 30 + 20 + 21:.1f}\n"


def test_a_store_without_its_client_names_the_extra(bare: Installed) -> None:
    result = bare.run("python", "-c", OPEN_S3)
    remedy = "Install it: pip install 'lake-tailer[s3]'. Executors of Spark need it, too."
    assert result.stdout.splitlines() == [remedy] * 2, result.stderr


def test_a_cloud_without_its_client_names_the_extra(bare: Installed) -> None:
    result = bare.run("python", "-c", OPEN_CLOUD)
    remedies = [
        f"Install it: pip install 'lake-tailer[{extra}]'. Executors of Spark need it, too."
        for extra in ("gcs", "azure")
    ]
    assert result.stdout.splitlines() == [each for each in remedies for _ in range(2)], result.stderr
    result = bare.run("tailer", "tail", "gs://shop/orders", "--from", "earliest")
    assert result.returncode == 2
    assert "hint: " + remedies[0] in result.stderr


def test_the_plain_install_reads_a_configuration(bare: Installed) -> None:
    (bare.folder / "tailer.toml").write_text(FILES)
    bare.output("tailer", "check", "--config", "tailer.toml")
    bare.output("tailer", "progress", "show", "--config", "tailer.toml")
    result = bare.run("tailer", "run", "--config", "tailer.toml", TAILER_METRICS="127.0.0.1:0")
    assert result.returncode == 2
    assert "TAILER_METRICS: cannot be served: No module named 'prometheus_client'" in result.stderr
    assert "hint: Install it: pip install 'lake-tailer[daemon]'." in result.stderr


def test_completion_does_not_report_missing_extras(bare: Installed) -> None:
    asked = {"_TAILER_COMPLETE": "bash_complete", "COMP_WORDS": "tailer run ", "COMP_CWORD": "2"}
    result = bare.run("tailer", **asked)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_first_minute_of_the_readme(with_delta: Installed) -> None:
    readme = (ROOT / "README.md").read_text()
    script = next(block.text for block in blocks(readme) if block.language == "python")
    console = next(blocks(readme.partition("## See the changes")[2])).text
    with_delta.output("python", "-c", script)
    command, _, wanted = console.removeprefix("$ ").partition("\n")
    compare(wanted, with_delta.output(*command.split()), command)


def test_a_missing_library_is_named_with_its_extra(bare: Installed) -> None:
    (bare.folder / "tailer.toml").write_text(CONFIG)
    result = bare.run("tailer", "check", "--config", "tailer.toml")
    assert result.returncode == 2
    assert "the kafka sink cannot be loaded: No module named 'kafka'" in result.stdout
    for extra in ("daemon", "kafka-fast", "spark", "unity"):
        assert f"hint: Install it: pip install 'lake-tailer[{extra}]'." in result.stdout
    assert "4 faults" in result.stdout
