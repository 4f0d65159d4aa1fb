"""Executors: results in order, errors unchanged, jobs that end on request.

With Spark in this process, and with a standalone cluster of two workers.

On every landing: the same on a local Spark, in this module; a cluster whose executors read
(`integration/test_spark_packaging.py`), and one whose executors are killed while they write (`faults/`).
"""

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from pyspark.sql import SparkSession

from tailer.config.shapes import SparkSettings
from tailer.errors import ConfigError, FileVacuumed, Retry, StorageUnavailable
from tailer.spark.engine.executors import Executors
from tailer.spark.session import close_session, engine_name, is_alive, open_session
from tests.support.spark.cluster import Driver, StandaloneCluster
from tests.support.waiting import until

pytestmark = pytest.mark.spark

PATIENCE_S: Final = 600
ITEMS: Final = [3, 0, 1, 40, 2, 0, 7, 5, 11, 1, 0]

Work = Callable[[int], Iterator[bytes]]


@pytest.fixture
def executors(spark: SparkSession) -> Iterator[Executors]:
    """The executors under test."""
    with closing(Executors(spark)) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A master and two workers."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="module")
def driver(cluster: StandaloneCluster) -> Iterator[Driver]:
    """A driver of the cluster; Spark runs slow tasks twice (speculation)."""
    speculative = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.minTaskRuntime": "0ms",
    }
    with Driver(cluster.settings(speculative)) as found:
        yield found


def counting() -> Work:
    """Yield as many chunks as the item says; a closure, because executors cannot import this module."""

    def count(item: int) -> Iterator[bytes]:
        for chunk in range(item):
            yield b"%d of %d" % (chunk, item)

    return count


def failing() -> Work:
    """Yield one chunk, then raise an error for some items."""

    def fail(item: int) -> Iterator[bytes]:
        yield b"first"
        if item == 3:
            raise FileVacuumed("orders", 7, "part-0.parquet")
        if item == 4:
            raise StorageUnavailable("orders", "slow down")
        if item == 5:
            raise ValueError("of no kind of ours")

    return fail


def waiting(folder: Path) -> Work:
    """Make items that write a file in `folder` and never end."""

    def wait(item: int) -> Iterator[bytes]:
        (folder / str(item)).touch()
        time.sleep(1000)
        yield b""

    return wait


def waiting_once(folder: Path) -> Work:
    """Item 3 writes a file with its process id to `folder` and never ends; its second attempt ends."""

    def wait(item: int) -> Iterator[bytes]:
        begun = folder / "begun"
        yield b"before"
        if item == 3 and not begun.exists():
            begun.with_suffix(".new").write_text(str(os.getppid()))
            begun.with_suffix(".new").replace(begun)
            time.sleep(1000)
        yield b"%d" % item

    return wait


def frozen() -> Work:
    """Count the objects that the worker's garbage collector ignores."""

    def count(_item: int) -> Iterator[bytes]:
        yield b"%d" % gc.get_freeze_count()

    return count


def expected(items: list[int]) -> list[list[bytes]]:
    """Return the chunks of `counting`."""
    return [list(counting()(item)) for item in items]


def await_files(folder: Path, count: int) -> None:
    """Return when there are so many files."""
    until(lambda: len(list(folder.iterdir())) >= count, lambda: len(list(folder.iterdir())))


def test_results_come_in_the_order_of_items(executors: Executors) -> None:
    assert list(executors.run(counting(), ITEMS)) == expected(ITEMS)
    assert list(executors.run(counting(), [])) == []


def test_runs_of_one_session_do_not_mix(executors: Executors) -> None:
    with closing(executors.run(counting(), ITEMS)) as one, closing(executors.run(counting(), ITEMS[::-1])) as other:
        assert list(zip(one, other, strict=True)) == list(zip(expected(ITEMS), expected(ITEMS[::-1]), strict=True))


def test_modules_are_not_looked_at_after_each_task(executors: Executors) -> None:
    counts = [int(count) for (count,) in executors.run(frozen(), [0] * 8)]
    assert any(counts), "two workers had eight tasks"


def test_all_cores_are_counted(executors: Executors) -> None:
    assert executors.parallelism == 2


def test_no_more_than_a_window_is_under_way(executors: Executors, tmp_path: Path) -> None:
    def tell(item: int) -> Iterator[bytes]:
        (tmp_path / str(item)).touch()
        yield b""

    with closing(executors.run(tell, list(range(20)))) as run:
        next(run)
        await_files(tmp_path, 5)
        # Only results that were taken and a window after them are begun; a slow item does not change that.
        assert {int(path.name) for path in tmp_path.iterdir()} == set(range(5))


