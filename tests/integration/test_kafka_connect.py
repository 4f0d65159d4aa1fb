"""Programs for Debezium's topics read ours unchanged: a database written by Kafka Connect and Debezium.

The table in the database must equal the Delta table, after any change of the latter. Debezium's library must find in
our messages the values that it would have written.

On every landing: the same programs without a snapshot at the start, in this module.
"""

import json
import math
import signal
from collections.abc import Iterator
from ctypes import c_float
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from kafka import KafkaProducer

from tailer.errors import SinkRejected
from tailer_sinks.encoding.debezium.messages import DebeziumEncoder, Source
from tests.support.daemon.commands import background
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.topics import Follower, Record, create_topic, read_topic, unique_name
from tests.support.servers.debezium import DebeziumLibrary
from tests.support.servers.kafka_connect import ConnectWorker
from tests.support.servers.postgres import USER, Postgres
from tests.support.tables.change_rows import DELETE, INSERT, changes

pytestmark = pytest.mark.kafka

KEY: Final = ["shop", "id"]
SCHEMA: Final = pa.schema(
    [
        pa.field("shop", pa.string(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("rate", pa.float64()),
        ("weight", pa.float32()),
        ("level", pa.int8()),
        ("pieces", pa.int16()),
        ("count", pa.int32()),
        ("paid", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
    ]
)
FULL: Final[dict[str, Any]] = {
    "shop": "Ä'\"\\",
    "id": 2**63 - 1,
    "name": "Zoë\n\t😀",
    "amount": Decimal("-9999999999.99"),
    "rate": 1e300,
    "weight": 0.1,
    "level": -(2**7),
    "pieces": 2**15 - 1,
    "count": -(2**31),
    "paid": True,
    "day": date(2024, 2, 29),
    "at": datetime(2026, 3, 1, 12, 0, 0, 1, UTC),
    "local": datetime(2026, 3, 29, 2, 30, 0, 999999),  # noqa: DTZ001 - it has no zone
    "raw": b"\x00\xff'",
    "tags": ["a", "b,c", '"', None],
}
FIRST: Final[list[dict[str, Any]]] = [
    FULL,
    FULL | {"id": -(2**63), "rate": -0.1, "at": datetime.max.replace(tzinfo=UTC), "tags": []},
    {"shop": "b", "id": 1, "amount": Decimal("0.10"), "at": datetime(1, 1, 1, tzinfo=UTC), "day": date(1, 1, 1)},
    {"shop": "b", "id": 2, "name": "", "raw": b""},
    {"shop": "b", "id": 3, "name": "to go"},
    {"shop": "b", "id": 4, "name": "to move", "paid": False},
    *({"shop": "c", "id": number, "count": number} for number in range(20)),
]

SINK: Final = {
    "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
    "connection.username": USER,
    "connection.password": USER,
    "insert.mode": "upsert",
    "delete.enabled": "true",
    "primary.key.mode": "record_key",
    "schema.evolution": "basic",
    "collection.name.format": "${source.table}",
}


def history(path: Path) -> None:
    """Make a table of ten versions."""
    write_deltalake(path, pa.Table.from_pylist(FIRST, SCHEMA))
    table = DeltaTable(path)
    table.update({"amount": "1.25", "name": "NULL", "tags": "NULL"}, predicate="shop = 'c' OR id < 0")
    table.update({"name": "'now known'"}, predicate="shop = 'b' AND id = 1")
    table.delete("shop = 'b' AND id = 3 OR shop = 'c' AND id >= 10")
    table.update({"id": "id + 100"}, predicate="name = 'to move'")
    # Each of two rows gets the key of the other one.
    table.update({"id": "3 - id", "count": "id"}, predicate="shop = 'b' AND id < 3")
    # Delta-rs makes the columns of the key nullable along the way.
    append(path, {"shop": ["b", "d"], "id": [5, 1], "note": ["first", None]})
    table = DeltaTable(path)
    table.update({"note": "'old row'"}, predicate="shop = 'c'")
    table.delete("shop = 'c' AND id = 0")
    append(path, {"shop": ["c"], "id": [0], "note": ["again"]})


def append(path: Path, columns: dict[str, list[Any]]) -> None:
    """Add rows, and their new columns."""
    write_deltalake(path, pa.table(columns), mode="append", schema_mode="merge")


def deliver(kafka: KafkaCluster, table: Path, topic: str, folder: Path, start: str = "earliest") -> None:
    """Let a daemon deliver a table until it reports that the latest version is complete."""
    end_topic = create_topic(kafka.bootstrap_servers)
    configuration = folder / f"{topic}.toml"
    configuration.write_text(f"""
[pipelines.orders]
table = {json.dumps(str(table))}
start = "{start}"

[pipelines.orders.sink]
kind = "kafka"
bootstrap_servers = "{kafka.bootstrap_servers}"
topic = "{topic}"
key = {json.dumps(KEY)}
envelope = "debezium"
embed_schemas = true
end_topic = "{end_topic}"
progress_topic = "{topic}-progress"
create_topics = true
shared_topic = true
""")
    latest = DeltaTable(table).version()
    with Follower(kafka.bootstrap_servers, [end_topic]) as ends, background("run", "--config", configuration) as daemon:
        ends.await_records(1 if start == "snapshot" else latest + 1)
        daemon.send_signal(signal.SIGTERM)
        _, errors = daemon.communicate(timeout=120)
    assert daemon.returncode == 0, errors
    assert json.loads(ends.records()[-1].value or b"")["commit_version"] == latest


def abandon(kafka: KafkaCluster, topic: str) -> None:
    """Abort a transaction whose records nobody could read."""
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers.split(","), acks="all", transactional_id=unique_name("abandoned")
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"no JSON", key=b"no JSON", partition=0).get(60)
        producer.abort_transaction()
    finally:
        producer.close(timeout=0)


def in_delta(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a Delta table, in the database's JSON form."""
    rows = [
        {name: _in_json(value) for name, value in row.items()}
        for row in DeltaTable(path).to_pyarrow_table().to_pylist()
    ]
    return sorted(rows, key=lambda row: [row[name] for name in KEY])


def _in_json(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    return f"\\x{value.hex()}" if isinstance(value, bytes) else value


def in_database(postgres: Postgres, topic: str) -> list[dict[str, Any]]:
    """Return the rows of the table that the connector created for a topic."""
    ((text,),) = postgres.query(f'SELECT json_agg(rows) FROM "{topic.rpartition(".")[2]}" rows')
    rows: list[dict[str, Any]] = json.loads(text or "[]")
    for row in rows:
        if row["weight"] is not None:  # 0.1 is not the double 0.1
            row["weight"] = c_float(row["weight"]).value
    return sorted(rows, key=lambda row: [row[name] for name in KEY])


@dataclass(frozen=True)
class Delivered:
    """A table, and the topic with its history."""

    table: Path
    topic: str
    records: list[Record]

    @property
    def texts(self) -> list[bytes]:
        """Return keys and values."""
        return [text for record in self.records for text in (record.key, record.value) if text is not None]

    @property
    def payloads(self) -> list[dict[str, Any]]:
        """Return values, without their schemas."""
        return [json.loads(record.value)["payload"] for record in self.records if record.value is not None]


@pytest.fixture(scope="module")
def delivered(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Delivered:
    folder = tmp_path_factory.mktemp("delivered")
    history(folder / "orders")
    topic = create_topic(kafka.bootstrap_servers, unique_name("lake.sales.orders"), partitions=3)
    abandon(kafka, topic)
    deliver(kafka, folder / "orders", topic, folder)
    return Delivered(folder / "orders", topic, read_topic(kafka.bootstrap_servers, topic))


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as database:
        yield database


@pytest.fixture(scope="module")
def connect(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectWorker]:
    with ConnectWorker(tmp_path_factory.mktemp("connect"), kafka.bootstrap_servers) as worker:
        yield worker


@pytest.fixture(scope="module")
def library() -> Iterator[DebeziumLibrary]:
    with DebeziumLibrary() as debezium:
        yield debezium


def test_a_database_follows_the_table(delivered: Delivered, connect: ConnectWorker, postgres: Postgres) -> None:
    operations = [payload["op"] for payload in delivered.payloads]
    assert set(operations) == set("cud")
    assert len(delivered.records) - len(operations) == operations.count("d")  # one tombstone each
    connect.sink(delivered.topic, SINK | {"connection.url": postgres.url})
    connect.await_read(delivered.topic)
    assert in_database(postgres, delivered.topic) == in_delta(delivered.table)
    columns = postgres.query(
        "SELECT column_name, data_type, is_nullable FROM information_schema.columns "
        f"WHERE table_name = '{delivered.topic.rpartition('.')[2]}'"
    )
    assert {name: kind for name, kind, _ in columns} == {
        "shop": "text",
        "id": "bigint",
        "name": "text",
        "amount": "text",
        "rate": "double precision",
        "weight": "real",
        "level": "smallint",
        "pieces": "smallint",
        "count": "integer",
        "paid": "boolean",
        "day": "text",
        "at": "timestamp with time zone",
        "local": "text",
        "raw": "bytea",
        "tags": "ARRAY",
        "note": "text",
    }
    assert {name for name, _, nullable in columns if nullable == "NO"} == set(KEY)


@pytest.mark.nightly
def test_a_database_that_begins_with_a_snapshot(
    kafka: KafkaCluster, delivered: Delivered, connect: ConnectWorker, postgres: Postgres, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap_servers, unique_name("lake.sales.orders"))
    deliver(kafka, delivered.table, topic, tmp_path, start="snapshot")
    values = [json.loads(record.value or b"") for record in read_topic(kafka.bootstrap_servers, topic)]
    assert {value["payload"]["op"] for value in values} == {"r"}
    connect.sink(topic, SINK | {"connection.url": postgres.url})
    connect.await_read(topic)
    assert in_database(postgres, topic) == in_delta(delivered.table)


def test_keys_stay_in_their_partitions(delivered: Delivered) -> None:
    """Also after schema changes: a reader of two partitions could put old rows over new ones."""
    partitions: dict[str, set[int]] = {}
    for record in delivered.records:
        key = json.dumps(json.loads(record.key or b"")["payload"])
        partitions.setdefault(key, set()).add(record.partition)
    assert len(set.union(*partitions.values())) == 3
    assert {key: found for key, found in partitions.items() if len(found) > 1} == {}


def test_connect_reads_everything_that_is_written(delivered: Delivered, library: DebeziumLibrary) -> None:
    for text in delivered.texts:
        assert library.read(text) == json.loads(text)


def test_connect_reads_every_type(library: DebeziumLibrary) -> None:
    inner = pa.struct([("a", pa.string()), pa.field("b", pa.int8(), nullable=False)])
    columns = {
        "id": pa.array([1, 2], pa.int64()),
        "nested": pa.array([{"a": None, "b": 1}, None], inner),
        "list": pa.array([[{"a": "x", "b": 2}], []], pa.list_(inner)),
        "lists": pa.array([[[1, None], None], None], pa.list_(pa.list_(pa.int16()))),
        "map": pa.array([[("k", 1), ("l", None)], []], pa.map_(pa.string(), pa.int64())),
        "numbered": pa.array([[(1, {"a": "y", "b": 3})], None], pa.map_(pa.int32(), inner)),
        "single": pa.array([0.1, 3.4e38], pa.float32()),
        "text": pa.array(["a", "b"]).dictionary_encode(),
        "fixed": pa.array([b"abc", None], pa.binary(3)),
        "nothing": pa.nulls(2),
    }
    batch = changes([INSERT, DELETE], columns)
    encoder = DebeziumEncoder("kafka", batch.rows.schema, Source("0", "lake", None, "t"), ["id"], embed_schemas=True)
    messages = encoder.encode(batch, now_ms=0)
    assert [text is None for text in messages.values.to_pylist()] == [False, False, True]
    assert messages.keys is not None
    for text in filter(None, [*messages.keys.to_pylist(), *messages.values.to_pylist()]):
        assert library.read(text) == json.loads(text)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_connect_reads_as_zero_are_refused(library: DebeziumLibrary, value: float) -> None:
    """Connect writes a string, and reads zero."""
    field = {"type": "double", "optional": True}
    as_connect_has_it = json.dumps({"schema": field, "payload": library.written(value)}).encode()
    assert library.read(as_connect_has_it)["payload"] == 0
    struct, pairs = pa.struct([("x", pa.float64())]), pa.map_(pa.string(), pa.float32())
    for column in (
        pa.array([1.5, value]),
        pa.array([None, {"x": value}], struct),
        pa.array([[], [1.5, value]], pa.list_(pa.float64())),
        pa.array([[("a", 1.5)], [("a", value)]], pairs),
    ):
        batch = changes([INSERT] * 2, {"x": column})
        encoder = DebeziumEncoder("kafka", batch.rows.schema, Source("0", "lake", None, "t"), embed_schemas=True)
        assert len(encoder.encode(batch.slice(0, 1), now_ms=0)) == 1
        with pytest.raises(SinkRejected, match="column x holds NaN"):
            encoder.encode(batch, now_ms=0)


def test_schemas_are_those_that_debezium_makes(delivered: Delivered, library: DebeziumLibrary) -> None:
    values = {
        json.dumps(json.loads(record.value)["schema"]): record.value
        for record in delivered.records
        if record.value is not None
    }
    assert len(values) == 2  # without and with the added column
    for schema, value in values.items():
        assert library.is_envelope(value)
        assert library.envelope_schema(value) == json.loads(schema)
    of_debezium = library.source_schema()
    (source,) = (field for field in json.loads(next(iter(values)))["fields"] if field["field"] == "source")
    assert source["fields"][: len(of_debezium["fields"])] == of_debezium["fields"]
    assert source["version"] == of_debezium["version"]
