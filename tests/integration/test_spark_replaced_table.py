"""A writer of a Delta target that is frozen in a commit while its source is made anew: it is fenced when it wakes up.

Its successor begins with the new table, whose progress is under another app id. Both are the driver or executors.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Final

import anyio
import pytest
from pyspark.sql import SparkSession

from tailer.errors import SinkFenced, TableReplaced
from tailer.pipeline.policy import OnDataLoss, Policy
from tailer.progress.lookup import set_progress
from tailer.sink import Append, Merge
from tailer_sinks.delta.options import read
from tests.support.spark.executor_writes import LIMITS, Delivering, Interrupted, InterruptedMirror, rows_of
from tests.support.tables.handwritten import HandwrittenTable

FORMER_ID: Final = "11111111-2222-3333-4444-555555555555"
LATER_ID: Final = "22222222-3333-4444-5555-666666666666"
MIRROR: Final[Mapping[str, Any]] = {"mode": "mirror", "key": ["id"]}
LAST: Final = 3  # version of each table
PATIENCE_S: Final = 300

Act = Callable[[], None]
When = Callable[[Act, Path, Append], Append]
Writer = Callable[[Delivering, SparkSession], None]


@pytest.fixture
def delivering(tmp_path: Path) -> Delivering:
    """A pipeline from a table, with a row in each version, to a target that does not exist yet."""
    write_table(tmp_path / "source", FORMER_ID, 0)
    return Delivering(tmp_path / "source", tmp_path / "target")


def write_table(path: Path, table_id: str, before: int) -> None:
    """Write versions with the rows `before` + 1, `before` + 2 and so on, one each."""
    table = HandwrittenTable(path)
    created = table.commit_file()
    created.write_text(created.read_text().replace(FORMER_ID, table_id))
    for number in range(before + 1, before + LAST + 1):
        table.commit(table.add(table.data(f"{number}.parquet", [number])))


def replace_table(path: Path) -> None:
    """Make the table anew, with the rows 11, 12 and 13. Files of the former one stay for those about to read them."""
    (path / "_delta_log").rename(path / "former_log")
    write_table(path, LATER_ID, 10)


def by_driver(delivering: Delivering, _spark: SparkSession) -> None:
    """Deliver all with the driver."""
    delivering.by_driver()


def by_executors(delivering: Delivering, spark: SparkSession) -> None:
    """Deliver all with executors."""
    delivering.by_executors(spark)


def before_job(act: Act, _folder: Path, append: Append) -> Append:
    """Act between the look at the target and the job."""
    act()
    return append


def in_job(act: Act, folder: Path, append: Append) -> Append:
    """Act while a task of the job waits: Spark's transaction is open."""

    def act_meanwhile() -> None:
        await_file(folder / "running")
        try:
            act()
        finally:
            (folder / "go").touch()

    Thread(target=act_meanwhile, daemon=True).start()
    return replace(append, check=partial(check_then_wait, append.check, folder))


def check_then_wait(check: Act, folder: Path) -> None:
    """Check that the commit is due, and wait. Runs in a task of the job."""
    check()
    (folder / "running").touch()
    await_file(folder / "go")


def await_file(file: Path) -> None:
    """Wait until another thread or process has made a file."""
    deadline = time.monotonic() + PATIENCE_S
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def executors_are_frozen(delivering: Delivering, spark: SparkSession, when: When, act: Act) -> None:
    """Deliver with executors, the first commit of which is late: `act` comes first."""
    acts, folder = [act], delivering.target.parent

    def then(append: Append) -> Append:
        return when(acts.pop(), folder, append) if acts else append

    def then_merge(merge: Merge) -> Merge:
        late = then(merge)
        assert isinstance(late, Merge)
        return late

    sink: Interrupted | InterruptedMirror
    if delivering.options is None:
        sink = Interrupted(delivering.name, **delivering.settings.sink_options)
        sink.then = then
    else:
        sink = InterruptedMirror(delivering.name, read(delivering.name, delivering.settings.sink_options))
        sink.then = then_merge
    with suppress(SinkFenced, TableReplaced):
        anyio.run(delivering.executors(lambda: spark, LAST, sink).run)
    assert not acts


def driver_is_frozen(delivering: Delivering, monkeypatch: pytest.MonkeyPatch, act: Act) -> None:
    """Deliver with the driver, the first commit of which is late: `act` comes first."""
    acts, sink = [act], delivering.sink()
    commit = sink._table.commit

    def commit_late(*arguments: Any) -> None:
        if acts:
            acts.pop()()
        commit(*arguments)

    monkeypatch.setattr(sink._table, "commit", commit_late)
    with suppress(SinkFenced, TableReplaced):
        anyio.run(delivering.driver(LAST, LIMITS, sink).run)
    assert not acts


def check_fenced(delivering: Delivering, *before: int) -> None:
    """Check that the target has the rows of the later table, and of the former one nothing but those `before`."""
    found = sorted(int(dict(row)["id"]) for row in rows_of(delivering.target).elements())
    assert found == [*before, 11, 12, 13]
    assert delivering.progress(LATER_ID) == LAST


@pytest.mark.parametrize("successor", [by_driver, by_executors])
@pytest.mark.parametrize("when", [in_job, before_job])
def test_executors_that_append(delivering: Delivering, spark: SparkSession, when: When, successor: Writer) -> None:
    """Nothing was delivered before, so the successor begins by itself."""

    def take_over() -> None:
        replace_table(delivering.source)
        successor(delivering, spark)

    executors_are_frozen(delivering, spark, when, take_over)
    check_fenced(delivering)


@pytest.mark.parametrize("when", [in_job, before_job])
def test_executors_that_have_appended(delivering: Delivering, spark: SparkSession, when: When) -> None:
    """An operator begins with the new table, as after any pipeline that finds another one in the place of the first."""
    delivering.by_executors(spark, 1)

    def take_over() -> None:
        replace_table(delivering.source)
        anyio.run(set_progress, delivering.name, delivering.log(), delivering.sink(), 0)
        delivering.by_executors(spark)

    executors_are_frozen(delivering, spark, when, take_over)
    check_fenced(delivering, 1)


def test_a_driver_whose_successor_appends_by_executors(
    delivering: Delivering, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was delivered before."""

    def take_over() -> None:
        replace_table(delivering.source)
        delivering.by_executors(spark)

    driver_is_frozen(delivering, monkeypatch, take_over)
    check_fenced(delivering)


@pytest.mark.parametrize("when", [in_job, before_job])
def test_executors_that_merge(delivering: Delivering, spark: SparkSession, when: When) -> None:
    """Spark's MERGE commits the next version of a mirror or none, so any commit of the successor fences it."""
    mirror = replace(delivering, options=MIRROR)
    mirror.by_driver(1)

    def take_over() -> None:
        replace_table(mirror.source)
        replace(mirror, policy=Policy(on_data_loss=OnDataLoss.RESNAPSHOT)).by_driver()

    executors_are_frozen(mirror, spark, when, take_over)
    check_fenced(mirror)
