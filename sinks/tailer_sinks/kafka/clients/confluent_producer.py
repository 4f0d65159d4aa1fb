"""Producing with librdkafka in C, which confluent-kafka brings: more than ten times as fast as kafka-python.

Every message has a delivery report, and all reports are counted before a commit. librdkafka checks that itself, but has
lost messages silently in the past.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from typing_extensions import override

from tailer.errors import SinkError, SinkRejected, SinkUnavailable
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.kafka.clients.librdkafka import library
from tailer_sinks.kafka.clients.librdkafka_batches import BatchClient, Deliveries, TokenSource
from tailer_sinks.kafka.clients.port import (
    UNAUTHENTICATED,
    UNKNOWN_TOPIC,
    Connection,
    Producer,
    ProducerSettings,
    commit_error,
    error_of,
)
from tailer_sinks.kafka.clients.security import Tokens, protocol_of, tls_context
from tailer_sinks.kafka.clients.settings import reconnect_waits

__all__ = ["ConfluentProducer"]

_log = logging.getLogger(__name__)

# Errors are raised once, in our words; the client logs them for each connection and attempt.
# Set the logger's level to see them.
_client_log = logging.getLogger(f"{__name__}.librdkafka")
if _client_log.level == logging.NOTSET:
    _client_log.setLevel(logging.CRITICAL + 1)

_INIT_S: Final = 30.0
_UNREACHED_S: Final = 3.0
_END_S: Final = 30.0
_MARGIN_S: Final = 5.0
_TOPIC_MS: Final = 5_000
_SLICE_S: Final = 1.0
_REQUEST_MS: Final = 20_000
_CHUNK_MESSAGES: Final = 8192
_QUEUED_MESSAGES: Final = 200_000
_BATCH_BYTES: Final = 1_000_000

# The client's own errors that are like those of the protocol.
_ALIKE: Final = {
    KafkaError._FENCED: 90,  # noqa: SLF001 - the client's public names look like this
    KafkaError._AUTHENTICATION: UNAUTHENTICATED,  # noqa: SLF001
    KafkaError._UNKNOWN_TOPIC: UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION: UNKNOWN_TOPIC,  # noqa: SLF001
}

_CONSEQUENCES: Final = frozenset(
    {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._STATE}  # noqa: SLF001
)


class _Trouble:
    """The client's connection errors: calls that wait for a connection only time out."""

    def __init__(self) -> None:
        self.refusal: KafkaError | None = None
        self.latest: KafkaError | None = None
        self.unreached = False

    def report(self, error: KafkaError) -> None:
        """Keep an error that belongs to no message. The client calls this."""
        _log.debug("%s", error)
        self.latest = error
        self.unreached = self.unreached or error.code() == KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
        if _code(error) == UNAUTHENTICATED or _is_distrust(error):
            self.refusal = error


class ConfluentProducer(Producer):
    """A `tailer_sinks.kafka.clients.port.Producer`, made as `ProducerFactory` says."""

    def __init__(self, connection: Connection, settings: ProducerSettings, transactional_id: str) -> None:
        self._name: Final = connection.name
        self._patience_s: Final = settings.delivery_timeout_ms / 1000 + _MARGIN_S
        self._trouble: Final = _Trouble()
        self._deliveries = Deliveries()
        self._failed = False
        self._client: BatchClient | None = None
        with self._refusing_after_failure():
            client = _client(connection, settings, transactional_id, self._trouble)
            try:
                self._init(client)
            except BaseException:
                client.drop()
                raise
        self._client = client

    @override
    def begin(self) -> None:
        with self._refusing_after_failure() as client:
            self._trouble.latest = None
            self._deliveries = client.begin_transaction()

    @override
    def send(self, topic: str, messages: Messages, partition: int | None = None) -> None:
        with self._refusing_after_failure(topic) as client:
            for start in range(0, len(messages), _CHUNK_MESSAGES):
                client.produce(topic, messages.slice(start, _CHUNK_MESSAGES), partition)
                client.poll(0)
                self._raise_failure()

    @override
    def start_flush(self) -> None:
        with self._refusing_after_failure() as client:
            client.start_flush(_SLICE_S)

    @override
    def flush(self) -> int | None:
        with self._refusing_after_failure() as client:
            self._flush(client)
            self._check_delivered()
        return self._deliveries.first_offset

    @override
    def commit(self) -> None:
        with self._refusing_after_failure() as client:
            self._flush(client)
            self._check_delivered()
            # From here on an error leaves the outcome unknown, unless a broker refused.
            try:
                client.commit_transaction(_END_S)
            except KafkaException as error:
                raise commit_error(self._error_for(error.args[0])) from error

    @override
    def abort(self) -> None:
        with self._refusing_after_failure() as client:
            client.abort_transaction(_END_S)

    @override
    def close(self) -> None:
        self._failed = True
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.drop()

    @contextmanager
    def _refusing_after_failure(self, topic: str | None = None) -> Iterator[BatchClient]:
        if self._failed:
            raise SinkUnavailable(self._name, "this producer has failed, or was closed")
        self._failed = True
        try:
            yield self._client  # type: ignore[misc]  # None only while it is made
        except KafkaException as error:
            cause = _cause(self._client, error.args[0])
            # A failed transaction refuses messages to all topics, and the cause names its own.
            raise self._error_for(cause, topic if cause is error.args[0] else None) from error
        self._failed = False

    def _init(self, client: BatchClient) -> None:
        """Take the transactional id over. A call that waits for a connection gives no reason for its failure."""
        began_s = time.monotonic()
        while True:
            try:
                client.init_transactions(_SLICE_S)
            except KafkaException as error:
                client.poll(0)
                if self._trouble.refusal is not None:
                    raise self._error_for(self._trouble.refusal) from error
                patience_s = _UNREACHED_S if self._trouble.unreached else _INIT_S
                if not error.args[0].retriable() or time.monotonic() >= began_s + patience_s:
                    raise self._error_for(error.args[0]) from error
            else:
                return

    def _flush(self, client: BatchClient) -> None:
        deadline = time.monotonic() + self._patience_s
        while client.flush(_SLICE_S) and self._deliveries.failure is None and time.monotonic() < deadline:
            pass

    def _check_delivered(self) -> None:
        """Raise unless every sent message is confirmed."""
        self._raise_failure()
        missing = self._deliveries.sent - self._deliveries.stored
        if missing:
            raise SinkUnavailable(self._name, f"{missing} sent messages were not acknowledged")

    def _raise_failure(self) -> None:
        if self._deliveries.failure is not None:
            error, topic = self._deliveries.failure
            raise self._error_for(_cause(self._client, error), topic)

    def _error_for(self, error: KafkaError, topic: str | None = None) -> SinkError:
        text = error.str()
        if _is_distrust(error):
            remedy = 'Check "ssl.ca.location", and that the certificate has the name of the server.'
            return SinkRejected(self._name, text, remedy)
        code = _code(error)
        if code is None and self._trouble.latest is not None:
            text = f"{text} ({self._trouble.latest.str()})"
        return error_of(self._name, code, text, topic)


