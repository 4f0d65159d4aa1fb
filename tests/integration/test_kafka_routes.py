"""Rows in topics that a column names, on a real broker: exactly once over all topics, and refusals."""

import json
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.tables import TableRef
from tailer.engine.local import LocalEngine
from tailer.errors import SinkRejected
from tailer.events import CHANGE_TYPE, ChangeBatch, Gap, SchemaChange
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import Position
from tailer.sink import Progress
from tailer.start import Start
from tailer.stores.wakeup import TimerWake
from tailer_sinks.kafka.sink import KafkaSink
from tailer_sinks.testing import change_batch
from tailer_sinks.testing.suite import APP, deliver, up_to
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.topics import admin, create_topic, end_offsets, read_topic, unique_name
from tests.support.servers.schema_registry import RegistryServer, serving_registry
from tests.support.tables.change_rows import POST, PRE, changes
from tests.support.variant.avro_records import AvroReader


class Shop:
    """Topics of the test's own, and sinks that write there."""

    def __init__(self, kafka: KafkaCluster, **options: Any) -> None:
        self.servers = kafka.bootstrap_servers
        self.topic = unique_name("shop")
        self.options = {
            "bootstrap_servers": self.servers,
            "topic": f"{self.topic}.{{country}}",
            "topics": [f"{self.topic}.de", f"{self.topic}.fr"],
            "progress_topic": f"{self.topic}-progress",
            "end_topic": f"{self.topic}-ends",
            "create_topics": True,
            **options,
        }

    def run(self, *work: Callable[[KafkaSink], Awaitable[Any]], **options: Any) -> None:
        """Run each function with one instance of the sink, one after the other."""

        async def all_of_it() -> None:
            sink = KafkaSink.configure("sink", self.options | options)
            try:
                for each in work:
                    await each(sink)
            finally:
                await sink.aclose()

        anyio.run(all_of_it)

    def values(self, country: str) -> list[Any]:
        """Return the committed values of a country."""
        return [json.loads(each.value or b"null") for each in read_topic(self.servers, f"{self.topic}.{country}")]

    def ids(self, country: str) -> list[int]:
        return [value["id"] for value in self.values(country)]

    def ends(self) -> list[tuple[int, dict[str, int]]]:
        """Return the versions of END records, with the counts of countries."""
        found = [json.loads(each.value or b"") for each in read_topic(self.servers, f"{self.topic}-ends")]
        assert all(end["event_count"] == sum(each["event_count"] for each in end["data_collections"]) for end in found)
        return [
            (
                end["commit_version"],
                {
                    each["data_collection"].removeprefix(f"{self.topic}."): each["event_count"]
                    for each in end["data_collections"]
                },
            )
            for end in found
        ]


def sold(version: int, countries: Sequence[str | None], task: int = 0) -> ChangeBatch:
    """Make inserted rows with these countries, and ids in order."""
    ids = [version * 1000 + task * 100 + row for row in range(len(countries))]
    return change_batch(version, {"id": pa.array(ids), "country": pa.array(countries, pa.string())}, task)


def delivering(*items: Any, progress: Progress | None = None) -> Callable[[KafkaSink], Awaitable[None]]:
    return lambda sink: deliver(sink, *items, progress=progress)


def inside(version: int, task: int, row: int) -> Progress:
    return Progress(APP, Position(version, task, row))


def resetting(version: int) -> Callable[[KafkaSink], Awaitable[None]]:
    return lambda sink: sink.reset(up_to(APP, version))


@pytest.mark.parametrize("client", ["kafka-python", "confluent-kafka"])
def test_every_row_is_once_in_its_topic_and_counted(kafka: KafkaCluster, client: str) -> None:
    shop = Shop(kafka, library=client)
    shop.run(delivering(sold(3, ["de", "fr", "de"]), sold(4, ["fr"])))
    whole = sold(6, ["de", "fr", "fr", "de", "de"])
    # Another instance goes on inside of the version, and counts on.
    shop.run(delivering(whole.slice(0, 2), progress=inside(6, 0, 1)))
    shop.run(delivering(whole.slice(2, 3)), delivering(sold(7, ["de"])))
    assert shop.ids("de") == [3000, 3002, 6000, 6003, 6004, 7000]
    assert shop.ids("fr") == [3001, 4000, 6001, 6002]
    assert shop.ends() == [(3, {"de": 2, "fr": 1}), (4, {"fr": 1}), (5, {}), (6, {"de": 3, "fr": 2}), (7, {"de": 1})]


