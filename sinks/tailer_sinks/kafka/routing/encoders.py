"""Encoders whose messages have topics by a route.

Images of updates are paired before rows are divided: what an encoder holds back, and so where progress is, does not
depend on topics. An update whose images have different topics becomes a delete in one and an insert in the other, as an
update of the key does.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import SinkRejected
from tailer.events import ChangeBatch
from tailer_sinks.encoding.debezium.images import Images, PairedEncoder, PairedRows, Topics
from tailer_sinks.encoding.debezium.operations import DELETE, INSERT, old_images
from tailer_sinks.encoding.flat_messages import FlatMessages
from tailer_sinks.encoding.messages import BYTES, Encoder, Messages, Sent
from tailer_sinks.encoding.variants import VariantForm, in_form
from tailer_sinks.kafka.routing.route import Route, column_in

__all__ = ["DividedPairs", "DividedRows"]

_Part = tuple[str, int, int]  # a topic, its first row, and the number of its rows
E = TypeVar("E")

_NOTHING: Final = Messages(None, pa.array([], BYTES), pa.array([], pa.int64()))
_NO: Final = pa.array([False])


class _Divided(Generic[E]):
    """The common part of encoders by a route.

    `sink`: the sink's name in errors. `schema`: of the batches. `form`: in which Variants are encoded; None: as they
    are. `make`: makes the encoder for a topic. `rows_alike`: the encoder of all topics, if there is one. Raises
    `SinkRejected` if the route's column cannot name topics.
    """

    def __init__(
        self,
        sink: str,
        route: Route,
        schema: pa.Schema,
        form: VariantForm | None,
        make: Callable[[str], E],
        rows_alike: FlatMessages | None = None,
    ) -> None:
        self._sink = sink
        self._route = route
        self._schema = schema
        self._form = form
        self._make = make
        self._rows_alike = rows_alike
        self._column = column_in(sink, route, schema)
        self._made: dict[str, E] = {}

    @property
    def sample(self) -> E | FlatMessages | None:
        """See `TopicEncoder`."""
        return self._rows_alike or next(iter(self._made.values()), None)

    def _of(self, topic: str) -> E:
        """Return the encoder for a topic."""
        if topic not in self._made:
            self._made[topic] = self._make(topic)
        return self._made[topic]

    def _together(self, parts: Sequence[_Part]) -> tuple[E, Topics[E]]:
        """Return an encoder that can encode rows of all parts, and the topics of these rows."""
        encoders = [self._of(topic) for topic, _, _ in parts]
        numbers = [pa.repeat(pa.scalar(at), length) for at, (_, _, length) in enumerate(parts)]
        return encoders[0], Topics(encoders, pa.concat_arrays(numbers))

    def _in_form(self, batch: ChangeBatch) -> ChangeBatch:
        if not batch.rows.schema.equals(self._schema):
            raise SinkRejected(self._sink, f"rows of another schema than was announced: {batch.rows.schema.names}")
        if self._form is None:
            return batch
        return replace(batch, rows=in_form(self._sink, batch.rows, self._form))


class DividedRows(_Divided[Encoder]):
    """A `TopicEncoder` of rows without keys and envelope: each row goes to its topic as it is.

    The encoders for topics hold back nothing.
    """

    @property
    def pending(self) -> ChangeBatch | None:
        """None: nothing is held back."""
        return None

    def encode(self, batch: ChangeBatch, now_ms: int) -> Sent:
        """See `Encoder.encode`."""
        batch = self._in_form(batch)
        if len(batch) == 0:
            return []
        topics, numbers = self._route.divide(self._sink, batch, self._column)
        if numbers is None:
            return [(topics[0], self._of(topics[0]).encode(batch, now_ms), None)]
        order, parts = _parts(topics, numbers)
        batch = _reordered(batch, order)
        first, together = self._together(parts)
        if isinstance(first, FlatMessages):
            messages = first.encode_divided(batch, together)
            return [(topic, messages.slice(at, length), order.slice(at, length)) for topic, at, length in parts]
        return [
            (topic, self._of(topic).encode(batch.slice(start, length), now_ms), order.slice(start, length))
            for topic, start, length in parts
        ]

    def flush(self, now_ms: int) -> Sent:
        """Return nothing: nothing is held back."""
        return []


class DividedPairs(_Divided[PairedEncoder]):
    """A `TopicEncoder` of rows with keys, or in an envelope with both images of updates; `images` pairs them."""

    def __init__(
        self,
        sink: str,
        route: Route,
        schema: pa.Schema,
        form: VariantForm | None,
        make: Callable[[str], PairedEncoder],
        images: Images,
        rows_alike: FlatMessages | None = None,
    ) -> None:
        super().__init__(sink, route, schema, form, make, rows_alike)
        self._images = images

    @property
    def pending(self) -> ChangeBatch | None:
        """See `Encoder.pending`."""
        return self._images.pending

    def encode(self, batch: ChangeBatch, now_ms: int) -> Sent:
        """See `Encoder.encode`."""
        batch = self._in_form(batch)
        sent: list[tuple[str, Messages, pa.Array | None]] = []
        self._images.encode(batch, partial(self._write, now_ms, sent))
        return sent

    def flush(self, now_ms: int) -> Sent:
        """See `Encoder.flush`."""
        sent: list[tuple[str, Messages, pa.Array | None]] = []
        self._images.flush(partial(self._write, now_ms, sent))
        return sent

    def _write(self, now_ms: int, sent: list[tuple[str, Messages, pa.Array | None]], paired: PairedRows) -> Messages:
        """Append the messages of the rows to `sent`; return none, as they have several topics."""
        topics, numbers = self._route.divide(self._sink, paired.batch, self._column)
        if numbers is None:
            sent.append((topics[0], self._of(topics[0]).write(now_ms, paired), None))
            return _NOTHING
        order, parts = _parts(topics, numbers)
        paired = _taken(_split(paired, numbers), order)
        first, together = self._together(parts)
        messages, rows = first.write_divided(now_ms, paired, together)
        start = 0
        for each in pc.value_counts(together.of(rows).numbers).to_pylist():  # in their order
            topic, at, length = parts[each["values"]]
            sent.append((topic, messages.slice(start, each["counts"]), order.slice(at, length)))
            start += each["counts"]
        return _NOTHING


def _parts(topics: Sequence[str], numbers: pa.Array) -> tuple[pa.Array, list[_Part]]:
    """Return the order of rows that puts each topic's together, and each topic with its first row and their number.

    Rows of a topic stay in their order: Arrow's sort is stable.
    """
    parts, start = [], 0
    for each in pc.value_counts(numbers).sort(by="values").to_pylist():
        parts.append((topics[each["values"]], start, each["counts"]))
        start += each["counts"]
    return pc.array_sort_indices(numbers), parts


def _reordered(batch: ChangeBatch, order: pa.Array) -> ChangeBatch:
    try:
        rows = batch.rows.take(order)
    except pa.ArrowNotImplementedError:  # Arrow cannot take from views
        rows = pa.concat_batches([batch.rows.slice(at, 1) for at in order.to_pylist()])
    return replace(batch, rows=rows, row_index=batch.row_index.take(order))


def _split(paired: PairedRows, numbers: pa.Array) -> PairedRows:
    """Turn each update whose images have different topics into a delete and an insert."""
    if paired.second is None:
        return paired
    differs = pa.concat_arrays([_NO, pc.not_equal(numbers.slice(1), numbers.slice(0, len(numbers) - 1))])
    moves = pc.and_(paired.second, differs)
    if not pc.any(moves).as_py():
        return paired
    images = pc.or_(moves, pa.concat_arrays([moves.slice(1), _NO]))
    kinds = pc.if_else(images, pc.if_else(old_images(paired.kinds), DELETE, INSERT), paired.kinds)
    return replace(paired, kinds=kinds, second=pc.and_not(paired.second, moves))


def _taken(paired: PairedRows, order: pa.Array) -> PairedRows:
    """Put the rows in another order, in which paired images stay together."""
    second, keys = (None if column is None else column.take(order) for column in (paired.second, paired.keys))
    return PairedRows(_reordered(paired.batch, order), paired.kinds.take(order), second, keys)
