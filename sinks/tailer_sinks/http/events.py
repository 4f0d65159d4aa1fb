"""Rows and control events as JSON texts, each with an id of its own, in the two formats of the sink.

An id is `<pipeline>;<table id>;<version>;<task>;<row>;<change>`: the same whenever the event is sent, and unique. That
of a control event is `<pipeline>;<table id>;<version>;<kind>`, followed by `;<command>` for a snapshot that was
asked for.

A request has a batch of events as its body, with the id and the signature that Standard Webhooks 1.0 describes. The id
names the positions of the first and the last event, and a digest of the body. So the same batch has the same id
whenever it is sent, and a receiver that drops an id which it knows never drops other events.

The signature is HMAC-SHA256 of `<id>.<timestamp>.<body>`. The id has no point in it.
"""

import hmac
from abc import ABC, abstractmethod
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import accumulate
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, ChangeBatch, ControlEvent, Gap, joined_rows
from tailer_sinks.encoding.cloudevents import CloudEventsEncoder, source_of
from tailer_sinks.encoding.flat import AT_ONCE, FlatEncoder, batch_slices, encoded_ahead, event_values, slices
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.encoding.values import FORMS, JsonForms, json_bytes

__all__ = ["CloudEvents", "EventEncoder", "Events", "FlatEvents", "Place", "Request", "cut", "request_of", "signature"]

EVENT_ID: Final = "_event_id"
EVENT_TYPE: Final = "lake_tailer."
TEXT: Final = pa.large_string()
NO_TEXT: Final = pa.scalar("", TEXT)
_EVENT_ID: Final = pa.field(EVENT_ID, TEXT)
DIGITS: Final = 16  # of the digest in a request's id

# Version, task and row; of a control event, the version and its kind.
Place = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Events:
    """Consecutive events of one table: JSON objects, and the place of each."""

    table_id: str
    texts: Sequence[bytes]
    places: Sequence[Place]

    def __len__(self) -> int:
        return len(self.texts)

    def slice(self, start: int, end: int) -> "Events":
        """Return the events from `start` up to, without, `end`."""
        return Events(self.table_id, self.texts[start:end], self.places[start:end])

    def halves(self) -> tuple["Events", "Events"]:
        """Return the first and the second half of at least two events."""
        middle = len(self) // 2
        return self.slice(0, middle), self.slice(middle, len(self))


@dataclass(frozen=True, slots=True)
class Request:
    """The id and the body of a request."""

    id: str
    body: bytes


def cut(events: Events, most: int, most_bytes: int) -> Iterator[Events]:
    """Yield the events in batches of at most `most`, whose bodies have at most `most_bytes`, or one event."""
    ends = [0, *accumulate(len(text) + 1 for text in events.texts)]  # with a comma, or the last bracket
    start = 0
    while start < len(events):
        end = max(start + 1, bisect_right(ends, ends[start] + most_bytes - 1) - 1)
        end = min(end, start + most)
        yield events.slice(start, end)
        start = end


def request_of(events: Events) -> Request:
    body = b"[%b]" % b",".join(events.texts)
    first, last = ("-".join(map(str, place)) for place in (events.places[0], events.places[-1]))
    return Request(f"{first}_{last}_{sha256(body).hexdigest()[:DIGITS]}", body)


def signature(keys: Sequence[bytes], request: Request, timestamp: int) -> str:
    """Return the header `webhook-signature` of a request that is sent at `timestamp`, in seconds since 1970."""
    signed = b"%b.%d.%b" % (request.id.encode(), timestamp, request.body)
    return " ".join(f"v1,{b64encode(hmac.digest(key, signed, 'sha256')).decode()}" for key in keys)


class EventEncoder(ABC):
    """An encoder of the rows and control events of the pipeline `name`, with numbers in these `forms`."""

    content_type: str

    def __init__(self, name: str, forms: JsonForms = FORMS) -> None:
        self._name = name
        self._forms = forms

    @abstractmethod
    def encode(self, batches: Sequence[ChangeBatch]) -> Generator[Events, None, None]:
        """Yield the events of batches that follow each other and have one schema, some at a time.

        Blocks; whoever leaves early must close it. Raises `SinkRejected` for rows that have no JSON form.
        """

    @abstractmethod
    def encoder_of(self, schema: pa.Schema) -> object:
        """Return what encodes rows of `schema`. Raises `SinkRejected` where they have no form."""

    def flush(self) -> Events | None:
        """Return the events of rows that are held back; None: there are none."""
        return None

    def forget(self) -> None:  # noqa: B027 - a default
        """Forget rows that are held back."""

    @abstractmethod
    def control(self, event: ControlEvent) -> Events:
        """Return a control event."""

    def _event(self, event: ControlEvent, members: dict[str, object]) -> Events:
        return Events(event.table_id, [json_bytes(members)], [(event.version, event.kind)])

    def _control_id(self, event: ControlEvent) -> str:
        order = [event.command] if isinstance(event, Gap) and event.command is not None else []
        return self._id(event.table_id, event.version, event.kind, *order)

    def _id(self, *parts: object) -> str:
        return ";".join(map(str, (self._name, *parts)))


