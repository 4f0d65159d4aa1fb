"""Topics by the value of a column: the options, the rule, and rows divided by it."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.errors import ConfigError, SinkRejected
from tailer.events import CHANGE_TYPE, VARIANT, ChangeBatch
from tailer.shape.parse.texts import parse_select
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.kafka.encoders import encoder_for
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.options import Options, read
from tailer_sinks.kafka.progress import Count, Entry, ProgressTopic, decode, encode, topic_key
from tailer_sinks.kafka.route import MOST_KNOWN, Route, column_in
from tailer_sinks.testing import change_batch
from tests.support.cases import cases
from tests.support.tables.change_rows import DELETE, INSERT, POST, PRE, changes

NAMES = b"\x01\x01\x00\x01c"  # of a Variant with a field c,
OBJECT = b"\x02\x01\x00\x00\x03\x09"  # and the object before its text of two letters
ROUTED = {"topic": "shop.{country}", "topics": ["shop.de", "shop.fr"]}


def options(**given: Any) -> Options:
    return read("sink", {"bootstrap_servers": "one:9092", **given})


def link(**given: Any) -> Link:
    return Link("sink", options(**ROUTED | given))


def in_countries(
    kinds: Sequence[str], countries: Sequence[str | None], ids: Sequence[int] | None = None
) -> ChangeBatch:
    """Make rows with these countries; images of an update share a place in their file."""
    ids = range(len(kinds)) if ids is None else ids
    return changes(kinds, {"id": pa.array(ids, pa.int64()), "country": pa.array(countries, pa.string())}, list(ids))


def sent(batches: Sequence[ChangeBatch], **given: Any) -> dict[str, list[tuple[Any, Any]]]:
    """Return the keys and values for each topic; Debezium's values without their source."""
    encoder = encoder_for(link(**given), batches[0].rows.schema)
    found: dict[str, list[tuple[Any, Any]]] = {}
    for topic, messages, _ in [each for batch in batches for each in encoder.encode(batch, 0)] + [*encoder.flush(0)]:
        keys = [None] * len(messages) if messages.keys is None else messages.keys.to_pylist()
        pairs = [
            (key and json.loads(key), value and json.loads(value))
            for key, value in zip(keys, messages.values.to_pylist(), strict=True)
        ]
        found.setdefault(topic, []).extend(pairs)
    return found


