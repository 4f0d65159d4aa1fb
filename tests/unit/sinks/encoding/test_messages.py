"""Flat, CloudEvents and Arrow messages, and the guarantees of all keyed encoders for readers by key."""

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, METADATA_FIELDS, ChangeBatch
from tailer_sinks.encoding import FlatEncoder, row_texts
from tailer_sinks.encoding.cloudevents import CloudEventsEncoder, ContentMode
from tailer_sinks.encoding.debezium.images import PairingEncoder
from tailer_sinks.encoding.debezium.messages import DebeziumEncoder, Source
from tailer_sinks.encoding.flat_messages import ArrowMessages, FlatMessages
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.encoding.values import DecimalForm, JsonForms
from tests.support.seeds import repeats
from tests.support.tables.change_rows import (
    DELETE,
    INSERT,
    POST,
    PRE,
    KeyedHistory,
    changes,
    histories,
    keyed_histories,
    people,
    updates,
)
from tests.support.tables.change_rows import Row as ChangeRow

SOURCE = Source("0.1.0", "lake", "sales", "orders")
METADATA = '"_commit_version":5,"_commit_timestamp":"2026-03-01T12:00:00.000005Z"}'

Message = tuple[str | None, str | None, int, dict[str, str]]


def listed(messages: Messages | None) -> list[Message]:
    """Return key, value, row index and headers of each message."""
    if messages is None:
        return []
    columns = [messages.values, *(column for _, column in messages.headers)]
    columns += [] if messages.keys is None else [messages.keys]
    assert {column.type for column in columns} == {pa.large_binary()}
    assert {len(column) for column in [*columns, messages.row_index]} == {len(messages)}
    row_index = messages.row_index.to_pylist()
    assert row_index == sorted(row_index)
    keys = [None] * len(messages) if messages.keys is None else messages.keys.to_pylist()
    headers: list[dict[str, str]] = [{} for _ in row_index]
    for name, column in messages.headers:
        for number, value in enumerate(column.to_pylist()):
            if value is not None:
                headers[number][name] = value.decode()
    rows = zip(keys, messages.values.to_pylist(), row_index, headers, strict=True)
    return [(key and key.decode(), value and value.decode(), *rest) for key, value, *rest in rows]


def encoded(made: PairingEncoder, *batches: ChangeBatch) -> list[Message]:
    """Return the messages of all batches of one task, after the final flush."""
    messages = [message for batch in batches for message in listed(made.encode(batch, 1))]
    messages += listed(made.flush(1))
    assert made.pending is None
    assert made.flush(1) is None
    return messages


def pieces(batch: ChangeBatch, cuts: Sequence[int]) -> list[ChangeBatch]:
    """The batch cut into pieces, some of which may be empty."""
    ends = sorted(min(cut, len(batch)) for cut in (*cuts, len(batch)))
    return [batch.slice(start, end - start) for start, end in pairwise([0, *ends])]


CUTS = st.lists(st.integers(0, 14), max_size=4)
KEYS = st.sampled_from([("id",), ("id2", "id")])

# Flat.


def flat_text(key: int, name: str, change_type: str) -> str:
    return f'{{"id":{key},"name":"{name}","_change_type":"{change_type}",{METADATA}'


def flat(batch: ChangeBatch, key: Sequence[str] = ("id",), **options: Any) -> list[Message]:
    messages = encoded(FlatMessages("kafka", batch.rows.schema, key, **options), batch)
    one_by_one = [batch.slice(number, 1) for number in range(len(batch))]
    assert encoded(FlatMessages("kafka", batch.rows.schema, key, **options), *one_by_one) == messages
    return messages


def test_flat_rows_without_a_key_are_passed_on_as_they_are() -> None:
    kinds = [PRE, "update_pre", INSERT, DELETE, POST]
    batch = changes(kinds, people([1, 2, 3, 4, 5], list("abcde")), [3, 3, 4, 7, 9])
    made = FlatMessages("kafka", batch.rows.schema)
    messages = made.encode(batch, 1)
    assert (messages.keys, messages.headers, made.pending, made.flush(1)) == (None, (), None, None)
    assert messages.values.equals(FlatEncoder("kafka", batch.rows.schema).rows(batch.rows))
    texts = [flat_text(number + 1, "abcde"[number], kind) for number, kind in enumerate(kinds)]
    assert listed(messages) == [(None, text, row, {}) for text, row in zip(texts, [3, 3, 4, 7, 9], strict=True)]


