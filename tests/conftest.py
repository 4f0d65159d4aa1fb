"""What every suite shares: the reference Spark, the asyncio backend and a guard over every event loop."""

from collections.abc import Iterator
from typing import Final

import pytest
from pyspark.sql import SparkSession

from tests.event_loop import watch_event_loops
from tests.histories import quick
from tests.spark import build_spark

# Tests are many small queries: most of the processor's time would go into optimising code that runs once. A fifth less
# with the first compiler alone. By default that one has 48 MB for its code: Spark with Delta soon fills them,
# and nothing is compiled any more. Of what a query makes hardly anything outlives it: the larger the young generation,
# the less is copied; and without the last setting Spark's classes alone lead to collections of everything. Not for
# measurements.
SMALL_WORK: Final = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -Xmn512m -XX:MetaspaceSize=512m"
)


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


@pytest.fixture(autouse=True)
def event_loop_stays_free() -> Iterator[None]:
    """Fail any test during which one callback kept an event loop from all others (`tests.event_loop`)."""
    with watch_event_loops() as blocked:
        yield
    if blocked:
        pytest.fail("\n".join(map(str, blocked)), pytrace=False)
