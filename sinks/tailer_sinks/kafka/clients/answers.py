"""The meaning of brokers' error codes for a sink; the codes are those of Kafka's protocol, for any client.

Some need a person, with a next step; all others pass with time.
"""

from typing import Final

from tailer.errors import CommitUnknown, SinkAccessRefused, SinkError, SinkFenced, SinkRejected, SinkUnavailable

__all__ = ["OLDEST_BROKER", "UNAUTHENTICATED", "UNKNOWN_TOPIC", "commit_error", "error_of", "too_old"]

OLDEST_BROKER: Final = (2, 7)  # the oldest with reliable transactions in the clients

UNKNOWN_TOPIC: Final = 3
UNAUTHENTICATED: Final = 58

# An older or another epoch: InitProducerId was called since.
_FENCED: Final = frozenset({47, 90})
# The transactional id has no such producer id, or the producer is unknown: after some days without transactions.
_FORGOTTEN: Final = frozenset({49, 59})

_SMALLER = 'Raise max.message.bytes of the topic, or set large_records = "dead_letter" and a lower max_record_bytes.'
_LOGIN = (
    'Check "sasl.username", "sasl.password" and "sasl.mechanism"; for OAUTHBEARER, "sasl.oauthbearer.client.id" and '
    "what the brokers accept of its tokens."
)
_GRANT = (
    "Let this user read the progress topic and the end topic, describe (with their settings) and write all topics, "
    "create them, and describe and write the transactional id, which is the app_id (<pipeline>/<table id>)."
)
_GROUP = "Let this user read the group lake-tailer-heartbeat-PIPELINE, or start the pipeline without --standby."
_SETTINGS = "Check the number of partitions, the replication factor and the brokers' rules for new topics."
_TIMEOUT = "Lower transaction_timeout_s to what transaction.max.timeout.ms of the brokers allows, or raise that."
_BROKER = "Use brokers of version 2.7 or newer."

_TROUBLE: Final = {
    10: ("a message is larger than the destination takes", _SMALLER),
    17: ("the brokers refuse the name of the topic", "Choose another name."),
    18: ("messages are larger than the destination takes", _SMALLER),
    29: ("not authorised for the topic (TOPIC_AUTHORIZATION_FAILED)", _GRANT),
    30: ("not authorised for the group (GROUP_AUTHORIZATION_FAILED)", _GROUP),
    31: ("not authorised for the cluster (CLUSTER_AUTHORIZATION_FAILED)", _GRANT),
    33: ("the brokers do not support this SASL mechanism", _LOGIN),
    34: ("the brokers refuse SASL in this state", _LOGIN),
    35: ("the brokers do not know this request", _BROKER),
    37: ("the brokers refuse the number of partitions", _SETTINGS),
    38: ("the brokers refuse the replication factor", _SETTINGS),
    40: ("the brokers refuse a setting of the topic", _SETTINGS),
    42: ("the brokers call the request invalid", _BROKER),
    43: ("the topic's message format is too old", "Upgrade the topic's message.format.version."),
    44: ("a rule of the brokers forbids it", _SETTINGS),
    50: ("the brokers refuse the transaction timeout", _TIMEOUT),
    53: ("not authorised for the transactional id (TRANSACTIONAL_ID_AUTHORIZATION_FAILED)", _GRANT),
    54: ("security is disabled at the brokers", _LOGIN),
    UNAUTHENTICATED: ("the brokers refuse the login", _LOGIN),
    76: ("the brokers do not know the compression", 'Choose another "compression.type".'),
    87: ("the brokers call a message invalid", "A compacted topic takes no message without a key."),
}

_NO_ACCESS: Final = frozenset({29, 30, 31, 33, 34, 53, 54, UNAUTHENTICATED})


def error_of(sink: str, code: int | None, text: str, topic: str | None = None) -> SinkError:
    """Translate `code` of Kafka's protocol; `text`: the client's words; `topic`: the topic in question, if known.

    `SinkFenced` means that the broker has invalidated this producer: because another one took its transactional id,
    because its transaction was open for too long, or because it had none for too long.
    """
    about = "" if topic is None else f"topic {topic}: "
    if code in _FENCED:
        return SinkFenced(sink, f"{about}the broker has invalidated this producer; it may have taken too long ({text})")
    if code in _FORGOTTEN:
        settings = "transactional.id.expiration.ms, producer.id.expiration.ms"
        return SinkFenced(sink, f"{about}the broker forgot this producer after an idle time ({settings}; {text})")
    if code == UNKNOWN_TOPIC:
        # A broker that has just started knows no topics.
        return SinkUnavailable(sink, f"{about}there is no such topic or partition, or it is not known yet ({text})")
    if code in _TROUBLE:
        reason, remedy = _TROUBLE[code]
        kind = SinkAccessRefused if code in _NO_ACCESS else SinkRejected
        return kind(sink, f"{about}{reason} ({text})", remedy)
    return SinkUnavailable(sink, f"{about}{text}")


def commit_error(error: SinkError) -> SinkError:
    """Return the error of a commit that was asked for: its outcome is unknown, unless a broker refused."""
    return error if isinstance(error, SinkFenced | SinkRejected) else CommitUnknown(error.sink, error.reason)


def too_old(sink: str, version: tuple[int, ...]) -> SinkRejected:
    """Make the error for brokers of `version`."""
    return SinkRejected(sink, f"the brokers are of version {'.'.join(map(str, version))}", _BROKER)
