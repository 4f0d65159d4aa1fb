"""Batches with the images of their updates paired: shared by all encoders that combine images.

The two images of an update may be the last row of one batch and the first of the next. So `Images` holds back up to two
images at the end of a batch, visible in `pending`, until the next batch of the task or `flush` decides about them. The
result is the same for every division of a task's rows into batches.

`PairingEncoder` is the common part of the encoders of rows. `drafted` turns rows into the common parts of messages, for
any envelope: `before` and `after`, keys, positions.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, METADATA_FIELDS, ChangeBatch, has_variant
from tailer.plan import SNAPSHOT_TASKS
from tailer_sinks.encoding.columns import NULL, TEXT, NoText, Texts, whole, writer_for
from tailer_sinks.encoding.debezium.operations import KINDS, PREIMAGE, UNRELATED, decided, has_deletes, pairs, plan
from tailer_sinks.encoding.flat import REMEDY
from tailer_sinks.encoding.messages import BYTES, Messages
from tailer_sinks.encoding.values import FORMS, JsonForms

__all__ = [
    "Draft",
    "Images",
    "PairedRows",
    "PairingEncoder",
    "Topics",
    "commit_moment",
    "drafted",
    "in_snapshot",
    "refuse_variants",
]

E = TypeVar("E", bound="PairingEncoder")
V = TypeVar("V", str, bytes)
W = TypeVar("W")

NO_MESSAGES: Final = Messages(None, pa.array([], BYTES), pa.array([], pa.int64()))


@dataclass(frozen=True, slots=True)
class PairedRows:
    """Rows whose images are paired: `kinds`: their places in `KINDS`, `second` as in `Pairs`, JSON texts as `keys`.

    `second` is None if there are no images, `keys` if there is no key, and all are None if images are not paired.
    """

    batch: ChangeBatch
    kinds: pa.Array | None = None
    second: pa.Array | None = None
    keys: pa.Array | None = None


def refuse_variants(sink: str, schema: pa.Schema, key: Sequence[str]) -> None:
    """Raise `SinkRejected` if a column of the key contains Variants."""
    if variants := [name for name in key if name in schema.names and has_variant(schema.field(name).type)]:
        reason = f"column {', '.join(variants)} of the key has Variants, and equal ones can have different texts"
        raise SinkRejected(sink, reason, "Choose key columns of other types.")


@dataclass(frozen=True, slots=True)
class Topics(Generic[E]):
    """The encoders of some topics. `numbers`: that of each row, or message; None: there is one topic."""

    encoders: Sequence[E]
    numbers: pa.Array | None = None

    def of(self, rows: pa.Array | None) -> "Topics[E]":
        """Return the same for messages about these rows; None: one for each row."""
        if rows is None or self.numbers is None:
            return self
        return Topics(self.encoders, self.numbers.take(rows))

    def choose(self, values: Sequence[V], kind: pa.DataType) -> V | pa.Array:
        """Return for each row, or message, that of the `values` of the encoders; one value where all are the same."""
        if self.numbers is None or len(set(values)) == 1:
            return values[0]
        return pa.array(values, kind).take(self.numbers)


class Images:
    """Pairs the images of updates among rows of one schema, except those that depend on the next batch.

    `sink`: the sink's name in errors. `schema`: of the batches (`tailer.plan.output_schema`). `key`: the columns of the
    messages' keys. `forms`: of numbers in these. `pairs`: False passes rows on as they are, without keys.
    Raises `SinkRejected` for a column of the key that is missing, has Variants, or has a type without a JSON form.
    """

    def __init__(
        self, sink: str, schema: pa.Schema, key: Sequence[str] = (), forms: JsonForms = FORMS, pairs: bool = True
    ) -> None:
        self._sink = sink
        self._schema = schema
        self._key = list(key)
        self._pairs = pairs
        self._held: ChangeBatch | None = None
        self._earlier = UNRELATED  # the relation of the first row that is held back and the one before it
        metadata = {field.name for field in METADATA_FIELDS}
        missing = [name for name in key if name in metadata or name not in schema.names]
        if missing:
            reason = f"the rows have no column {', '.join(missing)}, which is part of the key"
            raise SinkRejected(sink, reason, "Choose key columns that the table has, and a new topic.")
        refuse_variants(sink, schema, key)
        try:
            self._write_key = writer_for(pa.struct([schema.field(name) for name in key]), forms)
        except NoText as error:
            raise SinkRejected(sink, str(error), REMEDY) from error

    @property
    def pending(self) -> ChangeBatch | None:
        """The rows that are held back, at most two."""
        return self._held

    def encode(self, batch: ChangeBatch, write: Callable[[PairedRows], W]) -> W | None:
        """Return what `write` makes of the held back rows, and those of `batch` that need not be; None: there are none.

        Raises `SinkRejected`, also for a change type that is not one of Delta's, and `ValueError` if rows of another
        task are held back; nothing has changed then.
        """
        if not batch.rows.schema.equals(self._schema):
            raise SinkRejected(self._sink, f"rows of another schema than was announced: {batch.rows.schema.names}")
        if len(batch) == 0:
            return None
        if (held := self._held) is not None:
            place, held_place = ((part.table_id, part.version, part.task) for part in (batch, held))
            if place != held_place:
                raise ValueError(f"rows of {held_place} are held back, but rows of {place} follow")
            first = pa.RecordBatch.from_arrays(held.rows.columns, schema=batch.rows.schema)
            row_index = pa.concat_arrays([held.row_index, batch.row_index])
            batch = ChangeBatch(*place, pa.concat_batches([first, batch.rows]), row_index)
        return self._encode(batch, write, last=False)

    def flush(self, write: Callable[[PairedRows], W]) -> W | None:
        """Return what `write` makes of the rows that are held back. None: there are none."""
        return None if self._held is None else self._encode(self._held, write, last=True)

    def _encode(self, batch: ChangeBatch, write: Callable[[PairedRows], W], last: bool) -> W | None:
        """Return what `write` makes of rows; hold back the undecided ones unless these are the last ones."""
        try:
            paired, held, earlier = self._pair(batch, last)
            written = None if paired is None else write(paired)
        except NoText as error:
            raise SinkRejected(self._sink, str(error), REMEDY) from error
        self._held, self._earlier = held, earlier
        return written

    def _pair(self, batch: ChangeBatch, last: bool) -> tuple[PairedRows | None, ChangeBatch | None, pa.Scalar]:
        """Return the rows that are decided, the rest, and the relation of its first row and the one before it."""
        if not self._pairs:
            return PairedRows(batch), None, UNRELATED
        kinds = pc.index_in(batch.rows.column(CHANGE_TYPE), KINDS)
        if kinds.null_count:  # of change types that are not Delta's
            other = batch.rows.column(CHANGE_TYPE).filter(kinds.is_null())[0].as_py()
            reason = f"the format has no operation for rows of change type {other}"
            raise SinkRejected(self._sink, reason, "Choose flat rows without a key: they pass such rows on.")
        keys = whole(self._write_key(batch.rows.select(self._key).to_struct_array())) if self._key else None
        if not pc.any(pc.greater_equal(kinds, PREIMAGE)).as_py():
            return PairedRows(batch, kinds, None, keys), None, UNRELATED
        images = pairs(kinds, batch.row_index, keys, self._earlier)
        count = len(batch) if last else decided(kinds, images)
        if count == 0:
            return None, batch, self._earlier
        keys = keys if keys is None else keys.slice(0, count)
        paired = PairedRows(batch.slice(0, count), kinds.slice(0, count), images.second.slice(0, count), keys)
        if count == len(batch):
            return paired, None, UNRELATED
        return paired, batch.slice(count, len(batch) - count), images.relations[count - 1]


class PairingEncoder(ABC):
    """An encoder of batches of one schema. Holds back images at the end of a batch until the next one.

    `images` pairs them, and `write` makes messages of rows that are paired. Raises `SinkRejected`, also for a
    change type that is not one of Delta's where images are paired.
    """

    schema: pa.Schema
    images: Images

    @abstractmethod
    def write(self, now_ms: int, paired: PairedRows, topics: Topics[Self]) -> tuple[Messages, pa.Array | None]:
        """Return the messages of rows, and the row of each; None: each row has one message.

        `now_ms`: when they are made. `topics`: those of the rows, with encoders of the same options. Raises
        `SinkRejected` and `NoText`.
        """

    @property
    def pending(self) -> ChangeBatch | None:
        """The rows that are held back, at most two: progress must stay before the first of them."""
        return self.images.pending

    def encode(self, batch: ChangeBatch, now_ms: int) -> Messages:
        """Encode `batch`, after the held back rows of the same task. Call `flush` between tasks.

        `now_ms`: when the messages are made. Raises `SinkRejected`; the encoder is then unchanged.
        """
        messages = self.images.encode(batch, partial(self._of_one_topic, now_ms))
        return NO_MESSAGES if messages is None else messages

    def flush(self, now_ms: int) -> Messages | None:
        """Encode the rows that are held back, at the end of a task. None: there are none."""
        return self.images.flush(partial(self._of_one_topic, now_ms))

    def _of_one_topic(self, now_ms: int, paired: PairedRows) -> Messages:
        return self.write(now_ms, paired, Topics([self]))[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The common parts of messages.

    `images`: the parts of `"before":...,"after":...`, to be joined row by row. `operation`: null for a tombstone; a
    scalar if it is the same for all messages. `row_index`: int64, of each message; `number`: the same as text. `keys`:
    JSON texts. `new_key`, `old_key`: JSON texts, null for messages without a second key; None if no message has one.
    `rows`: the row of each message, null for a tombstone; `about`: the same, also for tombstones. None if each row has
    one message.
    """

    images: list[pa.Array | str]
    operation: pa.Array | pa.Scalar
    row_index: pa.Array
    number: pa.Array
    keys: pa.Array | None
    new_key: pa.Array | None = None
    old_key: pa.Array | None = None
    rows: pa.Array | None = None
    about: pa.Array | None = None

    def of_rows(self, column: pa.Array) -> pa.Array:
        """Return the column's value for each message."""
        return column if self.rows is None else column.take(self.rows)


