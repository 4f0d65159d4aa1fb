"""SIGKILL of the daemon while it follows a Lance dataset: every change once, in order, in Delta, files and Kafka.

On every landing: kills with plain rows (`faults/test_kill.py`); Lance without kills
(`integration/test_lance_tables.py`).
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import lance
import pyarrow as pa
import pytest

import tailer
from tailer.formats.lance.table import dataset_id
from tests.support.daemon.process import Daemon, DeltaDestination, Destination, FilesDestination
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.topics import create_topic, read_topic
from tests.support.waiting import until

KILLS: Final = 8
Changes = list[tuple[int, str, int]]


class Writer:
    """A writer of the dataset at `path`, with stable row ids, whose ids it knows."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self._chance = random.Random(seed)
        self._next = 0
        lance.write_dataset(self._rows(30), path, enable_stable_row_ids=True, max_rows_per_file=10)

    @property
    def version(self) -> int:
        """The newest version."""
        return int(lance.dataset(self.path).version)

    def commit(self, count: int) -> None:
        """Make some commits of different kinds."""
        for _ in range(count):
            dataset, number = lance.dataset(self.path), self._chance.randint(3, 9)
            match self._chance.randrange(6):
                case 0 | 1:
                    lance.write_dataset(self._rows(20), self.path, mode="append", max_rows_per_file=10)
                case 2:
                    dataset.delete(f"id % {number} = 1")
                case 3:
                    dataset.update({"v": f"v + {number}"}, where=f"id % {number} = 0")
                case 4:
                    ids = [*range(self._next - 5, self._next), *range(self._next, self._next + 5)]
                    self._next += 5
                    merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                    merge.execute(self._of(ids))
                case 5:
                    dataset.optimize.compact_files(target_rows_per_fragment=100)

    def changes(self) -> Changes:
        """Return all changes, as an undisturbed reader reads them."""
        rows = (row for batch in tailer.changes(self.path) for row in batch.to_pylist())
        return [(row["_commit_version"], row["_change_type"], row["id"]) for row in rows]

    def check(self, delivered: Changes) -> None:
        """Check that each change was delivered once, in the order of versions, and that their fold is the dataset."""
        assert Counter(delivered) == Counter(self.changes())
        assert [version for version, _, _ in delivered] == sorted(version for version, _, _ in delivered)
        folded: Counter[int] = Counter()
        for _, kind, one in delivered:
            folded[one] += -1 if kind in ("delete", "update_preimage") else 1
        assert +folded == Counter(lance.dataset(self.path).to_table(columns=["id"])["id"].to_pylist())

    def _rows(self, count: int) -> pa.Table:
        self._next += count
        return self._of(list(range(self._next - count, self._next)))

    def _of(self, ids: list[int]) -> pa.Table:
        return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([each % 3 for each in ids], pa.int64())})


def killed(config: Path, writer: Writer, reached: Callable[[], int], started: list[Daemon]) -> None:
    """Start and kill daemons while the writer commits, then let one deliver the rest."""
    chance, places = random.Random(5), {reached()}
    for number in range(KILLS):
        writer.commit(chance.randrange(4))
        started.append(Daemon(config))
        started[-1].wait_until_running()
        # Every other daemon is killed when it has delivered something, the others at any moment.
        ends_at, begun = time.monotonic() + (60 if number % 2 else chance.uniform(0.0, 1.5)), reached()
        while time.monotonic() < ends_at and (number % 2 == 0 or reached() == begun):
            writer.commit(chance.randrange(3))
            time.sleep(chance.uniform(0.0, 0.1))
        places.add(reached())
        started[-1].kill()
    writer.commit(3)
    started.append(Daemon(config))
    started[-1].wait_until_running()
    until(lambda: reached() >= writer.version, reached, lambda: started[-1].said)
    assert started[-1].terminate() == 0, started[-1].said
    assert len(places) > KILLS // 3, f"the daemon hardly got anywhere between kills: {sorted(places)}"


def configured(tmp_path: Path, writer: Writer, sink: str) -> Path:
    """Write the configuration of a daemon that polls often."""
    pipeline = f'[pipelines.orders]\ntable = "{writer.path}"\nstart = "earliest"\npoll_interval_s = 0.05\n'
    (config := tmp_path / "tailer.toml").write_text(f"{pipeline}[pipelines.orders.sink]\n{sink}")
    return config


@pytest.mark.parametrize("kind", ["delta", "files"])
@pytest.mark.nightly
def test_killed_again_and_again(tmp_path: Path, kind: str, started: list[Daemon]) -> None:
    writer = Writer(tmp_path / "orders", 1)
    make = DeltaDestination if kind == "delta" else FilesDestination
    there: Destination = make(tmp_path / "target", f"orders/{dataset_id(str(writer.path))}")
    killed(configured(tmp_path, writer, there.sink), writer, there.reached, started)
    rows = [row for transaction in there.transactions() for row in transaction]
    writer.check([(version, kind, one) for version, kind, one, _ in rows])


@pytest.mark.nightly
def test_killed_while_it_delivers_to_kafka(tmp_path: Path, kafka: KafkaCluster, started: list[Daemon]) -> None:
    writer, servers = Writer(tmp_path / "orders", 2), kafka.bootstrap_servers
    topic, ends = create_topic(servers), create_topic(servers)
    sink = f'kind = "kafka"\nbootstrap_servers = "{servers}"\ntopic = "{topic}"\nend_topic = "{ends}"\n'

    def reached() -> int:
        found = (json.loads(each.value) for each in read_topic(servers, ends) if each.value is not None)
        return max((each["commit_version"] for each in found), default=-1)

    killed(configured(tmp_path, writer, f"{sink}create_topics = true\n"), writer, reached, started)
    rows = [json.loads(each.value) for each in read_topic(servers, topic) if each.value is not None]
    writer.check([(row["_commit_version"], row["_change_type"], row["id"]) for row in rows])
