"""Change rows as Debezium's messages, in JSON: what programs made for Debezium's topics read.

`DebeziumEncoder` is made once per schema and knows nothing of brokers: batches go in, keys and values come out as
Arrow arrays, a message each. `sinks.encoding.debezium_operations` says which messages rows become, and which images
belong together; `sinks.encoding.debezium_schema` what is in a message besides the rows.

The two images of an update may be the last row of one batch and the first of the next. So the encoder holds back up
to two images at the end of a batch, until the next batch of the task or `flush` tells what they are, and says so in
`pending`. Its messages are the same wherever the rows of a task are cut into batches. A reader must not skip a message
because its position is equal to the one before: where the key changed, several messages can have one position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sinks.encoding.columns import NULL, TEXT, NoText, Texts, whole, writer_for
from sinks.encoding.debezium_operations import (
    NEW_KEY,
    OLD_KEY,
    UNRELATED,
    decided,
    has_deletes,
    has_images,
    kinds_of,
    pairs,
    plan,
)
from sinks.encoding.debezium_schema import (
    Origin,
    Snapshot,
    Source,
    envelope_schema,
    json_text,
    key_schema,
    source_texts,
)
from tailer.errors import SinkRejected
from tailer.events import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    METADATA_FIELDS,
    ROW_COMMIT_VERSION,
    ROW_ID,
    ChangeBatch,
)

__all__ = ["NEW_KEY", "OLD_KEY", "DebeziumEncoder", "Messages", "Origin", "Snapshot", "Source"]

REMEDY: Final = "Leave the column out, or use a sink that keeps types: delta, or files with format parquet."
EMPTY: Final = pa.scalar("", TEXT)
BYTES: Final = pa.large_binary()
TRACKING: Final = [(ROW_ID, pa.int64()), (ROW_COMMIT_VERSION, pa.int64())]


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in their order; the arrays are of one length.

    `keys`, `values`: UTF-8 bytes (`large_binary`); null where the table has no key, and in a tombstone. `header_names`,
    `header_values`: the one header of a message whose row got another key, else null. `lone_preimages`,
    `lone_postimages`: how many images of updates are without the other one; the first may mislead a reader.
    """

    keys: pa.Array
    values: pa.Array
    header_names: pa.Array
    header_values: pa.Array
    lone_preimages: int = 0
    lone_postimages: int = 0

    def __len__(self) -> int:
        return len(self.values)

    def followed_by(self, more: "Messages") -> "Messages":
        """These messages, then those."""
        if not len(self) or not len(more):
            return self if len(self) else more
        return Messages(
            pa.concat_arrays([self.keys, more.keys]),
            pa.concat_arrays([self.values, more.values]),
            pa.concat_arrays([self.header_names, more.header_names]),
            pa.concat_arrays([self.header_values, more.header_values]),
            self.lone_preimages + more.lone_preimages,
            self.lone_postimages + more.lone_postimages,
        )


def _messages(
    keys: pa.Array | None,
    values: pa.Array,
    names: pa.Array | None = None,
    others: pa.Array | None = None,
    alone: tuple[int, int] = (0, 0),
) -> Messages:
    """Messages out of texts; None where they have none."""
    length = len(values)
    texts = [pa.nulls(length, BYTES) if column is None else pc.cast(column, BYTES) for column in (keys, values, others)]
    return Messages(texts[0], texts[1], pa.nulls(length, TEXT) if names is None else names, texts[2], *alone)


NO_MESSAGES: Final = _messages(None, pa.array([], TEXT))


@dataclass(frozen=True, slots=True)
class _Given:
    """Rows to encode, with what holds for all of them; `earlier`: the relation of the first and the one before it."""

    batch: ChangeBatch
    origin: Origin
    earlier: pa.Scalar = UNRELATED

    @property
    def place(self) -> tuple[str, int, int]:
        """The task that the rows are of."""
        return self.batch.table_id, self.batch.version, self.batch.task

    def followed_by(self, batch: ChangeBatch) -> "_Given":
        """These rows, then those of `batch`, which is of the same task."""
        schema = batch.rows.schema
        held = pa.RecordBatch.from_arrays(self.batch.rows.columns, schema=schema)
        rows = pa.concat_batches([held, batch.rows])
        row_index = pa.concat_arrays([self.batch.row_index, batch.row_index])
        return _Given(ChangeBatch(*self.place, rows, row_index), self.origin, self.earlier)

    def split(self, count: int, relation: pa.Scalar) -> tuple["_Given", "_Given | None"]:
        """The first `count` rows, and the others if there are any; `relation`: of those that are separated."""
        told = _Given(self.batch.slice(0, count), self.origin)
        rest = self.batch.slice(count, len(self.batch) - count)
        return told, _Given(rest, self.origin, relation) if len(rest) else None


