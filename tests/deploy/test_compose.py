"""The parts of the compose file together, without Docker: its S3 server, its table, its configuration, and a Kafka."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.files import DEPLOY
from tests.support.daemon.commands import background, tailer
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.topics import create_topic, read_topic, unique_name
from tests.support.s3.server import S3Server
from tests.support.waiting import until

FOLDER: Final = DEPLOY / "compose"


@pytest.fixture
def variables(versitygw: S3Server) -> dict[str, str]:
    """The variables of the services `table` and `daemon`."""
    return {**versitygw.environment, "AWS_REGION": "us-east-1"}


def commit(variables: dict[str, str]) -> int:
    """Run the service `table`; return the version of the table after it."""
    command = [sys.executable, str(FOLDER / "make_table.py")]
    made = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    uri, _, version = made.stdout.strip().rpartition(": version ")
    assert uri == "s3://lake/shop/orders"
    return int(version)


def expected(version: int) -> dict[int, float]:
    """Return the amount of each id. Each round inserts five rows, updates the second and deletes the fourth."""
    firsts = range(1, 5 * (version + 1) // 4, 5)
    return {first + n: 10.0 * (first + n) + (n == 1) for first in firsts for n in (0, 1, 2, 4)}


def test_the_table_can_be_followed_and_grows_with_each_round(variables: dict[str, str]) -> None:
    before = commit(variables)
    assert commit(variables) == before + 4
    followed = tailer("tail", "s3://lake/shop/orders", "--from", "earliest", "--to", "latest", cwd=None, **variables)
    assert followed.returncode == 0, followed.stderr
    table: dict[int, float] = {}
    for line in followed.stdout.splitlines():
        row = json.loads(line)
        if row["_change_type"] == "delete":
            assert table.pop(row["id"]) == row["amount"]
        else:
            assert table.setdefault(row["id"], row["amount"]) == row["amount"]
    assert table == expected(before + 4)


def folded(kafka: KafkaCluster, topic: str) -> dict[int, float]:
    """Return the amount of each id after all messages of a topic."""
    table: dict[int, float] = {}
    for record in read_topic(kafka.bootstrap_servers, topic):
        if record.value is None:
            continue
        message: dict[str, Any] = json.loads(record.value)
        if message["op"] == "d":
            del table[message["before"]["id"]]
        else:
            table[message["after"]["id"]] = message["after"]["amount"]
    return table


@pytest.mark.kafka
def test_the_configuration_delivers_the_table_and_what_follows(
    variables: dict[str, str], kafka: KafkaCluster, versitygw: S3Server, tmp_path: Path
) -> None:
    version = commit(variables)
    topic = create_topic(kafka.bootstrap_servers, unique_name(), partitions=3)
    here = {
        "TAILER_METRICS": "127.0.0.1:0",
        "TAILER_STORES__LAKE__ENDPOINT": versitygw.endpoint,
        "TAILER_PIPELINES__ORDERS__SINK__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "TAILER_PIPELINES__ORDERS__SINK__TOPIC": topic,
        "TMPDIR": str(tmp_path),
    }
    del variables["AWS_ENDPOINT_URL"]  # the configuration names it
    with background("run", "--config", FOLDER / "tailer.toml", **variables, **here) as daemon:
        until(lambda: folded(kafka, topic) == expected(version))
        assert commit({**variables, "AWS_ENDPOINT_URL": versitygw.endpoint}) == version + 4
        until(lambda: folded(kafka, topic) == expected(version + 4))
        daemon.terminate()
        daemon.communicate(timeout=40)
    assert daemon.returncode == 0
