"""Change rows as Debezium's messages, in JSON, for readers of Debezium's topics.

`DebeziumEncoder` is made once per schema and does not depend on brokers: batches go in, keys and values come out as
Arrow arrays, one message each. `tailer_sinks.encoding.debezium.operations` gives the messages for rows, and pairs
images; `tailer_sinks.encoding.debezium.images` does so across batches; `tailer_sinks.encoding.debezium.schema` adds the
rest of a message. A reader must not skip a message because its position is equal to the previous one: if the key
changed, several messages can have one position.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tailer.errors import SinkRejected
from tailer.events import METADATA_FIELDS, ROW_COMMIT_VERSION, ROW_ID, ChangeBatch
from tailer_sinks.encoding.columns import NULL, TEXT, NoText, join, whole, writer_for
from tailer_sinks.encoding.debezium.images import (
    Draft,
    Images,
    PairedRows,
    PairingEncoder,
    Topics,
    commit_moment,
    drafted,
    in_snapshot,
)
from tailer_sinks.encoding.debezium.operations import NEW_KEY, OLD_KEY
from tailer_sinks.encoding.debezium.schema import (
    Source,
    envelope_schema,
    json_text,
    key_schema,
    not_finite,
    source_texts,
)
from tailer_sinks.encoding.flat import REMEDY
from tailer_sinks.encoding.messages import BYTES, Messages
from tailer_sinks.encoding.values import FORMS, JsonForms, integer

__all__ = ["TRACKING", "DebeziumEncoder", "Source", "row_columns"]

TRACKING: Final = [(ROW_ID, pa.int64()), (ROW_COMMIT_VERSION, pa.int64())]


class DebeziumEncoder(PairingEncoder):
    """An encoder of batches of one schema. Holds back images at the end of a batch until the next one.

    `sink`: the sink's name in errors. `schema`: of the batches (`tailer.plan.output_schema`). If the table's columns
    end with those of row tracking, these go to the source block and are not part of rows. `key`: the columns of the
    messages' keys. `embed_schemas`: each key and value carries its schema. `tombstones`: whether one follows a delete,
    if there is a key. `forms`: of numbers, also of those outside of rows. Rows of a snapshot are recognised by their
    task.

    Raises `SinkRejected` for a column whose type has no JSON form, or no schema if it is to be embedded, for a missing
    column of the key, and for other `forms` than the first with embedded schemas, which say what is a string.
    """

    def __init__(
        self,
        sink: str,
        schema: pa.Schema,
        source: Source,
        key: Sequence[str] = (),
        embed_schemas: bool = False,
        tombstones: bool = True,
        forms: JsonForms = FORMS,
    ) -> None:
        if embed_schemas and forms != FORMS:
            reason = "in messages that carry their schemas, decimals are strings, and integers of 64 bits numbers"
            raise SinkRejected(sink, reason, "Leave out one of the two options.")
        self.schema = schema
        self._sink = sink
        self._source = source
        self._tombstones = tombstones
        self.images = Images(sink, schema, key, forms)
        columns, self._tracked = row_columns(schema)
        self._columns = [field.name for field in columns]
        self._embedded = embed_schemas
        self._int64, self._write_int64 = forms.int64, writer_for(pa.int64(), forms)
        self._value_ends = self._key_ends = ("", "")
        try:
            self._write_row = writer_for(pa.struct(columns), forms)
            if embed_schemas:
                self._key_ends = _ends(key_schema(source.topic, [schema.field(name) for name in key]))
                self._value_ends = _ends(envelope_schema(source.topic, columns))
        except NoText as error:
            raise SinkRejected(sink, str(error), REMEDY) from error

    @override
    def write(
        self, now_ms: int, paired: PairedRows, topics: "Topics[DebeziumEncoder]"
    ) -> tuple[Messages, pa.Array | None]:
        batch = paired.batch
        if self._embedded:
            for name in self._columns:
                if not_finite(batch.rows.column(name)):
                    what = "NaN or an infinity, which Kafka Connect reads as 0 from JSON with schemas"
                    remedy = 'Use encoding = "avro", or leave the column or the schemas out.'
                    raise SinkRejected(self._sink, f"column {name} holds {what}", remedy)
        draft = drafted(paired, self._write_row(batch.rows.select(self._columns).to_struct_array()), self._tombstones)
        topics = topics.of(draft.about)
        tracked = [draft.of_rows(batch.rows.column(name)) for name, _ in TRACKING] if self._tracked else []
        tracking = [whole(self._write_int64(column)) for column in tracked]
        named = ((NEW_KEY, draft.new_key), (OLD_KEY, draft.old_key))
        headers = tuple((name, _keys(keys, topics)) for name, keys in named if keys is not None)
        keys = None if draft.keys is None else _keys(draft.keys, topics)
        values = self._values(batch, draft, tracking, now_ms, topics)
        return Messages(keys, values, draft.row_index, headers), draft.about

    def _values(
        self, batch: ChangeBatch, draft: Draft, tracking: list[pa.Array], now_ms: int, topics: "Topics[DebeziumEncoder]"
    ) -> pa.Array:
        """Return the values of messages, null where the operation is null."""
        place = batch.table_id, batch.version, batch.task
        is_snapshot = in_snapshot(batch)
        moment = commit_moment(self._sink, batch)
        form = self._int64
        sources = [source_texts(encoder._source, is_snapshot, place, moment, form) for encoder in topics.encoders]  # noqa: SLF001
        source, between, ending = (topics.choose(texts, TEXT) for texts in zip(*sources, strict=True))
        units = {"ts_ms": 1, "ts_us": 1000, "ts_ns": 1_000_000}
        now = json_text({name: integer(now_ms * unit, form) for name, unit in units.items()})
        ends = [encoder._value_ends for encoder in topics.encoders]  # noqa: SLF001
        start, end = (topics.choose(texts, TEXT) for texts in zip(*ends, strict=True))
        row_id, row_version = tracking or (NULL, NULL)
        first, *images = draft.images
        parts = [
            *(start, f"{{{first}", *images, ',"source":', source, draft.number, between, draft.number),
            *(ending, row_id, ',"row_commit_version":', row_version),
            *('},"transaction":null,"op":"', draft.operation, f'",{now[1:]}', end),
        ]
        return _joined(parts)


def row_columns(schema: pa.Schema) -> tuple[list[pa.Field], bool]:
    """Return the columns of rows in messages, and whether the table's end with those of row tracking, which are not."""
    metadata = {field.name for field in METADATA_FIELDS}
    columns = [field for field in schema if field.name not in metadata]
    is_tracked = [(field.name, field.type) for field in columns[-2:]] == TRACKING
    return (columns[:-2] if is_tracked else columns), is_tracked


def _keys(keys: pa.Array, topics: Topics[DebeziumEncoder]) -> pa.Array:
    """Return the keys in their form in messages."""
    ends = [encoder._key_ends for encoder in topics.encoders]  # noqa: SLF001
    start, end = (topics.choose(texts, TEXT) for texts in zip(*ends, strict=True))
    return _joined([start, keys, end])


def _joined(parts: Sequence[str | pa.Array | pa.Scalar]) -> pa.Array:
    """Join the parts of messages; null where one is null."""
    merged: list[Any] = []
    for part in parts:
        if isinstance(part, str) and not part:
            continue
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return pc.cast(join(*merged), BYTES)


def _ends(schema: str) -> tuple[str, str]:
    """Return the text before and after a payload that carries this schema."""
    return f'{{"schema":{schema},"payload":', "}"
