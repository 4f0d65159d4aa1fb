"""The choice of the encoder for rows, by the options of the sink, and what it encodes at once.

An update whose images have different topics becomes a delete in one and an insert in the other, as an update of the key
does.

A call of the encoder costs about as much for ten rows as for a thousand. So small batches of several versions wait
until there are enough rows, or until the transaction is committed: nothing of them is visible earlier.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import SinkAccessRefused, SinkRejected
from tailer.events import CHANGE_TYPE, ChangeBatch, ChangeType, joined_rows
from tailer_sinks.encoding.cloudevents import CloudEventsEncoder
from tailer_sinks.encoding.debezium.images import Images, PairedRows, PairingEncoder, Topics, refuse_variants
from tailer_sinks.encoding.debezium.messages import DebeziumEncoder, Source
from tailer_sinks.encoding.debezium.operations import DELETE, INSERT, NO, old_images
from tailer_sinks.encoding.flat_messages import ArrowMessages, FlatMessages
from tailer_sinks.encoding.messages import Sent
from tailer_sinks.encoding.variants import VariantForm, form_schema, in_form
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.options import Options, registry_secrets
from tailer_sinks.kafka.route import column_in

if TYPE_CHECKING:
    from tailer_sinks.encoding.avro.registry import SchemaRegistry

__all__ = [
    "TopicEncoder",
    "WaitingBatches",
    "checked_key_form",
    "encoder_for",
    "joined",
    "key_form",
    "source_of",
]

MOST_ROWS: Final = 4096
MOST_BYTES: Final = 1 << 20
MOST_BATCHES: Final = 1024
_INSERT: Final = pa.scalar(ChangeType.INSERT.value)


class TopicEncoder:
    """An encoder of rows of `schema` to messages with their topics, in no order between topics.

    `sink`: the sink's name in errors. `form`: that Variants get first; None: they stay as they are. `images`: pairs the
    rows' images, or passes them on; what is held back, and so where progress is, does not depend on topics. `divide`:
    gives the topics of rows, see `Route.divide`. `encoders`: those of topics, more of which `make` makes.
    """

    def __init__(
        self,
        sink: str,
        schema: pa.Schema,
        form: VariantForm | None,
        images: Images,
        divide: Callable[[ChangeBatch], tuple[Sequence[str], pa.Array | None]],
        make: Callable[[str], PairingEncoder],
        encoders: dict[str, PairingEncoder],
    ) -> None:
        self._sink = sink
        self._schema = schema
        self._form = form
        self._images = images
        self._divide = divide
        self._make = make
        self._encoders = encoders

    @property
    def sample(self) -> PairingEncoder | None:
        """One of the encoders that make the messages of a topic from rows as they are; None if there is none yet."""
        return next(iter(self._encoders.values()), None) if self._form is None else None

    @property
    def pending(self) -> ChangeBatch | None:
        """The rows that are held back: progress must stay before the first of them."""
        return self._images.pending

    def encode(self, batch: ChangeBatch, now_ms: int) -> Sent:
        """Encode `batch`, after the held back rows of the same task. Call `flush` between tasks.

        `now_ms`: when the messages are made. Raises `SinkRejected`; the encoder is then unchanged.
        """
        if self._form is not None:
            if not batch.rows.schema.equals(self._schema):
                reason = f"rows of another schema than was announced: {batch.rows.schema.names}"
                raise SinkRejected(self._sink, reason)
            batch = replace(batch, rows=in_form(self._sink, batch.rows, self._form))
        return self._images.encode(batch, partial(self._write, now_ms)) or ()

    def flush(self, now_ms: int) -> Sent:
        """Encode the rows that are held back, at the end of a task."""
        return self._images.flush(partial(self._write, now_ms)) or ()

    def _write(self, now_ms: int, paired: PairedRows) -> Sent:
        """Write paired rows. Those of all topics are encoded together: ten rows cost about as much as a thousand."""
        topics, numbers = self._divide(paired.batch)
        for topic in topics:
            if topic not in self._encoders:
                self._encoders[topic] = self._make(topic)
        encoders = [self._encoders[topic] for topic in topics]
        if numbers is None:
            return [(topics[0], encoders[0].write(now_ms, paired, Topics(encoders))[0], None)]
        order = pc.array_sort_indices(numbers)  # a stable sort: rows of a topic stay in their order
        numbers_in_order = numbers.take(order)
        paired = _taken(_split(paired, numbers), order)
        together = Topics(encoders, numbers_in_order)
        messages, rows = encoders[0].write(now_ms, paired, together)
        rows_of = dict(_runs(numbers_in_order))
        return [
            (topics[number], messages.slice(*place), order.slice(*rows_of[number]))
            for number, place in _runs(together.of(rows).numbers)
        ]


def encoder_for(link: Link, schema: pa.Schema, routed: Sequence[str] = ()) -> TopicEncoder:
    """Return the encoder for rows of `schema` that gives messages their topics.

    `routed`: topics that may get some, if a column names them. What one of these refuses is refused here, before others
    have rows.

    Raises `SinkRejected` if rows cannot be encoded, or have no column that names topics.
    """
    options, name, route = link.options, link.name, link.options.route
    # The form that the encoding gives Variants by itself.
    own = "encoded" if options.encoding != "json" else None if options.embed_schemas else "json"
    form = None if options.variant == own else options.variant
    refuse_variants(name, schema, options.key)
    rows = form_schema(schema, form)
    make = partial(_encoder, link, rows)
    if route is None:
        encoder = make(options.topic)
        one_topic = [options.topic]
        return TopicEncoder(
            name, schema, form, encoder.images, lambda _: (one_topic, None), make, {options.topic: encoder}
        )
    column = column_in(name, route, schema)
    images = Images(name, rows, options.key, options.forms, pairs=options.envelope != "flat" or bool(options.key))
    divide = partial(route.divide, name, column)
    if options.encoding == "avro":  # its schemas are registered under the names of topics
        for topic in routed:
            _avro_encoder(link, rows, topic, partial(_registry(link).look, passes_new=True))
    elif isinstance(encoder := make(options.topic), FlatMessages):  # alike for all topics
        return TopicEncoder(name, schema, form, images, divide, lambda _: encoder, {})
    return TopicEncoder(name, schema, form, images, divide, make, {})


def _encoder(link: Link, schema: pa.Schema, topic: str) -> PairingEncoder:
    """Return the encoder of rows to messages of one topic."""
    options, name = link.options, link.name
    key, tombstones, forms = options.key, options.with_tombstones, options.forms
    if options.encoding == "arrow":
        return ArrowMessages(name, schema, options.max_record_bytes * 9 // 10)
    if options.encoding == "avro":
        registry = _registry(link)
        encoder = _avro_encoder(link, schema, topic, registry.look)  # no subject gets a schema if another refuses its
        return encoder if link.only_looks else _avro_encoder(link, schema, topic, registry.schema_id)
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


def _runs(numbers: pa.Array) -> Sequence[tuple[int, tuple[int, int]]]:
    """Return each of the ascending numbers, with its first place and how often it is there."""
    runs, start = [], 0
    for run in pc.value_counts(numbers).to_pylist():
        runs.append((run["values"], (start, run["counts"])))
        start += run["counts"]
    return runs


def _split(paired: PairedRows, numbers: pa.Array) -> PairedRows:
    """Turn each update whose images have different topics into a delete and an insert."""
    if paired.second is None:
        return paired
    differs = pa.concat_arrays([NO, pc.not_equal(numbers.slice(1), numbers.slice(0, len(numbers) - 1))])
    moves = pc.and_(paired.second, differs)
    if not pc.any(moves).as_py():
        return paired
    images = pc.or_(moves, pa.concat_arrays([moves.slice(1), NO]))
    kinds = pc.if_else(images, pc.if_else(old_images(paired.kinds), DELETE, INSERT), paired.kinds)
    return replace(paired, kinds=kinds, second=pc.and_not(paired.second, moves))


def _taken(paired: PairedRows, order: pa.Array) -> PairedRows:
    """Put the rows in another order, in which paired images stay together."""
    columns = (paired.kinds, paired.second, paired.keys)
    kinds, second, keys = (None if column is None else column.take(order) for column in columns)
    batch = paired.batch
    try:
        rows = batch.rows.take(order)
    except pa.ArrowNotImplementedError:  # Arrow cannot take from views
        rows = pa.concat_batches([batch.rows.slice(row, 1) for row in order.to_pylist()])
    batch = replace(batch, rows=rows, row_index=batch.row_index.take(order))
    return PairedRows(batch, kinds=kinds, second=second, keys=keys)


class WaitingBatches:
    """Batches that wait for others, up to `MOST_ROWS`, `MOST_BYTES` and `MOST_BATCHES`."""

    def __init__(self) -> None:
        self._batches: list[ChangeBatch] = []
        self._rows = self._bytes = 0

    def add(self, batches: Sequence[ChangeBatch]) -> bool:
        """Add batches that have rows; return whether there are enough now."""
        self._batches += filter(len, batches)
        self._rows += sum(map(len, batches))
        self._bytes += sum(batch.size_bytes for batch in batches)
        return self._rows >= MOST_ROWS or self._bytes >= MOST_BYTES or len(self._batches) >= MOST_BATCHES

    def take(self) -> list[ChangeBatch]:
        """Return all batches, which do not wait any more."""
        taken, self._batches = self._batches, []
        self._rows = self._bytes = 0
        return taken


def joined(encoder: object, batches: Sequence[ChangeBatch]) -> Iterator[tuple[ChangeBatch, Sequence[ChangeBatch]]]:
    """Yield the batches to encode, each with the batches in it.

    Batches are joined where that makes the same messages, one for each row: in flat rows, with a key if all are inserts
    and none is held back. A joined batch has the version of its first one.
    """
    flat = encoder if isinstance(encoder, FlatMessages) and encoder.pending is None and len(batches) > 1 else None
    if flat is None or any(_has_dictionary(column.type) for column in flat.schema):
        yield from ((batch, (batch,)) for batch in batches)
        return
    start = 0
    while start < len(batches):
        together = _together(flat, batches, start)
        first = together[0]
        if len(together) > 1:
            row_index = pa.concat_arrays([batch.row_index for batch in together])
            yield ChangeBatch(first.table_id, first.version, first.task, joined_rows(together), row_index), together
        else:
            yield first, together
        start += len(together)


def _together(encoder: FlatMessages, batches: Sequence[ChangeBatch], start: int) -> Sequence[ChangeBatch]:
    """Return the batches from `start` on that can be joined; at least one."""
    rows = size_bytes = 0
    for end in range(start, len(batches)):
        batch = batches[end]
        rows, size_bytes = rows + len(batch), size_bytes + batch.size_bytes
        alike = batch.rows.schema.equals(encoder.schema) and (
            not encoder.keyed or pc.all(pc.equal(batch.rows.column(CHANGE_TYPE), _INSERT), min_count=0).as_py()
        )
        if not alike or rows > MOST_ROWS or size_bytes > MOST_BYTES:
            return batches[start : max(end, start + 1)]
    return batches[start:]


def _has_dictionary(kind: pa.DataType) -> bool:
    """Return whether values are dictionary-encoded on some level: dictionaries of batches may not fit into one."""
    if pa.types.is_dictionary(kind):
        return True
    return pa.types.is_nested(kind) and any(_has_dictionary(kind.field(index).type) for index in range(kind.num_fields))
