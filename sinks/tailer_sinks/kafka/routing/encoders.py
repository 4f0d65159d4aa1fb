"""The encoder of messages whose topics a route names.

Images of updates are paired before rows are divided: what the encoder holds back, and so where progress is, does not
depend on topics. An update whose images have different topics becomes a delete in one and an insert in the other, as an
update of the key does. Rows of all topics are encoded together: a call costs about as much for ten rows as for a
thousand.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tailer.events import ChangeBatch
from tailer_sinks.encoding.debezium.images import Images, PairedRows, PairingEncoder, Topics
from tailer_sinks.encoding.debezium.operations import DELETE, INSERT, old_images
from tailer_sinks.encoding.messages import Sent, TopicEncoder
from tailer_sinks.kafka.routing.route import Column, Route

__all__ = ["RoutedEncoder"]

_NO: Final = pa.array([False])


class RoutedEncoder(TopicEncoder):
    """A `TopicEncoder` by `route`, whose column is `column` of the rows.

    `sink`: the sink's name in errors. `images`: pairs the rows' images, or passes them on. `make`: makes the encoder of
    a topic's messages.
    """

    def __init__(
        self, sink: str, route: Route, column: Column, images: Images, make: Callable[[str], PairingEncoder]
    ) -> None:
        self._sink = sink
        self._route = route
        self._column = column
        self._images = images
        self._make = make
        self._encoders: dict[str, PairingEncoder] = {}

    @property
    @override
    def sample(self) -> PairingEncoder | None:
        return next(iter(self._encoders.values()), None)

    @property
    @override
    def pending(self) -> ChangeBatch | None:
        return self._images.pending

    @override
    def encode(self, batch: ChangeBatch, now_ms: int) -> Sent:
        return self._images.encode(batch, partial(self._write, now_ms)) or ()

    @override
    def flush(self, now_ms: int) -> Sent:
        return self._images.flush(partial(self._write, now_ms)) or ()

    def _write(self, now_ms: int, paired: PairedRows) -> Sent:
        topics, numbers = self._route.divide(self._sink, paired.batch, self._column)
        if numbers is None:
            encoder = self._encoder(topics[0])
            return [(topics[0], encoder.write(now_ms, paired, Topics([encoder]))[0], None)]
        order = pc.array_sort_indices(numbers)  # a stable sort: rows of a topic stay in their order
        numbers_in_order = numbers.take(order)
        paired = _taken(_split(paired, numbers), order)
        together = Topics(list(map(self._encoder, topics)), numbers_in_order)
        messages, rows = together.encoders[0].write(now_ms, paired, together)
        rows_of = dict(_runs(numbers_in_order))
        return [
            (topics[number], messages.slice(*place), order.slice(*rows_of[number]))
            for number, place in _runs(together.of(rows).numbers)
        ]

    def _encoder(self, topic: str) -> PairingEncoder:
        if topic not in self._encoders:
            self._encoders[topic] = self._make(topic)
        return self._encoders[topic]


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
    differs = pa.concat_arrays([_NO, pc.not_equal(numbers.slice(1), numbers.slice(0, len(numbers) - 1))])
    moves = pc.and_(paired.second, differs)
    if not pc.any(moves).as_py():
        return paired
    images = pc.or_(moves, pa.concat_arrays([moves.slice(1), _NO]))
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
