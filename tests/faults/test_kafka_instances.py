"""Two daemons with one app_id, and frozen daemons: one continues, the other one ends with a clear error.

To brokers a daemon that was frozen for longer than its transaction timeout looks like one that was fenced. It may end
only if it really was.

On every landing: a frozen daemon that another one has taken over from, in this module; zombies of each client in
`faults/test_kafka_drivers.py`.
"""

import time
from pathlib import Path
from typing import Any

import pytest

from tailer_sinks.kafka.sink import OWNER_S
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import History
from tests.support.kafka.lanes import CLIENTS, Daemon, Lane, Lanes

SLOW: dict[str, Any] = {"transaction_timeout_s": 3.0, "transaction_rows": 2_000}
FENCED = 4  # the exit code


@pytest.fixture
def lanes(tmp_path: Path, kafka: KafkaCluster) -> Lanes:
    """Both clients, transactions of three seconds at most, and versions that take several transactions."""
    history = History(tmp_path / "table", seed=3, length=60, large=4_000, large_every=2)
    pipelines = [Lane(client) for client in CLIENTS]
    return Lanes(tmp_path, history, kafka.bootstrap_servers, pipelines, **SLOW)


@pytest.mark.nightly
def test_frozen_beyond_its_transaction_and_revived(lanes: Lanes) -> None:
    with lanes, Daemon(lanes.config) as daemon:
        daemon.await_running()
        late: set[str] = set()  # lanes whose transaction the broker aborted

        def another_is_open() -> bool:
            return any(lane.name not in late for lane in lanes.open())

        while len(late) < len(lanes.lanes):
            lanes.publish_until(daemon, another_is_open)
            daemon.freeze()
            late.update(lane.name for lane in lanes.open())
            daemon.wait_for(lambda: not lanes.open())  # the broker aborts them
            daemon.thaw()
        lanes.history.publish(4)
        lanes.await_caught_up(daemon)
        assert daemon.terminate() == 0, daemon.said
        assert "another instance" not in daemon.said
        lanes.check()


def test_frozen_taken_over_and_revived(lanes: Lanes) -> None:
    with lanes, Daemon(lanes.config) as first:
        first.await_running()
        lanes.history.publish(6)
        lanes.await_more(first)
        first.freeze()
        with Daemon(lanes.config) as second:
            lanes.history.publish(6)
            lanes.await_caught_up(second)
            first.thaw()
            lanes.history.publish(6)
            assert first.await_stop() == FENCED, first.said
            assert "another instance" in first.said
            lanes.history.publish(6)
            lanes.await_caught_up(second)
            assert second.terminate() == 0, second.said
        lanes.check()


def test_of_two_that_have_nothing_to_deliver_the_later_one_goes_on(lanes: Lanes) -> None:
    with lanes, Daemon(lanes.config) as first:
        lanes.await_caught_up(first)
        with Daemon(lanes.config) as second:
            second.wait_for(lambda: second.said.count("in place of instance") == len(lanes.lanes))
            began_s = time.monotonic()
            assert first.await_stop() == FENCED, first.said
            assert time.monotonic() - began_s < 3 * OWNER_S, first.said
            assert "another instance took over" in first.said
            lanes.history.publish(4)
            lanes.await_caught_up(second)
            assert second.terminate() == 0, second.said
        lanes.check()


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.sampled(2)
def test_of_two_that_start_at_once_one_goes_on(tmp_path: Path, kafka: KafkaCluster, client: str) -> None:
    history = History(tmp_path / "table", seed=4, length=8)
    with Lanes(tmp_path, history, kafka.bootstrap_servers, [Lane(client)]) as lanes:
        with Daemon(lanes.config) as one, Daemon(lanes.config) as other:
            both = [one, other]
            deadline = time.monotonic() + 60
            while not any(each.has_stopped for each in both):
                assert time.monotonic() < deadline, one.said + other.said
                time.sleep(0.05)
            ended, living = sorted(both, key=lambda each: not each.has_stopped)
            assert ended.await_stop() == FENCED, ended.said
            assert "another instance took over" in ended.said
            history.publish(4)
            lanes.await_caught_up(living)
            assert living.terminate() == 0, living.said
        lanes.check()


def test_second_one_takes_over_from_one_that_is_working(lanes: Lanes) -> None:
    with lanes, Daemon(lanes.config) as first:
        first.await_running()
        lanes.history.publish(4)
        lanes.await_more(first)
        with Daemon(lanes.config) as second:
            lanes.publish_until(second, lambda: first.has_stopped)
            assert first.await_stop() == FENCED, first.said
            assert "another instance" in first.said
            lanes.await_caught_up(second)
            assert second.terminate() == 0, second.said
        lanes.check()