def test_small_versions_that_are_joined_are_counted_by_topic(kafka: KafkaCluster) -> None:
    shop = Shop(kafka)
    shop.run(delivering(*(sold(version, ["de", "fr"][: version % 3]) for version in (1, 2, 4, 5))))
    shop.run(delivering(*(sold(version, ["de"]) for version in (7, 8))))
    assert (shop.ids("de"), shop.ids("fr")) == ([1000, 2000, 4000, 5000, 7000, 8000], [2001, 5001])
    counts = {
        1: {"de": 1},
        2: {"de": 1, "fr": 1},
        3: {},
        4: {"de": 1},
        5: {"de": 1, "fr": 1},
        6: {},
        7: {"de": 1},
        8: {"de": 1},
    }
    assert shop.ends() == list(counts.items())


def test_nothing_of_a_transaction_that_fails_is_in_any_topic(kafka: KafkaCluster) -> None:
    shop = Shop(kafka)
    shop.run(delivering(sold(1, ["de", "fr"])))
    with pytest.raises(SinkRejected, match=r"column country, .* \(version 2, task 0, row 2\)") as raised:
        shop.run(delivering(sold(2, ["de", "fr", "secret", "de"])))
    assert "secret" not in str(raised.value)
    assert (shop.ids("de"), shop.ids("fr")) == ([1000], [1001])
    other = f"{shop.topic}.other"
    shop.run(delivering(sold(2, ["de", "fr", "secret", None, "de"])), other_topic=other)
    assert (shop.ids("de"), shop.ids("fr"), shop.ids("other")) == ([1000, 2000, 2004], [1001, 2001], [2002, 2003])


def test_an_update_moves_a_row_to_another_topic(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, key=["id"], envelope="debezium", partitions=3)
    columns = {"id": pa.array([1, 1, 2, 2]), "country": pa.array(["de", "fr", "fr", "fr"])}
    moved = changes([PRE, POST, PRE, POST], columns, [0, 0, 1, 1])
    shop.run(delivering(moved))
    shown = {
        country: [value and (value["op"], (value["before"] or value["after"])["id"]) for value in shop.values(country)]
        for country in ("de", "fr")
    }
    assert shown["de"] == [("d", 1), None]
    assert sorted(shown["fr"]) == [("c", 1), ("u", 2)]
    assert shop.ends() == [(5, {"de": 1, "fr": 2})]


def test_topics_of_a_pattern_are_created_with_their_first_row(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, topics=".*[.][a-z]{2}", partitions=2)
    shop.run(delivering(sold(1, ["de", "it"])))
    shop.run(delivering(sold(2, ["se", "it"])))
    assert {country: sorted(shop.ids(country)) for country in ("de", "it", "se")} == {
        "de": [1000],
        "it": [1001, 2001],
        "se": [2000],
    }
    assert len(end_offsets(shop.servers, [f"{shop.topic}.se"])) == 2
    with pytest.raises(SinkRejected, match=f"there is no topic {shop.topic}.no") as raised:
        shop.run(delivering(sold(3, ["de", "no"])), create_topics=False)
    assert "create_topics" in raised.value.hint
    create_topic(shop.servers, f"{shop.topic}.no", 2)
    shop.run(delivering(sold(3, ["de", "no"])), create_topics=False)
    assert sorted(shop.ids("de")) == [1000, 3000]


