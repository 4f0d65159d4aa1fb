"""Fixtures of every suite: Spark, Kafka, S3 servers, the asyncio backend, tiers, a guard over every event loop."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from tests.durations import FOLDER, Recorder
from tests.support.cloud.servers import CloudServer, serving_azurite, serving_fake_gcs
from tests.support.event_loop import watch_event_loops
from tests.support.histories.random_history import quick
from tests.support.kafka.cluster import KafkaCluster, Listener
from tests.support.kafka.proxy import Proxy
from tests.support.kafka.secure import SecureKafka, serving_secure
from tests.support.mirrors.databases import Database, DuckDbDatabase, PostgresDatabase, SqliteDatabase
from tests.support.s3.link import S3Link
from tests.support.s3.server import S3Server, close_thread_clients, serving_s3proxy, serving_versitygw
from tests.support.seeds import examples
from tests.support.servers.postgres import Postgres
from tests.support.spark.java import small_work
from tests.support.spark.session import build_spark
from tests.tiers import BY_HAND, TIERS, Watch, may_hold, names_of, sample, select, set_markers, tier_of, watching

# Units use nothing that a marker names, so `make test` has all but repetition.
UNITS: Final = Path(__file__).parent / "unit"
UNIT_TIERS: Final = ("test", "nightly")

_WATCH: Final = pytest.StashKey[Watch]()

# A busy machine is slow, which is no fault of a test. Health checks are advice for who writes one, and fail by chance.
settings.register_profile(
    "any machine", max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tier`, which `make` uses."""
    choices = (*TIERS, *BY_HAND)
    parser.addoption(
        "--tier", action="append", choices=choices, help="run the tests of this tier only (tests/tiers.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begin to watch the resources that tests use."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script: tests send interrupts
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_WATCH] = Watch()
    watching(config.stash[_WATCH])
    if "bench" not in (config.getoption("tier") or ()):
        os.environ["SPARK_SUBMIT_OPTS"] = " ".join(small_work())  # of every Spark, also that of daemons and examples
    if folder := os.environ.get(FOLDER):
        config.pluginmanager.register(Recorder(Path(folder)))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the files of the watch."""
    watching(None)
    config.stash[_WATCH].close()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what has no test of the tier: collecting all tests takes many seconds of each process."""
    tiers: list[str] = config.getoption("tier") or []
    if not tiers:
        return None
    if collection_path == UNITS:
        return None if {*UNIT_TIERS} & {*tiers} else True
    is_module = collection_path.suffix == ".py" and collection_path.is_file()
    return True if is_module and not any(may_hold(collection_path, tier) for tier in tiers) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test with the resources it uses, and select those of the tier. First, because `-m` reads markers."""
    for item in items:
        set_markers(item)
    sample(items)
    if hidden := [item.nodeid for item in items if not may_hold(item.path, tier_of(names_of(item)))]:
        raise pytest.UsageError(f"name the marker or fixture that decides the tier in the modules of: {hidden}")
    units = (item for item in items if UNITS in item.path.parents)
    if others := [item.nodeid for item in units if tier_of(names_of(item)) not in UNIT_TIERS]:
        raise pytest.UsageError(f"tests of other tiers than {' and '.join(UNIT_TIERS)} in {UNITS}: {others}")
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
    """Fail a test that used a resource without its marker, even if the test handled the error."""
    yield
    if complaints := item.config.stash[_WATCH].complaints():
        pytest.fail("\n".join(complaints), pytrace=False)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio, like the daemon."""
    return "asyncio"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark with Delta for the whole run, started by the first test that uses it."""
    session = build_spark(tmp_path_factory.mktemp("spark"))
    with quick(session):
        yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka_proxy() -> Iterator[Proxy]:
    """The port that `kafka` advertises in addition to its own; tests use `kafka_link`."""
    with Proxy() as proxy:
        yield proxy


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, kafka_proxy: Proxy) -> Iterator[KafkaCluster]:
    """One Kafka node for the whole run, started by the first test that uses it. Every test has its own topics.

    A test that stops or freezes it uses `mortal_kafka`; one that cuts the connection to it uses `kafka_link`.
    """
    behind_proxy = Listener("PROXIED", advertised_ports=[kafka_proxy.port])
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), listeners=[behind_proxy]) as cluster:
        yield cluster


@pytest.fixture
def mortal_kafka(kafka: KafkaCluster) -> Iterator[KafkaCluster]:
    """`kafka` for a test that stops or freezes it; it runs again afterwards, however the test ends."""
    yield kafka
    kafka.revive()


@pytest.fixture
def kafka_link(kafka: KafkaCluster, kafka_proxy: Proxy) -> Iterator[Proxy]:
    """A link to `kafka` that can be cut: clients begin at `kafka_link.address`. It is mended after the test."""
    kafka_proxy.target = kafka.port("PROXIED")
    yield kafka_proxy
    kafka_proxy.mend()


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    """One Kafka node with authentication for the whole run, started by the first test that uses it."""
    with serving_secure(tmp_path_factory.mktemp("secure-kafka")) as secure:
        yield secure


@pytest.fixture(scope="session")
def s3proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3Proxy for the whole run, started by the first test that uses it. Every test has its own bucket."""
    with serving_s3proxy(tmp_path_factory.mktemp("s3proxy")) as server:
        yield server


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One versitygw for the whole run, started by the first test that uses it. Every test has its own bucket."""
    with serving_versitygw(tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture
def link(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Link]:
    """A link to versitygw that can fail, with the server's login in the environment."""
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)
    with S3Link(versitygw) as link:
        yield link
    close_thread_clients()


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudServer]:
    """One fake-gcs-server for the whole run, started by the first test that uses it. Every test has its own bucket."""
    with serving_fake_gcs(tmp_path_factory.mktemp("fake-gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudServer]:
    """One Azurite for the whole run, started by the first test that uses it. Every test has its own container."""
    with serving_azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One PostgreSQL for the whole run, started by the first test that uses it. Every test has its own schema."""
    with Postgres() as server:
        yield server


POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.stores)


@pytest.fixture(params=["sqlite", "duckdb", POSTGRESQL])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """Each database of the `sql` sink, empty."""
    return empty_database(request, tmp_path)


@pytest.fixture(params=["sqlite", POSTGRESQL])
def shared_database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """Each database that is read and written at a time, empty. A file of DuckDB is one connection's."""
    return empty_database(request, tmp_path)


def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return SqliteDatabase(tmp_path / "mirror.db")
    if request.param == "duckdb":
        return DuckDbDatabase(tmp_path / "mirror.duckdb")
    return PostgresDatabase(request.getfixturevalue("postgres"))


@pytest.fixture(params=["fake_gcs", "azurite"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudServer]:
    """Each server of obstore's clouds, with its login in the environment."""
    server: CloudServer = request.getfixturevalue(request.param)
    with server.logged_in(monkeypatch):
        yield server


@pytest.fixture(autouse=True)
def event_loop_stays_free() -> Iterator[None]:
    """Fail any test with a callback that blocked an event loop (`tests.support.event_loop`)."""
    with watch_event_loops() as blocked:
        yield
    if blocked:
        pytest.fail("\n".join(map(str, blocked)), pytrace=False)