@cases(
    ("given", "option", "reason"),
    [
        ({"topic": "shop.{country}"}, "topics", "is missing: topic is named by the column country"),
        ({"topic": "shop.{country}", "topics": []}, "topics", "is missing"),
        ({"topic": "shop", "topics": ["shop.de"]}, "topics", "goes with a topic that is named by a column"),
        ({"topic": "shop", "other_topic": "shop.other"}, "other_topic", "goes with a topic that is named"),
        ({"topic": "{a}.{b}", "topics": ".*"}, "topic", "names 2 columns: a, b"),
        ({"topic": "shop.{table}", "topics": ".*"}, "topic", "has {table}, which is the name of the table"),
        ({"topic": "shop.{}", "topics": ".*"}, "topics", "goes with a topic that is named by a column"),
        ({"topic": "shop.{country}", "topics": "shop.["}, "topics", "is not a regular expression"),
        ({"topic": "shop.{country}", "topics": ["shop/de"]}, "topics", "'shop/de' is not a valid topic name"),
        ({"topic": "shop.{country}", "topics": ["shops.de"]}, "topics", "no value of column country makes shops.de"),
        ({"topic": "shop.{country}", "topics": ["shop."]}, "topics", "no value of column country makes shop."),
        ({**ROUTED, "other_topic": "shop.de"}, "other_topic", "shop.de is among topics"),
        ({**ROUTED, "other_topic": "shop de"}, "other_topic", "'shop de' is not a valid topic name"),
        ({**ROUTED, "end_topic": "shop.fr"}, "end_topic", "shop.fr is among topics too"),
        ({"topic": "shop.{country}", "topics": ".*", "end_topic": "shop.end"}, "end_topic", "is among topics too"),
        ({**ROUTED, "other_topic": "rest", "end_topic": "rest"}, "end_topic", "rest is the other_topic too"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, Any], option: str, reason: str) -> None:
    with pytest.raises((ConfigError, ExceptionGroup)) as raised:
        options(**given)
    errors = raised.value.exceptions if isinstance(raised.value, ExceptionGroup) else [raised.value]
    assert any(str(error.where) == f"sink.{option}" and reason in error.reason for error in errors), errors  # type: ignore[union-attr]
    assert all(error.hint for error in errors)  # type: ignore[union-attr]


def test_a_pattern_fits_whole_names() -> None:
    route = options(topic="shop.{country}", topics=r"shop\.[a-z]{2}").route
    assert route is not None
    wanted = {"de": "shop.de", "deu": None, "DE": None, "": None, "d/": None, None: None}
    assert {value: route.topic_of(value) for value in wanted} == wanted
    assert route.reaches("shop.fr")
    assert not route.reaches("shop.fra")
    assert not route.reaches("my.shop.fr")


def test_values_that_name_no_topic_go_to_the_other_one() -> None:
    route = options(**ROUTED | {"topics": r"shop\..*", "other_topic": "rest"}).route
    assert route is not None
    wanted = {"de": "shop.de", None: "rest", "": "rest", "a b": "rest", "ü": "rest", "x" * 250: "rest"}
    assert {value: route.topic_of(value) for value in wanted} == wanted | {"": "shop."}


def test_few_values_are_remembered() -> None:
    route = Route("", "n", "", frozenset(), "rest")
    assert {route.topic_of(str(n)) for n in range(3 * MOST_KNOWN)} == {"rest"}
    assert len(route._known) <= MOST_KNOWN


@cases(
    ("values", "texts"),
    [
        (pa.array(["de", None, "de"]), ["de", None, "de"]),
        (pa.array(["de", "fr"]).cast(pa.large_string()), ["de", "fr"]),
        (pa.array(["de", "fr"]).cast(pa.string_view()), ["de", "fr"]),
        (pa.array(["de", None, "fr"]).dictionary_encode(), ["de", None, "fr"]),
        (
            pa.DictionaryArray.from_arrays(pa.array([1, 0, 1], pa.int8()), pa.array(["unused", None])),
            [None, "unused", None],
        ),
        (pa.array([-7, 300, None], pa.int64()), ["-7", "300", None]),
        (pa.array([2**64 - 1], pa.uint64()), [str(2**64 - 1)]),
        (pa.array([True, False, None]), ["true", "false", None]),
        (pa.array([date(2026, 3, 1), date(1, 1, 1)]), ["2026-03-01", "0001-01-01"]),
        (pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers()), [None]),
        (pa.array([], pa.string()), []),
    ],
)
def test_values_are_their_plain_text(values: pa.Array, texts: list[str | None]) -> None:
    rows = pa.RecordBatch.from_arrays([values], ["v"])
    distinct, indices = column_in("sink", Route("", "v", "", frozenset()), rows.schema).distinct(rows)
    assert [None if index is None else distinct[index] for index in indices.to_pylist()] == texts


def test_a_path_leads_to_a_field_of_structs() -> None:
    kind = pa.struct([("zip", pa.int32()), ("in", pa.struct([("country", pa.string())]))])
    values = pa.array([{"zip": 1, "in": {"country": "de"}}, {"zip": 2, "in": None}, None], kind)
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), values], ["id", "address"])
    distinct, indices = column_in("sink", Route("", "address.in.country", "", frozenset()), rows.schema).distinct(rows)
    assert (distinct, indices.to_pylist()) == (["de"], [0, None, None])