class DebeziumEncoder:
    """Encodes batches of one schema; holds back images at the end of a batch that may belong to the next one's.

    `sink`: what errors call the sink. `schema`: of the batches (`tailer.plan.output_schema`). Where the table's columns
    end with those of row tracking, these go to the source block and are not part of rows. `key`: the columns of the
    messages' keys. `embed_schemas`: each key and value carries its schema. `tombstones`: one follows a delete, if there
    is a key. Raises `SinkRejected` for a column whose type has no JSON form, or no schema where it is to be embedded.
    """

    def __init__(
        self,
        sink: str,
        schema: pa.Schema,
        source: Source,
        key: Sequence[str] = (),
        embed_schemas: bool = False,
        tombstones: bool = True,
    ) -> None:
        self.schema = schema
        self._sink = sink
        self._source = source
        self._tombstones = tombstones and bool(key)
        self._held: _Given | None = None
        metadata = {field.name for field in METADATA_FIELDS}
        columns = [field for field in schema if field.name not in metadata]
        missing = sorted(set(key) - {field.name for field in columns})
        if missing:
            raise SinkRejected(sink, f"the rows have no column {', '.join(missing)}, which is to be part of the key")
        keys = [schema.field(name) for name in key]
        self._tracked = [(field.name, field.type) for field in columns[-2:]] == TRACKING
        columns = columns[:-2] if self._tracked else columns
        self._columns = [field.name for field in columns]
        self._key = list(key)
        self._value_ends = self._key_ends = ("", "")
        try:
            self._write_row = writer_for(pa.struct(columns))
            self._write_key = writer_for(pa.struct(keys))
            if embed_schemas:
                self._key_ends = _ends(key_schema(source.topic, keys))
                self._value_ends = _ends(envelope_schema(source.topic, source.connector, columns))
        except NoText as error:
            raise SinkRejected(sink, str(error), REMEDY) from error

    @property
    def pending(self) -> ChangeBatch | None:
        """The rows that are held back, at most two: progress must not reach the first of them."""
        return self._held.batch if self._held else None

    def encode(self, batch: ChangeBatch, now_ms: int, origin: Origin | None = None) -> Messages:
        """The messages of `batch`, as far as its rows can be told without those that follow.

        Messages of rows that were held back come first; if `batch` is of another task, as `flush` would give them.
        `now_ms`: when the messages are made. `origin`: of the batch's task. Raises `SinkRejected`, also for a change
        type that Debezium has no operation for, and has changed nothing then.
        """
        if not batch.rows.schema.equals(self.schema):
            raise SinkRejected(self._sink, f"rows of another schema than was announced: {batch.rows.schema.names}")
        if len(batch) == 0:
            return NO_MESSAGES
        given, earlier = _Given(batch, origin or Origin()), NO_MESSAGES
        if self._held and self._held.place == given.place:
            given = self._held.followed_by(batch)
        elif self._held:
            earlier, _ = self._encoded(self._held, now_ms, last=True)
        messages, self._held = self._encoded(given, now_ms, last=False)
        return earlier.followed_by(messages)

    def flush(self, now_ms: int) -> Messages:
        """The messages of the rows that are held back: at the end of a task, and before the encoder is let go."""
        if self._held is None:
            return NO_MESSAGES
        messages, self._held = self._encoded(self._held, now_ms, last=True)
        return messages

    def _encoded(self, given: _Given, now_ms: int, last: bool) -> tuple[Messages, _Given | None]:
        """The messages of rows, and the rows that are to be held back unless these are the last ones."""
        rows = given.batch.rows
        kinds = kinds_of(rows.column(CHANGE_TYPE))
        if kinds.null_count:
            other = rows.column(CHANGE_TYPE).filter(kinds.is_null())[0].as_py()
            reason = f"Debezium has no operation for rows of change type {other}"
            raise SinkRejected(self._sink, reason, "Use a sink that passes such rows on, such as files.")
        try:
            keys = whole(self._write_key(_structs(rows, self._key))) if self._key else None
            if not has_images(kinds):
                return self._written(given, kinds, None, keys, now_ms), None
            found = pairs(kinds, given.batch.row_index, keys, given.earlier)
            count = len(rows) if last else decided(kinds, found)
            relation = found.relations[count - 1] if 0 < count < len(rows) else given.earlier
            told, held = given.split(count, relation)
            if count == 0:
                return NO_MESSAGES, held
            second = found.second.slice(0, count)
            keys = keys if keys is None else keys.slice(0, count)
            return self._written(told, kinds.slice(0, count), second, keys, now_ms), held
        except NoText as error:
            raise SinkRejected(self._sink, str(error), REMEDY) from error

    def _written(
        self, given: _Given, kinds: pa.Array, second: pa.Array | None, keys: pa.Array | None, now_ms: int
    ) -> Messages:
        """The messages of rows of these kinds; `second`: as in `Pairs`, None where there are no images."""
        batch = given.batch
        rows = self._write_row(_structs(batch.rows, self._columns))
        number = pc.cast(batch.row_index, TEXT)
        tracking = [_numbers(batch.rows.column(name)) for name, _ in TRACKING] if self._tracked else []
        frame = self._around(given, now_ms)
        created = "c" if given.origin.snapshot is Snapshot.FALSE else "r"
        if second is None and not has_deletes(kinds):
            images = [f'{{"before":null,"after":{rows.before}', rows.middle, rows.after]
            return _messages(self._keys(keys), _values(frame, images, number, tracking, pa.scalar(created, TEXT)))
        made = plan(kinds, second, keys, self._tombstones, created)
        texts = whole(rows)
        before, after = (pc.fill_null(texts.take(index), NULL) for index in (made.before, made.after))
        images = ['{"before":', before, ',"after":', after]
        values = _values(
            frame, images, number.take(made.position), [ids.take(made.row) for ids in tracking], made.operation
        )
        alone = made.lone_preimages, made.lone_postimages
        if keys is None:
            return _messages(None, values, alone=alone)
        other_keys = self._keys(keys.take(made.other_key)) if made.moves else None
        return _messages(self._keys(keys.take(made.key)), values, made.header, other_keys, alone)

    def _keys(self, keys: pa.Array | None) -> pa.Array | None:
        """The keys as they are in messages."""
        return keys if keys is None else whole(Texts(keys, *self._key_ends))

    def _around(self, given: _Given, now_ms: int) -> "_Frame":
        """What the messages of some rows have in common."""
        moments = pc.min_max(pc.cast(given.batch.rows.column(COMMIT_TIMESTAMP), pa.int64())).as_py()
        moment = moments["min"]
        if moment is None or moment != moments["max"]:
            raise SinkRejected(self._sink, f"the rows of version {given.batch.version} have not one commit timestamp")
        before, between, behind = source_texts(self._source, given.origin, given.place, moment)
        now = json_text({"ts_ms": now_ms, "ts_us": now_ms * 1000, "ts_ns": now_ms * 1_000_000})
        start, end = self._value_ends
        return _Frame(start, f',"source":{before}', between, behind, f'",{now[1:]}{end}')


@dataclass(frozen=True, slots=True)
class _Frame:
    """What is the same in all values of a batch: around the images, between the row's numbers, at the end."""

    start: str
    source: str
    between: str
    row_id: str
    end: str


def _ends(schema: str) -> tuple[str, str]:
    """What is before and behind a payload that carries this schema."""
    return f'{{"schema":{schema},"payload":', "}"


def _structs(rows: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    return rows.select(names).to_struct_array()


def _numbers(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.cast(column, TEXT), NULL)


def _values(
    frame: _Frame, images: list[pa.Array | str], number: pa.Array, tracking: list[pa.Array], operation: pa.Array
) -> pa.Array:
    """The values of messages, null where the operation is."""
    row_id, row_version = tracking or (NULL, NULL)
    parts = [
        *(frame.start, *images, frame.source, number, frame.between, number),
        *(frame.row_id, row_id, ',"row_commit_version":', row_version),
        *('},"transaction":null,"op":"', operation, frame.end),
    ]
    merged: list[pa.Array | pa.Scalar] = [pa.scalar(part, TEXT) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*merged, EMPTY)
