"""Random faults of an S3 server under whole pipelines: nothing is lost or doubled, and the order is kept."""

import random
from collections import Counter
from pathlib import Path
from typing import Final

import anyio
import pytest
from anyio import to_thread
from tenacity import wait_none

import tailer.pipeline.retry
import tailer.stores.bucket.requests
import tailer.stores.s3.sessions
import tests.support.histories.long_history
from tailer.config.tables import TableRef, open_files
from tailer.engine.local import LocalEngine
from tailer.pipeline.policy import Limits
from tailer.pipeline.row_delivery import row_pipeline
from tailer.pipeline.status import METRICS, PipelineStatus
from tailer.sink import Sink
from tailer.start import Start
from tailer.stores.s3 import S3Options
from tailer.stores.stores import Stores
from tailer.stores.traffic import FAULTS, REQUESTS
from tailer_sinks.delta.sink import DeltaSink
from tailer_sinks.files.sink import FilesSink
from tests.support.daemon.process import DeltaDestination, Destination, FilesDestination
from tests.support.histories.long_history import Change, LongHistory
from tests.support.histories.s3_history import S3History
from tests.support.s3.faults import FaultKind, FaultyS3Link
from tests.support.s3.server import S3Server
from tests.support.streams import become

pytestmark = [pytest.mark.stores, pytest.mark.anyio]

COMMITS: Final = 50
BACKLOG: Final = 10
SEED: Final = 8
TIMEOUT_S: Final = 0.25
# A missing commit is no fault for who asks whether it is there, and a stale listing cannot be noticed.
COUNTED_AS: Final = {
    "throttled": {FaultKind.SLOW_DOWN},
    "server_error": {FaultKind.INTERNAL},
    "connection": {FaultKind.RESET},
    "timeout": {FaultKind.STALL, FaultKind.STALL_IN_BODY},
    "torn_body": {FaultKind.TORN},
    "expired_token": {FaultKind.EXPIRED},
    "not_found_once": {FaultKind.NO_FILE},
    "conflict": {FaultKind.REPLACED},
}
LIMITS: Final = Limits(poll_interval_s=0.02, max_versions=7, max_rows=20_000)


@pytest.fixture(autouse=True)
def no_time_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for answers and between attempts as shortly as possible; a commit of forty has several ranges."""
    monkeypatch.setattr(tailer.pipeline.retry, "wait_random_exponential", lambda **_: wait_none())
    monkeypatch.setattr(tailer.stores.s3.sessions, "_READ_TIMEOUT_S", TIMEOUT_S)
    monkeypatch.setattr(tailer.stores.s3.sessions, "_ATTEMPTS", 1)
    monkeypatch.setattr(tailer.stores.bucket.requests, "PAUSE_S", 0.01)
    monkeypatch.setattr(tests.support.histories.long_history, "LARGE", 60_000)


@pytest.fixture
def source(tmp_path: Path, versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3History:
    """A table of which one commit is published."""
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)
    return S3History(LongHistory(tmp_path / "source", SEED, COMMITS), versitygw)


@pytest.mark.parametrize("kind", ["files", "delta"])
@pytest.mark.sampled(2)
async def test_a_growing_table_with_random_faults(
    source: S3History, versitygw: S3Server, tmp_path: Path, kind: str
) -> None:
    sink: Sink
    there: Destination
    app_id = f"orders/{source.history.table_id}"
    if kind == "files":
        sink, there = FilesSink("files", tmp_path / "out"), FilesDestination(tmp_path / "out", app_id)
    else:
        sink, there = DeltaSink("delta", str(tmp_path / "out")), DeltaDestination(tmp_path / "out", app_id)
    before = errors_and_retries()
    store = f"random-{kind}"
    with FaultyS3Link(versitygw, SEED, every=25, stall_s=2 * TIMEOUT_S) as link:
        stores = Stores(((f"s3://{source.bucket}", S3Options(endpoint=link.endpoint, name=store)),))
        pipeline = row_pipeline(
            "orders",
            TableRef(source.location).open(stores),
            sink,
            LocalEngine(2, open_files(stores)),
            TableRef(source.location).open(stores).make_wake(),
            Start.parse("earliest"),
            limits=LIMITS,
            status=PipelineStatus("orders"),
        )
        async with anyio.create_task_group() as group:
            group.start_soon(pipeline.run)
            chance = random.Random(SEED)
            with anyio.fail_after(300):
                while source.history.published < COMMITS - 1 or missing(link):
                    left = COMMITS - 1 - source.history.published
                    # Without progress every commit is read, which hardly succeeds with so many faults.
                    link.is_faulty = there.reached() >= 0
                    if source.history.published - there.reached() < BACKLOG:
                        await to_thread.run_sync(source.publish, min(chance.randrange(8), left))
                    await anyio.sleep(0.05)
                # A commit that comes without faults shows that the last fault is overcome.
                link.is_faulty = False
                await to_thread.run_sync(source.publish, 1)
                await become(lambda: there.reached() >= source.history.last)
            pipeline.stop()
    await to_thread.run_sync(check, source.history, there)
    errors, retries = (now - then for now, then in zip(errors_and_retries(), before, strict=True))
    print(dict(link.injected), f"{errors} errors, {retries} retries, {len(link.requests)} requests")
    assert errors == retries > 3
    counted: Counter[str] = Counter()
    for labels, sample in FAULTS.samples().items():
        counted[labels[2]] += int(sample.value) if labels[0] == store else 0
    injected = {fault: sum(link.injected[each] for each in kinds) for fault, kinds in COUNTED_AS.items()}
    # A request may be cancelled before its answer, and an answer be shorter than the place where it would be torn.
    least = {fault: 0.8 * number - 1 for fault, number in injected.items()}
    missed = {fault: (injected[fault], counted[fault]) for fault in injected if counted[fault] < least[fault]}
    assert not missed, f"injected and counted: {missed}"
    requests = sum(sample.value for labels, sample in REQUESTS.samples().items() if labels[0] == store)
    assert requests == pytest.approx(len(link.requests), rel=0.02)


def missing(link: FaultyS3Link) -> set[FaultKind]:
    """Return the faults that were not injected yet; large files are too rare to wait for a replaced one."""
    return set(FaultKind) - set(link.injected) - {FaultKind.REPLACED}


def errors_and_retries() -> tuple[float, float]:
    """Return the metrics of the pipeline."""
    found = {metric.name: sum(sample.value for sample in metric.samples().values()) for metric in METRICS}
    return found["lake_tailer_errors"], found["lake_tailer_retries"]


def check(history: LongHistory, there: Destination) -> None:
    """Check that every row is delivered once, and transactions in the order of their versions."""
    seen = 0
    delivered: Counter[Change] = Counter()
    for transaction in there.transactions():
        versions = [row[0] for row in transaction]
        assert min(versions, default=seen) >= seen
        seen = max(versions, default=seen)
        delivered.update(row[:3] for row in transaction)
    assert not history.changes - delivered, f"missing: {list((history.changes - delivered).items())[:5]}"
    assert not delivered - history.changes, f"doubled or wrong: {list((delivered - history.changes).items())[:5]}"
