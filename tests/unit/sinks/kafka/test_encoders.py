"""Encoders of a `kafka` sink by its options, and the columns of keys."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailer.errors import SinkRejected
from tailer.events import VARIANT, SchemaChange
from tailer.plan import output_schema
from tailer_sinks.encoding.cloudevents import CloudEventsEncoder
from tailer_sinks.encoding.debezium.images import PairingEncoder
from tailer_sinks.encoding.debezium.messages import DebeziumEncoder
from tailer_sinks.encoding.flat_messages import ArrowMessages, FlatMessages
from tailer_sinks.kafka.encoders import encoder_for, key_form, source_of
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.options import read, registry_secrets
from tailer_sinks.kafka.progress import Count
from tailer_sinks.kafka.records import end_records, event_record, heartbeat
from tailer_sinks.testing.rows import change_batch, numbered
from tests.support.tables.change_rows import changes

SCHEMA = numbered(0).rows.schema


def encoder(schema: pa.Schema = SCHEMA, **options: Any) -> PairingEncoder:
    options = {"bootstrap_servers": "one:9092", **options}
    one = encoder_for(Link("orders", read("orders", options)), schema).sample
    assert isinstance(one, PairingEncoder), "all messages have one topic"
    return one


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, FlatMessages),
        ({"envelope": "debezium"}, DebeziumEncoder),
        ({"envelope": "cloudevents"}, CloudEventsEncoder),
        ({"encoding": "arrow"}, ArrowMessages),
    ],
)
def test_the_encoder_that_is_wanted(options: dict[str, Any], kind: type) -> None:
    assert isinstance(encoder(**options), kind)


@pytest.mark.parametrize(("mode", "header"), [("structured", "content-type"), ("binary", "ce_id")])
def test_the_modes_of_cloudevents(mode: str, header: str) -> None:
    made = encoder(envelope="cloudevents", cloudevents_mode=mode).encode(numbered(1), 0)
    assert header in dict(made.headers)


def test_decimals_as_they_are_wanted() -> None:
    batch = change_batch(1, {"amount": pa.array([1, 2], pa.decimal128(10, 2))})
    for decimal, amount in (("string", "1.00"), ("number", 1)):
        (first, _) = encoder(batch.rows.schema, decimal=decimal).encode(batch, 0).values.to_pylist()
        assert json.loads(first)["amount"] == amount


def test_messages_are_those_of_the_page() -> None:
    """The page shows one update in each envelope."""
    page = (Path(__file__).resolve().parents[4] / "docs" / "kafka.md").read_text()
    flat, debezium, cloudevents, _ = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    shown = {"flat": [json.loads(line) for line in flat.splitlines()]}
    shown |= {"debezium": [json.loads(debezium)], "cloudevents": [json.loads(cloudevents)]}
    value = shown["debezium"][0]["value"]
    table_id, made_ms = value["source"]["table_id"], value["ts_ms"]
    columns = {"id": pa.array([2, 2]), "amount": pa.array([20.0, 21.0])}
    batch = replace(changes(["update_preimage", "update_postimage"], columns, [0, 0], 0), table_id=table_id)
    for envelope, messages in shown.items():
        one = encoder(batch.rows.schema, topic="shop.orders", key=["id"], envelope=envelope)
        parts = [one.encode(batch, made_ms), one.flush(made_ms)]
        keys = [json.loads(key) for part in parts if part and part.keys for key in part.keys.to_pylist()]
        values = [json.loads(value) for part in parts if part for value in part.values.to_pylist()]
        found = [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]
        if envelope == "debezium":
            found[0]["value"]["source"]["version"] = messages[0]["value"]["source"]["version"]
        assert found == messages, envelope


def test_messages_about_no_row_are_those_of_the_page() -> None:
    page = (Path(__file__).resolve().parents[4] / "docs" / "kafka.md").read_text()
    block = re.findall(r"```json\n(.*?)```", page, re.DOTALL)[3]
    table_id, made_ms = "91a5c0de-0000-4000-8000-000000000001", 1772366400250
    change = SchemaChange(table_id, 4, 1772366400000, SCHEMA, SCHEMA, ("column note string was added",))
    made = [
        end_records(f"orders/{table_id}", {5: {"shop.orders": Count(1)}}, made_ms),
        heartbeat("orders", made_ms),
        event_record(change, f"orders/{table_id}", keyed=False),
    ]
    keys = [None if each.keys is None else each.keys[0].as_py().decode() for each in made]
    found = [
        {"key": json.loads(key) if key and key.startswith("{") else key, "value": json.loads(each.values[0].as_py())}
        for key, each in zip(keys, made, strict=True)
    ]
    assert found == [json.loads(line) for line in block.splitlines()]


def test_source_block_of_debezium_messages() -> None:
    found = {topic: source_of("shop", topic) for topic in ("orders", "lake.orders", "lake.eu.west.orders")}
    assert [(source.name, source.schema, source.table) for source in found.values()] == [
        ("shop", None, "orders"),
        ("lake", None, "orders"),
        ("lake", "eu.west", "orders"),
    ]


def test_the_form_of_keys_contains_everything_that_determines_their_bytes() -> None:
    def form(kind: pa.DataType, **options: Any) -> str | None:
        given = read("orders", {"bootstrap_servers": "one:9092", "key": ["id"], **options})
        return key_form(given, pa.schema([("id", kind)]))

    assert key_form(read("orders", {"bootstrap_servers": "one:9092"}), SCHEMA) is None
    assert form(pa.int32()) == form(pa.int64()) == form(pa.dictionary(pa.int32(), pa.int64()))
    schemas = {"envelope": "debezium", "embed_schemas": True}
    forms = [
        form(pa.int64()),
        form(pa.string()),
        form(pa.decimal128(10, 2)),
        form(pa.decimal128(10, 3)),
        form(pa.int64(), decimal="number"),
        form(pa.int32(), **schemas),
        form(pa.int64(), **schemas),
        form(pa.int64(), encoding="avro", registry_url="http://one:8081"),
    ]
    assert len(set(forms)) == len(forms)


def test_the_registry_s_secrets(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush\n")
    secret = {"file": str(tmp_path / "secret")}
    given = {"bootstrap_servers": "one:9092", "encoding": "avro", "registry_url": "http://one:8081"}
    by_user = read("orders", {**given, "registry_username": "ada", "registry_password": secret})
    assert registry_secrets("orders", by_user) == ("hush", None)
    by_token = read("orders", {**given, "registry_token": secret, "registry_register": False})
    assert registry_secrets("orders", by_token) == (None, "hush")
    assert "hush" not in repr(by_user) + repr(by_token)


@pytest.mark.parametrize("envelope", ["flat", "debezium", "cloudevents"])
@pytest.mark.parametrize("kind", [VARIANT, pa.struct([("v", VARIANT)])])
def test_keys_cannot_have_variants(envelope: str, kind: pa.DataType) -> None:
    """The integer 1 and the decimal 1.00 are equal Variants, and would be two keys."""
    schema = output_schema(pa.schema([("id", pa.int64()), ("v", kind)]))
    with pytest.raises(SinkRejected, match="column v of the key has Variants"):
        encoder(schema, envelope=envelope, key=["id", "v"])
