"""Executors with another release of lake-tailer than the driver: refused by name, before they read anything.

On every landing: what executors unpack first, which refuses, in this module.
"""

import pickle
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import tailer
from tailer.errors import ConfigError
from tailer.spark import register, release
from tailer.spark.engine.executors import Executors
from tailer.spark.release import SameRelease, unfit_executors
from tests.support.spark.cluster import Driver, StandaloneCluster
from tests.support.streams import Growing

pytestmark = pytest.mark.spark

OTHER = "0.0.9"
REFUSED = f"executors have lake-tailer {OTHER}, and the driver has {tailer.__version__}"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A driver of a cluster whose executors find the metadata of another release first."""
    folder = tmp_path_factory.mktemp("other")
    (folder / f"lake_tailer-{OTHER}.dist-info").mkdir()
    metadata = f"Metadata-Version: 2.4\nName: lake-tailer\nVersion: {OTHER}\n"
    (folder / f"lake_tailer-{OTHER}.dist-info" / "METADATA").write_text(metadata)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", str(folder))  # of the workers, which pass it on
        with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as cluster:
            patch.delenv("PYTHONPATH")
            with Driver(cluster.settings()) as driver:
                yield driver


def read(session: SparkSession, table: Path) -> str:
    """Return the error of the data source as text: Spark's own errors cannot be pickled."""
    register(session)
    try:
        return str(session.read.format("tailer").option("startingVersion", 0).load(str(table)).count())
    except PySparkException as error:
        return str(error)


def run(session: SparkSession) -> list[list[bytes]]:
    """Run a function on executors."""
    with closing(Executors(session)) as executors:
        return list(executors.run(lambda item: iter([b"%d" % item]), [1, 2, 3]))


@pytest.mark.nightly
def test_the_engine_refuses_it(driver: Driver) -> None:
    with pytest.raises(ConfigError, match=REFUSED) as raised:
        driver.call(run)
    assert "the same release" in raised.value.hint


@pytest.mark.nightly
def test_the_data_source_refuses_it(driver: Driver, tmp_path: Path) -> None:
    table = Growing(tmp_path / "t")
    table.insert([1])
    assert REFUSED in driver.call(read, table.path)


def test_the_same_release_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pickle.dumps((SameRelease(), "work"))
    assert pickle.loads(packed)[1] == "work"
    assert unfit_executors("no space left") is None
    monkeypatch.setattr(release, "_own_release", lambda: OTHER)
    with pytest.raises(ConfigError, match=f"have lake-tailer {OTHER}, and the driver has") as raised:
        pickle.loads(packed)
    again = unfit_executors(f"Traceback: {raised.value}. More text")
    assert again is not None
    assert (again.where, again.reason, again.hint) == (raised.value.where, raised.value.reason, raised.value.hint)