@pytest.mark.parametrize(("item", "retry"), [(3, Retry.MANUAL), (4, Retry.TIMED)])
def test_our_errors_arrive_as_they_were_raised(executors: Executors, item: int, retry: Retry) -> None:
    run = executors.run(failing(), [0, 1, item, 2])
    assert [next(run), next(run)] == [[b"first"], [b"first"]]
    with pytest.raises((FileVacuumed, StorageUnavailable)) as raised:
        next(run)
    assert raised.value.retry is retry
    known = {3: FileVacuumed("orders", 7, "part-0.parquet"), 4: StorageUnavailable("orders", "slow down")}[item]
    assert (type(raised.value), raised.value.fields) == (type(known), known.fields)
    with pytest.raises(CancelledError):
        next(run)


def test_any_other_error_arrives_with_its_trace(executors: Executors) -> None:
    with pytest.raises(ValueError, match="of no kind of ours") as raised:
        list(executors.run(failing(), [5]))
    assert "in fail" in raised.value.__notes__[0]


def test_an_error_that_cannot_be_pickled_keeps_its_text(executors: Executors) -> None:
    def fail(item: int) -> Iterator[bytes]:
        yield b"%d" % item
        raise ValueError("has a lock", threading.Lock())

    with pytest.raises(RuntimeError, match=r"ValueError: .*has a lock"):
        list(executors.run(fail, [1]))


@pytest.mark.parametrize("stopped_by", ["run", "executors"])
def test_a_run_can_be_stopped_from_another_thread(executors: Executors, tmp_path: Path, stopped_by: str) -> None:
    run = executors.run(waiting(tmp_path), [0, 1, 2, 3])

    def stop() -> None:
        await_files(tmp_path, 2)
        (run.close if stopped_by == "run" else executors.cancel)()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(CancelledError):
        next(run)
    thread.join(PATIENCE_S)
    # Stopped jobs hold no core.
    assert list(executors.run(counting(), [2, 2])) == expected([2, 2])


def test_work_that_executors_do_not_know_is_a_fault_of_the_installation(
    executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_here = ModuleType("only_here")
    exec("def work(item):\n    yield b''", only_here.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", only_here)
    with pytest.raises(ConfigError) as raised:
        list(executors.run(only_here.work, [1]))
    assert "do not have the Python module 'only_here'" in raised.value.reason
    assert "PYSPARK_PYTHON" in raised.value.hint


def run_counting(session: SparkSession, items: list[int]) -> list[list[bytes]]:
    """Run `counting` on a driver of the cluster."""
    with closing(Executors(session)) as executors:
        assert executors.parallelism == 2
        return list(executors.run(counting(), items))


def run_waiting_once(session: SparkSession, folder: Path, items: list[int]) -> list[list[bytes]]:
    """Run `waiting_once` on a driver of the cluster."""
    with closing(Executors(session)) as executors:
        return list(executors.run(waiting_once(folder), items))


@pytest.mark.nightly
def test_a_cluster_gives_the_same(driver: Driver) -> None:
    assert driver.call(run_counting, ITEMS) == expected(ITEMS)


@pytest.mark.nightly
def test_a_killed_executor_changes_nothing(driver: Driver, cluster: StandaloneCluster, tmp_path: Path) -> None:
    driver.call(run_counting, [1])
    running = driver.start(run_waiting_once, tmp_path, list(range(8)))
    await_files(tmp_path, 1)
    for pid in cluster.executor_pids():
        cluster.kill_executor(pid)
    assert running.result(PATIENCE_S) == [[b"before", b"%d" % item] for item in range(8)]


def test_a_fitting_running_session_is_used_and_left_running(spark: SparkSession) -> None:
    found = open_session(SparkSettings("local[2]", conf={"spark.ui.enabled": "false"}))
    assert found.sparkContext is spark.sparkContext
    close_session(found)
    assert is_alive(spark)
    assert engine_name(spark) == "Spark at local[2]"


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        (SparkSettings("local[3]"), "spark.master"),
        (
            SparkSettings("local[2]", conf={"spark.hadoop.some.secret": "hunter2"}),
            "spark.conf.spark.hadoop.some.secret",
        ),
    ],
)
@pytest.mark.usefixtures("spark")
def test_a_running_session_with_other_settings_is_refused(settings: SparkSettings, where: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_session(settings)
    assert raised.value.where == where
    assert "runs in this process already" in raised.value.reason
    assert "hunter2" not in f"{raised.value} {raised.value.hint}"