def _client(
    connection: Connection, settings: ProducerSettings, transactional_id: str, trouble: _Trouble
) -> BatchClient:
    timeout_ms = settings.transaction_timeout_ms
    config: dict[str, Any] = {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "delivery.timeout.ms": settings.delivery_timeout_ms,
        "socket.timeout.ms": min(_REQUEST_MS, timeout_ms),
        "enable.idempotence": True,
        # As in Java's clients and kafka-python, so that all writers of the topic put a key in the same partition.
        "partitioner": "murmur2_random",
        "compression.type": settings.compression,
        "linger.ms": 20,
        "batch.size": min(_BATCH_BYTES, settings.request_bytes),
        "batch.num.messages": 10_000,
        "message.max.bytes": settings.request_bytes,
        "queue.buffering.max.messages": _QUEUED_MESSAGES,
        # A message that finds no room in an empty queue would wait for ever.
        "queue.buffering.max.kbytes": max(settings.in_flight_bytes, 2 * settings.request_bytes) // 1024,
        "allow.auto.create.topics": False,
        "topic.metadata.propagation.max.ms": _TOPIC_MS,
        "retry.backoff.ms": 20,
    }
    config |= _connection_config(connection) | dict(connection.settings) | dict(settings.settings)
    config |= reconnect_waits(connection.settings)
    try:
        return BatchClient(library(), config, _client_log, trouble.report, _tokens(connection))
    except KafkaException as error:
        reason = error.args[0].str()
        raise SinkRejected(connection.name, reason, "Check the sink's table client.") from error


def _connection_config(connection: Connection) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(connection.bootstrap_servers),
        "client.id": connection.client_id,
        "security.protocol": protocol_of(connection),
    }
    tls, sasl = connection.tls, connection.sasl
    if tls is not None:
        # For better errors: the client's own do not name the file.
        tls_context(connection.name, tls)
        config["ssl.endpoint.identification.algorithm"] = "https" if tls.checks_names else "none"
        config |= {
            name: value
            for name, value in (
                ("ssl.ca.location", tls.ca_file or "probe"),
                ("ssl.certificate.location", tls.certificate_file),
                ("ssl.key.location", tls.key_file or tls.certificate_file),
                ("ssl.key.password", tls.key_password),
            )
            if value is not None
        }
    if sasl is not None:
        config["sasl.mechanism"] = sasl.mechanism
    if sasl is not None and sasl.oauth is None:
        config |= {"sasl.username": sasl.username, "sasl.password": sasl.password}
    return config


def _tokens(connection: Connection) -> TokenSource | None:
    """Return the source of tokens for OAUTHBEARER. Raises `SinkError` if it gives none."""
    if connection.sasl is None or connection.sasl.oauth is None:
        return None
    tokens = Tokens(connection.name, connection.sasl.oauth, connection.tls)
    # Without a token the client would only report that it cannot connect.
    tokens.token()
    return tokens.token


def _cause(client: BatchClient | None, error: KafkaError) -> KafkaError:
    """Return the cause of a failed transaction if `error` is only a consequence: purged messages, refused calls.

    The client reveals the cause when a transaction is begun.
    """
    if client is not None and error.code() in _CONSEQUENCES:
        try:
            client.begin_transaction()
        except KafkaException as further:
            cause: KafkaError = further.args[0]
            return error if cause.code() in _CONSEQUENCES else cause
    return error


def _code(error: KafkaError) -> int | None:
    """Return the code in Kafka's protocol; None for an error of the client's own."""
    code = error.code()
    return _ALIKE.get(code, code if code > 0 else None)


def _is_distrust(error: KafkaError) -> bool:
    """Return whether a broker's certificate failed. A handshake may also fail because a broker is shutting down."""
    return error.code() == KafkaError._SSL and "certificate" in error.str().lower()  # noqa: SLF001