@cases(
    ("schema", "name", "reason"),
    [
        ([("id", pa.int64())], "country", "the rows have no column country"),
        ([("country", pa.float64())], "country", "column country, which names the topic, has type double"),
        ([("country", pa.decimal128(5, 2))], "country", "has type decimal"),
        ([("country", pa.timestamp("us"))], "country", "has type timestamp"),
        ([("country", pa.binary())], "country", "has type binary"),
        ([("country", pa.list_(pa.string()))], "country", "has type list"),
        ([("a", pa.list_(pa.struct([("b", pa.string())])))], "a.b", "the rows have no column a.b"),
        ([("a", pa.struct([("b", pa.string())])), ("a.b", pa.string())], "a.b", "is both a column and a field"),
        ([(CHANGE_TYPE, pa.string())], CHANGE_TYPE, "the rows have no column _change_type"),
    ],
)
def test_columns_that_cannot_name_topics_are_refused(
    schema: list[tuple[str, pa.DataType]], name: str, reason: str
) -> None:
    with pytest.raises(SinkRejected, match=reason) as raised:
        column_in("sink", Route("", name, "", frozenset()), pa.schema(schema))
    assert raised.value.hint


def test_a_name_with_dots_may_be_a_column() -> None:
    schema = pa.schema([("a.b", pa.string())])
    assert column_in("sink", Route("", "a.b", "", frozenset()), schema).place == (0,)


@pytest.mark.parametrize("country", [None, "secret"])
def test_a_row_without_a_topic_is_refused_without_its_value(country: str | None) -> None:
    batch = in_countries([INSERT] * 3, ["de", country, "fr"], [4, 6, 7])
    with pytest.raises(SinkRejected, match=r"column country, .* \(version 5, task 3, row 6\)") as raised:
        sent([batch])
    assert "secret" not in f"{raised.value} {raised.value.hint}"
    assert "other_topic" in raised.value.hint
    found = sent([batch], other_topic="rest")
    assert {topic: [value["id"] for _, value in each] for topic, each in found.items()} == {
        "shop.de": [4],
        "rest": [6],
        "shop.fr": [7],
    }


MOVE = in_countries([PRE, POST, PRE, POST], ["de", "fr", "fr", "fr"], [1, 1, 2, 2])


def test_an_update_that_moves_a_row_is_a_delete_and_a_create() -> None:
    found = sent([MOVE], envelope="debezium", key=["id"])
    shown = {
        topic: [(key["id"], value and (value["op"], value["before"], value["after"])) for key, value in each]
        for topic, each in found.items()
    }
    de, fr, other = ({"id": n, "country": country} for n, country in ((1, "de"), (1, "fr"), (2, "fr")))
    assert shown == {
        "shop.de": [(1, ("d", de, None)), (1, None)],
        "shop.fr": [(1, ("c", None, fr)), (2, ("u", other, other))],
    }
    assert {value["source"]["table"] for _, value in found["shop.fr"]} == {"fr"}


def test_without_a_key_a_known_update_moves_a_row_too() -> None:
    for envelope in ("debezium", "cloudevents"):
        found = sent([MOVE], envelope=envelope)
        images = [value.get("data", value) for topic in ("shop.de", "shop.fr") for _, value in found[topic]]
        assert [(each["before"] is not None, each["after"] is not None) for each in images] == [
            (True, False),
            (False, True),
            (True, True),
        ]


def test_flat_rows_with_a_key_move_likewise() -> None:
    found = sent([MOVE], key=["id"], tombstones=True)
    kinds = {topic: [value and value[CHANGE_TYPE] for _, value in each] for topic, each in found.items()}
    assert kinds == {"shop.de": [DELETE, None], "shop.fr": [INSERT, PRE, POST]}


def test_flat_rows_without_a_key_keep_their_change_types() -> None:
    found = sent([MOVE])
    kinds = {topic: [value[CHANGE_TYPE] for _, value in each] for topic, each in found.items()}
    assert kinds == {"shop.de": [PRE], "shop.fr": [POST, PRE, POST]}


def test_arrow_messages_have_rows_of_one_topic() -> None:
    encoder = encoder_for(link(encoding="arrow"), MOVE.rows.schema)
    found = {
        topic: [pa.ipc.open_stream(each).read_all() for each in messages.values.to_pylist()]
        for topic, messages, _ in encoder.encode(MOVE, 0)
    }
    assert {topic: [table["id"].to_pylist() for table in tables] for topic, tables in found.items()} == {
        "shop.de": [[1]],
        "shop.fr": [[1, 2, 2]],
    }


