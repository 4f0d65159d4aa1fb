"""SIGKILL of the daemon inside the net difference over a gap of a Lance dataset: every row of it once, one gap."""

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio
import lance
import pyarrow as pa
import pytest

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.tables import open_table
from tailer.engine.local import LocalEngine
from tailer.table_log import NetDifferences
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.lanes import Daemon
from tests.support.kafka.topics import create_topic, end_offsets, read_topic

ROWS: Final = 4000
KILLS: Final = 2
Change = tuple[int, str, int, str]


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "t": [f"t{each}" for each in ids]})


def gap(path: Path) -> tuple[int, int]:
    """Make versions that are cleaned up at once, but for the last; return the version before them, and that one."""
    dataset = lance.dataset(path)
    before = dataset.version
    dataset.tags.create("delivered", before)
    dataset.update({"t": "concat(t, '-')"}, where="id % 2 = 0")
    dataset.delete("id % 5 = 0")
    lance.write_dataset(rows(10 * ROWS, ROWS // 3), path, mode="append")
    lance.dataset(path).cleanup_old_versions(timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False)
    return before, lance.dataset(path).version


def net_difference(path: Path, before: int, version: int) -> Counter[Change]:
    """Return the rows of a net difference, as an undisturbed reader has them."""

    async def read() -> Counter[Change]:
        log = open_table(str(path))
        assert isinstance(log, NetDifferences)
        plan, found = await log.net_plan(before, version), Counter[Change]()
        async with ChangelogEngine(LocalEngine(), PairingRules()).run(plan) as batches:
            async for batch in batches:
                found.update(changed(row) for row in batch.rows.to_pylist())
        return found

    return anyio.run(read)


def changed(row: dict[str, object]) -> Change:
    return row["_commit_version"], row["_change_type"], row["id"], row["t"]  # type: ignore[return-value]


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.nightly
def test_killed_inside_net_differences(tmp_path: Path, kafka: KafkaCluster, stable: bool) -> None:
    servers, path = kafka.bootstrap_servers, tmp_path / "orders"
    lance.write_dataset(rows(0, ROWS), path, enable_stable_row_ids=stable, max_rows_per_file=ROWS // 4)
    topic, ends = create_topic(servers), create_topic(servers)
    (config := tmp_path / "tailer.toml").write_text(
        f'[pipelines.orders]\ntable = "{path}"\nstart = "earliest"\non_data_loss = "net"\npoll_interval_s = 0.05\n'
        f'[pipelines.orders.sink]\nkind = "kafka"\nbootstrap_servers = "{servers}"\ntopic = "{topic}"\n'
        f'end_topic = "{ends}"\ncreate_topics = true\ntransaction_rows = 50\nprogress_topic = "{topic}.progress"\n'
    )

    def ended() -> int:
        found = (json.loads(each.value) for each in read_topic(servers, ends) if each.value is not None)
        return max((each["commit_version"] for each in found), default=0)

    def delivered() -> list[dict[str, object]]:
        return [json.loads(each.value) for each in read_topic(servers, topic) if each.value is not None]

    def reached() -> int:
        return sum(end_offsets(servers, [topic]).values())

    def deliver(version: int) -> None:
        with Daemon(config) as daemon:
            daemon.wait_for(lambda: ended() == version)
            assert daemon.terminate() == 0, daemon.said

    deliver(1)
    expected = Counter((1, "insert", row["id"], row["t"]) for row in rows(0, ROWS).to_pylist())
    before, version = gap(path)
    expected += (net := net_difference(path, before, version))
    for _ in range(KILLS):
        with Daemon(config) as daemon:
            enough = reached() + 300
            daemon.wait_for(lambda enough=enough: reached() >= enough)  # type: ignore[misc]
            daemon.kill()
        part = sum(row["_commit_version"] == version for row in delivered())
        assert 0 < part < net.total(), "it was not killed inside the difference"
    deliver(version)
    found = delivered()
    gaps = [row["_commit_version"] for row in found if row["_change_type"] == "gap"]
    assert gaps == [version - 1]
    changes = [row for row in found if row["_change_type"] != "gap"]
    assert Counter(changed(row) for row in changes) == expected
    folded: Counter[tuple[object, object]] = Counter()
    for row in changes:
        folded[row["id"], row["t"]] += 1 if row["_change_type"] in ("insert", "update_postimage") else -1
    assert +folded == Counter((row["id"], row["t"]) for row in lance.dataset(path).to_table().to_pylist())
