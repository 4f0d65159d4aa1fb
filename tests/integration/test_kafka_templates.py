"""A template into Kafka: each table has a topic of its own, also those that are made while the daemon runs."""

import json
from pathlib import Path

import pytest

from tests.support.daemon.commands import Orders, background, states, tailer
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.topics import read_topic, unique_name
from tests.support.waiting import until

# The client library forgets a Unix socket that nobody serves.
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning"),
]

Change = tuple[int, str, int]


@pytest.fixture
def prefix() -> str:
    """Return the beginning of the names of topics."""
    return unique_name("sales")


@pytest.fixture
def config(tmp_path: Path, kafka: KafkaCluster, prefix: str) -> Path:
    """Write a template over two levels of folders."""
    (tmp_path / "lake").mkdir()
    (path := tmp_path / "t.toml").write_text(f"""
[defaults]
poll_interval_s = 0.1
discover_interval_s = 0.2
[defaults.sink]
kind = "kafka"
bootstrap_servers = "{kafka.bootstrap_servers}"
progress_topic = "{unique_name("progress")}"
create_topics = true
key = ["id"]
[pipelines.sales]
table = "lake/*/*"
sink = {{kind = "kafka", topic = "{prefix}.{{table}}"}}
""")
    return path


def table(config: Path, region: str, name: str, *ids: int) -> Orders:
    """A new table with one version."""
    made = Orders(config.parent / "lake" / region / name)
    made.insert(*ids)
    return made


def changes(kafka: KafkaCluster, topic: str) -> list[Change]:
    """Return the committed changes in a topic of one partition."""
    rows = [json.loads(record.value or "{}") for record in read_topic(kafka.bootstrap_servers, topic)]
    return [(row["_commit_version"], row["_change_type"], row["id"]) for row in rows]


def test_each_table_has_a_topic_across_kills_and_retirement(config: Path, kafka: KafkaCluster, prefix: str) -> None:
    tables = {"eu.orders": table(config, "eu", "orders", 1, 2), "us.orders": table(config, "us", "orders", 3)}

    def are_level() -> bool:
        """Return whether each topic has the changes of its table, once and in order."""
        names = {f"sales/{name.replace('.', '/')}" for name in tables}
        if set(states(config)) != names or set(states(config).values()) - {"streaming", "idle"}:
            return False
        return all(changes(kafka, f"{prefix}.{name}") == each.changes for name, each in tables.items())

    with background("run", "--config", config) as daemon:
        until(are_level)
        tables["eu.items"] = table(config, "eu", "items", 4, 5)
        tables["eu.orders"].insert(6)
        until(are_level)
        daemon.kill()
        daemon.communicate()
    for each in tables.values():
        each.insert(7)
        each.delete(7)
    with background("run", "--config", config):
        until(are_level)
        gone = tables.pop("us.orders")
        kept, away = gone.path, config.parent / "away"
        kept.rename(away)
        until(are_level)
        away.rename(kept)  # the same table comes back, and goes on after its progress
        tables["us.orders"] = gone
        gone.insert(8)
        until(are_level)


def test_tables_that_would_share_a_topic_are_refused(config: Path, kafka: KafkaCluster, prefix: str) -> None:
    plain = config.read_text()
    config.write_text(plain.replace(".{table}", ""))
    done = tailer("check", "--config", config)
    assert done.returncode == 2
    assert "sales.{table}" in done.stdout
    config.write_text(f"""{plain}[pipelines.single]
table = "single"
sink = {{kind = "kafka", topic = "{prefix}.eu.orders"}}
""")
    single = Orders(config.parent / "single")
    single.insert(1)
    with background("run", "--config", config):
        until(lambda: states(config).get("single") in ("streaming", "idle"))
        table(config, "eu", "orders", 2)
        until(lambda: states(config).get("sales/eu/orders") == "stopped")
        assert changes(kafka, f"{prefix}.eu.orders") == single.changes