def test_flat_rows_with_a_key() -> None:
    batch = changes([INSERT, DELETE, PRE, POST], people([1, 2, 3, 3], list("abcd")), [3, 4, 6, 6])
    expected: list[Message] = [
        ('{"id":1}', flat_text(1, "a", INSERT), 3, {}),
        ('{"id":2}', flat_text(2, "b", DELETE), 4, {}),
        ('{"id":2}', None, 4, {}),
        ('{"id":3}', flat_text(3, "c", PRE), 6, {}),
        ('{"id":3}', flat_text(3, "d", POST), 6, {}),
    ]
    assert flat(batch) == expected
    del expected[2]
    assert flat(batch, tombstones=False) == expected


def test_a_flat_row_with_another_key_is_deleted_and_inserted() -> None:
    expected: list[Message] = [
        ('{"id":1}', flat_text(1, "a", DELETE), 4, {}),
        ('{"id":1}', None, 4, {}),
        ('{"id":2}', flat_text(2, "b", INSERT), 5, {}),
    ]
    assert flat(changes([PRE, POST], people([1, 2], ["a", "b"]), [4, 5])) == expected
    assert flat(changes([POST, PRE], people([2, 1], ["b", "a"]), [4, 5])) == expected
    alone = flat(changes([PRE, POST], people([1, 2], ["a", "b"]), [4, 6]))
    assert alone == [*expected[:2], ('{"id":2}', flat_text(2, "b", INSERT), 6, {})]


def test_the_preimage_comes_first() -> None:
    batch = changes([INSERT, POST, PRE, INSERT], people([1, 2, 2, 3], list("abcd")), [3, 4, 5, 6])
    assert [(value, row) for _, value, row, _ in flat(batch)] == [
        (flat_text(1, "a", INSERT), 3),
        (flat_text(2, "c", PRE), 4),
        (flat_text(2, "b", POST), 5),
        (flat_text(3, "d", INSERT), 6),
    ]


def test_null_is_a_key_like_others() -> None:
    batch = changes([INSERT, DELETE], people([None, None], ["a", "b"]))
    assert [key for key, *_ in flat(batch)] == ['{"id":null}'] * 3
    assert [key for key, *_ in flat(batch, ["name", "id"])] == [
        '{"name":"a","id":null}',
        *['{"name":"b","id":null}'] * 2,
    ]


def test_invalid_change_types_keys_and_schemas_are_refused() -> None:
    batch = changes([INSERT, "update_pre"], people([1, 2], ["a", "b"]))
    made = FlatMessages("kafka", batch.rows.schema, ["id"])
    with pytest.raises(SinkRejected, match="no operation for rows of change type update_pre") as caught:
        made.encode(batch, 1)
    assert caught.value.remedy == "Choose flat rows without a key: they pass such rows on."
    with pytest.raises(SinkRejected, match="the rows have no column ID, which is part of the key") as caught:
        FlatMessages("kafka", batch.rows.schema, ["ID", "name"])
    assert caught.value.remedy == "Choose key columns that the table has, and a new topic."
    with pytest.raises(SinkRejected, match="rows of another schema"):
        made.encode(changes([INSERT], {"id": pa.array([1])}), 1)


def flat_reference(batch: ChangeBatch, key: Sequence[str], tombstones: bool) -> list[Message]:
    """Build the flat messages of a task, row by row."""
    keys = list(row_texts(batch.rows.select(list(key))))
    rows = zip(batch.rows.column(CHANGE_TYPE).to_pylist(), batch.row_index.to_pylist(), keys, strict=True)
    images = [ChangeRow(kind, index, text, str(number)) for number, (kind, index, text) in enumerate(rows)]
    seconds = set(updates(images))
    messages: list[Message] = []

    def add(image: ChangeRow, kind: str, index: int) -> None:
        row = batch.rows.slice(int(image.image), 1)
        place = row.schema.get_field_index(CHANGE_TYPE)
        (text,) = row_texts(row.set_column(place, METADATA_FIELDS[0], pa.array([kind])))
        messages.append((image.key, text, index, {}))
        if kind == DELETE and tombstones:
            messages.append((image.key, None, index, {}))

    for number, image in enumerate(images):
        if number in seconds:
            earlier = images[number - 1]
            before, after = (earlier, image) if image.kind == POST else (image, earlier)
            kinds = (PRE, POST) if before.key == after.key else (DELETE, INSERT)
            add(before, kinds[0], earlier.index)
            add(after, kinds[1], image.index)
        elif number + 1 not in seconds:
            add(image, DELETE if image.kind in (PRE, DELETE) else INSERT, image.index)
    return messages


