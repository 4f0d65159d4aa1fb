"""SIGKILL of the real daemon at random moments: nothing is missing, nothing is duplicated, versions come in order.

Delivered rows are read from the destination with its own reader, and compared with the model of the history and with
the versions read again from the log.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable

from tailer.events import METADATA_FIELDS
from tests.support.daemon.process import (
    Daemon,
    Delivered,
    DeltaDestination,
    Destination,
    FilesDestination,
    SqlDestination,
    delivered,
)
from tests.support.follow import follow
from tests.support.histories.long_history import Change, LongHistory
from tests.support.seeds import repeats

KILLS: Final = 11
FEW_KILLS: Final = 3
TERMINATIONS: Final = 8
COMMITS: Final = 300
CHOSEN_KILLS: Final = repeats(2)
CHOSEN_COMMITS: Final = 100  # the rows of version 20 are three row groups, of which the condition leaves out one
CHOSEN: Final = """\
where = "id % 3 <> 0 AND id NOT BETWEEN 2000 AND 4500"
select = "concat('row ', CAST(id AS STRING)) AS name, id"
"""
OF_ONE_IMAGE: Final = {"update_preimage": "delete", "update_postimage": "insert"}

DESTINATIONS: Final[dict[str, Callable[[Path, str], Destination]]] = {
    "delta": DeltaDestination,
    "files": FilesDestination,
    "sql": SqlDestination,
}

Rows = Callable[[Delivered], Delivered]


@pytest.fixture(params=["delta", "files", "sql"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of the sink."""
    return str(request.param)


@pytest.fixture
def commits() -> int:
    """The number of versions."""
    return COMMITS


@pytest.fixture
def options() -> str:
    """More options of the pipeline."""
    return ""


@pytest.fixture
def history(tmp_path: Path, kind: str, commits: int) -> LongHistory:
    """A busy table."""
    return LongHistory(tmp_path / "source", seed=len(kind), length=commits)


@pytest.fixture
def destination(tmp_path: Path, kind: str, history: LongHistory) -> Destination:
    """The destination of its changes."""
    return DESTINATIONS[kind](tmp_path / "target", f"orders/{history.table_id}")


@pytest.fixture
def config(tmp_path: Path, history: LongHistory, destination: Destination, options: str) -> Path:
    """The daemon's configuration."""
    path = tmp_path / "tailer.toml"
    pipeline = f'[pipelines.orders]\ntable = "{history.path}"\nstart = "earliest"\npoll_interval_s = 0.05\n'
    path.write_text(f"{pipeline}{options}[pipelines.orders.sink]\n{destination.sink}")
    return path


def all_rows(version: Delivered) -> Delivered:
    """Return the rows that a pipeline without a condition delivers of a version."""
    return version


def chosen_rows(version: Delivered) -> Delivered:
    """Return the rows that a pipeline with the options `CHOSEN` delivers of a version.

    The history writes all preimages of an update before its postimages, with ascending ids: only the last preimage and
    the first postimage lie side by side, so that they stay images if both fulfil the condition.
    """
    before, after = ([row[2] for row in version if row[1] == kind] for kind in OF_ONE_IMAGE)
    pair = {max(before), min(after)} if before and after else set()
    images = pair if all(map(fulfils, pair)) else set()
    return [
        (number, kind if one in images else OF_ONE_IMAGE.get(kind, kind), one, moment)
        for number, kind, one, moment in version
        if fulfils(one)
    ]


def fulfils(one: int) -> bool:
    """Return whether the row with this id fulfils the condition in `CHOSEN`."""
    return one % 3 != 0 and not 2000 <= one <= 4500


