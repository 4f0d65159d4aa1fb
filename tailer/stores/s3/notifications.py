"""Wake-ups by S3's notifications of new objects, received from a queue of SQS.

A notification shortens a wait and carries no data, so one that is lost, late, doubled or foreign does no harm. One task
of a process receives from a queue for all its tables: that of the pipeline whose turn it is. Every message is deleted,
whatever it says, because the queue is for this process alone.
"""

import json
import logging
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote_plus, urlsplit

import aiohttp
import anyio
from aiobotocore.config import AioConfig
from anyio.lowlevel import RunVar
from botocore.exceptions import BotoCoreError, ClientError

from tailer.stores.port import in_thread
from tailer.stores.s3 import S3Options
from tailer.stores.s3.clients import CountingSession, loop_session
from tailer.stores.s3.errors import error_code
from tailer.stores.s3.sessions import client_arguments
from tailer.stores.s3.traffic import unseen_fault
from tailer.stores.traffic import FAULTS
from tailer.stores.wakeup import TimerWake

__all__ = ["QueueWake", "named_objects"]

_log = logging.getLogger(__name__)

# Less than the time that clients wait for an answer.
_POLL_S: Final = 15
_MESSAGES: Final = 10
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_MOST_FAILURES: Final = 10
_AMAZON: Final = re.compile(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?")
_FAILURES: Final = (BotoCoreError, ClientError, aiohttp.ClientError, OSError, ValueError)

Objects = Iterator[tuple[str, str]]


class QueueWake(TimerWake):
    """The timer, shortened by notifications of objects of `bucket` in `folder` with one of these `names`."""

    def __init__(self, bucket: str, folder: str, names: re.Pattern[str], options: S3Options) -> None:
        super().__init__()
        self._bucket = bucket
        self._folder = folder
        self._names = names
        self._options = options

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._listen)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._group.cancel_scope.cancel()
        # Without the error of the block, which would come out as an `ExceptionGroup`.
        await self._group.__aexit__(None, None, None)
        return None

    def hear(self, bucket: str, key: str) -> None:
        """Ring if this object counts."""
        folder, _, name = key.rpartition("/")
        if (bucket, folder) == (self._bucket, self._folder) and self._names.fullmatch(name):
            self.ring()

    async def _listen(self) -> None:
        queue = _queue(str(self._options.notifications))
        queue.wakes.append(self)
        try:
            async with queue.turn:
                await queue.receive_always(self._options)
        finally:
            queue.wakes.remove(self)


@dataclass(eq=False)
class _Queue:
    """A queue, and the `wakes` that hear of its messages. The holder of `turn` receives for all of them.

    `failures`: since it was last received from.
    """

    url: str
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    wakes: list[QueueWake] = field(default_factory=list)
    failures: int = 0

    async def receive_always(self, options: S3Options) -> None:
        """Receive until cancelled. Failures cost time only, so they are logged once, and followed by longer pauses."""
        while True:
            try:
                await self._receive_with_a_client(options)
            except _FAILURES as error:
                if (fault := unseen_fault(error)) is not None:
                    FAULTS.add((options.store_name(self.url), "receive_message", fault), 1)
                if not self.failures:
                    # The client's texts may hold addresses with passwords.
                    reason = error_code(error) or type(error).__name__
                    _log.warning("%s: no notifications of new commits (%s); polling with the timer", self.url, reason)
            pause_s = min(_FIRST_PAUSE_S * 2.0**self.failures, _LONGEST_PAUSE_S)
            self.failures = min(self.failures + 1, _MOST_FAILURES)
            await anyio.sleep(pause_s * random.uniform(0.5, 1))

    async def _receive_with_a_client(self, options: S3Options) -> None:
        login = _login(options, self.url)
        make_config = partial(AioConfig, http_session_cls=CountingSession)
        arguments = await in_thread(partial(client_arguments, login, make_config, warm_up_loader_caches=True))
        async with loop_session(login, arguments["region_name"]).create_client("sqs", **arguments) as client:
            while True:
                await self._receive(client)
                if self.failures:
                    self.failures = 0
                    _log.info("%s: notifications of new commits again", self.url)

    async def _receive(self, client: Any) -> None:
        answer = await client.receive_message(QueueUrl=self.url, WaitTimeSeconds=_POLL_S, MaxNumberOfMessages=_MESSAGES)
        messages: Sequence[Mapping[str, str]] = answer.get("Messages", ())
        for message in messages:
            for bucket, key in named_objects(message.get("Body", "")):
                for wake in self.wakes:
                    wake.hear(bucket, key)
        if messages:
            entries = [
                {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                for number, message in enumerate(messages)
            ]
            await client.delete_message_batch(QueueUrl=self.url, Entries=entries)


_QUEUES: Final[RunVar[dict[str, _Queue]]] = RunVar("queues of notifications")


def _queue(url: str) -> _Queue:
    """Return the queue of this event loop, the same for all stores."""
    try:
        queues = _QUEUES.get()
    except LookupError:
        queues = {}
        _QUEUES.set(queues)
    return queues.setdefault(url, _Queue(url))


def _login(options: S3Options, url: str) -> S3Options:
    """Return the options for a client of the queue: the store's login, at the queue's address and in its region."""
    address = urlsplit(url)
    match = _AMAZON.fullmatch(address.hostname or "")
    region = match[1] if match else options.region
    endpoint = f"{address.scheme}://{address.netloc}"
    return replace(options, endpoint=endpoint, region=region, path_style=None, anonymous=False)


def named_objects(body: str) -> Objects:
    """Yield bucket and key of the objects that a message names: S3's own, EventBridge's, or either one through SNS."""
    try:
        message = json.loads(body)
        wrapped = _at(message, "Message")
        if isinstance(wrapped, str):
            message = json.loads(wrapped)
    except (ValueError, RecursionError):
        return
    records = _at(message, "Records")
    for record in records if isinstance(records, list) else ():
        # Here keys are encoded as in a form, and in EventBridge's messages they are not.
        for bucket, key in _object(_at(record, "s3")):
            yield bucket, unquote_plus(key)
    yield from _object(_at(message, "detail"))


def _object(described: object) -> Objects:
    bucket, key = _at(_at(described, "bucket"), "name"), _at(_at(described, "object"), "key")
    if isinstance(bucket, str) and isinstance(key, str):
        yield bucket, key


def _at(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None
