"""The choice of the encoder for rows, by the options of the sink."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING

import pyarrow as pa
from typing_extensions import override

from tailer.errors import SinkAccessRefused, SinkRejected
from tailer.events import ChangeBatch
from tailer_sinks.encoding.cloudevents import CloudEventsEncoder
from tailer_sinks.encoding.debezium.images import Images, PairingEncoder, refuse_variants
from tailer_sinks.encoding.debezium.messages import DebeziumEncoder, Source
from tailer_sinks.encoding.flat_messages import ArrowMessages, FlatMessages
from tailer_sinks.encoding.messages import Sent, TopicEncoder
from tailer_sinks.encoding.variants import VariantForm, VariantsIn, form_schema
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.options import Options, registry_secrets
from tailer_sinks.kafka.routing.encoders import RoutedEncoder
from tailer_sinks.kafka.routing.route import column_in

if TYPE_CHECKING:
    from tailer_sinks.encoding.avro.registry import SchemaRegistry

__all__ = ["checked_key_form", "encoder_for", "key_form", "source_of"]


def encoder_for(link: Link, schema: pa.Schema, routed: Sequence[str] = ()) -> TopicEncoder:
    """Return the encoder for rows of `schema` that gives messages their topics.

    `routed`: topics that may get some, if a column names them. What one of these refuses is refused here, before others
    have rows.

    Raises `SinkRejected` if rows cannot be encoded, or have no column that names topics.
    """
    options, name = link.options, link.name
    form = _variant_form(options)
    refuse_variants(name, schema, options.key)
    rows = form_schema(schema, form)
    encoder: TopicEncoder
    if (route := options.route) is None:
        encoder = _OneTopic(options.topic, _encoder(link, rows, options.topic))
    else:
        column = column_in(name, route, schema)
        images = Images(name, rows, options.key, options.forms, pairs=options.envelope != "flat" or bool(options.key))
        encoder = RoutedEncoder(name, route, column, images, _encoders(link, rows, routed))
    return encoder if form is None else VariantsIn(name, form, schema, encoder)


def _encoders(link: Link, schema: pa.Schema, routed: Sequence[str]) -> Callable[[str], PairingEncoder]:
    """Return what makes the encoder for a topic. Raises `SinkRejected` for columns without a form."""
    if link.options.encoding == "avro":  # its schemas are registered under the names of topics
        for topic in routed:
            _avro_encoder(link, schema, topic, partial(_registry(link).look, passes_new=True))
        return partial(_encoder, link, schema)
    first = _encoder(link, schema, link.options.topic)
    alike = isinstance(first, FlatMessages)
    return lambda topic: first if alike else _encoder(link, schema, topic)


def _variant_form(options: Options) -> VariantForm | None:
    """Return the form of Variants if it is not the one that the encoding gives them by itself."""
    own = "encoded" if options.encoding != "json" else None if options.embed_schemas else "json"
    return None if options.variant == own else options.variant


def _encoder(link: Link, schema: pa.Schema, topic: str) -> PairingEncoder:
    """Return the encoder of rows to messages of one topic."""
    options, name = link.options, link.name
    key, tombstones, forms = options.key, options.with_tombstones, options.forms
    if options.encoding == "arrow":
        return ArrowMessages(name, schema, options.max_record_bytes * 9 // 10)
    if options.encoding == "avro":
        return _avro(link, schema, topic)
    if options.envelope == "debezium":
        source = source_of(name, topic)
        return DebeziumEncoder(name, schema, source, key, options.embed_schemas, tombstones, forms)
    if options.envelope == "cloudevents":
        return CloudEventsEncoder(name, schema, name, key, tombstones, options.cloudevents_mode, forms)
    return FlatMessages(name, schema, key, tombstones, forms)


def key_form(options: Options, schema: pa.Schema) -> str | None:
    """Describe the form of keys for rows of `schema`; None without a key.

    If it changes, equal keys get other bytes, and so another partition, and compaction takes them for other keys.
    """
    if not options.key:
        return None
    columns = ", ".join(f"{name} {_key_type(schema.field(name).type, options)}" for name in options.key)
    return f"{options.encoding}{' with schemas' * options.embed_schemas}, decimals as {options.decimal}: {columns}"


def checked_key_form(link: Link, schema: pa.Schema, former: str | None) -> str | None:
    """Return `key_form` of rows of `schema`. Raises `SinkRejected` unless it is `former`, if there is one."""
    key = key_form(link.options, schema)
    if former not in {None, key}:
        reason = (
            f"message keys would be {key}, and those in {link.options.topic} are {former}: "
            "keys would move to other partitions, and the order of a key's messages would be lost"
        )
        remedy = (
            "Deliver to a new topic, by another pipeline; or continue nevertheless, after the delivered rows: "
            "`tailer progress reset PIPELINE --to VERSION`."
        )
        raise SinkRejected(link.name, reason, remedy)
    return key


def _key_type(kind: pa.DataType, options: Options) -> str:
    """Describe the type as far as it shows in a key."""
    if pa.types.is_dictionary(kind):
        return _key_type(kind.value_type, options)
    carries_schema = options.encoding == "avro" or options.embed_schemas
    text = "integer" if pa.types.is_integer(kind) and not carries_schema else str(kind)
    return f"{text} with int64 as string" if options.int64 == "string" and "int64" in str(kind) else text


def _avro(link: Link, schema: pa.Schema, topic: str) -> PairingEncoder:
    registry = _registry(link)
    encoder = _avro_encoder(link, schema, topic, registry.look)  # no subject gets a schema if the other one refuses it
    return encoder if link.only_looks else _avro_encoder(link, schema, topic, registry.schema_id)


def _avro_encoder(link: Link, schema: pa.Schema, topic: str, register: Callable[[str, str], int]) -> PairingEncoder:
    from tailer_sinks.encoding.avro.messages import DebeziumAvroEncoder, FlatAvroEncoder  # noqa: PLC0415 - of an extra

    options, name = link.options, link.name
    key, tombstones = options.key, options.with_tombstones
    try:
        if options.envelope == "debezium":
            source = source_of(name, topic)
            return DebeziumAvroEncoder(name, schema, source, topic, register, key, tombstones)
        return FlatAvroEncoder(name, schema, topic, register, key, tombstones)
    except SinkAccessRefused:
        link.registry = None  # the next one reads the secrets again
        raise


def _registry(link: Link) -> "SchemaRegistry":
    """Return the registry of the link, which keeps it."""
    from tailer_sinks.encoding.avro.registry import RegistryAccess, SchemaRegistry  # noqa: PLC0415 - of an extra

    if link.registry is None:
        name, options = link.name, link.options
        password, token = registry_secrets(name, options)
        access = RegistryAccess(
            options.registries,
            options.registry_username,
            password,
            token,
            options.registry_tls_ca_file,
            options.registry_tls_certificate_file,
            options.registry_tls_key_file,
        )
        link.registry = SchemaRegistry(name, access, options.registry_register)
    return link.registry


def source_of(name: str, topic: str) -> Source:
    """Return the source in Debezium's messages; topics are named `<prefix>.<schema>.<table>`.

    In a name with fewer parts the last is the table, and the pipeline's `name` is the prefix if there is none.
    """
    *before, table = topic.split(".")
    prefix = before[0] if before else name
    return Source(version_of("lake-tailer"), prefix, ".".join(before[1:]) or None, table)


class _OneTopic(TopicEncoder):
    """A `TopicEncoder` of messages that all go to `topic`."""

    def __init__(self, topic: str, encoder: PairingEncoder) -> None:
        self._encoder = encoder
        self._topic = topic

    @property
    @override
    def sample(self) -> PairingEncoder:
        return self._encoder

    @property
    @override
    def pending(self) -> ChangeBatch | None:
        return self._encoder.pending

    @override
    def encode(self, batch: ChangeBatch, now_ms: int) -> Sent:
        return [(self._topic, self._encoder.encode(batch, now_ms), None)]

    @override
    def flush(self, now_ms: int) -> Sent:
        messages = self._encoder.flush(now_ms)
        return [] if messages is None else [(self._topic, messages, None)]