@settings(max_examples=repeats(30))
@given(histories(), KEYS, st.booleans(), CUTS)
def test_flat_messages_equal_the_reference_wherever_batches_are_cut(
    batch: ChangeBatch, key: tuple[str, ...], tombstones: bool, cuts: list[int]
) -> None:
    made = FlatMessages("kafka", batch.rows.schema, key, tombstones)
    assert encoded(made, *pieces(batch, cuts)) == flat_reference(batch, key, tombstones)


# CloudEvents.

BEFORE, AFTER = '{"id":1,"name":"Ann"}', '{"id":1,"name":"A\\"n"}'
TIME = "2026-03-01T12:00:00.000005Z"
TYPE = "io.debezium.connector.delta.DataChangeEvent"
STRUCTURED = {"content-type": "application/cloudevents+json; charset=UTF-8"}


def event_text(row: int, op: str, before: str, after: str) -> str:
    return (
        f'{{"specversion":"1.0","id":"people;table;5;3;{row};{op}","source":"/lake-tailer/people","type":"{TYPE}",'
        f'"time":"{TIME}","datacontenttype":"application/json","data":{{"before":{before},"after":{after}}}}}'
    )


def event_headers(row: int, op: str) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "ce_specversion": "1.0",
        "ce_id": f"people;table;5;3;{row};{op}",
        "ce_source": "/lake-tailer/people",
        "ce_type": TYPE,
        "ce_time": TIME,
    }


def events(batch: ChangeBatch, key: Sequence[str] = ("id",), name: str = "people", **options: Any) -> list[Message]:
    return encoded(CloudEventsEncoder("kafka", batch.rows.schema, name, key, **options), batch)


def test_structured_events() -> None:
    columns = people([1, 1, 1, 2, 3], ["Ann", "Ann", 'A"n', "Bob", "Cid"])
    batch = changes([INSERT, PRE, POST, DELETE, PRE], columns, [3, 4, 4, 7, 9])
    bob, cid = '{"id":2,"name":"Bob"}', '{"id":3,"name":"Cid"}'
    expected: list[Message] = [
        ('{"id":1}', event_text(3, "c", "null", BEFORE), 3, STRUCTURED),
        ('{"id":1}', event_text(4, "u", BEFORE, AFTER), 4, STRUCTURED),
        ('{"id":2}', event_text(7, "d", bob, "null"), 7, STRUCTURED),
        ('{"id":2}', None, 7, {}),
        ('{"id":3}', event_text(9, "d", cid, "null"), 9, STRUCTURED),
        ('{"id":3}', None, 9, {}),
    ]
    assert events(batch) == expected
    assert events(batch, tombstones=False) == [message for message in expected if message[1]]
    without_key = [(None, value, row, headers) for _, value, row, headers in expected if value]
    without_key[-1] = (None, event_text(9, "u", cid, "null"), 9, STRUCTURED)
    assert events(batch, key=()) == without_key


def test_binary_events() -> None:
    batch = changes([INSERT, PRE, POST, DELETE], people([1, 1, 1, 1], ["Ann", "Ann", 'A"n', 'A"n']), [3, 4, 4, 7])
    assert events(batch, mode="binary") == [
        ('{"id":1}', f'{{"before":null,"after":{BEFORE}}}', 3, event_headers(3, "c")),
        ('{"id":1}', f'{{"before":{BEFORE},"after":{AFTER}}}', 4, event_headers(4, "u")),
        ('{"id":1}', f'{{"before":{AFTER},"after":null}}', 7, event_headers(7, "d")),
        ('{"id":1}', None, 7, {}),
    ]
    inserts = batch.slice(0, 1)
    assert events(inserts, mode="binary") == events(batch, mode="binary")[:1]


