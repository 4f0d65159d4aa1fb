"""Connections with kafka-python, and the meaning of its errors for a sink."""

import logging
import os
import re
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from kafka.errors import (
    BrokerResponseError,
    IllegalStateError,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

from tailer.errors import SinkError, SinkRejected, SinkUnavailable
from tailer_sinks.kafka.clients.port import OLDEST_BROKER, Connection, Settings, error_of, too_old
from tailer_sinks.kafka.clients.security import Tokens, protocol_of, tls_context
from tailer_sinks.kafka.clients.settings import PYTHON_NAMES, reconnect_waits

__all__ = ["CLIENT_ERRORS", "arguments_of", "connected", "error_for", "translated"]

# Errors of the client with a cause outside of it.
CLIENT_ERRORS: Final = (KafkaError, OSError, RuntimeError, ValueError)

# Errors are raised once, in our words; the client logs them for each connection and attempt.
# Set the logger's level to see them.
_client_log = logging.getLogger("kafka")
if _client_log.level == logging.NOTSET:
    _client_log.setLevel(logging.CRITICAL)

# When debugging they log all data on the wire, including passwords and tokens.
_TALKATIVE: Final = ("kafka.net.connection", "kafka.protocol.parser")

_CONNECT_MS: Final = 15_000
_ONE_MS: Final = 5_000
_TOKENS: Final = "sasl_oauth_token_provider"
_CODE: Final = re.compile(r"\[Error (\d+)\]")
_ERRNO: Final = re.compile(r"(\d+) E[A-Z]+")  # as the client names what the system answers


class _Secret(str):
    """A text that is hidden when its container is printed: the client logs all arguments when debugging."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


class _Provider(AbstractTokenProvider):  # type: ignore[misc]  # the client has no types
    """A source of tokens in the client's form."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def token(self) -> str:
        """Return a valid token."""
        return self._tokens.token()[0]


class _LastAnswers:
    """Gives an answer that comes together with the end of the connection, such as a refusal: the client drops it."""

    def _sock_recv(self) -> tuple[bytes, Exception | None]:
        data, error = super()._sock_recv()  # type: ignore[misc]
        return data, None if data else error  # the next call gives the error again


class _Plain(_LastAnswers, KafkaTCPTransport):  # type: ignore[misc]
    pass


class _Secure(_LastAnswers, KafkaSSLTransport):  # type: ignore[misc]
    pass


class _Connections(KafkaConnectionManager):  # type: ignore[misc]  # the client has no types
    """The connections of a client, which begins with those to bootstrap servers.

    It would try these again for `_CONNECT_MS`, also after a login that brokers refuse, and then give no reason. Here it
    ends as soon as a broker refuses, or all servers have failed. `failures`: why, by server.
    """

    def __init__(self, net: Any, **configs: Any) -> None:
        super().__init__(net, **configs)
        self.failures: dict[str, Exception] = {}
        self.begins = True

    def get_connection(self, node_id: Any, timeout_ms: float | None = None, **options: Any) -> Any:
        """Return a connection to a broker, which may not be ready yet."""
        if not self.begins:
            return super().get_connection(node_id, timeout_ms=timeout_ms, **options)
        refusals = [error for error in self.failures.values() if isinstance(error, BrokerResponseError)]
        if refusals or len(self.failures) >= len(self.cluster.bootstrap_brokers()):
            raise next(iter([*refusals, *self.failures.values()]))
        connection = super().get_connection(node_id, timeout_ms=min(timeout_ms or _ONE_MS, _ONE_MS), **options)
        node = self.cluster.broker_metadata(node_id)
        connection.init_future.add_errback(partial(self.failures.__setitem__, f"{node.host}:{node.port}"))
        return connection

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        """Connect to a broker. The client itself leaves a socket open whose handshake fails."""
        options, context = self.config["socket_options"], self.config["ssl_context"]
        stream = await create_connection(self._net, node.host, node.port, options, timeout_at=timeout_at)
        if context is None:
            transport: Any = _Plain(self._net, stream, host=node.host)
        else:
            transport = _Secure(self._net, stream, host=node.host, ssl_context=context)
        try:
            await transport.handshake()
        except Exception as error:
            transport.close()
            raise KafkaConnectionError(f"Handshake failed: {error}") from error
        return transport


def arguments_of(connection: Connection) -> dict[str, Any]:
    """Return the connection arguments shared by all of kafka-python's clients.

    Raises `SinkRejected` for unusable certificates.
    """
    arguments: dict[str, Any] = {
        "bootstrap_servers": list(connection.bootstrap_servers),
        "client_id": connection.client_id,
        "security_protocol": protocol_of(connection),
        "bootstrap_timeout_ms": _CONNECT_MS,
        **translated({**connection.settings, **reconnect_waits(connection.settings)}),
    }
    sasl = connection.sasl
    if connection.tls is not None:
        arguments["ssl_context"] = tls_context(connection.name, connection.tls)
    if sasl is not None:
        arguments["sasl_mechanism"] = sasl.mechanism
    if sasl is not None and sasl.oauth is not None:
        arguments[_TOKENS] = _Provider(Tokens(connection.name, sasl.oauth, connection.tls))
    elif sasl is not None:
        arguments |= {"sasl_plain_username": sasl.username, "sasl_plain_password": _Secret(sasl.password)}
    return arguments


def translated(settings: Settings) -> dict[str, Any]:
    """Return settings as arguments of kafka-python. All must be among `PYTHON_NAMES`."""
    return {PYTHON_NAMES[name]: value for name, value in settings.items()}


def connected(make: Callable[..., Any], connection: Connection, **more: Any) -> Any:
    """Make one of kafka-python's clients; brokers that are too old are refused.

    Raises `SinkError`. Threads and sockets that the client leaves when it cannot connect are closed.
    """
    networks: list[tuple[KafkaNetClient, _Connections]] = []

    def network(**configs: Any) -> KafkaNetClient:
        selector = NetworkSelector(**configs)
        connections = _Connections(selector, **configs)
        networks.append((KafkaNetClient(selector, connections), connections))
        return networks[-1][0]

    arguments = arguments_of(connection)
    if _TOKENS in arguments:
        # Without a token the client would only report that it cannot connect.
        arguments[_TOKENS].token()
    for logger in _TALKATIVE:
        logging.getLogger(logger).addFilter(_is_fit_for_logs)
    try:
        client = make(**arguments, **more, kafka_client=network)
        version = networks[0][0].get_broker_version()
    except CLIENT_ERRORS as error:
        failures: dict[str, Exception] = {}
        for network_client, connections in networks:
            failures |= connections.failures
            network_client.close()
        raise _unreachable(connection, failures, error) from error
    networks[0][1].begins = False
    if version < OLDEST_BROKER:
        client.close()
        raise too_old(connection.name, version)
    return client


def error_for(sink: str, error: BaseException, topic: str | None = None) -> SinkError:
    """Translate kafka-python's `error`. `topic`: the topic in question, if known."""
    if isinstance(error, SinkError):
        return error
    cause = _cause(error)
    text = str(cause) if isinstance(cause, KafkaError) else f"{type(cause).__name__}: {cause}"
    if isinstance(cause, BrokerResponseError) and cause.errno is not None:
        return error_of(sink, cause.errno, text, topic)
    # The code is only in the text: "Unexpected error in ...: [Error 50] ...".
    code = _CODE.search(str(cause))
    if code is not None:
        return error_of(sink, int(code[1]), text, topic)
    if isinstance(cause, ValueError | KafkaConfigurationError):
        return SinkRejected(sink, text, "Check the sink's options, and its table client.")
    return SinkUnavailable(sink, f"a broker cannot be reached, or does not answer as it should ({text})")


def _unreachable(connection: Connection, failures: Mapping[str, Exception], error: Exception) -> SinkError:
    """Return the reason why brokers cannot be reached. `failures`: of attempts, by server."""
    for server, failure in failures.items():
        if isinstance(cause := failure.__cause__, ssl.SSLCertVerificationError):
            reason = f"{server}: its certificate is not trusted: {cause.verify_message}"
            remedy = 'Check "ssl.ca.location", and that the certificate has the name of the server.'
            return SinkRejected(connection.name, reason, remedy)
    if not isinstance(error, KafkaConnectionError | KafkaTimeoutError):
        return error_for(connection.name, error)
    reasons = []
    for server, failure in failures.items():
        if number := _ERRNO.search(str(failure)):
            why = os.strerror(int(number[1]))
        else:
            wanted = f"as a broker that is up and wants {protocol_of(connection)}"
            why = f"it does not answer {wanted} ({type(failure).__name__}: {failure})"
        reasons.append(f"{server}: {why}")
    return SinkUnavailable(connection.name, f"no broker can be reached ({'; '.join(reasons) or error})")


def _is_fit_for_logs(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.INFO


def _cause(error: BaseException) -> BaseException:
    """Return the cause that an error carries: an earlier error of the same producer."""
    if isinstance(error, KafkaError) and not isinstance(error, BrokerResponseError | IllegalStateError):
        for argument in error.args:
            if isinstance(argument, KafkaError):
                return _cause(argument)
    return error