def check(history: LongHistory, destination: Destination, last: int, wanted: Rows = all_rows) -> None:
    """Check that all versions up to `last` are delivered: every row once, versions whole and in order.

    `wanted`: the rows of a version that are to be delivered, from all of its rows.
    """
    seen = -1
    found: Counter[tuple[int, str, int, int]] = Counter()
    for transaction in destination.transactions():
        versions = sorted({row[0] for row in transaction})
        assert not versions or versions[0] > seen, f"version {versions[0]} comes after version {seen}"
        seen = max([seen, *versions])
        found.update(transaction)
    versions_read = [list(delivered(version.table)) for version in follow(history.path, 0, last)]
    modelled: Counter[Change] = Counter({change: n for change, n in history.changes.items() if change[0] <= last})
    assert Counter(row[:3] for rows in versions_read for row in rows) == modelled
    expected = Counter(row for rows in versions_read for row in wanted(rows))
    assert not expected - found, f"missing: {list((expected - found).items())[:5]}"
    assert not found - expected, f"doubled or wrong: {list((found - expected).items())[:5]}"


def kill_again_and_again(
    history: LongHistory, destination: Destination, config: Path, started: list[Daemon], kills: int
) -> None:
    """Kill daemons while versions are published, then let one deliver the rest."""
    moments = random.Random(history.seed)
    reached: list[int] = []
    for number in range(kills):
        history.publish(1 + moments.randrange(4))  # published while no daemon runs
        started.append(Daemon(config))
        started[-1].wait_until_running()
        if number % 2:
            started[-1].wait_until_reached(destination, reached[-1] + 1)
        killed_at = time.monotonic() + moments.uniform(0.0, 1.5)
        while time.monotonic() < killed_at:
            if history.published < history.length * (number + 1) // (kills + 1):  # something is left for the next one
                history.publish(moments.randrange(5))
            time.sleep(moments.uniform(0.0, 0.15))
        started[-1].kill()
        reached.append(destination.reached())
    history.publish(history.length)
    started.append(Daemon(config))
    started[-1].wait_until_running()
    started[-1].wait_until_reached(destination, history.last)
    assert started[-1].terminate() == 0, started[-1].said
    print(f"killed at versions {reached}")


@pytest.mark.parametrize(
    "kills",
    [FEW_KILLS, pytest.param(KILLS, marks=pytest.mark.nightly)],
)
def test_killed_again_and_again(
    history: LongHistory, destination: Destination, config: Path, started: list[Daemon], kills: int
) -> None:
    kill_again_and_again(history, destination, config, started, kills)
    check(history, destination, history.last)


@pytest.mark.parametrize(("kind", "commits", "options"), [("delta", CHOSEN_COMMITS, CHOSEN)], ids=["delta"])
def test_killed_with_chosen_rows_and_columns(
    history: LongHistory, destination: DeltaDestination, config: Path, started: list[Daemon]
) -> None:
    kill_again_and_again(history, destination, config, started, CHOSEN_KILLS)
    check(history, destination, history.last, chosen_rows)
    target = DeltaTable(destination.path).to_pyarrow_table()
    assert target.column_names == ["name", "id", *(field.name for field in METADATA_FIELDS)]
    assert target["name"].to_pylist() == [f"row {one}" for one in target["id"].to_pylist()]


@pytest.mark.sampled(2)
def test_terminated_while_busy(
    history: LongHistory, destination: Destination, config: Path, started: list[Daemon]
) -> None:
    history.publish(history.length)
    stops: list[int] = []
    while len(stops) < TERMINATIONS and destination.reached() < history.last:
        started.append(Daemon(config))
        started[-1].wait_until_running()
        time.sleep(0.4)
        started[-1].wait_until_reached(destination, 0)  # the first rows, however busy the machine is
        assert started[-1].terminate() == 0, started[-1].said
        stops.append(destination.reached())
        if len(stops) == 2:
            check(history, destination, stops[-1])
    print(f"terminated at versions {stops}")
    assert len(set(stops)) > len(stops) // 3, f"the daemon hardly got anywhere between terminations: {stops}"
    started.append(Daemon(config))
    started[-1].wait_until_running()
    started[-1].wait_until_reached(destination, history.last)
    assert started[-1].terminate() == 0, started[-1].said
    check(history, destination, history.last)
