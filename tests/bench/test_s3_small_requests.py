"""Processor time of one small request to S3, beside the same request by AWS's client alone, in turn.

The server is another process, so only our side counts. Nothing is asserted about time. `make bench` prints the table.
"""

import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import anyio
import pytest
from anyio import to_thread
from botocore.exceptions import ClientError

from tailer.errors import ObjectNotFound
from tailer.stores.bucket.store import BucketRanges, BucketStore
from tailer.stores.s3 import S3Options
from tailer.stores.s3.bucket import S3Bucket
from tailer.stores.s3.clients import loop_client
from tailer.stores.s3.thread_clients import thread_client
from tests.bench.conftest import PutLine
from tests.support.s3.server import S3Server, close_thread_clients

RUNS: Final = 15
REQUESTS: Final = 100
BYTES: Final = 1500

Ask = Callable[[], Awaitable[object]]


def test_small_requests(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch, put_line: PutLine) -> None:
    """A look for a commit that is not there yet, a commit that is, and a part of a data file."""
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)
    bucket = versitygw.new_bucket()
    versitygw.client.put_object(Bucket=bucket, Key="t/there", Body=b"x" * BYTES)
    store, options = BucketStore(S3Bucket(bucket, S3Options()), "t"), S3Options()
    ranges = BucketRanges(store.bucket, "t/there")

    async def measure() -> None:
        async with loop_client(options) as lent:
            client: Any = lent.client

            async def whole() -> None:
                answer = await client.get_object(Bucket=bucket, Key="t/there")
                async with answer["Body"] as body:
                    await body.read()

            pairs: dict[str, tuple[Ask, Ask]] = {
                "look for a commit that is not there": (
                    lambda: store.scan("absent", lambda opened: opened.file.read()),
                    lambda: client.get_object(Bucket=bucket, Key="t/absent"),
                ),
                "read a commit": (lambda: store.scan("there", lambda opened: opened.file.read()), whole),
                "ask for the time of a commit": (
                    lambda: store.stat("there"),
                    lambda: client.head_object(Bucket=bucket, Key="t/there"),
                ),
            }
            for work, (own, peer) in pairs.items():
                await _put(put_line, work, own, peer, "aiobotocore")
        threads: Any = thread_client(options).client

        def many(get: Callable[[], object]) -> Ask:
            return lambda: to_thread.run_sync(lambda: [get() for _ in range(REQUESTS)])

        def part() -> object:
            return threads.get_object(Bucket=bucket, Key="t/there", Range="bytes=0-999")["Body"].read()

        own, peer = many(lambda: ranges.read(0, 1000)), many(part)
        await _put(put_line, "read a part of a data file, in a thread", own, peer, "botocore", 1)

    anyio.run(measure)
    close_thread_clients()


async def _put(put_line: PutLine, work: str, own: Ask, peer: Ask, name: str, repeats: int = REQUESTS) -> None:
    found: tuple[list[float], list[float]] = [], []
    for _ in range(RUNS):
        for ask, times in zip((own, peer), found, strict=True):
            start_s = time.process_time()
            for _ in range(repeats):
                with suppress(ObjectNotFound, ClientError):
                    await ask()
            times.append(1000 * (time.process_time() - start_s) / REQUESTS)
    ours, theirs = map(statistics.median, found)
    ratio = statistics.median(one / other for one, other in zip(*found, strict=True))
    put_line(f"S3: {work}", f"{ours:.2f} ms of CPU", f"{name}: {theirs:.2f} ms; {ratio:.2f}", "0.5 of the client")