class FlatEvents(EventEncoder):
    """Rows with their columns and metadata, as in JSON Lines, and `_event_id`."""

    content_type = "application/json"

    def __init__(self, name: str, forms: JsonForms = FORMS) -> None:
        super().__init__(name, forms)
        self._encoder: FlatEncoder | None = None

    @override
    def encode(self, batches: Sequence[ChangeBatch]) -> Generator[Events, None, None]:
        rows = joined_rows(batches)
        if self._encoder is None or not self._encoder.schema.equals(rows.schema.append(_EVENT_ID)):
            self._encoder = self.encoder_of(rows.schema)
        rows = rows.append_column(_EVENT_ID, self._ids(batches, rows.column(CHANGE_TYPE)))
        encode = self._encoder.rows
        places: list[Place] = [
            (batch.version, batch.task, row) for batch in batches for row in batch.row_index.to_pylist()
        ]
        start = 0
        with closing(encoded_ahead(lambda part: encode(part).to_pylist(), slices(rows), AT_ONCE)) as encoded:
            for texts in encoded:
                yield Events(batches[0].table_id, texts, places[start : start + len(texts)])
                start += len(texts)

    @override
    def encoder_of(self, schema: pa.Schema) -> FlatEncoder:
        if EVENT_ID in schema.names:
            remedy = f"Give the column another name with select, such as {EVENT_ID} AS event_id."
            raise SinkRejected(self._name, f"the table has a column {EVENT_ID}, and events have their id there", remedy)
        return FlatEncoder(self._name, schema.append(_EVENT_ID), self._forms)

    def _ids(self, batches: Sequence[ChangeBatch], kinds: pa.Array) -> pa.Array:
        starts = pa.array([f"{self._id(batch.table_id, batch.version, batch.task)};" for batch in batches], TEXT)
        numbers = [pa.repeat(pa.scalar(number, pa.int64()), len(batch)) for number, batch in enumerate(batches)]
        rows = pc.cast(pa.concat_arrays([batch.row_index for batch in batches]), TEXT)
        kinds = pc.fill_null(pc.cast(kinds, TEXT), NO_TEXT)
        ends = pc.binary_join_element_wise(rows, kinds, pa.scalar(";", TEXT))
        return pc.binary_join_element_wise(starts.take(pa.concat_arrays(numbers)), ends, NO_TEXT)

    @override
    def control(self, event: ControlEvent) -> Events:
        return self._event(event, {**event_values(event, self._forms.int64), EVENT_ID: self._control_id(event)})


class CloudEvents(EventEncoder):
    """CloudEvents as the `kafka` sink has them. Images of updates at the end of a batch wait for the next one."""

    content_type = "application/cloudevents-batch+json; charset=UTF-8"

    def __init__(self, name: str, forms: JsonForms = FORMS) -> None:
        super().__init__(name, forms)
        self._encoder: CloudEventsEncoder | None = None

    @override
    def encode(self, batches: Sequence[ChangeBatch]) -> Generator[Events, None, None]:
        for batch in filter(len, batches):
            if (held := self._held()) is not None and _task(held) != _task(batch) and (rest := self.flush()):
                yield rest
            if self._encoder is None or not self._encoder.schema.equals(batch.rows.schema):
                self._encoder = self.encoder_of(batch.rows.schema)
            with closing(encoded_ahead(partial(self._encoder.encode, now_ms=0), batch_slices(batch))) as encoded:
                for messages in encoded:
                    yield _events(batch, messages)

    @override
    def flush(self) -> Events | None:
        if self._encoder is None or (held := self._held()) is None:
            return None
        messages = self._encoder.flush(0)
        return None if messages is None else _events(held, messages)

    @override
    def forget(self) -> None:
        self._encoder = None

    @override
    def encoder_of(self, schema: pa.Schema) -> CloudEventsEncoder:
        return CloudEventsEncoder(self._name, schema, self._name, forms=self._forms)

    def _held(self) -> ChangeBatch | None:
        return None if self._encoder is None else self._encoder.pending

    @override
    def control(self, event: ControlEvent) -> Events:
        data = event_values(event, self._forms.int64)
        members: dict[str, object] = {
            "specversion": "1.0",
            "id": self._control_id(event),
            "source": source_of(self._name),
            "type": f"{EVENT_TYPE}{event.kind}",
            "time": data[COMMIT_TIMESTAMP],
            "datacontenttype": "application/json",
            "data": data,
        }
        return self._event(event, members)


def _task(batch: ChangeBatch) -> tuple[str, int, int]:
    return batch.table_id, batch.version, batch.task


def _events(batch: ChangeBatch, messages: Messages) -> Events:
    places: list[Place] = [(batch.version, batch.task, row) for row in messages.row_index.to_pylist()]
    return Events(batch.table_id, messages.values.to_pylist(), places)