def test_views_are_divided_too() -> None:
    """Arrow cannot take from them."""
    countries = ["fr", "de", "fr"]
    columns = {"country": pa.array(countries), "note": pa.array(["a", "b", "c"]).cast(pa.string_view())}
    found = sent([change_batch(5, columns, 3)])
    assert {topic: [value["note"] for _, value in each] for topic, each in found.items()} == {
        "shop.fr": ["a", "c"],
        "shop.de": ["b"],
    }


UPDATES = st.lists(
    st.tuples(st.sampled_from("idu"), *[st.sampled_from(["de", "fr", None])] * 2), min_size=1, max_size=12
)


@given(
    UPDATES,
    st.lists(st.integers(1, 5)),
    st.sampled_from([{}, {"key": ["id"]}, {"envelope": "debezium"}, {"envelope": "debezium", "key": ["id"]}]),
)
def test_the_fold_over_a_topic_is_its_part_of_the_table(
    steps: list[tuple[str, str | None, str | None]], cuts: list[int], given: dict[str, Any]
) -> None:
    """However rows come in batches."""
    rows: list[tuple[str, str | None, int]] = []
    for number, (step, one, other) in enumerate(steps):
        images = {"i": [(INSERT, one)], "d": [(DELETE, one)], "u": [(PRE, one), (POST, other)]}[step]
        rows += [(kind, country, number) for kind, country in images]
    kinds, countries, ids = zip(*rows, strict=True)
    whole = in_countries(kinds, countries, ids)
    batches, start = [], 0
    for cut in cuts:
        batches.append(whole.slice(start, min(cut, len(whole) - start)))
        start += len(batches[-1])
    batches.append(whole.slice(start, len(whole) - start))
    found = sent([whole], **given, other_topic="rest")
    assert sent([batch for batch in batches if len(batch)], **given, other_topic="rest") == found
    wanted: dict[str, Counter[tuple[int, str | None]]] = {}
    for kind, country, number in rows:
        topic = "rest" if country is None else f"shop.{country}"
        wanted.setdefault(topic, Counter())[number, country] += 1 if kind in (INSERT, POST) else -1
    for topic, messages in found.items():
        folded: Counter[tuple[int, str | None]] = Counter()
        for _, value in messages:
            for image, sign in _images(value):
                folded[image["id"], image["country"]] += sign
        assert folded == wanted[topic]
    assert found.keys() == wanted.keys()


def _images(value: dict[str, Any] | None) -> list[tuple[dict[str, Any], int]]:
    """Return the rows that a message takes from a table and adds to it."""
    if value is None:
        return []
    if "op" in value:
        return [(value[name], sign) for name, sign in (("before", -1), ("after", 1)) if value[name] is not None]
    return [(value, 1 if value[CHANGE_TYPE] in (INSERT, POST) else -1)]


def test_records_of_topics_are_told_from_those_of_streams() -> None:
    """They are persisted: their keys and values must not change."""
    assert topic_key("orders/5f0c", "shop.de") == "orders/5f0c#topic=shop.de"
    entry = Entry(None, "me", "shop.de", 3, topic_id="226281ba")
    assert encode(entry) == b'{"instance":"me","topic":"shop.de","partitions":3,"topic_id":"226281ba","format":2}'
    stream = Entry(None, "me", "shop.{country}", 0)
    records: dict[bytes | None, bytes | None] = {
        b"orders/5f0c": encode(stream),
        b"orders/5f0c#topic=shop.de": encode(entry),
    }
    found = ProgressTopic.of(decode("sink", "progress", records), ["orders/5f0c", "orders/5f0c#topic=shop.de"], {})
    assert found.entries == {"orders/5f0c": stream}
    assert found.topics == {"orders/5f0c": {"shop.de": entry}}
    assert found.open == {"orders/5f0c"}
    assert entry.count == Count()


