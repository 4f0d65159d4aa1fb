"""Producing with confluent-kafka, which is librdkafka in C: more than ten times what kafka-python does.

Every message has a delivery report, and all of them are counted before a commit: librdkafka looks after that itself,
but has lost messages before without a word. Reports and messages one by one cost as much processor time as batches do
(measured with 2.16), and only one by one is it sure that a full queue takes nothing out of order.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as Client

from sinks.encoding.messages import Messages
from sinks.kafka.clients.answers import UNAUTHENTICATED, UNKNOWN_TOPIC, error_of
from sinks.kafka.clients.port import Connection, ProducerSettings
from sinks.kafka.clients.security import Tokens, protocol_of, tls_context
from sinks.kafka.rows import rows
from tailer.errors import CommitUnknown, SinkError, SinkFenced, SinkRejected, SinkUnavailable

__all__ = ["ConfluentProducer"]

_log = logging.getLogger(__name__)

# What goes wrong is raised, and told once, in our words: the client says it once for each connection and attempt.
# Who wants to see that sets the logger's level.
_client_log = logging.getLogger(f"{__name__}.librdkafka")
if _client_log.level == logging.NOTSET:
    _client_log.setLevel(logging.CRITICAL + 1)

_INIT_S: Final = 30.0
_UNREACHED_S: Final = 3.0
_END_S: Final = 30.0
_MARGIN_S: Final = 5.0
_TOPIC_MS: Final = 5_000
_SLICE_S: Final = 1.0
_ROOM_S: Final = 0.05
_REQUEST_MS: Final = 20_000
_CHUNK_MESSAGES: Final = 2000
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


class _Deliveries:
    """What became of the messages of one transaction."""

    def __init__(self) -> None:
        self.sent = 0
        self.stored = 0
        self.failure: tuple[KafkaError, str | None] | None = None

    def report(self, error: KafkaError | None, message: Message) -> None:
        """What the client calls for each message, inside of `poll` and `flush`."""
        if error is None:
            self.stored += 1
        elif self.failure is None:
            self.failure = (error, message.topic())


class _Trouble:
    """What the client says of its connections: calls that wait for them end in nothing but a timeout."""

    def __init__(self) -> None:
        self.refusal: KafkaError | None = None
        self.latest: KafkaError | None = None
        self.unreached = False

    def report(self, error: KafkaError) -> None:
        """What the client calls with an error that belongs to no message."""
        _log.debug("%s", error)
        self.latest = error
        self.unreached = self.unreached or error.code() == KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
        if _code(error) == UNAUTHENTICATED or _is_distrust(error):
            self.refusal = error


class ConfluentProducer:
    """See `sinks.kafka.clients.port.Producer`; made as `ProducerFactory` says."""

    def __init__(self, connection: Connection, settings: ProducerSettings, transactional_id: str) -> None:
        self._name: Final = connection.name
        self._patience_s: Final = settings.delivery_timeout_ms / 1000 + _MARGIN_S
        self._trouble: Final = _Trouble()
        self._deliveries = _Deliveries()
        self._failed = False
        self._client: Client | None = None
        with self._refusing_after_failure():
            client = _client(connection, settings, transactional_id, self._trouble)
            try:
                self._init(client)
            except BaseException:
                _drop(client)
                raise
        self._client = client

    def begin(self) -> None:
        """Open a transaction."""
        with self._refusing_after_failure() as client:
            self._deliveries = _Deliveries()
            self._trouble.latest = None
            client.begin_transaction()

    def send(self, topic: str, messages: Messages, partition: int | None = None) -> None:
        """Hand messages over in their order; blocks while `in_flight_bytes` are on their way."""
        with self._refusing_after_failure(topic) as client:
            for start in range(0, len(messages), _CHUNK_MESSAGES):
                self._send_chunk(client, topic, messages.slice(start, _CHUNK_MESSAGES), partition)
                client.poll(0)
                self._raise_failure()

    def commit(self) -> None:
        """Return when all messages are stored and visible together: each delivery is checked before the commit."""
        with self._refusing_after_failure() as client:
            self._flush(client)
            self._check_delivered()
            # From here on, no error tells that nothing took place, unless a broker refused.
            try:
                client.commit_transaction(_END_S)
            except (KafkaException, SystemError) as error:
                told = self._error_for(_reason(error))
                if isinstance(told, SinkFenced | SinkRejected):
                    raise told from error
                raise CommitUnknown(self._name, told.reason) from error

    def abort(self) -> None:
        """Give up what is open, so that the producer can be used again."""
        with self._refusing_after_failure() as client:
            client.abort_transaction(_END_S)

    def close(self) -> None:
        """Let go of the connection, without waiting for what is open."""
        self._failed = True
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                _drop(client)

    @contextmanager
    def _refusing_after_failure(self, topic: str | None = None) -> Iterator[Client]:
        if self._failed:
            raise SinkUnavailable(self._name, "this producer has failed, or was closed")
        self._failed = True
        try:
            yield self._client  # type: ignore[misc]  # None only while it is made
        except (KafkaException, SystemError) as error:
            raise self._error_for(_cause(self._client, _reason(error)), topic) from error
        self._failed = False

    def _init(self, client: Client) -> None:
        """Take the transactional id over. A call that waits for a connection does not say why there is none."""
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

    def _send_chunk(self, client: Client, topic: str, messages: Messages, partition: int | None) -> None:
        deliveries = self._deliveries
        report = deliveries.report
        produce = client.produce
        where = -1 if partition is None else partition
        for value, key, headers in rows(messages):
            while True:
                try:
                    if headers is None:
                        produce(topic, value, key, where, report)
                    else:
                        produce(topic, value, key, where, report, headers=headers)
                    break
                except BufferError:
                    client.poll(_ROOM_S)
                    self._raise_failure()
        deliveries.sent += len(messages)

    def _flush(self, client: Client) -> None:
        deadline = time.monotonic() + self._patience_s
        while client.flush(_SLICE_S) and self._deliveries.failure is None and time.monotonic() < deadline:
            pass

    def _check_delivered(self) -> None:
        """Raise unless every message that was sent is known to be stored."""
        self._raise_failure()
        missing = self._deliveries.sent - self._deliveries.stored
        if missing:
            raise SinkUnavailable(self._name, f"nothing was heard of {missing} messages that were sent")

    def _raise_failure(self) -> None:
        if self._deliveries.failure is not None:
            error, topic = self._deliveries.failure
            raise self._error_for(_cause(self._client, error), topic)

    def _error_for(self, error: KafkaError, topic: str | None = None) -> SinkError:
        text = error.str()
        if _is_distrust(error):
            remedy = "Check tls_ca_file, and that the certificate has the name of the server."
            return SinkRejected(self._name, text, remedy)
        code = _code(error)
        if code is None and self._trouble.latest is not None:
            text = f"{text} ({self._trouble.latest.str()})"
        return error_of(self._name, code, text, topic)


def _client(connection: Connection, settings: ProducerSettings, transactional_id: str, trouble: _Trouble) -> Client:
    timeout_ms = settings.transaction_timeout_ms
    config: dict[str, Any] = {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "delivery.timeout.ms": settings.delivery_timeout_ms,
        "socket.timeout.ms": min(_REQUEST_MS, timeout_ms),
        "enable.idempotence": True,
        # As Java's clients and kafka-python: who else writes to the topic puts a key in the same place.
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
        "reconnect.backoff.max.ms": 2_000,
        "retry.backoff.ms": 20,
        "error_cb": trouble.report,
    }
    config |= _connection_config(connection)
    try:
        return Client(config, logger=_client_log)
    except KafkaException as error:
        reason = error.args[0].str()
        raise SinkRejected(connection.name, reason, "Check the sink's options.") from error


def _connection_config(connection: Connection) -> dict[str, Any]:
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(connection.bootstrap_servers),
        "client.id": connection.client_id,
        "security.protocol": protocol_of(connection),
    }
    tls, sasl = connection.tls, connection.sasl
    if tls is not None:
        # For the errors: the client's own do not say which file is meant.
        tls_context(connection.name, tls)
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
    if sasl is not None and sasl.oauth is not None:
        config["oauth_cb"] = _token_source(Tokens(connection.name, sasl.oauth, tls))
    elif sasl is not None:
        config |= {"sasl.username": sasl.username, "sasl.password": sasl.password}
    return config


def _token_source(tokens: Tokens) -> Callable[[str], tuple[str, float]]:
    def token(_: str) -> tuple[str, float]:
        return tokens.token()

    # Where there is none, the client would only say that it cannot connect.
    tokens.token()
    return token


def _drop(client: Client) -> None:
    """Forget what is on its way; the client itself ends with the last reference to it, which an error may hold."""
    client.purge(blocking=False)


def _reason(error: KafkaException | SystemError) -> KafkaError:
    """What an exception is about.

    Of a fatal error the client makes an exception between two callbacks, and goes on with the next one: what that calls
    ends with an error of the interpreter's own, which may or may not have kept the exception.
    """
    cause = error if isinstance(error, KafkaException) else error.__cause__
    if isinstance(cause, KafkaException):
        told: KafkaError = cause.args[0]
        return told
    return KafkaError(KafkaError._FATAL, "the client met a fatal error")  # noqa: SLF001


def _cause(client: Client | None, error: KafkaError) -> KafkaError:
    """What made a transaction fail, where `error` is only what follows from that: messages are purged, calls refused.

    The client says it to who would begin another one.
    """
    if client is not None and error.code() in _CONSEQUENCES:
        try:
            client.begin_transaction()
        except KafkaException as further:
            cause: KafkaError = further.args[0]
            return error if cause.code() in _CONSEQUENCES else cause
    return error


def _code(error: KafkaError) -> int | None:
    """The code in Kafka's protocol; None for an error of the client's own."""
    code = error.code()
    return _ALIKE.get(code, code if code > 0 else None)


def _is_distrust(error: KafkaError) -> bool:
    """Whether a broker's certificate is the trouble: a handshake may also fail because a broker is on its way down."""
    return error.code() == KafkaError._SSL and "certificate" in error.str().lower()  # noqa: SLF001