def test_names_in_events() -> None:
    batch = changes([INSERT], people([1], ["Ann"]))
    ((_, text, _, _),) = events(batch, name='a/b "é"')
    event = json.loads(str(text))
    assert list(event) == ["specversion", "id", "source", "type", "time", "datacontenttype", "data"]
    assert event["id"] == 'a/b "é";table;5;3;0;c'
    assert event["source"] == "/lake-tailer/a%2Fb%20%22%C3%A9%22"
    ((_, _, _, headers),) = events(batch, mode="binary", name='a/b "é"')
    assert headers["ce_id"] == event["id"]


def test_a_commit_beyond_the_years_of_events_is_refused() -> None:
    batch = changes([INSERT], people([1], ["Ann"]))
    moment = pa.array([2**60], METADATA_FIELDS[2].type)
    rows = batch.rows.set_column(batch.rows.schema.get_field_index(COMMIT_TIMESTAMP), METADATA_FIELDS[2], moment)
    late = ChangeBatch("table", 5, 3, rows, batch.row_index)
    with pytest.raises(SinkRejected, match=r"version 5 is of \+38504-.*, which CloudEvents cannot express"):
        events(late)


def test_columns_that_events_cannot_hold_are_refused() -> None:
    with pytest.raises(SinkRejected, match="column v has type month_day_nano_interval"):
        events(changes([INSERT], {"v": pa.array([None], pa.month_day_nano_interval())}), [])


@settings(max_examples=repeats(30))
@given(histories(), st.one_of(st.just(()), KEYS), st.booleans(), st.sampled_from(["structured", "binary"]), CUTS)
def test_events_are_those_of_debezium_wherever_batches_are_cut(
    batch: ChangeBatch, key: tuple[str, ...], tombstones: bool, mode: ContentMode, cuts: list[int]
) -> None:
    """Row tracking columns are left out, because Debezium's messages have them in the source block."""
    made = CloudEventsEncoder("kafka", batch.rows.schema, "people", key, tombstones, mode)
    debezium = encoded(DebeziumEncoder("kafka", batch.rows.schema, SOURCE, key, tombstones=tombstones), batch)
    messages = encoded(made, *pieces(batch, cuts))
    ids = set()
    for (event_key, text, row, headers), (other_key, other_text, other_row, _) in zip(messages, debezium, strict=True):
        assert (event_key, row, text is None) == (other_key, other_row, other_text is None)
        if text is None or other_text is None:
            assert headers == {}
            continue
        event = json.loads(text)
        attributes = event if mode == "structured" else {name[3:]: value for name, value in headers.items()}
        data = event["data"] if mode == "structured" else event
        other = json.loads(other_text)
        assert data == {"before": other["before"], "after": other["after"]}
        assert attributes["id"] == f"people;table;5;{batch.task};{row};{other['op']}"
        ids.add(attributes["id"])
    assert len(ids) == sum(text is not None for _, text, _, _ in messages) or has_repeated_rows(batch)


def has_repeated_rows(batch: ChangeBatch) -> bool:
    """Return whether rows that are not images of one update share a row index, which no task's rows do."""
    indexes = batch.row_index.to_pylist()
    kinds = batch.rows.column(CHANGE_TYPE).to_pylist()
    counted = [{kinds[number] for number, one in enumerate(indexes) if one == index} for index in indexes]
    return any(
        indexes.count(index) > 1 and (kinds_of != {PRE, POST} or indexes.count(index) > 2)
        for index, kinds_of in zip(indexes, counted, strict=True)
    )


# By key.


def after_debezium(table: dict[str, str], key: str, value: str) -> None:
    event = json.loads(value)
    after_event(table, key, event)
    assert (event["op"] == "d") == (event["after"] is None)


def after_structured(table: dict[str, str], key: str, value: str) -> None:
    after_event(table, key, json.loads(value)["data"])


def after_event(table: dict[str, str], key: str, event: dict[str, Any]) -> None:
    before = event["before"]
    assert (before and before["name"]) == table.get(key)
    if event["after"] is None:
        del table[key]
    else:
        table[key] = event["after"]["name"]