def test_a_topic_that_was_deleted_or_got_partitions_stops_the_stream(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, key=["id"])
    shop.run(delivering(sold(1, ["de", "fr"])))
    with admin(shop.servers) as client:
        client.create_partitions({f"{shop.topic}.fr": 2})
        client.wait_for_topics([f"{shop.topic}.fr"])
    with pytest.raises(SinkRejected, match=f"{shop.topic}.fr has 2 partitions and had 1: keys would move"):
        shop.run(delivering(sold(2, ["de"])))
    shop.run(resetting(1), delivering(sold(2, ["de", "fr"])))
    with admin(shop.servers) as client:
        client.delete_topics([f"{shop.topic}.de"])
    with pytest.raises(SinkRejected, match=f"the topic {shop.topic}.de was deleted: rows up to version 2"):
        shop.run(delivering(sold(3, ["fr"])))
    shop.run(resetting(2), delivering(sold(3, ["de", "fr"])))
    shop.run(delivering(sold(4, ["de"])))
    assert shop.ids("de") == [3000, 4000]
    assert sorted(shop.ids("fr")) == [1001, 2001, 3001]


def test_events_are_in_each_topic(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, topics=".*[.][a-z]{2}", partitions=2)
    shop.run(delivering(sold(1, ["de", "fr"])))
    rows = sold(2, ["it"]).rows
    gap = Gap("table", 2, 3, 0, "lost", snapshot=False)
    change = SchemaChange("table", 4, 0, rows.schema, rows.schema, ("column a was dropped",))
    shop.run(delivering(gap, change, sold(4, ["it"])))
    for country in ("de", "fr"):
        kinds = [value[CHANGE_TYPE] for value in shop.values(country)]
        assert sorted(kinds) == ["gap", "gap", "insert", "schema_change", "schema_change"]
    assert [value[CHANGE_TYPE] for value in shop.values("it")] == ["insert"]


@pytest.mark.parametrize("pattern", [True, False])
def test_topics_with_messages_and_no_progress_are_not_begun(kafka: KafkaCluster, pattern: bool) -> None:
    shop = Shop(kafka, **{"topics": ".*[.][a-z]{2}"} if pattern else {})
    shop.run(delivering(sold(1, ["fr"])))
    lost = {"progress_topic": f"{shop.topic}-other-progress"}

    def begin(sink: KafkaSink) -> Awaitable[None]:
        return sink.check_first_start("pipeline", ["table"])

    with pytest.raises(SinkRejected, match=f"the topic {shop.topic}.fr has messages"):
        shop.run(begin, **lost, end_topic=None)
    shop.run(begin, **lost, end_topic=None, shared_topic=True)


def test_another_column_needs_a_new_position(kafka: KafkaCluster) -> None:
    shop = Shop(kafka)
    shop.run(delivering(sold(1, ["fr"])))
    with pytest.raises(SinkRejected, match=f"was delivered to the topic {shop.topic}.{{country}}, not"):
        shop.run(delivering(sold(2, ["fr"])), topic=f"{shop.topic}.{{id}}", topics=f"{shop.topic}.*")


