"""What every suite shares: the reference Spark, a Kafka, the asyncio backend, tiers, a guard over every event loop."""

from collections.abc import Iterator
from typing import Final

import pytest
from pyspark.sql import SparkSession

from tests.support.event_loop import watch_event_loops
from tests.support.histories.random_history import quick
from tests.support.kafka.cluster import KafkaCluster, Listener
from tests.support.kafka.proxy import Proxy
from tests.support.kafka.secure import SecureKafka, serving_secure
from tests.support.spark.session import build_spark
from tests.tiers import BY_HAND, TIERS, Watch, select, set_markers, watching

# Tests are many small queries: most of the processor's time would go into optimising code that runs once. A fifth less
# with the first compiler alone. By default that one has 48 MB for its code: Spark with Delta soon fills them,
# and nothing is compiled any more. Of what a query makes hardly anything outlives it: the larger the young generation,
# the less is copied; and without the last setting Spark's classes alone lead to collections of everything. Not for
# measurements.
SMALL_WORK: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -Xmn512m -XX:MetaspaceSize=512m"
)

_WATCH: Final = pytest.StashKey[Watch]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tier`, which `make` uses."""
    choices = (*TIERS, *BY_HAND)
    parser.addoption(
        "--tier", action="append", choices=choices, help="run the tests of this tier only (tests/tiers.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begin to watch what tests use."""
    config.stash[_WATCH] = Watch()
    watching(config.stash[_WATCH])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what the watch has made."""
    watching(None)
    config.stash[_WATCH].close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test with what it uses, and choose those of the tier. First of all: `-m` looks at markers."""
    for item in items:
        set_markers(item)
    if tiers := config.getoption("tier"):
        items[:], left = select(items, tiers)
        config.hook.pytest_deselected(items=left)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watch a test from its first fixture to its last."""
    with item.config.stash[_WATCH].over(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a test that used something without the marker for it, whatever it made of the error."""
    yield
    if complaints := item.config.stash[_WATCH].complaints():
        pytest.fail("\n".join(complaints), pytrace=False)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio: it is what the daemon runs on."""
    return "asyncio"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark with Delta for the whole run, started by the first test that asks."""
    session = build_spark(tmp_path_factory.mktemp("spark"), java_options=SMALL_WORK)
    with quick(session):
        yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka_proxy() -> Iterator[Proxy]:
    """The port that `kafka` advertises beside its own; tests ask for `kafka_link`."""
    with Proxy() as proxy:
        yield proxy


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, kafka_proxy: Proxy) -> Iterator[KafkaCluster]:
    """One Kafka node for the whole run, started by the first test that asks. Topics are each test's own.

    Who stops or freezes it asks for `mortal_kafka`, who cuts the way to it for `kafka_link`.
    """
    behind_proxy = Listener("PROXIED", advertised_ports=[kafka_proxy.port])
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), listeners=[behind_proxy]) as cluster:
        yield cluster


@pytest.fixture
def mortal_kafka(kafka: KafkaCluster) -> Iterator[KafkaCluster]:
    """`kafka` for a test that stops or freezes it: up again afterwards, however the test ends."""
    yield kafka
    kafka.revive()


@pytest.fixture
def kafka_link(kafka: KafkaCluster, kafka_proxy: Proxy) -> Iterator[Proxy]:
    """A way to `kafka` that can be cut: clients begin at `kafka_link.address`. Sound again after the test."""
    kafka_proxy.target = kafka.port("PROXIED")
    yield kafka_proxy
    kafka_proxy.mend()


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    """One Kafka node that asks who is there, for the whole run, started by the first test that asks."""
    with serving_secure(tmp_path_factory.mktemp("secure-kafka")) as secure:
        yield secure


@pytest.fixture(autouse=True)
def event_loop_stays_free() -> Iterator[None]:
    """Fail any test during which one callback kept an event loop from all others (`tests.support.event_loop`)."""
    with watch_event_loops() as blocked:
        yield
    if blocked:
        pytest.fail("\n".join(map(str, blocked)), pytrace=False)
