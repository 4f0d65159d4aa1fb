"""Notifications of new commits from a queue of SQS: they end a pipeline's wait, and nothing depends on them."""

import logging
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import pytest
from anyio import to_thread

import tailer.stores.s3.notifications
from tailer.config.tables import TableRef, open_files
from tailer.engine.local import LocalEngine
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import Limits
from tailer.pipeline.row_delivery import row_pipeline
from tailer.start import Start
from tailer.stores.s3 import S3Options
from tailer.stores.s3.notifications import QueueWake
from tailer.stores.stores import Stores
from tailer.stores.traffic import FAULTS, REQUESTS
from tests.support.histories.s3_history import upload
from tests.support.s3.queues import Queue, QueueServer, event_bridge_message, s3_message, serving_sqs, sns_message
from tests.support.s3.server import S3Server
from tests.support.servers.ports import free_ports
from tests.support.streams import Destination, Growing, become

pytestmark = [pytest.mark.stores, pytest.mark.anyio]

NAMES: Final = re.compile(r"\d{20}\.json")
COMMIT: Final = "lake/my orders+1/_delta_log/00000000000000000007.json"
FOLDER: Final = COMMIT.rpartition("/")[0]
LONG_S: Final = 60.0  # of the timer: nobody waits for it here


@pytest.fixture(scope="module")
def sqs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueServer]:
    """One SQS server for this module."""
    with serving_sqs(tmp_path_factory.mktemp("sqs")) as server:
        yield server


@pytest.fixture
def queue(sqs: QueueServer) -> Queue:
    """A queue of its own."""
    return sqs.new_queue()


