"""Random histories of Iceberg tables that Spark writes: our changes lead from the rows of each snapshot to the next.

Spark tells the rows of each snapshot when it is made, and its changelog view of them; we follow after some steps: so
branches are rolled back and snapshots expire while somebody follows. PyIceberg reads each snapshot, too.

On every landing: two histories, one of them with all options and commands, and `test_spark_iceberg.py` on executors.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

import tailer
import tailer.spark
from tests.support.daemon.commands import tailer as command
from tests.support.daemon.process import Daemon
from tests.support.iceberg.judge import Follower
from tests.support.iceberg.oracles import COMPARED
from tests.support.iceberg.spark.client import SparkHistory, SparkWriter
from tests.support.mirrors.databases import SqliteDatabase, mirrored
from tests.support.seeds import seeds
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.anyio]

STEPS: Final = 15
MANY: Final = 100
LANDED: Final = 0  # the seed of a landing

Change = tuple[tuple[str, Any], ...]


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkWriter]:
    """A process of Spark."""
    process = SparkWriter(tmp_path_factory.mktemp("iceberg"))
    yield process
    process.close()


async def follow(writer: SparkWriter, seed: int) -> list[Follower]:
    """Write a history, and follow its branches."""
    history, chance, followers = SparkHistory.begin(writer, seed), random.Random(seed), dict[str, Follower]()
    for number in range(STEPS):
        step = history.step()
        if number < STEPS - 1 and chance.random() < 0.3:
            continue
        for branch in ("main", *(name for name, (_, is_tag) in step.refs.items() if not is_tag and name != "main")):
            follower = followers.setdefault(branch, Follower(history, branch))
            try:
                await follower.follow()
            except Exception as error:
                error.add_note(f"{branch}: " + ", ".join(each.operation for each in history.steps))
                raise
    return list(followers.values())


def compared(followers: Iterable[Follower]) -> list[int]:
    """Return how many versions were compared with Spark's rows, PyIceberg's, and those of Spark's changelog view."""
    oracles = [follower.oracles for follower in followers]
    scans, views = (
        sum(counts, Counter[str]()) for counts in zip(*((one.scans, one.views) for one in oracles), strict=True)
    )
    print(f"PyIceberg: {dict(scans)}; changelog view: {dict(views)}")
    assert scans.total() == views.total()
    return [scans.total(), scans[COMPARED], views[COMPARED]]


@pytest.mark.parametrize("seed", seeds(1))
async def test_every_snapshot_is_the_one_before_with_its_changes(writer: SparkWriter, seed: int) -> None:
    counts = compared(await follow(writer, seed))
    assert seed != LANDED or min(counts) > 3


@pytest.mark.nightly
async def test_many_histories(writer: SparkWriter) -> None:
    first = 1000 + seeds(1).start
    followers = [await follow(writer, seed) for seed in range(first, first + MANY)]
    versions, scans, views = compared(one for some in followers for one in some)
    assert versions > 5 * MANY
    assert scans > versions // 2
    assert views > versions // 3


def is_keyed(seed: int) -> bool:
    """Return whether each row of a history has an id of its own, as a mirror needs it."""
    return seed % 2 == 0


def grow(history: SparkHistory, steps: int) -> None:
    """Go on with a history."""
    for _ in range(steps):
        history.step()


def main_line(history: SparkHistory) -> tuple[list[Mapping[str, Any]], int]:
    """Return the snapshots of the main branch that have numbers, and the first version whose changes can be read."""
    line = [snapshot for snapshot in history.steps[-1].line("main") if snapshot["number"]]
    is_cut = line[0]["parent"] not in (None, *history.steps[-1].snapshots)
    return line, line[0]["number"] + is_cut


@contextmanager
def mirrored_in_sqlite(history: SparkHistory, folder: Path) -> Iterator[None]:
    """Let a daemon mirror a history while it grows: at the end the mirror has Spark's rows, and `verify` says so.

    Where delivered snapshots are rolled back, the mirror begins anew with the next one: by itself, or by a command
    where it sees the older snapshot before there is a next one.
    """
    database, config = SqliteDatabase(folder / "mirror"), folder / "mirror.toml"
    options = ", ".join(f'{name} = "{value}"' for name, value in database.options.items())
    config.write_text(
        f"""
        [pipelines.orders]
        table = "{history.location}"
        start = "snapshot"
        on_data_loss = "resnapshot"
        poll_interval_s = 0.05
        sink = {{kind = "sql", key = ["id"], {options}}}
        """
    )
    daemon = Daemon(config)
    try:
        daemon.wait_until_running()
        yield
        newest = history.step(inserts=True).line("main")[-1]
        number, resumed = int(newest["number"]), list[int]()

        def is_there() -> bool:
            if daemon.said.count("it waits for a command") > len(resumed):
                resumed.append(command("resnapshot", "orders", "--config", config).returncode)
            return mirrored(database, "orders") == number

        until(is_there, said=lambda: daemon.said)
        assert not any(resumed), daemon.said
        assert daemon.terminate() == 0, daemon.said
    finally:
        if daemon.process.poll() is None:
            daemon.kill()
    answer = history.answers[newest["id"]]
    places = [answer.columns.index(name) for name in ("id", "p", "v")]
    rows = Counter(tuple(row[place] for place in places) for row in answer.rows)
    assert Counter(database.query("SELECT id, p, v FROM orders")) == rows
    verified = command("verify", "orders", "--config", config)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def changes(path: Path, **options: Any) -> list[Change]:
    """Return the changes that our library reads."""
    return [told(row) for batch in tailer.changes(path, **options) for row in batch.to_pylist()]


