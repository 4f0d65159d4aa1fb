"""Integers of 64 bits as JSON strings, in every sink that writes JSON: a reader of floats of 64 bits gets every digit.

The reader here is Python's, told to read each number as a float, which is what JavaScript does.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
import pytest

from tailer.config.options import faults_by
from tailer.errors import SinkRejected
from tailer.events import ROW_COMMIT_VERSION, ROW_ID, VARIANT, ChangeBatch
from tailer.variant import json_texts
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.files.sink import FilesSink
from tailer_sinks.http.sink import HttpSink
from tailer_sinks.kafka.encoders import checked_key_form, encoder_for, key_form
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.options import read
from tailer_sinks.kafka.records import event_record
from tailer_sinks.testing.announcements import change, gap
from tailer_sinks.testing.suite import deliver
from tests.support.cases import cases
from tests.support.tables.change_rows import DELETE, INSERT, POST, PRE, changes
from tests.support.variant.encoder import Layout, Scalar, encode, metadata

EDGES: Final = (2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 0, 5, 2**31)
KINDS: Final = (INSERT, DELETE, PRE, POST)
KAFKA: Final = {"bootstrap_servers": "one:9092"}
TEXT: Final = {"int64": "string"}
FORMS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "flat": ("kafka", {"key": ["id", "small"]}),
    "flat, routed": ("kafka", {"key": ["id"], "topic": "shop.{small}", "topics": ["shop.7"]}),
    "debezium": ("kafka", {"key": ["id"], "envelope": "debezium"}),
    "cloudevents": ("kafka", {"key": ["id"], "envelope": "cloudevents"}),
    "binary": ("kafka", {"key": ["id"], "envelope": "cloudevents", "cloudevents_mode": "binary"}),
    "http": ("http", {}),
    "http, cloudevents": ("http", {"format": "cloudevents"}),
    "files": ("files", {}),
}


def variant(number: int, numbers: list[int]) -> dict[str, bytes]:
    """Return a Variant with an integer of 64 bits, one of 8, and some in a list."""
    value = {"b": Scalar(3, 5, "5"), "n": Scalar(6, number, ""), "l": [Scalar(6, each, "") for each in numbers]}
    names = sorted(value)
    return {"metadata": metadata(names), "value": encode(value, names, iter([Layout()] * 9))}


def rows(count: int) -> ChangeBatch:
    """Return rows with integers in all places, with numbers of a place and a version beyond 2^53."""
    numbers = [EDGES[row % len(EDGES)] for row in range(count)]
    kinds = [KINDS[row % len(KINDS)] for row in range(count)]
    pairs = [list(EDGES[row % 4 :]) for row in range(count)]
    columns = {
        "id": pa.array(numbers, pa.int64()),
        "small": pa.array([7] * count, pa.int32()),
        "same": pa.array([2**53 + 1] * count, pa.int64()),
        "u": pa.array([2**64 - 1, *[None] * (count - 1)], pa.uint64()),
        "u32": pa.array([2**32 - 1] * count, pa.uint32()),
        "s": pa.array([{"a": n, "b": m} for n, m in zip(numbers, pairs, strict=True)]),
        "fixed": pa.array([[n, None] for n in numbers], pa.list_(pa.int64(), 2)),
        "m": pa.array([[("k", n), ("none", None)] for n in numbers], pa.map_(pa.string(), pa.int64())),
        "e": pa.array(
            [[(n, {"x": [n]})] for n in numbers], pa.map_(pa.int64(), pa.struct([("x", pa.list_(pa.int64()))]))
        ),
        "coded": pa.array(numbers, pa.int64()).dictionary_encode(),
        "v": pa.array([variant(n, m) for n, m in zip(numbers, pairs, strict=True)], VARIANT),
        "vs": pa.array([[variant(n, [n]), None] for n in numbers], pa.list_(VARIANT)),
        ROW_ID: pa.array(numbers, pa.int64()),
        ROW_COMMIT_VERSION: pa.array([None, *numbers[1:]], pa.int64()),
    }
    made = changes(kinds, columns, task=2)
    place = made.rows.schema.get_field_index("_commit_version")
    version = pa.repeat(pa.scalar(2**53 + 1, pa.int64()), count)
    whole = made.rows.set_column(place, made.rows.schema.field(place), version)
    index = pa.array(range(2**53 + 1, 2**53 + 1 + count), pa.int64())
    return ChangeBatch(made.table_id, 2**53 + 1, made.task, whole, index)


def texts(form: str, batch: ChangeBatch, folder: Path, **options: Any) -> list[bytes]:
    """Return what the sink sends of rows: the keys and headers of messages, too."""
    kind, own = FORMS[form]
    if kind == "files":
        return _lines(batch, folder, options)
    if kind == "http":
        encoder = HttpSink.configure("orders", {"url": "http://one", **own, **options})._encoder
        parts = [*encoder.encode([batch]), encoder.flush()]
        return [text for part in parts if part is not None for text in part.texts]
    topics = encoder_for(Link("orders", read("orders", {**KAFKA, **own, **options})), batch.rows.schema)
    sent = [*topics.encode(batch, 1772366400250), *topics.flush(1772366400250)]
    return [text for _, messages, _ in sent for text in _of(messages)]


def _of(messages: Messages) -> Iterator[bytes]:
    named = [column for name, column in messages.headers if name.startswith("__")]
    for column in (messages.keys, messages.values, *named):
        yield from (text for text in ([] if column is None else column.to_pylist()) if text is not None)


def _lines(batch: ChangeBatch, folder: Path, options: dict[str, Any]) -> list[bytes]:
    sink = FilesSink.configure("orders", {"path": str(folder), **options})
    anyio.run(deliver, sink, batch)
    (file,) = folder.rglob("*.jsonl")
    return file.read_bytes().splitlines()


def by_floats(text: bytes) -> Any:
    """Read JSON as JavaScript does: each number is a float of 64 bits."""
    return json.loads(text, parse_int=float)


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("form", FORMS)
def test_a_reader_of_floats_gets_every_value(form: str, count: int, tmp_path: Path) -> None:
    batch = rows(count)
    numbers, strings = (texts(form, batch, tmp_path / str(n), **given) for n, given in enumerate(({}, TEXT)))
    assert any(by_floats(text) != json.loads(text) for text in numbers), "the test would see a rounded number"
    assert [by_floats(text) for text in strings] == [json.loads(text) for text in strings]
    assert [_as_texts(json.loads(text)) for text in numbers] == [_as_texts(json.loads(text)) for text in strings]


def _as_texts(value: Any) -> Any:
    """Return a value with its integers as texts: what differs else is another value."""
    if isinstance(value, dict):
        return {name: _as_texts(child) for name, child in value.items()}
    if isinstance(value, list):
        return [_as_texts(child) for child in value]
    return str(value) if type(value) is int else value


@pytest.mark.parametrize("form", FORMS)
def test_the_type_decides_and_not_the_value(form: str, tmp_path: Path) -> None:
    found = [json.loads(text) for text in texts(form, rows(40), tmp_path, **TEXT)]
    images = [image for value in found for image in _images(value) if image and "s" in image]
    assert images
    for image in images:
        number = image["id"]
        assert isinstance(number, str)
        assert (image["small"], image["u32"], image["same"]) == (7, 2**32 - 1, str(2**53 + 1))
        assert image["u"] in (str(2**64 - 1), None)
        assert (image["s"]["a"], image["m"], image["coded"]) == (number, {"k": number, "none": None}, number)
        assert (image["fixed"], image["e"]) == ([number, None], [{"key": number, "value": {"x": [number]}}])
        assert all(isinstance(each, str) for each in (*image["s"]["b"], *image["v"]["l"]))
        assert (image["v"]["n"], image["v"]["b"], image["vs"][0]["n"]) == (number, 5, number)


def _images(value: dict[str, Any]) -> list[Any]:
    data = value.get("data", value)
    return [data.get("before"), data.get("after")] if "after" in data else [data]


def test_versions_and_moments_of_debezium() -> None:
    messages = texts("debezium", rows(3), Path(), **TEXT)
    found = [each for each in map(json.loads, messages) if "source" in each]
    names = {"ts_ms", "ts_us", "ts_ns", "commit_version", "row_index", "row_commit_version", "row_id"}
    for value in found:
        assert {type(value["source"][name]) for name in names} <= {str, type(None)}
        assert {type(value[name]) for name in ("ts_ms", "ts_us", "ts_ns")} == {str}
        assert json.loads(value["source"]["sequence"]) == [str(2**53 + 1), "2", value["source"]["row_index"]]
    assert found[0]["source"]["row_commit_version"] is None
    assert (found[0]["ts_ns"], found[0]["source"]["row_id"]) == ("1772366400250000000", str(EDGES[0]))


@pytest.mark.parametrize("form", ["cloudevents", "http", "http, cloudevents"])
def test_event_ids_do_not_change(form: str) -> None:
    ids = []
    for given in ({}, TEXT):
        found = map(json.loads, texts(form, rows(9), Path(), **given))
        ids.append([each.get("_event_id") or each["id"] for each in found if "_event_id" in each or "data" in each])
    assert ids[0] == ids[1]
    assert ids[0][0].startswith(f"orders;table;{2**53 + 1};2;{2**53 + 1};")


@pytest.mark.parametrize("event", [change(2**53 + 1), gap(2**53 + 1, 2**53 + 3)])
def test_events_between_rows(event: Any, tmp_path: Path) -> None:
    http = [HttpSink.configure("o", {"url": "http://one", "format": form, **TEXT}) for form in ("json", "cloudevents")]
    found = [json.loads(sink._encoder.control(event).texts[0]) for sink in http]
    found.append(json.loads(event_record(event, "orders/table", False, "string").values[0].as_py()))
    sink = FilesSink.configure("orders", {"path": str(tmp_path), **TEXT})
    anyio.run(deliver, sink, event)
    (file,) = tmp_path.rglob("*.jsonl")
    found.append(json.loads(file.read_bytes()))
    for each in found:
        values = each.get("data", each)
        assert values["_commit_version"] == str(event.version)
        assert values.get("first_version", str(2**53 + 1)) == str(2**53 + 1)


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32()])
def test_shredded_variants(kind: pa.DataType) -> None:
    kinds = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", kind)])
    column = pa.array([{"metadata": metadata([]), "value": None, "typed_value": 5}], kinds)
    assert json_texts(column, quote_int64=True) == ['"5"' if kind == pa.int64() else "5"]
    assert json_texts(column) == ["5"]


def form_of(*kinds: pa.DataType, **options: Any) -> str | None:
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    return key_form(read("orders", {**KAFKA, "key": schema.names, **options}), schema)


def test_a_key_whose_bytes_would_change_is_another_form() -> None:
    """The form is stored with the progress: that of the default stays as it was."""
    assert form_of(pa.int64(), pa.string()) == "json, decimals as string: c0 integer, c1 string"
    number, text = pa.int64(), TEXT
    assert form_of(number) != form_of(number, **text)
    assert form_of(pa.int32(), **text) == form_of(pa.int16(), **text) == form_of(pa.int32())
    assert form_of(number, pa.int32(), **text) != form_of(number, number, **text)
    assert form_of(pa.string(), **text) == form_of(pa.string())
    nested = pa.struct([("a", pa.list_(pa.int64()))])
    assert form_of(nested) != form_of(nested, **text)
    assert form_of(pa.dictionary(pa.int64(), pa.string()), **text) == form_of(pa.string())
    assert form_of(pa.dictionary(pa.int8(), number), **text) == form_of(number, **text)


def test_a_running_pipeline_keeps_its_keys() -> None:
    schema = rows(1).rows.schema
    link = Link("orders", read("orders", {**KAFKA, "key": ["id"], **TEXT}))
    with pytest.raises(SinkRejected, match="keys would move to other partitions"):
        checked_key_form(link, schema, form_of(pa.int64()).replace("c0", "id"))  # type: ignore[union-attr]


TYPED: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "avro": ("kafka", {"encoding": "avro", "registry_url": "http://one:8081"}),
    "arrow": ("kafka", {"encoding": "arrow"}),
    "schemas": ("kafka", {"envelope": "debezium", "embed_schemas": True}),
    "parquet": ("files", {"format": "parquet"}),
}
OPEN: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    "kafka": (read, KAFKA),
    "http": (HttpSink.configure, {"url": "http://one"}),
    "files": (FilesSink.configure, {"path": "/out"}),
}


@cases("kind", OPEN)
def test_a_wrong_value_is_named_alike_by_all(kind: str) -> None:
    configure, own = OPEN[kind]
    (fault,) = faults_by(lambda: configure("orders", {**own, "int64": "text"}))
    assert str(fault) == "orders.int64: must be 'number' or 'string'"
    assert fault.hint == "Give one of these."


@cases("form", TYPED)
def test_encodings_with_types_refuse_it_by_name(form: str) -> None:
    kind, options = TYPED[form]
    configure, own = OPEN[kind]
    configure("orders", {**own, **options, "int64": "number"})
    (fault,) = faults_by(lambda: configure("orders", {**own, **options, **TEXT}))
    assert (str(fault), fault.hint) == ("orders.int64: as string is for JSON without schemas", "Leave it out.")
