"""Change rows as Avro messages, flat or in Debezium's envelope, framed for Confluent's clients.

A message is a zero byte, the four bytes of its schema's id in a registry, highest first, and the record in Avro's
binary encoding; keys likewise. The subjects are `<topic>-key` and `<topic>-value`. `tailer_sinks.encoding.avro.schema`
gives the types, `tailer_sinks.encoding.avro.columns` the encoding of whole columns. The choice of messages, and the
handling of updates' images, is the same as for JSON: `tailer_sinks.encoding.flat_messages` and
`tailer_sinks.encoding.debezium.images`.

Debezium's records are those of its own Avro messages: `<topic>.Key`, `<topic>.Value` and `<topic>.Envelope`, with the
source block and the names that Kafka Connect gives records. Rows have logical types, not Debezium's own
(`io.debezium.time.*`). A header that names another key has the same bytes as that key in a message.
"""

import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from fastavro import parse_schema, schemaless_writer
from typing_extensions import override

from tailer.errors import SinkRejected
from tailer.events import ChangeBatch
from tailer_sinks.encoding.avro.columns import Part, joined, writer_for
from tailer_sinks.encoding.avro.schema import full_name, record_schema
from tailer_sinks.encoding.columns import TEXT, NoText
from tailer_sinks.encoding.debezium.images import (
    Images,
    PairedRows,
    PairingEncoder,
    Topics,
    commit_moment,
    in_snapshot,
)
from tailer_sinks.encoding.debezium.messages import TRACKING, row_columns
from tailer_sinks.encoding.debezium.operations import NEW_KEY, OLD_KEY, has_deletes, plan
from tailer_sinks.encoding.debezium.schema import Source, envelope_schema, source_texts
from tailer_sinks.encoding.flat import REMEDY
from tailer_sinks.encoding.flat_messages import FlatMessages
from tailer_sinks.encoding.messages import BYTES, Messages

__all__ = [
    "DebeziumAvroEncoder",
    "FlatAvroEncoder",
]

Register = Callable[[str, str], int]
"""From a subject and a schema, as JSON, to the schema's id, as `SchemaRegistry.schema_id` gives it."""
Json = dict[str, Any]

NULL, SOME = b"\x00", b"\x02"
_FRAME_BYTES: Final = 5  # a zero, and the id of the schema
NO_IMAGE: Final = pa.scalar(NULL, BYTES)