def test_a_path_into_a_variant_names_topics_as_a_column_of_select() -> None:
    variants = [None if name is None else {"metadata": NAMES, "value": OBJECT + name} for name in (b"de", None, b"fr")]
    batch = changes([INSERT] * 3, {"id": pa.array([1, 2, 3]), "payload": pa.array(variants, VARIANT)}, [0, 1, 2])
    table = pa.schema([("id", pa.int64()), ("payload", VARIANT)])
    select = parse_select("id, payload:c::string AS country", table)
    rows = select.making(select.schema).apply(batch.rows.select([1, 0, *range(2, batch.rows.num_columns)]))
    found = sent([replace(batch, rows=rows)], other_topic="rest")
    ids = {topic: [value["id"] for _, value in pairs] for topic, pairs in found.items()}
    assert ids == {"shop.de": [1], "rest": [2], "shop.fr": [3]}


class Registry:
    """Gives each subject a number."""

    def __init__(self) -> None:
        self.subjects: list[str] = []

    def schema_id(self, subject: str, schema: str) -> int:
        assert schema
        if subject not in self.subjects:
            self.subjects.append(subject)
        return self.subjects.index(subject)

    def look(self, subject: str, schema: str) -> int:
        assert subject
        assert schema
        return 0


AVRO = {"encoding": "avro", "registry_url": "http://one:8081"}


@pytest.mark.parametrize(
    "given",
    [
        *({}, AVRO, {"envelope": "debezium"}, {"envelope": "debezium", "embed_schemas": True}),
        *({"envelope": "debezium", **AVRO}, {"envelope": "cloudevents"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("key", [{}, {"key": ["id"]}], ids=["", "key"])
def test_messages_are_those_that_an_encoder_of_the_topic_alone_makes(
    given: dict[str, Any], key: dict[str, Any]
) -> None:
    kinds = [INSERT, DELETE, PRE, POST, INSERT, DELETE, PRE, POST, PRE, POST]
    countries = ["de", "fr", "de", "de", "fr", "de", "fr", "fr", "de", "de"]
    batch = in_countries(kinds, countries, [1, 2, 3, 3, 4, 5, 6, 6, 7, 8])
    registry: Any = Registry()
    routed = link(**given, **key)
    routed.registry = registry
    encoder = encoder_for(routed, batch.rows.schema)
    sent = [*encoder.encode(batch, 5), *encoder.flush(5)]
    assert {topic for topic, _, _ in sent} == {"shop.de", "shop.fr"}
    for topic in ("shop.de", "shop.fr"):
        chosen = pa.array([f"shop.{country}" == topic for country in countries])
        rows, row_index = batch.rows.filter(chosen), batch.row_index.filter(chosen)
        one = Link("sink", options(topic=topic, **given, **key))
        one.registry = registry
        alone = encoder_for(one, batch.rows.schema)
        wanted = [*alone.encode(replace(batch, rows=rows, row_index=row_index), 5), *alone.flush(5)]
        assert content([messages for name, messages, _ in sent if name == topic]) == content(
            [messages for _, messages, _ in wanted]
        )


def test_only_topics_of_rows_get_an_encoder() -> None:
    countries = pa.DictionaryArray.from_arrays(pa.array([2, 0, 2], pa.int32()), pa.array(["de", "at", "fr"]))
    batch = changes([INSERT] * 3, {"id": pa.array([1, 2, 3], pa.int64()), "country": countries}, [0, 1, 2])
    routed = link(**AVRO, topics=r"shop\.[a-z]+", other_topic="rest")
    registry: Any = Registry()
    routed.registry = registry
    sent = encoder_for(routed, batch.rows.schema).encode(batch, 0)
    assert {topic: messages.row_index.to_pylist() for topic, messages, _ in sent} == {"shop.fr": [0, 2], "shop.de": [1]}
    assert sorted(registry.subjects) == ["shop.de-value", "shop.fr-value"]


def content(parts: Sequence[Messages]) -> list[tuple[Any, ...]]:
    """Return the key, the value, the row and the headers of each message."""
    return [
        message
        for part in parts
        for message in zip(
            [None] * len(part) if part.keys is None else part.keys.to_pylist(),
            part.values.to_pylist(),
            part.row_index.to_pylist(),
            map(
                str,
                zip(*([(name, value) for value in column.to_pylist()] for name, column in part.headers), strict=True),
            )
            if part.headers
            else [""] * len(part),
            strict=True,
        )
    ]
