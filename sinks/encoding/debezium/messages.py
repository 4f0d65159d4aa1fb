"""Change rows as Debezium's messages, in JSON: what programs made for Debezium's topics read.

`DebeziumEncoder` is made once per schema and knows nothing of brokers: batches go in, keys and values come out as
Arrow arrays, a message each. `sinks.encoding.debezium.operations` says which messages rows become, and which images
belong together; `sinks.encoding.debezium.images` how that is told across batches; `sinks.encoding.debezium.schema` what
is in a message besides the rows. A reader must not skip a message because its position is equal to the one before:
where the key changed, several messages can have one position.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sinks.encoding.columns import NULL, TEXT, DecimalForm, NoText, Texts, whole, writer_for
from sinks.encoding.debezium.images import REMEDY, Draft, Images, Told, commit_moment, drafted, in_snapshot, structs
from sinks.encoding.debezium.operations import NEW_KEY, OLD_KEY
from sinks.encoding.debezium.schema import (
    Snapshot,
    Source,
    envelope_schema,
    json_text,
    key_schema,
    not_finite,
    source_texts,
)
from sinks.encoding.messages import BYTES, Messages
from tailer.errors import SinkRejected
from tailer.events import METADATA_FIELDS, ROW_COMMIT_VERSION, ROW_ID, ChangeBatch

__all__ = ["NEW_KEY", "OLD_KEY", "TRACKING", "DebeziumEncoder", "Snapshot", "Source"]

EMPTY: Final = pa.scalar("", TEXT)
TRACKING: Final = [(ROW_ID, pa.int64()), (ROW_COMMIT_VERSION, pa.int64())]


class DebeziumEncoder:
    """Encodes batches of one schema; holds back images at the end of a batch that may belong to the next one's.

    `sink`: what errors call the sink. `schema`: of the batches (`tailer.plan.output_schema`). Where the table's columns
    end with those of row tracking, these go to the source block and are not part of rows. `key`: the columns of the
    messages' keys. `embed_schemas`: each key and value carries its schema. `tombstones`: one follows a delete, if there
    is a key. `decimal`: what decimals are in JSON (`sinks.encoding.columns.writer_for`). Rows of a snapshot are known
    by their task.

    Raises `SinkRejected` for a column whose type has no JSON form, or no schema where it is to be embedded, for a
    column of the key that is not there, and for numbers as decimals where schemas are to be embedded: these say string.
    """

    def __init__(
        self,
        sink: str,
        schema: pa.Schema,
        source: Source,
        key: Sequence[str] = (),
        embed_schemas: bool = False,
        tombstones: bool = True,
        decimal: DecimalForm = "string",
    ) -> None:
        if embed_schemas and decimal == "number":
            reason = "decimals are strings in messages that carry their schemas, and cannot be numbers"
            raise SinkRejected(sink, reason, "Leave out one of the two options.")
        self.schema = schema
        self._sink = sink
        self._source = source
        self._tombstones = tombstones
        self._images = Images(sink, schema, key, decimal)
        metadata = {field.name for field in METADATA_FIELDS}
        columns = [field for field in schema if field.name not in metadata]
        self._tracked = [(field.name, field.type) for field in columns[-2:]] == TRACKING
        columns = columns[:-2] if self._tracked else columns
        self._columns = [field.name for field in columns]
        self._embedded = embed_schemas
        self._value_ends = self._key_ends = ("", "")
        try:
            self._write_row = writer_for(pa.struct(columns), decimal)
            if embed_schemas:
                self._key_ends = _ends(key_schema(source.topic, [schema.field(name) for name in key]))
                self._value_ends = _ends(envelope_schema(source.topic, source.connector, columns))
        except NoText as error:
            raise SinkRejected(sink, str(error), REMEDY) from error

    @property
    def pending(self) -> ChangeBatch | None:
        """The rows that are held back, at most two: progress must not reach the first of them."""
        return self._images.pending

    def encode(self, batch: ChangeBatch, now_ms: int) -> Messages:
        """The messages of `batch`, as far as its rows can be told without those that follow.

        Messages of rows that were held back come first. `now_ms`: when the messages are made. Raises `SinkRejected`,
        also for a change type that Debezium has no operation for, and has changed nothing then.
        """
        return self._images.encode(batch, partial(self._written, now_ms))

    def flush(self, now_ms: int) -> Messages | None:
        """The messages of the rows that are held back, None if there are none.

        To be called at the end of a task, and before the encoder is let go.
        """
        return self._images.flush(partial(self._written, now_ms))

    def _written(self, now_ms: int, told: Told) -> Messages:
        batch = told.batch
        if self._embedded:
            self._check_finite(batch.rows)
        draft = drafted(told, self._write_row(structs(batch.rows, self._columns)), self._tombstones)
        tracking = [_numbers(draft.of_rows(batch.rows.column(name))) for name, _ in TRACKING] if self._tracked else []
        named = ((NEW_KEY, draft.new_key), (OLD_KEY, draft.old_key))
        headers = tuple((name, self._keys(keys)) for name, keys in named if keys is not None)
        keys = None if draft.keys is None else self._keys(draft.keys)
        return Messages(keys, self._values(batch, draft, tracking, now_ms), draft.row_index, headers)

    def _check_finite(self, rows: pa.RecordBatch) -> None:
        for name in self._columns:
            if not_finite(rows.column(name)):
                reason = (
                    f"column {name} holds NaN or an infinity, which Kafka Connect reads as 0 from JSON with schemas"
                )
                raise SinkRejected(self._sink, reason, 'Use encoding = "avro", or leave the column or the schemas out.')

    def _keys(self, keys: pa.Array) -> pa.Array:
        """The keys as they are in messages."""
        return pc.cast(whole(Texts(keys, *self._key_ends)), BYTES)

    def _values(self, batch: ChangeBatch, draft: Draft, tracking: list[pa.Array], now_ms: int) -> pa.Array:
        """The values of messages, null where the operation is."""
        place = batch.table_id, batch.version, batch.task
        snapshot = Snapshot.TRUE if in_snapshot(batch) else Snapshot.FALSE
        source, between, behind = source_texts(self._source, snapshot, place, commit_moment(self._sink, batch))
        now = json_text({"ts_ms": now_ms, "ts_us": now_ms * 1000, "ts_ns": now_ms * 1_000_000})
        start, end = self._value_ends
        row_id, row_version = tracking or (NULL, NULL)
        first, *images = draft.images
        parts = [
            *(f"{start}{{{first}", *images, f',"source":{source}', draft.number, between, draft.number),
            *(behind, row_id, ',"row_commit_version":', row_version),
            *('},"transaction":null,"op":"', draft.operation, f'",{now[1:]}{end}'),
        ]
        merged: list[pa.Array | pa.Scalar] = [
            pa.scalar(part, TEXT) if isinstance(part, str) else part for part in parts
        ]
        return pc.cast(pc.binary_join_element_wise(*merged, EMPTY), BYTES)


def _ends(schema: str) -> tuple[str, str]:
    """What is before and behind a payload that carries this schema."""
    return f'{{"schema":{schema},"payload":', "}"


def _numbers(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.cast(column, TEXT), NULL)