def told(row: dict[str, Any]) -> Change:
    """Return a row that can be compared."""
    return tuple((name, repr(value)) for name, value in sorted(row.items()))


def after(rows: list[Change], version: int) -> Counter[Change]:
    """Return the changes of later versions."""
    return Counter(row for row in rows if int(dict(row)["_commit_version"]) > version)


def effects(rows: list[Change]) -> Counter[Change]:
    """Return how often each version adds a row, less how often it takes it away."""
    found = Counter[Change]()
    for row in rows:
        values = dict(row)
        is_deleted = values.pop("_change_type") in ("'delete'", "'update_preimage'")
        found[tuple(values.items())] += -1 if is_deleted else 1
    return Counter({row: count for row, count in found.items() if count})


@pytest.mark.parametrize("seed", seeds(1))
def test_starts_options_and_commands(writer: SparkWriter, tmp_path: Path, seed: int) -> None:
    history = SparkHistory.begin(writer, 2000 + seed, plain=True, keyed=is_keyed(seed))
    grow(history, STEPS // 3)
    with mirrored_in_sqlite(history, tmp_path) if is_keyed(seed) else nullcontext():
        grow(history, STEPS - STEPS // 3)
    line, first = main_line(history)
    check_options(history, line, first)
    numbers = {snapshot["number"] for snapshot in history.steps[-1].line("main")}
    check_commands(history.location, sorted(numbers), tmp_path)


def check_options(history: SparkHistory, line: list[Mapping[str, Any]], first: int) -> None:
    """Check that each start and option gives the same changes."""
    path, rows = history.location, changes(history.location)
    assert all(int(dict(row)["_commit_version"]) >= first for row in rows)
    for snapshot in line[:: max(1, len(line) // 3)]:
        number = snapshot["number"]
        if number >= first:
            assert Counter(changes(path, start=number)) == after(rows, number - 1)
            only = changes(path, start=number, end=number)
            assert Counter(only) == after(rows, number - 1) - after(rows, number)
            since = min(each["number"] for each in line if each["time"] >= snapshot["time"])
            moment = datetime.fromtimestamp(snapshot["time"] / 1000, UTC)
            assert Counter(changes(path, start=moment)) == after(rows, since - 1)
    for name, (snapshot_id, is_tag) in history.steps[-1].refs.items():
        tagged = [snapshot["number"] for snapshot in line if is_tag and snapshot["id"] == snapshot_id]
        if tagged:
            assert Counter(changes(path, start=f"tag:{name}")) == after(rows, tagged[0])
    kept = [row for row in rows if dict(row)["id"] not in ("None", *map(str, range(5)))]
    assert effects(changes(path, where="id > 4")) == effects(kept)
    by_key = changes(path, compute_updates=True, key=["id"])
    assert effects(by_key) == effects(rows)
    inserts = changes(path, types=["insert"])
    assert Counter(inserts) == Counter(row for row in rows if dict(row)["_change_type"] == "'insert'")
    numbered = changes(path, row_ids=True)
    bare = [tuple(pair for pair in row if pair[0] not in ("_row_id", "_row_commit_version")) for row in numbered]
    assert effects(bare) == effects(rows)
    assert effects(changes(path, carryovers="keep")) == effects(rows)
    assert len(changes(path, start="snapshot")) == len(history.answers[line[-1]["id"]].rows)


def check_commands(path: Path, numbers: list[int], tmp_path: Path) -> None:
    """Check that the commands which look at a table see the versions `numbers`."""
    examined = command("doctor", path)
    assert examined.returncode == 0, examined.stdout + examined.stderr
    told_history = command("history", path, "--json")
    lines = json.loads(told_history.stdout)["lines"]
    assert [each["first_version"] for each in lines] == numbers
    for each in lines:
        assert each["commits"] == 1
        assert sum(each["operations"].values()) == 1
    planned = command("plan", path, numbers[-1], "--json")
    assert planned.returncode == 0, planned.stderr
    config = tmp_path / "tailer.toml"
    config.write_text(f'[pipelines.p]\ntable = "{path}"\nsink = {{kind = "files", path = "copy"}}\n')
    checked = command("check", "--connect", "--config", config)
    assert checked.returncode == 0, checked.stderr
    assert f"reached version {numbers[-1]} of {path}" in checked.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("seed", seeds(4))
def test_executors_read_what_threads_read(writer: SparkWriter, spark: SparkSession, seed: int) -> None:
    """The same on every landing, for one table: `test_spark_iceberg.py`."""
    tailer.spark.register(spark)
    history = SparkHistory.begin(writer, 4000 + seed, plain=True)
    grow(history, STEPS)
    frame = spark.read.format("tailer").option("startingVersion", "earliest").load(str(history.location))
    found = [told(row.asDict(recursive=True)) for row in frame.collect()]
    wanted = changes(history.location)
    assert effects([comparable(row) for row in found]) == effects([comparable(row) for row in wanted])


def comparable(row: Change) -> Change:
    """Return the values of a row that Spark and Arrow show alike."""
    names = ("_change_type", "_commit_version", "id", "p", "v")
    return tuple(pair for pair in row if pair[0] in names)
