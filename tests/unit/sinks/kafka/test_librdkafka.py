"""Messages in librdkafka's structures, and the room in its queue; without a broker."""

import ctypes
import logging
import random
from itertools import pairwise

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from hypothesis import given
from hypothesis import strategies as st

from tailer_sinks.encoding.messages import BYTES, Messages
from tailer_sinks.kafka.clients.librdkafka import (
    Argument,
    Kind,
    Message,
    argument_lists,
    library,
    message_array,
    sizes_of,
)
from tailer_sinks.kafka.clients.librdkafka_batches import BatchClient, _Room
from tests.support.kafka.drivers import messages_of

contents = st.lists(st.none() | st.binary(max_size=5), min_size=1, max_size=20)


def bytes_at(address: int | None, size: int) -> bytes | None:
    """Return the bytes at an address, as librdkafka takes them."""
    return None if not address else ctypes.string_at(address, size)


def sliced(column: list[bytes | None], start: int) -> pa.Array:
    """Return a column that begins in the middle of its memory."""
    return pa.array([b"before"] * start + column, BYTES).slice(start)


@given(contents, st.randoms(), st.integers(0, 3), st.booleans())
def test_structures_have_every_byte(values: list[bytes | None], chance: random.Random, start: int, keyed: bool) -> None:
    """Null, empty and other values, at any place of a column."""
    keys = [*values]
    chance.shuffle(keys)
    columns = [sliced(keys, start) if keyed else None, sliced(values, start)]
    messages = Messages(columns[0], columns[1], pa.nulls(len(values), pa.int64()))
    array = message_array(messages)
    found = [
        (bytes_at(each.value, each.size), bytes_at(each.key, each.key_size))
        for each in (Message * len(values)).from_buffer(array)
    ]
    assert found == [*zip(values, keys if keyed else [None] * len(values), strict=True)]
    sizes = [len(value or b"") + (len(key or b"") if keyed else 0) for value, key in zip(values, keys, strict=True)]
    assert sizes_of(messages).to_pylist() == sizes


@given(contents, st.integers(0, 3))
def test_arguments_have_the_headers_of_each_message(values: list[bytes | None], start: int) -> None:
    """A header that is null is left out."""
    column = sliced(values, start)
    messages = Messages(column, column, pa.nulls(len(values), pa.int64()), (("mark", column),))
    name = ctypes.create_string_buffer(b"mark")
    array, count = argument_lists(messages, 77, 3, [name])
    rows = (Argument * count * len(values)).from_buffer(array)
    for value, row in zip(values, rows, strict=True):
        given_by_kind = {each.kind: list(each.words) for each in row}
        assert given_by_kind[Kind.TOPIC][0] == 77
        assert given_by_kind[Kind.PARTITION][0] == 3
        assert given_by_kind[Kind.FLAGS][0] == 2
        for kind in (Kind.VALUE, Kind.KEY):
            address, size, *_ = given_by_kind[kind]
            assert bytes_at(address, size) == value
        assert (Kind.HEADER in given_by_kind) == (value is not None)
        if value is not None:
            named, address, size, *_ = given_by_kind[Kind.HEADER]
            assert ctypes.string_at(named) == b"mark"
            assert bytes_at(address, size) == value


@given(st.lists(st.integers(0, 1000), max_size=200), st.randoms())
def test_the_queue_is_never_full(sizes: list[int], chance: random.Random) -> None:
    """Whichever messages are reported first."""
    room, in_flight = _Room(40, 8000), list[int]()
    ends = [0]
    for start, count in room.calls(pa.array(sizes, pa.int64())):
        ends.append(start + count)
        call = sizes[start : start + count]
        while not room.has(len(in_flight), count, sum(call), max(call)):
            in_flight.pop(chance.randrange(len(in_flight)))
        room.take(sum(call), max(call))
        in_flight += call
        assert len(in_flight) <= 40
        assert sum(in_flight) <= 8000
    assert ends[-1] == len(sizes)
    assert all(one < other for one, other in pairwise(ends))


def test_a_setting_that_does_not_exist() -> None:
    """Reported as by confluent-kafka."""
    functions = library()
    config = {"queue.buffering.max.messages": 10, "queue.buffering.max.kbytes": 10, "batch.size": 10, "no.such": "x"}
    with pytest.raises(KafkaException, match=r"No such configuration property: .*no\.such"):
        BatchClient(functions, config, logging.getLogger("none"), print)


def test_messages_that_are_refused() -> None:
    """Raised as an error, after which the transaction can only be aborted; here there is none."""
    functions = library()
    config = {
        "queue.buffering.max.messages": 10,
        "queue.buffering.max.kbytes": 10,
        "batch.size": 1000,
        "transactional.id": "x",
        "bootstrap.servers": "127.0.0.1:1",
    }
    client = BatchClient(functions, config, logging.getLogger("none"), lambda _: None)
    try:
        for headers in ([], [("mark", [b"x"])]):
            with pytest.raises(KafkaException, match="_STATE"):
                client.produce("topic", messages_of([b"1"], headers=headers), None)
    finally:
        client.drop()
