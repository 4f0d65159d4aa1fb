"""The port of a librdkafka client, and confluent-kafka's: a call and a report for each message.

`tailer_sinks.kafka.clients.librdkafka.batches` takes half the processor time for the same; this one is for where its
library cannot be used.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, Message
from confluent_kafka import Producer as ConfluentClient

from tailer_sinks.encoding.messages import Messages
from tailer_sinks.kafka.rows import rows

__all__ = ["Client", "Deliveries", "OneByOneClient"]

_ROOM_S: Final = 0.05
_ANY_PARTITION: Final = -1


class Deliveries:
    """The delivery reports of the messages of one transaction. `first_offset`: of the first one; None: unknown."""

    def __init__(self) -> None:
        self.sent = 0
        self.stored = 0
        self.failed = 0
        self.failure: tuple[KafkaError, str | None] | None = None
        self.first_offset: int | None = None

    @property
    def in_flight(self) -> int:
        """The number of messages without a report."""
        return self.sent - self.stored - self.failed

    def fail(self, count: int, error: KafkaError, topic: str | None) -> None:
        """Count messages that are not stored; the first error is kept."""
        self.failed += count
        if self.failure is None:
            self.failure = (error, topic)


class Client(Protocol):
    """A transactional producer of librdkafka. Methods raise `KafkaException`, or `SystemError` for a fatal error."""

    def init_transactions(self, timeout_s: float) -> None:
        """Take the transactional id over."""
        ...

    def begin_transaction(self) -> Deliveries:
        """Begin a transaction; return what will count its delivery reports."""
        ...

    def commit_transaction(self, timeout_s: float) -> None:
        """Commit. All deliveries must have been reported."""
        ...

    def abort_transaction(self, timeout_s: float) -> None:
        """Abort, and drop what is not sent yet."""
        ...

    def produce(self, topic: str, messages: Messages, partition: int | None) -> None:
        """Queue messages in order; blocks while the queue is full. Returns early if a delivery fails."""
        ...

    def poll(self, timeout_s: float) -> None:
        """Serve reports and errors: all that are there, or wait for one."""
        ...

    def start_flush(self, timeout_s: float) -> None:
        """Send what is queued at once, without waiting for the reports. `timeout_s`: until `flush`."""
        ...

    def flush(self, timeout_s: float) -> int:
        """Send what is queued at once and wait for the reports. Return the number of messages without one."""
        ...

    def drop(self) -> None:
        """End without waiting for messages in flight."""
        ...


class OneByOneClient:
    """confluent-kafka's own client. `config`: with its callbacks."""

    def __init__(self, config: Mapping[str, Any], log: logging.Logger) -> None:
        self._client: Final = ConfluentClient(dict(config), logger=log)
        self._deliveries = Deliveries()
        self.init_transactions: Final = self._client.init_transactions
        self.commit_transaction: Final = self._client.commit_transaction
        self.abort_transaction: Final = self._client.abort_transaction
        self.flush: Final = self._client.flush

    def begin_transaction(self) -> Deliveries:
        """See `Client`."""
        self._client.begin_transaction()
        self._deliveries = Deliveries()
        return self._deliveries

    def start_flush(self, timeout_s: float) -> None:
        """Do nothing: reports would be counted by two threads."""

    def produce(self, topic: str, messages: Messages, partition: int | None) -> None:
        """See `Client`. A full queue refuses a message, and none is sent before it is accepted."""
        deliveries, produce = self._deliveries, self._client.produce
        where = _ANY_PARTITION if partition is None else partition

        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                deliveries.stored += 1
                if deliveries.first_offset is None:
                    deliveries.first_offset = message.offset()
            else:
                deliveries.fail(1, error, message.topic())

        for value, key, headers in rows(messages):
            while True:
                try:
                    if headers is None:
                        produce(topic, value, key, where, report)
                    else:
                        produce(topic, value, key, where, report, headers=headers)
                    break
                except BufferError:
                    self._client.poll(_ROOM_S)
                    if deliveries.failure is not None:
                        return
        deliveries.sent += len(messages)

    def poll(self, timeout_s: float) -> None:
        """See `Client`."""
        self._client.poll(timeout_s)

    def drop(self) -> None:
        """See `Client`; the client ends with its last reference, which an error may hold."""
        self._client.purge(blocking=False)