@pytest.mark.parametrize("envelope", ["flat", "debezium"])
def test_each_topic_has_its_subjects_with_the_columns_that_leave(
    kafka: KafkaCluster, tmp_path: Path, envelope: str
) -> None:
    """Of a pipeline that chooses rows and columns, of which one comes later."""
    extra = {"extra": ["new"] * 4}
    for version, added in enumerate(({}, extra)):
        ids = pa.array(range(version * 4, version * 4 + 4), pa.int64())
        rows = pa.table({"id": ids, "country": ["de", "fr", "de", "it"], "mail": ["a@b.c"] * 4, **added})
        write_deltalake(tmp_path, rows, mode="append", schema_mode="merge")
    policy = Policy(where="country <> 'it'", select="* EXCLUDE (mail), sha2(mail, 256) AS mail")

    async def run(sink: KafkaSink) -> None:
        table, start, end = TableRef(str(tmp_path)).open(), Start.parse("earliest"), Start.parse("latest")
        engine = ChangelogEngine(LocalEngine(), PairingRules(compute_updates=True, key=("id",), null_keys=True))
        await row_pipeline("shop", table, sink, engine, TimerWake(), start, end, policy).run()

    with serving_registry() as registry:
        avro = {"encoding": "avro", "registry_url": registry.uris[0], "envelope": envelope, "key": ["id"]}
        shop = Shop(kafka, **avro)
        shop.run(run)
        topics = [f"{shop.topic}.{country}" for country in ("de", "fr")]
        records = {topic: AvroReader(registry.uris[0]).as_json(read_topic(shop.servers, topic)) for topic in topics}
    assert sorted(registry.subjects) == sorted(f"{topic}-{part}" for topic in topics for part in ("key", "value"))
    hashed = sha256(b"a@b.c").hexdigest()
    for topic, firsts in zip(topics, ([0, 2], [1]), strict=True):
        assert [each["name"] for each in registered(registry, f"{topic}-key", 0)["fields"]] == ["id"]
        for version, names in enumerate((["id", "country", "mail"], ["id", "country", "extra", "mail"])):
            assert columns_of(registered(registry, f"{topic}-value", version)) == names
        values = [json.loads(record.value or b"") for record in records[topic]]
        values = [value.get("after", value) for value in values]
        assert [value["id"] for value in values] == [*firsts, *(first + 4 for first in firsts)]
        assert {value["mail"] for value in values} == {hashed}
        assert [value.get("extra") for value in values] == [None] * len(firsts) + ["new"] * len(firsts)


@pytest.mark.parametrize("topics", [["de", "fr"], "pattern"])
def test_a_schema_that_one_topic_refuses_is_in_none(kafka: KafkaCluster, topics: list[str] | str) -> None:
    """The first rows of the version, which might be committed alone, go to a topic that would take them."""
    with serving_registry() as registry:
        shop = Shop(kafka, encoding="avro", registry_url=registry.uris[0], key=["id"])
        shop.options["topics"] = [f"{shop.topic}.{each}" for each in topics] if isinstance(topics, list) else ".*"
        shop.run(delivering(sold(1, ["de", "fr"])))
        subjects = {subject: list(numbers) for subject, numbers in registry.subjects.items()}
        assert len(subjects) == 4
        batch = change_batch(
            2, {"id": pa.array(range(4)), "country": pa.array(["de", "de", "fr", "it"]), "n": pa.array(["a"] * 4)}
        )
        must = pa.schema([each.with_nullable(False) if each.name == "n" else each for each in batch.rows.schema])
        batch = ChangeBatch(batch.table_id, 2, batch.task, batch.rows.cast(must), batch.row_index)
        registry.rules = {f"{shop.topic}.de-value": "FORWARD"}
        with pytest.raises(SinkRejected, match=rf"subject {shop.topic}.fr-value .* column n is new: string"):
            shop.run(delivering(batch.slice(0, 2), progress=inside(2, 0, 1)))
        assert registry.subjects == subjects
        assert [len(read_topic(shop.servers, f"{shop.topic}.{each}")) for each in ("de", "fr")] == [1, 1]
        registry.rules[f"{shop.topic}.fr-value"] = "FORWARD"
        shop.run(delivering(batch.slice(0, 2), progress=inside(2, 0, 1)), delivering(batch.slice(2, 1)))
        assert [len(read_topic(shop.servers, f"{shop.topic}.{each}")) for each in ("de", "fr")] == [3, 2]


def registered(registry: RegistryServer, subject: str, version: int) -> Any:
    """Return a schema of a subject."""
    return json.loads(registry.schemas[registry.subjects[subject][version] - 1])


def columns_of(schema: Any) -> list[str]:
    """Return the names of the table's columns in the schema of values."""
    fields = {each["name"]: each["type"] for each in schema["fields"]}
    if "after" in fields:
        (row,) = (each for field in ("before", "after") for each in fields[field] if isinstance(each, dict))
        fields = {each["name"]: each["type"] for each in row["fields"]}
    return [name for name in fields if not name.startswith("_")]
