"""The choice of the encoder for rows, by the options of the sink."""

from functools import partial
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING

import pyarrow as pa

from tailer.errors import SinkAccessRefused, SinkRejected, how_to_install
from tailer_sinks.encoding.arrow_messages import ArrowMessages
from tailer_sinks.encoding.cloudevents import CloudEventsEncoder
from tailer_sinks.encoding.debezium.images import Images, PairedEncoder, refuse_variants
from tailer_sinks.encoding.debezium.messages import DebeziumEncoder, Source
from tailer_sinks.encoding.flat_messages import FlatMessages
from tailer_sinks.encoding.messages import Encoder, OneTopic, TopicEncoder
from tailer_sinks.encoding.variants import VariantForm, VariantsIn, form_schema
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.options import Options, registry_secrets
from tailer_sinks.kafka.routing.encoders import DividedPairs, DividedRows

if TYPE_CHECKING:
    from tailer_sinks.encoding.avro.registry import SchemaRegistry

__all__ = ["checked_key_form", "encoder_for", "key_form", "source_of", "topic_encoder_for"]


def topic_encoder_for(link: Link, schema: pa.Schema) -> TopicEncoder:
    """Return the encoder for rows of `schema` that gives messages their topics.

    Raises `SinkRejected` if rows cannot be encoded, or have no column that names topics.
    """
    options, name = link.options, link.name
    if (route := options.route) is None:
        return OneTopic(options.topic, encoder_for(link, schema))
    form = _variant_form(options)
    refuse_variants(name, schema, options.key)
    encoded = form_schema(schema, form)
    # Refuses columns without a form before there are rows. Avro's schemas are registered under the names of topics.
    first = None if options.encoding == "avro" else _encoder(link, encoded, options.topic)
    alike = first if isinstance(first, FlatMessages) else None
    if options.envelope == "flat" and not options.key:
        make = partial(_encoder, link, encoded) if alike is None else partial(_same, alike)
        return DividedRows(name, route, schema, form, make, alike)
    images = Images(name, encoded, options.key, options.decimal)
    make_paired = partial(_row_encoder, link, encoded) if alike is None else partial(_same, alike)
    return DividedPairs(name, route, schema, form, make_paired, images, alike)


def _same(encoder: FlatMessages, topic: str) -> FlatMessages:  # noqa: ARG001 - it is the encoder for every topic
    return encoder


def encoder_for(link: Link, schema: pa.Schema) -> Encoder:
    """Return the encoder of rows of `schema` to messages of the topic. Raises `SinkRejected` as above."""
    form = _variant_form(link.options)
    if form is None:
        return _encoder(link, schema, link.options.topic)
    refuse_variants(link.name, schema, link.options.key)
    return VariantsIn(link.name, form, schema, _encoder(link, form_schema(schema, form), link.options.topic))


def _variant_form(options: Options) -> VariantForm | None:
    """Return the form of Variants if it is not the one that the encoding gives them by itself."""
    own = "encoded" if options.encoding != "json" else None if options.embed_schemas else "json"
    return None if options.variant == own else options.variant


def _encoder(link: Link, schema: pa.Schema, topic: str) -> Encoder:
    if link.options.encoding == "arrow":
        return ArrowMessages(link.name, schema, link.options.max_record_bytes * 9 // 10)
    return _row_encoder(link, schema, topic)


def _row_encoder(link: Link, schema: pa.Schema, topic: str) -> PairedEncoder:
    """Return the encoder of rows to messages of their own."""
    options, name = link.options, link.name
    key, tombstones, decimal = options.key, options.with_tombstones, options.decimal
    if options.encoding == "avro":
        return _avro(link, schema, topic)
    if options.envelope == "debezium":
        source = source_of(name, topic)
        return DebeziumEncoder(name, schema, source, key, options.embed_schemas, tombstones, decimal)
    if options.envelope == "cloudevents":
        return CloudEventsEncoder(name, schema, name, key, tombstones, options.cloudevents_mode, decimal)
    return FlatMessages(name, schema, key, tombstones, decimal)


def key_form(options: Options, schema: pa.Schema) -> str | None:
    """Describe the form of keys for rows of `schema`; None without a key.

    If it changes, equal keys get other bytes, and so another partition, and compaction takes them for other keys.
    """
    if not options.key:
        return None
    typed = options.encoding == "avro" or options.embed_schemas
    columns = ", ".join(f"{name} {_key_type(schema.field(name).type, typed)}" for name in options.key)
    return f"{options.encoding}{' with schemas' * options.embed_schemas}, decimals as {options.decimal}: {columns}"


def checked_key_form(link: Link, schema: pa.Schema, known: str | None) -> str | None:
    """Return `key_form` of rows of `schema`. Raises `SinkRejected` unless it is the one `known`, if any is."""
    key = key_form(link.options, schema)
    if known not in {None, key}:
        reason = (
            f"message keys would be {key}, and those in {link.options.topic} are {known}: "
            "keys would move to other partitions, and the order of a key's messages would be lost"
        )
        remedy = (
            "Deliver to a new topic, by another pipeline; or continue nevertheless, after the delivered rows: "
            "`tailer progress reset PIPELINE --to VERSION`."
        )
        raise SinkRejected(link.name, reason, remedy)
    return key


def _key_type(kind: pa.DataType, typed: bool) -> str:
    """Describe the type as far as it shows in a key; `typed`: whether a key carries its schema."""
    if pa.types.is_dictionary(kind):
        return _key_type(kind.value_type, typed)
    return "integer" if pa.types.is_integer(kind) and not typed else str(kind)


def _avro(link: Link, schema: pa.Schema, topic: str) -> PairedEncoder:
    try:
        # Its dependencies are an extra.
        from tailer_sinks.encoding.avro.messages import DebeziumAvroEncoder, FlatAvroEncoder  # noqa: PLC0415
    except ImportError as error:
        raise SinkRejected(link.name, f"Avro messages cannot be made: {error}", how_to_install("avro")) from error
    options, name = link.options, link.name
    if link.registry is None:
        link.registry = _registry(link)
    register, key, tombstones = link.registry.schema_id, options.key, options.with_tombstones
    try:
        if options.envelope == "debezium":
            source = source_of(name, topic)
            return DebeziumAvroEncoder(name, schema, source, topic, register, key, tombstones)
        return FlatAvroEncoder(name, schema, topic, register, key, tombstones)
    except SinkAccessRefused:
        link.registry = None  # the next one reads the secrets again
        raise


def _registry(link: Link) -> "SchemaRegistry":
    from tailer_sinks.encoding.avro.registry import RegistryAccess, SchemaRegistry  # noqa: PLC0415 - its client is an extra

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
    return SchemaRegistry(name, access, options.registry_register, only_looks=link.only_looks)


def source_of(name: str, topic: str) -> Source:
    """Return the source in Debezium's messages; topics are named `<prefix>.<schema>.<table>`.

    In a name with fewer parts the last is the table, and the pipeline's `name` is the prefix if there is none.
    """
    *before, table = topic.split(".")
    prefix = before[0] if before else name
    return Source(version_of("lake-tailer"), prefix, ".".join(before[1:]) or None, table)