def drafted(paired: PairedRows, texts: Texts, tombstones: bool) -> Draft:
    """Draft the messages of rows whose columns are `texts`; tombstones only if there are keys."""
    keys, row_index = paired.keys, paired.batch.row_index
    created = "r" if in_snapshot(paired.batch) else "c"
    if paired.second is None and not has_deletes(paired.kinds):
        images = [f'"before":null,"after":{texts.before}', texts.middle, texts.after]
        number = pc.cast(row_index, TEXT)
        return Draft(images=images, operation=pa.scalar(created, TEXT), row_index=row_index, number=number, keys=keys)
    messages = plan(paired.kinds, paired.second, keys, tombstones and keys is not None, created)
    rows = whole(texts)
    before, after = (pc.fill_null(rows.take(index), NULL) for index in (messages.before, messages.after))
    row_index = row_index.take(messages.position)
    new_key = old_key = None
    if keys is not None:
        if messages.new_key.null_count < len(messages.new_key):
            new_key, old_key = keys.take(messages.new_key), keys.take(messages.old_key)
        keys = keys.take(messages.key)
    return Draft(
        images=['"before":', before, ',"after":', after],
        operation=messages.operation,
        row_index=row_index,
        number=pc.cast(row_index, TEXT),
        keys=keys,
        new_key=new_key,
        old_key=old_key,
        rows=messages.row,
        about=messages.key,
    )


def in_snapshot(batch: ChangeBatch) -> bool:
    """Return whether the rows are those of a snapshot."""
    return batch.task >= SNAPSHOT_TASKS


def commit_moment(sink: str, batch: ChangeBatch) -> int:
    """Return the commit's timestamp, in microseconds since 1970.

    Raises `SinkRejected` if the rows do not share one timestamp.
    """
    moments = pc.min_max(pc.cast(batch.rows.column(COMMIT_TIMESTAMP), pa.int64())).as_py()
    moment = moments["min"]
    if moment is None or moment != moments["max"]:
        raise SinkRejected(sink, f"the rows of version {batch.version} do not share one commit timestamp")
    return int(moment)
