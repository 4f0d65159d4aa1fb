"""`tailer progress`: its output over real sinks, and the daemon after a reset."""

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.daemon.commands import Orders, background, tailer
from tests.support.waiting import until

TWO = """
state_table = "state"
[pipelines.copy]
table = "orders"
sink = {kind = "delta", path = "copy"}
[pipelines.screen]
table = "orders"
sink = {kind = "stdout", format = "jsonl"}
"""
ONE = TWO[: TWO.index("[pipelines.screen]")]

Shown = dict[str, tuple[str, str, str]]


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """Three versions of a table beside a configuration."""
    return Orders(tmp_path / "orders").written()


def shown(config: Path) -> Shown:
    """Return delivered, latest and lag by pipeline."""
    done = tailer("progress", "show", "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    header, *lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert header == ["pipeline", "table", "app_id", "delivered", "latest", "lag"]
    for pipeline, table, app_id, *_ in lines:
        assert table == str(config.parent / "orders")
        assert app_id == f"{pipeline}/{DeltaTable(table).metadata().id}"
    return {line[0]: (line[3], line[4], line[5]) for line in lines}


def run_until(config: Path, done: Callable[[], bool]) -> list[str]:
    """Run the daemon until `done`, stop it, and return its lines on standard output."""
    with background("run", "--config", config) as daemon:
        until(done)
        daemon.terminate()
        out, _ = daemon.communicate(timeout=300)
    assert daemon.returncode == 0
    return out.splitlines()


def test_progress_is_what_the_sinks_say(orders: Orders) -> None:
    config = orders.configured(TWO)
    assert shown(config) == {"copy": ("nothing", "2", "-"), "screen": ("nothing", "2", "-")}
    lines = run_until(config, lambda: set(shown(config).values()) == {("2", "2", "0")})
    assert len(lines) == len(orders.changes)
    orders.insert(4)
    assert shown(config) == {"copy": ("2", "3", "1"), "screen": ("2", "3", "1")}


def test_a_pipeline_that_cannot_be_asked_does_not_hide_the_others(orders: Orders) -> None:
    config = orders.configured(ONE + '[pipelines.lost]\ntable = "lost"\nsink = {kind = "delta", path = "x"}')
    (orders.path.parent / "lost").touch()  # no table can come there
    done = tailer("progress", "show", "--config", config)
    assert done.returncode == 3
    assert done.stdout.splitlines()[1].startswith("copy\t")
    assert done.stderr.startswith(f"error: lost: {orders.path.parent}/lost: not a Delta table")


def test_going_forward_leaves_versions_out(orders: Orders) -> None:
    config = orders.configured(ONE)
    done = tailer("progress", "reset", "copy", "--config", config, "--to", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "copy: delivered until now: nothing",
        "copy: next version to be delivered: 2; the configured start no longer applies",
    ]
    assert shown(config) == {"copy": ("1", "2", "1")}
    run_until(config, lambda: shown(config) == {"copy": ("2", "2", "0")})
    assert orders.copied_to(orders.path.parent / "copy") == orders.changes[-1:]


@pytest.mark.long
def test_going_back_delivers_again(orders: Orders) -> None:
    config = orders.configured(TWO)
    run_until(config, lambda: set(shown(config).values()) == {("2", "2", "0")})
    done = tailer("progress", "reset", "screen", "--config", config, "--to", -1)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "screen: delivered until now: 2",
        "screen: next version to be delivered: 0; delivered again: versions 0 to 2",
    ]
    assert shown(config) == {"copy": ("2", "2", "0"), "screen": ("-1", "2", "3")}
    lines = run_until(config, lambda: set(shown(config).values()) == {("2", "2", "0")})
    assert len(lines) == len(orders.changes)


def test_a_sink_that_would_hold_rows_twice_refuses_to_go_back(orders: Orders) -> None:
    config = orders.configured(ONE)
    run_until(config, lambda: shown(config) == {"copy": ("2", "2", "0")})
    done = tailer("progress", "reset", "copy", "--config", config, "--to", 0)
    assert done.returncode == 4
    assert "DELETE FROM" in done.stderr
    assert shown(config) == {"copy": ("2", "2", "0")}


def test_a_dry_run_sets_nothing(orders: Orders) -> None:
    config = orders.configured(ONE)
    done = tailer("progress", "reset", "copy", "--config", config, "--to", 1, "--dry-run")
    assert done.returncode == 0
    assert (
        done.stdout.splitlines()[-1]
        == "dry run: nothing was changed, and the sink was not asked whether it accepts the change"
    )
    assert shown(config) == {"copy": ("nothing", "2", "-")}
    assert not (orders.path.parent / "copy").exists()


@pytest.mark.parametrize(
    ("options", "code", "error", "hint"),
    [
        (("--to", "1"), 2, "Missing argument 'PIPELINE'", "--help"),
        (("cpoy", "--to", "1"), 2, "no pipeline 'cpoy'", "Did you mean 'copy'? There are: copy, screen."),
        (("copy", "--to", "7"), 3, "version 7 does not exist yet", "up to 2"),
        (("copy", "--to", "-2"), 2, "-2 is not in the range", "--help"),
        (("copy",), 2, "Missing option '--to'", "--help"),
    ],
)
def test_a_reset_that_makes_no_sense_is_refused(
    orders: Orders, options: tuple[str, ...], code: int, error: str, hint: str
) -> None:
    config = orders.configured(TWO)
    done = tailer("progress", "reset", *options, "--config", config)
    assert (done.returncode, done.stdout) == (code, "")
    first, second = done.stderr.splitlines()
    assert error in first
    assert hint in second
    assert shown(config) == {"copy": ("nothing", "2", "-"), "screen": ("nothing", "2", "-")}
