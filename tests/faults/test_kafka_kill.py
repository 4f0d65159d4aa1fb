"""SIGKILL of the real daemon while it delivers to Kafka: the five figures are 0 for every reader and both clients.

Kills come right after a commit becomes visible, so at any point of the next transactions, and while the daemon starts.
The test also asserts that some kills interrupted transactions.

On every landing: four kills, in this module.
"""

import random
import time
from pathlib import Path

import pytest

from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import History
from tests.support.kafka.lanes import CLIENTS, FORMS, Daemon, Lane, Lanes
from tests.support.seeds import repeats, seeds

KILLS = repeats(4)
FEW_KILLS = 2
MANY_KILLS = 200


def killed(lanes: Lanes, kills: int, commits: int) -> None:
    """Start and kill daemons, with at most `commits` new versions each, then let one deliver the rest."""
    history = lanes.history
    moments = random.Random(history.seed)
    for number in range(kills):
        history.publish(moments.randrange(commits))  # published while no daemon runs
        with Daemon(lanes.config) as daemon:
            if number % 5 == 4:  # before it has done anything, or much
                time.sleep(moments.uniform(0.2, 1.5))
            else:
                daemon.await_running()
                if number % 5 < 2:
                    lanes.freeze_in_transaction(daemon)
                else:
                    history.publish(moments.randint(1, commits))
                    lanes.await_more(daemon)
                    time.sleep(moments.uniform(0.0, 0.25))
            daemon.kill()
    history.publish(history.length)
    with Daemon(lanes.config) as daemon:
        daemon.await_running()
        lanes.await_caught_up(daemon)
        assert daemon.terminate() == 0, daemon.said
    lanes.check()


@pytest.mark.smoke
def test_killed_once(tmp_path: Path, kafka: KafkaCluster) -> None:
    history = History(tmp_path / "table", seed=3, length=80, large=600, large_every=5)
    with Lanes(tmp_path, history, kafka.bootstrap_servers, [Lane(client) for client in CLIENTS]) as lanes:
        killed(lanes, 1, 5)


def test_killed_again_and_again(tmp_path: Path, kafka: KafkaCluster) -> None:
    history = History(tmp_path / "table", seed=1, length=160, large=600, large_every=5)
    pipelines = [*(Lane(client) for client in CLIENTS), Lane("kafka-python", "flat")]
    with Lanes(tmp_path, history, kafka.bootstrap_servers, pipelines) as lanes:
        killed(lanes, KILLS, 5)
        assert lanes.torn() > 0, "no kill hit a transaction"


def test_killed_with_rows_that_are_too_large(tmp_path: Path, kafka: KafkaCluster) -> None:
    history = History(tmp_path / "table", seed=6, length=60, large=600, large_every=10, long_notes=0.1)
    letters = {"large_records": "dead_letter", "max_record_bytes": 2_000}
    pipelines = [Lane(client, options=letters | {"boundary": "version"}) for client in CLIENTS]
    with Lanes(tmp_path, history, kafka.bootstrap_servers, pipelines) as lanes:
        killed(lanes, FEW_KILLS, 5)


def test_killed_with_chosen_rows_in_topics_of_their_own(tmp_path: Path, kafka: KafkaCluster) -> None:
    history = History(tmp_path / "table", seed=8, length=80, large=600, large_every=10)
    pipelines = [Lane(client, routed=True, chosen=True) for client in CLIENTS]
    with Lanes(tmp_path, history, kafka.bootstrap_servers, pipelines) as lanes:
        killed(lanes, FEW_KILLS, 5)


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_killed_two_hundred_times(tmp_path: Path, kafka: KafkaCluster) -> None:
    history = History(tmp_path / "table", seed=seeds(1).start, length=1600, large=400, large_every=10)
    pipelines = [Lane(client, form) for client in CLIENTS for form in FORMS]
    with Lanes(tmp_path, history, kafka.bootstrap_servers, pipelines) as lanes:
        killed(lanes, MANY_KILLS, 5)
        assert lanes.torn() > 0, "no kill hit a transaction"
