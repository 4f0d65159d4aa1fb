"""Connections with kafka-python, and the meaning of its errors for a sink."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kafka.errors import BrokerResponseError, IllegalStateError, KafkaConfigurationError, KafkaError, KafkaTimeoutError
from kafka.net.compat import KafkaNetClient
from kafka.net.sasl.oauth import AbstractTokenProvider

from tailer.errors import SinkError, SinkRejected, SinkUnavailable
from tailer_sinks.kafka.clients.answers import OLDEST_BROKER, error_of, too_old
from tailer_sinks.kafka.clients.port import Connection, Settings
from tailer_sinks.kafka.clients.python_login import probe_login
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
_TOKENS: Final = "sasl_oauth_token_provider"
_CODE: Final = re.compile(r"\[Error (\d+)\]")


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
    made: list[KafkaNetClient] = []

    def network(**configs: Any) -> KafkaNetClient:
        made.append(KafkaNetClient(**configs))
        return made[-1]

    arguments = arguments_of(connection)
    if _TOKENS in arguments:
        # Without a token the client would only report that it cannot connect.
        arguments[_TOKENS].token()
    # The client itself would try for `_CONNECT_MS`, and then give no reason.
    if reasons := probe_login(connection, arguments):
        raise _no_broker(connection, reasons)
    for logger in _TALKATIVE:
        logging.getLogger(logger).addFilter(_is_fit_for_logs)
    try:
        client = make(**arguments, **more, kafka_client=network)
        version = made[0].get_broker_version()
    except CLIENT_ERRORS as error:
        for network_client in made:
            network_client.close()
        raise _unreachable(connection, arguments, error) from error
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


def _unreachable(connection: Connection, arguments: Mapping[str, Any], error: Exception) -> SinkError:
    """Find the reason why brokers cannot be reached, which the client does not give."""
    if not isinstance(error, KafkaTimeoutError):
        return error_for(connection.name, error)
    otherwise = f"something answers, but not as a broker that is up and wants {protocol_of(connection)}"
    return _no_broker(connection, probe_login(connection, arguments) or [otherwise])


def _no_broker(connection: Connection, reasons: Sequence[str]) -> SinkUnavailable:
    return SinkUnavailable(connection.name, f"no broker can be reached ({'; '.join(reasons)})")


def _is_fit_for_logs(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.INFO


def _cause(error: BaseException) -> BaseException:
    """Return the cause that an error carries: an earlier error of the same producer."""
    if isinstance(error, KafkaError) and not isinstance(error, BrokerResponseError | IllegalStateError):
        for argument in error.args:
            if isinstance(argument, KafkaError):
                return _cause(argument)
    return error
