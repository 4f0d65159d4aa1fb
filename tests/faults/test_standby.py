"""Two processes with `--standby`: the active one is killed, frozen or cut off, and the other one goes on.

Destinations in Kafka, PostgreSQL, SQLite and Delta are read without the sinks. A frozen instance comes back while its
successor works. One that was cut off gets its link back, also with what was under way on it. Both stand by, and nothing
is missing, doubled, out of order, changed or lost. `standby_after_s` is the default, so times are those that users see.

On every landing: three takeovers, one by each fault, in this module; all decisions in virtual time
(`unit/daemon/test_standby.py`).
"""

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.daemon.every_sink import Backfills, DatabaseLog, DatabaseMirror, DeltaLog, DeltaMirror
from tests.support.daemon.every_sink import Lane as Destination
from tests.support.daemon.pipelines import Pipelines
from tests.support.daemon.standbys import Standbys
from tests.support.daemon.tcp_link import TcpLink
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.history import History
from tests.support.kafka.lanes import Lane, Lanes
from tests.support.kafka.proxy import Proxy
from tests.support.mirrors.databases import PostgresDatabase, SqliteDatabase
from tests.support.servers.postgres import Postgres

# The client library forgets a Unix socket that nobody serves.
pytestmark = [
    pytest.mark.timeout(0),
    pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning"),
]

LIMIT_S = 10.0  # of silence, until the standby delivers
PATIENCE_S = 60.0  # of one takeover on a busy machine
TAKEOVERS = 100


def take_over(folder: Path, kafka: KafkaCluster, link: Proxy, postgres: Postgres, faults: Sequence[str]) -> None:
    """Let faults happen one after the other, and print what came of them."""
    history = History(folder / "table", seed=39, length=4 * len(faults) + 8, large=300, large_every=10)
    database = PostgresDatabase(postgres)
    port = database.options["url"].rpartition(":")[2].partition("/")[0]
    others: list[Destination] = [
        DatabaseMirror(database, "postgresql-mirror"),
        DatabaseLog(SqliteDatabase(folder / "sqlite.log"), "sqlite-log"),
        DeltaLog(folder / "delta", "delta-log"),
        DeltaMirror(folder / "delta-mirror", "delta-mirror"),
    ]
    lane = Lane("confluent-kafka")
    with TcpLink(int(port)) as database_link, Lanes(folder, history, kafka.bootstrap_servers, [lane]) as lanes:
        pipelines = Pipelines(others, lanes)
        with Standbys(
            folder,
            history,
            lanes.config.read_text(),
            pipelines.destinations,
            {kafka.bootstrap_servers: link.address, f":{port}/": f":{database_link.port}/"},
            [link, database_link],
            frozenset({lane.name, "postgresql-mirror"}),
        ) as pair:
            pair.start()
            for fault in faults:
                pair.strike(fault)
        lanes.check()
        for each in others:
            found = each.faults(history, Backfills([], ended=False))
            found.lost = pair.lost[each.name]
            assert each.reached() == history.published - 1
            assert not any(found.figures.values()), f"{each.name}: {found}"
            print(f"{each.name}: {found.figures}")
    for name, seconds in pair.seconds.items():
        p50, p99 = statistics.median(seconds), sorted(seconds)[min(int(0.99 * len(seconds)), len(seconds) - 1)]
        print(f"{name}: {len(seconds)} takeovers; to the first delivery p50 {p50:.1f} s, p99 {p99:.1f} s")
    everything = sorted(each for seconds in pair.seconds.values() for each in seconds)
    p50, p99 = statistics.median(everything), everything[int(0.99 * len(everything))]
    print(f"{pair.takeovers} takeovers, {len(everything)} of pipelines: p50 {p50:.1f} s, p99 {p99:.1f} s")
    assert p50 < LIMIT_S, pair.seconds


def test_killed_frozen_and_cut_off(tmp_path: Path, kafka: KafkaCluster, kafka_link: Proxy, postgres: Postgres) -> None:
    take_over(tmp_path, kafka, kafka_link, postgres, ["cut", "freeze", "hold", "kill"])


@pytest.mark.parametrize("fault", ["freeze", "hold"])
def test_frozen_or_cut_off_inside_a_transaction(tmp_path: Path, postgres: Postgres, fault: str) -> None:
    """The former instance has locked its progress, and says nothing that would end its transaction."""
    history = History(tmp_path / "table", seed=39, length=3)
    database = PostgresDatabase(postgres)
    mirror = DatabaseMirror(database, "postgresql-mirror")
    port = database.options["url"].rpartition(":")[2].partition("/")[0]
    pipeline = f"[pipelines.{mirror.name}"
    text = f'{pipeline}]\ntable = "{history.path}"\npoll_interval_s = 0.05\n{pipeline}.sink]\n{mirror.sink}'
    with (
        TcpLink(int(port)) as link,
        Standbys(
            tmp_path, history, text, [mirror], {f":{port}/": f":{link.port}/"}, [link], frozenset({mirror.name})
        ) as pair,
    ):
        pair.start()
        with database.holding_the_progress():
            history.publish()
            waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'lake-tailer'"
            pair.wait_for(lambda: bool(database.query(waits)))
            (pair.daemons[0].freeze if fault == "freeze" else link.hold)()
        limit_s = time.monotonic() + PATIENCE_S
        pair.wait_for(lambda: pair.is_level() or time.monotonic() > limit_s)
        assert pair.is_level(), pair.said
        (pair.daemons[0].thaw if fault == "freeze" else link.mend)()
        history.publish()
        pair.await_settled()
        assert pair.active(1) == {mirror.name}
    found = mirror.faults(history, Backfills([], ended=False))
    found.lost = pair.lost[mirror.name]
    assert not any(found.figures.values()), found


@pytest.mark.nightly
def test_a_hundred_takeovers(tmp_path: Path, kafka: KafkaCluster, kafka_link: Proxy, postgres: Postgres) -> None:
    faults = [each for _ in range(TAKEOVERS // 4) for each in ("cut", "freeze", "kill", "hold")]
    random.Random(39).shuffle(faults)
    take_over(tmp_path, kafka, kafka_link, postgres, faults)