def after_flat(table: dict[str, str], key: str, value: str) -> None:
    row = json.loads(value)
    kind, name = row[CHANGE_TYPE], row["name"]
    assert (table.get(key) == name) if kind in (DELETE, PRE) else (kind == POST) == (key in table)
    if kind == DELETE:
        del table[key]
    else:
        table[key] = name


ENCODERS: dict[str, tuple[Callable[[pa.Schema, bool], PairingEncoder], Callable[[dict[str, str], str, str], None]]] = {
    "debezium": (
        lambda schema, tombstones: DebeziumEncoder("kafka", schema, SOURCE, ["id"], tombstones=tombstones),
        after_debezium,
    ),
    "cloudevents": (
        lambda schema, tombstones: CloudEventsEncoder("kafka", schema, "people", ["id"], tombstones),
        after_structured,
    ),
    "flat": (lambda schema, tombstones: FlatMessages("kafka", schema, ["id"], tombstones), after_flat),
}


@pytest.mark.parametrize("envelope", ENCODERS)
@settings(max_examples=repeats(25))
@given(keyed_histories(), st.booleans(), CUTS)
def test_messages_folded_by_key_are_the_table(
    envelope: str, history: KeyedHistory, tombstones: bool, cuts: list[int]
) -> None:
    make, follow = ENCODERS[envelope]
    made = make(history.batches[0].rows.schema, tombstones)
    table: dict[str, str] = {}
    last: dict[str, str | None] = {}
    for batch in history.batches:
        for key, value, _, _ in encoded(made, *pieces(batch, cuts)):
            assert key is not None
            last[key] = value
            if value is None:
                assert key not in table
            else:
                follow(table, key, value)
    assert table == {f'{{"id":{key}}}': name for key, name in history.table.items()}
    if tombstones:  # compaction must leave the table
        assert {key for key, value in last.items() if value is not None} == table.keys()


# Arrow.


def read(messages: Messages) -> list[pa.Table]:
    tables = []
    for value in messages.values.to_pylist():
        with pa.ipc.open_stream(value) as reader:
            tables.append(reader.read_all())
    return tables


def test_arrow_messages_hold_all_rows_in_their_order() -> None:
    columns = {**people(list(range(1000)), ["x" * (number % 50) for number in range(1000)])}
    columns["price"] = pa.array([Decimal(number) for number in range(1000)], pa.decimal128(9, 2))
    columns["place"] = pa.array([str(number % 3) for number in range(1000)]).dictionary_encode()
    batch = changes([INSERT, PRE, POST, DELETE] * 250, columns, range(7, 2007, 2))
    made = ArrowMessages("kafka", batch.rows.schema, max_bytes=20_000)
    messages = made.encode(batch, 1)
    assert (messages.keys, messages.headers, made.pending, made.flush(1)) == (None, (), None, None)
    tables = read(messages)
    assert pa.concat_tables(tables).to_pylist() == batch.rows.to_pylist()
    assert all(table.schema.equals(batch.rows.schema) for table in tables)
    assert 4 < len(messages) < 20
    assert max(map(len, messages.values.to_pylist())) <= 20_000
    ends = [batch.rows.column("id")[0].as_py() - 1]
    for table in tables:
        ends.append(ends[-1] + len(table))
    assert messages.row_index.to_pylist() == [batch.row_index[end].as_py() for end in ends[1:]]
    assert len(ArrowMessages("kafka", batch.rows.schema).encode(batch, 1)) == 1


def test_a_row_that_is_too_large_is_alone_in_its_message() -> None:
    names = ["a", "b", "x" * 5000, "d", "e"]
    batch = changes([INSERT] * 5, people([1, 2, 3, 4, 5], names))
    messages = ArrowMessages("kafka", batch.rows.schema, max_bytes=4000).encode(batch, 1)
    found = [table.column("name").to_pylist() for table in read(messages)]
    assert [name for names_of in found for name in names_of] == names
    assert [names[2]] in found
    large = [len(value) > 4000 for value in messages.values.to_pylist()]
    assert large == [names_of == [names[2]] for names_of in found]


def test_arrow_messages_of_nothing_and_of_another_schema() -> None:
    batch = changes([INSERT], people([1], ["a"]))
    made = ArrowMessages("kafka", batch.rows.schema)
    assert listed(made.encode(batch.slice(0, 0), 1)) == []
    with pytest.raises(SinkRejected, match="rows of another schema"):
        made.encode(changes([INSERT], {"id": pa.array([1])}), 1)


