"""Batches of several versions that are encoded together: the same messages as one by one, for the right versions."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailer.errors import SinkRejected
from tailer.events import METADATA_FIELDS, ChangeBatch, SchemaChange
from tailer_sinks.encoding.flat_messages import FlatMessages
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.kafka import encoders
from tailer_sinks.kafka.clients.port import TopicState
from tailer_sinks.kafka.encoders import WaitingBatches, joined
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.options import read
from tailer_sinks.kafka.progress import Count
from tailer_sinks.kafka.stream import Stream
from tailer_sinks.kafka.transaction import KafkaTransaction
from tests.support.seeds import repeats
from tests.support.tables.change_rows import DELETE, INSERT, POST, PRE, changes, people

KINDS = st.lists(st.sampled_from([INSERT, INSERT, INSERT, DELETE, PRE, POST]), max_size=4)


def of_version(version: int, kinds: Sequence[str]) -> ChangeBatch:
    """Return the only batch of a version, with rows of these kinds."""
    ids = [version * 10 + number // 2 for number in range(len(kinds))]
    made = changes(list(kinds), people(ids, [f"name {version}"] * len(kinds)))
    return ChangeBatch(made.table_id, version, made.task, made.rows, made.row_index)


def listed(*parts: Messages | None) -> list[tuple[bytes | None, bytes | None]]:
    """Return key and value of each message."""
    found = []
    for messages in parts:
        if messages is not None:
            keys = [None] * len(messages) if messages.keys is None else messages.keys.to_pylist()
            found += list(zip(keys, messages.values.to_pylist(), strict=True))
    return found


def test_dictionaries_that_do_not_fit_into_one() -> None:
    """Rows with dictionaries are not joined, on any level: their indices may be too narrow for all values."""
    for nested in (False, True):
        batches = []
        for version in range(3):
            words = pa.array([f"{version} {number}" for number in range(100)])
            column = pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), words)
            values = pa.StructArray.from_arrays([column], ["word"]) if nested else column
            made = changes([INSERT] * 100, {"id": pa.array(range(100), pa.int64()), "value": values})
            batches.append(ChangeBatch(made.table_id, version, made.task, made.rows, made.row_index))
        encoder = FlatMessages("sink", batches[0].rows.schema)
        found = [batch for batch, together in joined(encoder, batches) if len(together) == 1]
        assert found == batches


@given(st.lists(KINDS, min_size=1, max_size=12), st.sampled_from([(), ("id",)]))
def test_the_same_messages(kinds: list[list[str]], key: tuple[str, ...]) -> None:
    """And each message belongs to a batch, in order."""
    batches = [of_version(version, each) for version, each in enumerate(kinds)]
    encoder, one_by_one = (FlatMessages("sink", batches[0].rows.schema, key) for _ in range(2))
    expected = [listed(one_by_one.encode(batch, 1), one_by_one.flush(1)) for batch in batches]
    found, parts = [], list[ChangeBatch]()
    for batch, together in joined(encoder, batches):
        messages = listed(encoder.encode(batch, 1), encoder.flush(1))
        assert len(together) == 1 or len(messages) == sum(map(len, together))
        found += messages
        parts += together
    assert found == [message for each in expected for message in each]
    assert [batch.version for batch in parts] == list(range(len(kinds)))


class KeptMessages:
    """A part of a producer: it keeps the messages it is sent."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes | None, bytes | None]] = []

    def begin(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def send(self, topic: str, messages: Messages, partition: int | None = None) -> None:
        """Keep messages."""
        assert topic == "orders"
        self.messages += listed(messages)


def written(
    monkeypatch: pytest.MonkeyPatch, batches: Sequence[ChangeBatch], most_rows: int, options: dict[str, Any]
) -> tuple[list[tuple[bytes | None, bytes | None]], dict[int, Count]]:
    """Return the messages that a transaction sends, and its counts, when so many rows are enough."""
    monkeypatch.setattr(encoders, "MOST_ROWS", most_rows)
    link = Link("sink", read("sink", {"bootstrap_servers": "broker:9092", "topic": "orders", **options}))
    stream, kept = Stream(link, "orders/5f0c"), KeptMessages()
    stream._producer = kept  # type: ignore[assignment]
    transaction = KafkaTransaction(stream, batches[0].rows.schema)

    async def write() -> None:
        for batch in batches:
            await transaction.write(batch)
        transaction._write_waiting()
        transaction._flush()

    anyio.run(write)
    return kept.messages, {version: transaction._counts.total(version) for version in range(len(batches))}


@settings(
    max_examples=repeats(15),
)
@example([[INSERT], [PRE, INSERT], [INSERT]], [1, 1], ["id"])
@example([[INSERT], [PRE], [INSERT]], [], ["id"])
@given(st.lists(KINDS, min_size=1, max_size=8), st.lists(st.integers(1, 4), max_size=8), st.sampled_from([[], ["id"]]))
def test_a_transaction_counts_the_messages_of_each_version(
    monkeypatch: pytest.MonkeyPatch, kinds: list[list[str]], cuts: list[int], key: list[str]
) -> None:
    """Also where a task's rows come in several batches, so that images are held back between them."""
    batches = []
    for version, each in enumerate(kinds):
        cut = min(cuts[version] if version < len(cuts) else len(each), len(each))
        batch = of_version(version, each)
        batches += [batch.slice(0, cut), batch.slice(cut, len(each) - cut)]
    found = [written(monkeypatch, batches, most, {"key": key}) for most in (0, 5, 1000)]
    assert found[0] == found[1] == found[2]


def test_messages_that_are_too_large_are_found_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the version of the row."""
    batches = [of_version(version, [INSERT]) for version in range(5)]
    long = people([7], ["x" * 2000])
    made = changes([INSERT], long)
    batches[3] = ChangeBatch(made.table_id, 3, made.task, made.rows, made.row_index)
    with pytest.raises(SinkRejected, match="version 3"):
        written(monkeypatch, batches, 1000, {"key": ["id"], "max_record_bytes": 1500})


def test_a_table_may_lose_all_columns_and_get_them_back() -> None:
    """Its key is missing in between, but there are no rows."""
    options = {"bootstrap_servers": "broker:9092", "topic": "orders", "key": ["id"], "envelope": "debezium"}
    stream, kept = Stream(Link("sink", read("sink", options)), "orders/5f0c"), KeptMessages()
    stream._producer = kept  # type: ignore[assignment]
    rows, bare = of_version(1, [INSERT]).rows.schema, pa.schema(METADATA_FIELDS)
    transaction = KafkaTransaction(stream, bare)

    async def write() -> None:
        await transaction.announce(SchemaChange("table", 1, 0, bare, rows, ()))
        await transaction.write(of_version(1, [INSERT]))
        await transaction.announce(SchemaChange("table", 2, 0, rows, bare, ()))
        await transaction.announce(SchemaChange("table", 3, 0, bare, rows, ()))
        await transaction.write(of_version(3, [INSERT]))
        transaction._write_waiting()
        with pytest.raises(SinkRejected, match="no column id, which is part of the key"):
            await transaction.announce(SchemaChange("table", 4, 0, rows, pa.schema([("x", pa.int64()), *bare]), ()))

    anyio.run(write)
    assert [json.loads(key or b"") for key, _ in kept.messages] == [{"id": 10}, {"id": 30}]


@pytest.mark.parametrize(
    ("options", "name", "refused", "accepted"),
    [
        ({"topic": "orders", "key": ["id"]}, "id", [("id",)], [("place",), ("place", "town")]),
        ({"topic": "{id}", "topics": "[0-9]+"}, "id", [("id",)], [("place",)]),
        ({"topic": "orders", "key": ["place"]}, "place", [("place",), ("place", "town")], [("id",)]),
        (
            {"topic": "{place.town}", "topics": "[a-z]+"},
            "place.town",
            [("place",), ("place", "town")],
            [("place", "street"), ("town",)],
        ),
    ],
)
def test_a_name_that_keys_or_routes_messages_may_not_become_another_columns(
    options: dict[str, Any],
    name: str,
    refused: list[tuple[str, ...]],
    accepted: list[tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor may that of a field in it."""
    monkeypatch.setattr(Link, "progress_of", lambda *_: None)  # no broker is asked
    monkeypatch.setattr(Link, "look_at_topics", lambda _, topics: dict.fromkeys(topics, TopicState(0, {})))
    monkeypatch.setattr(KafkaTransaction, "_encoder_for", lambda *_: None)
    place = pa.struct([("street", pa.string()), ("town", pa.string())])
    schema = pa.schema([("id", pa.int64()), ("place", place), *METADATA_FIELDS])

    def announce(path: tuple[str, ...]) -> None:
        stream = Stream(Link("sink", read("sink", {"bootstrap_servers": "b:9092", **options})), "orders/5f0c")
        stream._producer = KeptMessages()  # type: ignore[assignment]
        change = SchemaChange("table", 2, 0, schema, schema, (), replaced=(path,))
        anyio.run(KafkaTransaction(stream, schema).announce, change)

    for path in refused:
        with pytest.raises(SinkRejected, match=f"version 2 gives the name {name}, by which") as caught:
            announce(path)
        assert "tailer resnapshot" in caught.value.hint
    for path in accepted:
        announce(path)


def test_inserts_are_joined_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [of_version(version, [INSERT] * 3) for version in range(10)]
    encoder = FlatMessages("sink", batches[0].rows.schema, ["id"])
    assert [len(parts) for _, parts in joined(encoder, batches)] == [10]
    monkeypatch.setattr(encoders, "MOST_ROWS", 12)
    assert [len(parts) for _, parts in joined(encoder, batches)] == [4, 4, 2]
    monkeypatch.setattr(encoders, "MOST_BYTES", 2 * batches[0].size_bytes)
    assert [len(parts) for _, parts in joined(encoder, batches)] == [2] * 5
    monkeypatch.setattr(encoders, "MOST_BYTES", 1)
    assert [len(parts) for _, parts in joined(encoder, batches)] == [1] * 10


def test_other_schemas_are_left_to_the_encoder() -> None:
    """It refuses them."""
    batches = [of_version(version, [INSERT]) for version in range(3)]
    other = batches[1].rows.rename_columns([f"{name}!" for name in batches[1].rows.schema.names])
    batches[1] = ChangeBatch("table", 1, 0, other, pa.array([0], pa.int64()))
    encoder = FlatMessages("sink", batches[0].rows.schema)
    assert [len(parts) for _, parts in joined(encoder, batches)] == [1, 1, 1]


def test_batches_wait_until_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders, "MOST_ROWS", 5)
    waiting = WaitingBatches()
    batches = [of_version(version, [INSERT] * 2) for version in range(3)]
    assert [waiting.add([batch]) for batch in batches] == [False, False, True]
    assert waiting.take() == batches
    assert waiting.take() == []
    assert not waiting.add(batches[:1])
