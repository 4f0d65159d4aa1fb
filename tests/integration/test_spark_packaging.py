"""Executors get lake-tailer with the job: the wheel as a zip file, or a packed environment.

Spark's Python has everything but lake-tailer. An image, or a path on every machine, is what all other tests of clusters
have; another release there is refused (`test_spark_release.py`).

On every landing: executors that get the wheel, in this module.
"""

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyspark
import pytest
from deltalake import DeltaTable, write_deltalake
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import tailer
import tailer.spark
from tailer.errors import TailerError
from tailer.spark.engine.engine import SparkEngine
from tailer.spark.engine.executors import Executors
from tailer.spark.native import comparing
from tests.support.follow import follow
from tests.support.spark.cluster import Driver, StandaloneCluster
from tests.support.uv import build_wheel, make_environment, uv

pytestmark = pytest.mark.spark

BY_KEY: Final[Mapping[str, Any]] = {"computeUpdates": True, "key": ["id"]}

Rows = Counter[tuple[str, ...]]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run drivers outside of our sources, which Python would find there."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of these sources."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the packages of this one, but without lake-tailer."""
    environment = tmp_path_factory.mktemp("bare") / "environment"
    uv("venv", "--python", sys.executable, environment)
    (there,) = environment.glob("lib/python*/site-packages")
    for each in Path(pyspark.__file__).parents[1].iterdir():
        if "lake_tailer" not in each.name and not (there / each.name).exists():
            (there / each.name).symlink_to(each)
    return environment / "bin" / "python"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A master and two workers."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose last version rewrites files."""
    path = tmp_path_factory.mktemp("table")
    for first in (0, 10):
        rows = pa.table({"id": pa.array(range(first, first + 10), pa.int64()), "v": ["a"] * 10})
        write_deltalake(path, rows, mode="append")
    DeltaTable(path).update(predicate="id % 10 = 1", updates={"v": "'b'"})
    return path


def counted(rows: pa.Table) -> Rows:
    """Count equal rows by their values but the time."""
    names = ("id", "v", "_change_type", "_commit_version")
    return Counter(zip(*(map(str, rows[name].to_pylist()) for name in names), strict=True))


def by_source(session: SparkSession, table: Path) -> Rows:
    """Read with the data source."""
    tailer.spark.register(session)
    return counted(session.read.format("tailer").option("startingVersion", 0).load(str(table)).toArrow())


def by_changes(session: SparkSession, table: Path) -> Rows:
    """Read with `tailer.spark.changes`, and share the comparison."""
    comparing.SHARED_BYTES = 0  # type: ignore[misc]
    return counted(tailer.spark.changes(session, table, **BY_KEY).toArrow())


def by_engine(session: SparkSession, table: Path) -> Rows:
    """Read with the engine, which compares nothing."""
    with closing(Executors(session)) as executors:
        return sum((counted(each.table) for each in follow(table, engine=SparkEngine(lambda: executors))), Counter())


Way = Callable[[SparkSession, Path], Rows]

EXPECTED: Final[Mapping[Way, Mapping[str, Any]]] = {
    by_source: {},
    by_changes: {"compute_updates": True, "key": ["id"]},
    by_engine: {"carryovers": "keep"},
}


def check(driver: Driver, table: Path) -> None:
    """Read in all ways with executors."""
    for way, options in EXPECTED.items():
        assert driver.call(way, table) == counted(tailer.changes(table, **options).to_arrow()), way.__name__


def error_of(session: SparkSession, way: Way, table: Path) -> str:
    """Return an error as text: Spark's own errors cannot be pickled."""
    with pytest.raises((PySparkException, Py4JError, TailerError)) as raised:
        way(session, table)
    return f"{raised.value} {getattr(raised.value, 'hint', '')}"


@pytest.mark.nightly
def test_a_file_that_is_named_as_a_wheel_is_not_taken(
    cluster: StandaloneCluster, bare: Path, wheel: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    with Driver(cluster.settings({"spark.submit.pyFiles": str(wheel)})) as driver:
        for way in (by_source, by_changes):
            assert "No module named 'tailer'" in driver.call(error_of, way, table)
        said = driver.call(error_of, by_engine, table)
    assert "executors do not have the Python module 'tailer'" in said
    assert "PYSPARK_PYTHON" in said


def test_the_wheel_as_a_zip_file(
    cluster: StandaloneCluster, bare: Path, wheel: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(wheel, tmp_path / "lake_tailer.zip")
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    with Driver(cluster.settings({"spark.submit.pyFiles": str(tmp_path / "lake_tailer.zip")})) as driver:
        check(driver, table)


@pytest.mark.nightly
def test_a_packed_environment(
    cluster: StandaloneCluster, wheel: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark plans with the same Python on the driver, at the same path, where the driver runs."""
    make_environment(tmp_path / "packed", wheel, "", "--relocatable")
    subprocess.run("tar -C packed -c . | gzip -1 >env.tar.gz", shell=True, check=True, cwd=tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", "env/bin/python")
    with Driver(cluster.settings({"spark.archives": f"{tmp_path}/env.tar.gz#env"})) as driver:
        assert 'Cannot run program "env/bin/python"' in driver.call(error_of, by_source, table)
        (tmp_path / "env").symlink_to(sys.prefix)
        check(driver, table)