@pytest.fixture(autouse=True)
def login(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a login for both servers."""
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)


def wake_for(url: str, bucket: str = "b", folder: str = FOLDER) -> QueueWake:
    """Make a wake-up that hears of the commits in a folder."""
    return QueueWake(bucket, folder, NAMES, S3Options(notifications=url, name="lake"))


async def waited_s(wake: QueueWake, timeout_s: float = LONG_S) -> float:
    """Return how long the wake-up waits."""
    begun = time.monotonic()
    await wake.wait(timeout_s)
    return time.monotonic() - begun


@pytest.mark.parametrize(
    "message",
    [
        s3_message("b", COMMIT),
        event_bridge_message("b", COMMIT),
        sns_message(s3_message("b", COMMIT)),
        s3_message("b", "other", COMMIT),
    ],
)
async def test_a_message_about_a_commit_ends_the_wait_at_once(queue: Queue, message: str) -> None:
    async with wake_for(queue.url) as wake:
        await anyio.sleep(0.5)
        await to_thread.run_sync(queue.send, message)
        assert await waited_s(wake) < 5
        await become(lambda: queue.size() == 0)


async def test_other_messages_are_deleted_and_do_no_harm(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    others = [
        "no JSON",
        "[]",
        '{"Records": [{"s3": {"bucket": 1}}, null]}',
        s3_message("other", COMMIT),
        s3_message("b", f"elsewhere/{COMMIT}"),
        s3_message("b", f"{FOLDER}/_last_checkpoint"),
        s3_message("b", f"{FOLDER}/00000000000000000007.checkpoint.parquet"),
    ]
    async with wake_for(queue.url) as wake:
        await to_thread.run_sync(queue.send, *others)
        assert await waited_s(wake, 2) >= 2
        await become(lambda: queue.size() == 0)
        await to_thread.run_sync(queue.send, *[s3_message("b", COMMIT)] * 3)
        assert await waited_s(wake) < 5
    assert not caplog.records


async def test_all_tables_of_a_process_share_one_receiver(queue: Queue) -> None:
    """The receiver's pipeline may end: another one receives from then on."""
    second = f"second/{COMMIT}"
    async with wake_for(queue.url, folder=second.rpartition("/")[0]) as remaining:
        async with wake_for(queue.url) as wake:
            await to_thread.run_sync(queue.send, s3_message("b", COMMIT))
            assert await waited_s(wake) < 5
            await to_thread.run_sync(queue.send, s3_message("b", second))
            assert await waited_s(remaining) < 5
        await to_thread.run_sync(queue.send, s3_message("b", second))
        assert await waited_s(remaining) < 5
    receiver, last = wake_for(queue.url), wake_for(queue.url, folder=second.rpartition("/")[0])
    ended = anyio.Event()

    async def receive_for_a_while() -> None:
        async with receiver:
            await ended.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(receive_for_a_while)
        await anyio.sleep(0.1)
        async with last:
            ended.set()
            # The last request of the one that ended may take a message with it, which then comes again after a while.
            waits: list[float] = []
            while not waits or (waits[-1] >= 5 and len(waits) < 2):
                await to_thread.run_sync(queue.send, s3_message("b", second))
                waits.append(await waited_s(last, 5))
            assert waits[-1] < 5


async def test_a_queue_that_fails_costs_time_only(
    sqs: QueueServer, queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailer.stores.s3.notifications, "_FIRST_PAUSE_S", 0.2)
    caplog.set_level(logging.INFO)
    before = counted("receive_message")
    missing = f"{sqs.endpoint}/123456789012/missing"
    closed = f"http://127.0.0.1:{free_ports(1)[0]}/123456789012/closed"
    for url in (missing, closed):
        async with wake_for(url) as wake:
            assert await waited_s(wake, 2) >= 2
            await become(partial(is_logged, caplog, url))
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert all("polling with the timer" in each for each in warnings)
    requests, faults = (now - then for now, then in zip(counted("receive_message"), before, strict=True))
    assert requests >= faults >= 4, "one of the missing queue, and three of the closed port"
    # A queue that answers again is used again.
    name = "later" + queue.url.rpartition("/")[2]
    async with wake_for(f"{sqs.endpoint}/123456789012/{name}") as wake:
        await become(partial(is_logged, caplog, name))
        later = Queue(await to_thread.run_sync(lambda: sqs.client.create_queue(QueueName=name)["QueueUrl"]), sqs.client)
        await to_thread.run_sync(later.send, s3_message("b", COMMIT))
        assert await waited_s(wake) < 15
        await become(partial(is_logged, caplog, "notifications of new commits again"))


def is_logged(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    """Return whether a record of the log has this text."""
    return any(text in each.message for each in caplog.records)


def counted(verb: str) -> tuple[float, float]:
    """Return the number of requests and faults of a verb."""
    requests, faults = (
        sum(sample.value for labels, sample in metric.samples().items() if labels[:2] == ("lake", verb))
        for metric in (REQUESTS, FAULTS)
    )
    return requests, faults


async def test_a_commit_is_delivered_long_before_the_timer(
    versitygw: S3Server, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, there, bucket = Growing(tmp_path / "my orders+1"), Destination(), versitygw.new_bucket()
    table.insert([1])
    folder = "lake/my orders+1"
    await to_thread.run_sync(upload, versitygw, bucket, folder, table.path)
    options = S3Options(endpoint=versitygw.endpoint, notifications=queue.url)
    pipeline = following(bucket, folder, options, there)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    async with anyio.create_task_group() as group:
        group.start_soon(pipeline.run)
        await become(lambda: there.delivered() == table.rows())
        for send in senders(bucket):
            version = table.insert([table.version + 10])
            await to_thread.run_sync(upload, versitygw, bucket, folder, table.path)
            begun = time.monotonic()
            await to_thread.run_sync(queue.send, send(f"{folder}/_delta_log/{version:020d}.json"))
            await become(lambda: there.delivered() == table.rows())
            print(f"version {version}: {time.monotonic() - begun:.2f} s")
            assert time.monotonic() - begun < 5
        pipeline.stop()


def senders(bucket: str) -> list[Callable[[str], str]]:
    """Return the ways to notify of a key."""
    return [
        lambda key: s3_message(bucket, key),
        lambda key: event_bridge_message(bucket, key),
        lambda key: sns_message(event_bridge_message(bucket, key)),
    ]


def following(bucket: str, folder: str, options: S3Options, there: Destination) -> Pipeline:
    """Make a pipeline whose timer takes a minute."""
    stores = Stores(((f"s3://{bucket}", options),))
    log = TableRef(f"s3://{bucket}/{folder}").open(stores)
    limits = Limits(poll_interval_s=LONG_S)
    engine = LocalEngine(2, open_files(stores))
    return row_pipeline("p", log, there.sink(), engine, log.make_wake(), Start.parse("earliest"), limits=limits)