# Decimals.

DECIMALS: dict[str, tuple[pa.DataType, Any]] = {
    "plain": (pa.decimal128(9, 2), Decimal("-0.50")),
    "tiny": (pa.decimal128(38, 10), Decimal("0.0000000001")),
    "huge": (pa.decimal256(60, 0), Decimal(10**50)),
    "round": (pa.decimal128(5, -3), Decimal(12000)),
    "none": (pa.decimal128(9, 2), None),
    "list": (pa.list_(pa.decimal128(9, 1)), [Decimal("1.5"), None]),
    "struct": (pa.struct([("d", pa.decimal128(9, 1))]), {"d": Decimal("2.5")}),
    "map": (pa.map_(pa.string(), pa.decimal128(9, 1)), [("k", Decimal("3.5"))]),
    "entries": (pa.map_(pa.decimal128(9, 1), pa.int8()), [(Decimal("4.5"), 1)]),
}
NUMBERS = (
    '"plain":-0.50,"tiny":0.0000000001,"huge":' + str(10**50) + ',"round":12000,"none":null,"list":[1.5,null],'
    '"struct":{"d":2.5},"map":{"k":3.5},"entries":[{"key":4.5,"value":1}]'
)
STRINGS = (
    '"plain":"-0.50","tiny":"0.0000000001","huge":"' + str(10**50) + '","round":"12000","none":null,'
    '"list":["1.5",null],"struct":{"d":"2.5"},"map":{"k":"3.5"},"entries":[{"key":"4.5","value":1}]'
)


@pytest.mark.parametrize(("decimal", "expected"), [("string", STRINGS), ("number", NUMBERS)])
def test_decimals_are_strings_or_numbers(decimal: DecimalForm, expected: str) -> None:
    columns = {name: pa.array([value], kind) for name, (kind, value) in DECIMALS.items()}
    columns["coded"] = pa.array([Decimal("6.5")], pa.decimal128(9, 1)).dictionary_encode()
    coded = '"coded":6.5' if decimal == "number" else '"coded":"6.5"'
    row = f"{{{expected},{coded}}}"
    batch = changes([INSERT], columns)
    schema = batch.rows.schema
    key = '{"plain":-0.50}' if decimal == "number" else '{"plain":"-0.50"}'
    ((found, value, _, _),) = encoded(FlatMessages("kafka", schema, ["plain"], forms=JsonForms(decimal=decimal)), batch)
    assert (found, value) == (key, f'{row[:-1]},"_change_type":"insert",{METADATA}')
    ((found, value, _, _),) = encoded(
        DebeziumEncoder("kafka", schema, SOURCE, ["plain"], forms=JsonForms(decimal=decimal)), batch
    )
    assert found == key
    assert str(value).startswith(f'{{"before":null,"after":{row},"source":')
    ((found, value, _, _),) = encoded(
        CloudEventsEncoder("kafka", schema, "p", ["plain"], forms=JsonForms(decimal=decimal)), batch
    )
    assert found == key
    assert str(value).endswith(f'"data":{{"before":null,"after":{row}}}}}')


@settings(max_examples=repeats(30))
@given(
    st.sampled_from([pa.decimal128(38, 10), pa.decimal128(9, 2), pa.decimal128(38, 38), pa.decimal256(60, 7)]),
    st.lists(st.one_of(st.none(), st.integers(-(10**9) + 1, 10**9 - 1), st.integers(-20, 20)), min_size=1, max_size=5),
)
def test_numbers_have_the_digits_of_strings(kind: pa.DataType, units: list[int | None]) -> None:
    values = [None if unit is None else Decimal(unit).scaleb(-kind.scale) for unit in units]
    rows = pa.record_batch([pa.array(values, kind)], ["d"])
    strings = FlatEncoder("kafka", rows.schema).rows(rows).to_pylist()
    numbers = FlatEncoder("kafka", rows.schema, JsonForms(decimal="number")).rows(rows).to_pylist()
    assert [text.replace(b'"', b"") for text in strings] == [text.replace(b'"', b"") for text in numbers]
    found = [json.loads(text, parse_float=Decimal, parse_int=Decimal)["d"] for text in numbers]
    assert found == values