class _Records:
    """An encoder of columns of one schema as framed records. Raises `NoText` for a column without an Avro form."""

    def __init__(self, schema: Json, fields: Iterable[pa.Field], subject: str, register: Register) -> None:
        self._write = writer_for(pa.struct(fields), nullable=False)
        parse_schema(schema)
        number = register(subject, json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
        self.frame = b"\x00" + number.to_bytes(4, "big")

    def parts(self, columns: pa.Array) -> list[Part]:
        """Return the parts of structs' records, without their frames. Raises `NoText`."""
        return self._write(columns)

    def framed(self, columns: pa.Array) -> pa.Array:
        """Return whole messages of structs. Raises `NoText`."""
        return joined([self.frame, *self._write(columns)], len(columns))


class FlatAvroEncoder(FlatMessages):
    """An encoder of batches of one schema as records of the table's and the metadata columns, `<topic>.Value`.

    `sink`: the sink's name in errors. `schema`: of the batches (`tailer.plan.output_schema`). `topic`: of the messages;
    subjects and records are named after it. `register`: called here once for values, and for keys if there is a `key`,
    so this blocks and raises as it does. `tombstones`: whether one follows a delete, if there is a key.

    Raises `SinkRejected` for a column without an Avro form, and for a missing column of the key.
    """

    def __init__(
        self,
        sink: str,
        schema: pa.Schema,
        topic: str,
        register: Register,
        key: Sequence[str] = (),
        tombstones: bool = True,
    ) -> None:
        self._key = list(key)
        try:
            value = record_schema(full_name(topic, "Value"), schema)
            super().__init__(sink, schema, key, tombstones)
            self._records = _key_records(schema, key, topic, topic, register) if key else None
            self._values = _Records(value, schema, f"{topic}-value", register)
        except NoText as error:
            raise SinkRejected(sink, str(error), REMEDY) from error

    @override
    def _encode(self, rows: pa.RecordBatch) -> pa.Array:
        return self._values.framed(rows.to_struct_array())

    @override
    def write(self, now_ms: int, paired: PairedRows, topics: Topics[Any]) -> tuple[Messages, pa.Array | None]:
        if self._records is not None:
            paired = replace(paired, keys=self._records.framed(paired.batch.rows.select(self._key).to_struct_array()))
        messages, rows = super().write(now_ms, paired, topics)
        topics = topics.of(rows)
        # Records of several topics only differ in their frames.
        keys, frames = messages.keys, [encoder._values.frame for encoder in topics.encoders]  # noqa: SLF001
        values = _reframed(messages.values, topics.choose(frames, BYTES))
        if self._records is not None and keys is not None:
            frames = [encoder._records.frame for encoder in topics.encoders]  # noqa: SLF001
            keys = _reframed(keys, topics.choose(frames, BYTES))
        return Messages(keys, values, messages.row_index), rows


def _reframed(messages: pa.Array, frame: Part) -> pa.Array:
    """Return framed records with other frames, of which all have the same length; a constant one is there already."""
    if isinstance(frame, bytes):
        return messages
    return joined([frame, pc.binary_replace_slice(messages, 0, _FRAME_BYTES, b"")], len(messages))


class DebeziumAvroEncoder(PairingEncoder):
    """An encoder of batches of one schema. Holds back images at the end of a batch until the next one.

    `sink`: the sink's name in errors. `schema`: of the batches (`tailer.plan.output_schema`). If the table's columns
    end with those of row tracking, these go to the source block and are not part of rows. `source`: records are named
    after it. `topic`: of the messages; subjects are named after it. `register`: called here once for values, and for
    keys if there is a `key`, so this blocks and raises as it does. `tombstones`: whether one follows a delete, if there
    is a key.

    Raises `SinkRejected` for a column without an Avro form, and for a missing column of the key.
    """

    def __init__(
        self,
        sink: str,
        schema: pa.Schema,
        source: Source,
        topic: str,
        register: Register,
        key: Sequence[str] = (),
        tombstones: bool = True,
    ) -> None:
        self._sink = sink
        self._source = source
        self._tombstones = tombstones and bool(key)
        self._key = list(key)
        columns, self._tracked = row_columns(schema)
        self._columns = [field.name for field in columns]
        try:
            envelope = _envelope(source, columns)
            self.images = Images(sink, schema, key)
            self._fields: list[Json] = next(f["type"]["fields"] for f in envelope["fields"] if f["name"] == "source")
            self._keys = _key_records(schema, key, source.topic, topic, register) if key else None
            self._key_frame = b"" if self._keys is None else self._keys.frame
            self._rows = _Records(envelope, columns, f"{topic}-value", register)
        except NoText as error:
            raise SinkRejected(sink, str(error), REMEDY) from error

    @override
    def write(
        self, now_ms: int, paired: PairedRows, topics: "Topics[DebeziumAvroEncoder]"
    ) -> tuple[Messages, pa.Array | None]:
        batch = paired.batch
        created = "r" if in_snapshot(batch) else "c"
        rows = self._rows.parts(batch.rows.select(self._columns).to_struct_array())
        keys = None
        if self._keys is not None:
            frame = topics.choose([encoder._key_frame for encoder in topics.encoders], BYTES)  # noqa: SLF001
            keys = joined([frame, *self._keys.parts(batch.rows.select(self._key).to_struct_array())], len(batch))
        tracking = [batch.rows.column(name) for name, _ in TRACKING] if self._tracked else []
        if paired.second is None and not has_deletes(paired.kinds):
            images: list[Part] = [NULL, SOME, *rows, *self._source_parts(batch, batch.row_index, tracking, topics)]
            return Messages(
                keys, _values(images, SOME + created.encode(), now_ms, topics, len(batch)), batch.row_index
            ), None
        drafts = plan(paired.kinds, paired.second, paired.keys, self._tombstones, created)
        topics = topics.of(drafts.key)
        whole = joined([SOME, *rows], len(batch))
        images = [pc.fill_null(whole.take(index), NO_IMAGE) for index in (drafts.before, drafts.after)]
        row_index = batch.row_index.take(drafts.position)
        operation = joined([SOME, pc.cast(drafts.operation, BYTES)], len(drafts.operation))
        tracking = [column.take(drafts.row) for column in tracking]
        images += self._source_parts(batch, row_index, tracking, topics)
        values = _values(images, operation, now_ms, topics, len(row_index))
        if keys is None:
            return Messages(None, values, row_index), drafts.key
        named = ((NEW_KEY, drafts.new_key), (OLD_KEY, drafts.old_key))
        headers = tuple((name, keys.take(index)) for name, index in named if index.null_count < len(index))
        return Messages(keys.take(drafts.key), values, row_index, headers), drafts.key

    def _source_parts(
        self, batch: ChangeBatch, row_index: pa.Array, tracking: list[pa.Array], topics: "Topics[DebeziumAvroEncoder]"
    ) -> list[Part]:
        """Encode the source block; values that are the same for all rows are those of the JSON envelope."""
        place = batch.table_id, batch.version, batch.task
        is_snapshot = in_snapshot(batch)
        moment = commit_moment(self._sink, batch)
        sources = [source_texts(encoder._source, is_snapshot, place, moment) for encoder in topics.encoders]  # noqa: SLF001
        same: list[Json] = [json.loads("{}0{}0{}null}}".format(*texts)) for texts in sources]
        before, after = same[0]["sequence"].rsplit("0", 1)
        numbers = pc.cast(pc.cast(row_index, TEXT), BYTES)
        sequence = joined([before.encode(), numbers, after.encode()], len(numbers))
        by_name: dict[str, pa.Array] = {"sequence": sequence, "row_index": row_index}
        if tracking:
            by_name |= {name.removeprefix("_"): column for (name, _), column in zip(TRACKING, tracking, strict=True)}
        parts: list[Part] = []
        for field in self._fields:
            name, kind = field["name"], field["type"]
            if name in by_name:
                parts += writer_for(by_name[name].type, nullable=isinstance(kind, list))(by_name[name])
            else:
                parts.append(topics.choose([_scalar(kind, source.get(name)) for source in same], BYTES))
        return parts


def _values(
    images: list[Part], operation: Part, now_ms: int, topics: Topics[DebeziumAvroEncoder], length: int
) -> pa.Array:
    """Join images and source to values, null where the operation is null."""
    moments = [_scalar("long", now) for now in (now_ms, now_ms * 1000, now_ms * 1_000_000)]
    now = b"".join(SOME + moment for moment in moments)
    frame = topics.choose([encoder._rows.frame for encoder in topics.encoders], BYTES)  # noqa: SLF001
    return joined([frame, *images, NULL, operation, now], length)


def _key_records(schema: pa.Schema, key: Sequence[str], prefix: str, topic: str, register: Register) -> _Records:
    """Make the encoder of keys; records are named after `prefix`."""
    # Always optional: a key whose bytes change, with the schema's id, goes to another partition.
    fields = [schema.field(name).with_nullable(True) for name in key]
    name = full_name(prefix, "Key")
    return _Records(record_schema(name, fields, **{"connect.name": name}), fields, f"{topic}-key", register)


def _scalar(kind: Any, value: Any) -> bytes:
    """Encode one value of a plain type, or of a union of such. Path bytes that are not text are escaped."""
    buffer = io.BytesIO()
    if isinstance(value, str):
        value = value.encode(errors="backslashreplace").decode()
    schemaless_writer(buffer, kind, value)
    return buffer.getvalue()


def _envelope(source: Source, columns: Sequence[pa.Field]) -> Json:
    """Build the schema of values: Debezium's as Kafka Connect's Avro converter writes it, with our rows."""
    connect = json.loads(envelope_schema(source.topic, []))
    envelope = _avro(connect)
    value = full_name(source.topic, "Value")
    row = record_schema(value, columns, **{"connect.name": value})
    before, after, *others = envelope["fields"]
    return envelope | {"fields": [before | {"type": ["null", row]}, after | {"type": ["null", value]}, *others]}


def _avro(connect: Json) -> Json:
    """Convert the Kafka Connect schema of a struct or a plain type to Avro."""
    name = connect.get("name", "")
    named = {f"connect.{key}": connect[key] for key in ("version", "parameters", "default") if key in connect}
    if connect["type"] != "struct":
        kind = {"int64": "long"}.get(connect["type"], connect["type"])
        return {"type": kind, **named, **({"connect.name": name} if name else {})}
    name = full_name(name)
    namespace, _, last = name.rpartition(".")
    fields = [_avro_field(field) for field in connect["fields"]]
    return {"type": "record", "name": last, "namespace": namespace, "fields": fields, **named, "connect.name": name}


def _avro_field(connect: Json) -> Json:
    """Convert a struct's field. An optional field is a union that begins with its default's type."""
    kind: Any = _avro(connect)
    if list(kind) == ["type"]:
        kind = kind["type"]
    name = connect["field"]
    if "default" in connect:
        union = [kind, "null"] if connect["optional"] else kind
        return {"name": name, "type": union, "default": connect["default"]}
    return (
        {"name": name, "type": ["null", kind], "default": None} if connect["optional"] else {"name": name, "type": kind}
    )
