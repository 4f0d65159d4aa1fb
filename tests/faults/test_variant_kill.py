"""SIGKILL of the real daemon that delivers a table with a VARIANT column: every row once, with its value.

Each file of the table is shredded in another way, so that rewritten files compare values of different encodings.

On every landing: kills with plain rows (`faults/test_kill.py`, `test_kafka_kill.py`); Variants without kills
(`integration/test_variant_streams.py`).
"""

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tailer.variant import json_texts
from tests.support.daemon.process import Daemon as Process
from tests.support.daemon.process import DeltaDestination
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import TABLE_ID, History, RowChange
from tests.support.kafka.lanes import CLIENTS, Daemon, Lane, Lanes
from tests.support.servers.schema_registry import serving_registry

KILLS: Final = 8
DELTA_KILLS: Final = 6
BACKLOG: Final = 8
PATIENCE_S: Final = 300.0


def changes_in(target: Path) -> Counter[RowChange]:
    """Return the change rows in a Delta table whose column `note` is VARIANT."""
    table = DeltaTable(target)
    assert '"name":"note","type":"variant"' in table.schema().to_json()
    rows = pa.table(table.scan())
    notes: list[dict[str, Any]] = [msgspec.json.decode(text or "null") for text in json_texts(rows["note"])]
    names = ("_commit_version", "_change_type", "id", "n")
    columns = zip(*(rows[name].to_pylist() for name in names), notes, strict=True)
    return Counter(
        (version, kind, (key, note["n"], note["note"])) for version, kind, key, n, note in columns if n == note["n"]
    )


@pytest.mark.nightly
def test_killed_while_it_writes_a_delta_table(tmp_path: Path, started: list[Process]) -> None:
    moments = random.Random(11)
    history = History(tmp_path / "table", seed=11, length=120, large=900, large_every=12, variants=True)
    destination = DeltaDestination(tmp_path / "target", f"orders/{TABLE_ID}")
    config = tmp_path / "tailer.toml"
    config.write_text(
        f'[pipelines.orders]\ntable = "{history.path}"\nstart = "earliest"\npoll_interval_s = 0.05\n'
        f"[pipelines.orders.sink]\n{destination.sink}"
    )
    reached = []
    for _ in range(DELTA_KILLS):
        history.publish(moments.randrange(8))
        started.append(Process(config))
        started[-1].wait_until_running()
        before, waited_until = destination.reached(), time.monotonic() + PATIENCE_S
        while destination.reached() == before:
            assert time.monotonic() < waited_until, started[-1].said
            if history.published < before + BACKLOG:
                history.publish(moments.randint(1, 3))
            time.sleep(0.05)
        history.publish(moments.randint(1, 4))
        time.sleep(moments.uniform(0.0, 0.4))
        started[-1].kill()
        reached.append(destination.reached())
    history.publish(history.length)
    started.append(Process(config))
    started[-1].wait_until_running()
    started[-1].wait_until_reached(destination, history.last)
    assert started[-1].terminate() == 0, started[-1].said
    found, wanted = changes_in(destination.path), history.changes()
    assert not wanted - found, f"missing: {list((wanted - found).items())[:5]}"
    assert not found - wanted, f"doubled or wrong: {list((found - wanted).items())[:5]}"
    print(f"killed at versions {reached}")


@pytest.mark.nightly
def test_killed_while_it_writes_to_kafka(tmp_path: Path, kafka: KafkaCluster) -> None:
    """Flat JSON, Debezium's JSON and both forms in Avro; the figures are 0."""
    moments = random.Random(12)
    history = History(tmp_path / "table", seed=12, length=110, large=600, large_every=8, variants=True)
    with serving_registry() as registry:
        avro: dict[str, Any] = {"encoding": "avro", "registry_url": registry.uris[0]}
        first, second = CLIENTS
        lanes = [Lane(first, "flat"), Lane(second), Lane(second, "flat", avro), Lane(first, "keyed", avro)]
        with Lanes(tmp_path, history, kafka.bootstrap_servers, lanes) as there:
            for number in range(KILLS):
                history.publish(moments.randrange(5))
                with Daemon(there.config) as daemon:
                    daemon.await_running()
                    if number % 2:
                        there.freeze_in_transaction(daemon)
                    else:
                        history.publish(moments.randint(1, 5))
                        there.await_more(daemon)
                        time.sleep(moments.uniform(0.0, 0.25))
                    daemon.kill()
            history.publish(history.length)
            with Daemon(there.config) as daemon:
                daemon.await_running()
                there.await_caught_up(daemon)
                assert daemon.terminate() == 0, daemon.said
            there.check()
            assert there.torn() > 0, "no kill hit a transaction"
