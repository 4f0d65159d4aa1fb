"""NaN and the infinities in all JSON that leaves: the strings "NaN", "Infinity" and "-Infinity", on every level.

The other places where JSON of rows is made are refused there: messages that carry their schemas
(`debezium/test_messages.py`).
"""

import csv
import io
import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import anyio
import pyarrow as pa
from pyarrow import parquet

from tailer.cli.doctor.feed import FEED, FeedFault
from tailer.events import VARIANT, ChangeBatch
from tailer.spark.source.envelope import row_encoding
from tailer.variant import Variant
from tailer_sinks.encoding.variants import in_form
from tailer_sinks.files.sink import FilesSink
from tailer_sinks.http.events import request_of
from tailer_sinks.http.sink import DeadLetter, DeadLetters, HttpSink
from tailer_sinks.kafka.encoders import encoder_for
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.options import read
from tailer_sinks.sql.sink import SqlSink
from tailer_sinks.stdout import StdoutSink
from tailer_sinks.testing import change_batch
from tailer_sinks.testing.suite import deliver
from tests.support.cases import cases
from tests.support.variant.encoder import Layout, Scalar, encode, metadata

INF: Final = float("inf")
NUMBERS: Final = (float("nan"), INF, -INF, -0.0, 1.5, None)
FORMS: Final = ("NaN", "Infinity", "-Infinity", -0.0, 1.5, None)


def variant() -> dict[str, bytes]:
    """Return a Variant with a list of all, as doubles and as floats."""
    value = [Scalar(number, each, "") for number in (7, 14) for each in NUMBERS if each is not None]
    return {"metadata": metadata([]), "value": encode(value, [], iter([Layout()]))}


def rows(count: int = 20) -> ChangeBatch:
    """Return rows with each of the numbers everywhere; more than are encoded one by one."""
    numbers = [NUMBERS[row % len(NUMBERS)] for row in range(count)]
    columns = {
        "id": pa.array(range(count), pa.int64()),
        "x": pa.array(numbers, pa.float64()),
        "y": pa.array(numbers, pa.float32()),
        "s": pa.array([{"x": number, "l": list(NUMBERS)} for number in numbers]),
        "m": pa.array([[("k", number)] for number in numbers], pa.map_(pa.string(), pa.float32())),
        "e": pa.array([[(1.0, number), (INF, None)] for number in numbers], pa.map_(pa.float64(), pa.float64())),
        "v": pa.array([variant()] * count, VARIANT),
    }
    return change_batch(5, columns)


def expected(row: int) -> dict[str, Any]:
    form = FORMS[row % len(FORMS)]
    return {
        "id": row,
        "x": form,
        "y": form,
        "s": {"x": form, "l": [*FORMS]},
        "m": {"k": form},
        "e": [{"key": 1.0, "value": form}, {"key": "Infinity", "value": None}],
        "v": [*FORMS[:-1], *FORMS[:-1]],
    }


def parsed(text: str | bytes) -> Any:
    """Read JSON as most readers do, for which NaN without quotes is an error."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def _kafka(batch: ChangeBatch, **options: Any) -> list[Any]:
    given = read("orders", {"bootstrap_servers": "one:9092", **options})
    ((_, messages, _),) = encoder_for(Link("orders", given), batch.rows.schema).encode(batch, 0)
    return [parsed(text) for text in messages.values.to_pylist()]


def _http(batch: ChangeBatch, form: str) -> list[Any]:
    encoder = HttpSink.configure("orders", {"url": "http://one", "format": form})._encoder
    return [parsed(text) for events in encoder.encode([batch]) for text in events.texts]


def _files(batch: ChangeBatch, folder: Path) -> list[Any]:
    anyio.run(deliver, FilesSink("orders", folder), batch)
    (file,) = folder.rglob("*.jsonl")
    return [parsed(line) for line in file.read_bytes().splitlines()]


def _printed(batch: ChangeBatch, form: Any) -> str:
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, "utf-8")
    anyio.run(StdoutSink("orders", form, stream).write, batch)
    return content.getvalue().decode()


def _csv(batch: ChangeBatch) -> list[Any]:
    found = []
    for line in csv.DictReader(io.StringIO(_printed(batch, "csv"))):
        nested = {name: parsed(line[name]) for name in "smev"}
        plain = {
            name: parsed(line[name] if line[name][-1:].isdigit() else json.dumps(line[name] or None)) for name in "xy"
        }
        found.append({"id": int(line["id"]), **plain, **nested})
    return found


def _dead_letters(batch: ChangeBatch, folder: Path) -> list[Any]:
    """The events that an endpoint refused."""
    encoder = HttpSink.configure("orders", {"url": "http://one"})._encoder
    letters = [DeadLetter(events, "refused") for events in encoder.encode([batch])]
    file = DeadLetters("orders", folder).write(request_of(letters[0].events).id, letters)
    return [parsed(line)["event"] for line in file.read_bytes().splitlines()]


def _spark(batch: ChangeBatch) -> list[Any]:
    return [
        parsed(text)
        for texts in row_encoding("json")(batch.rows.schema).texts(batch.rows)
        for text in texts.to_pylist()
    ]


def _sql(batch: ChangeBatch, folder: Path, letters: bool = False) -> list[Any]:
    """Nested values in a database; with a text that it cannot hold, the rows of its dead letters."""
    folder.mkdir()
    file = folder / "rows.db"
    if letters:
        bad = pa.array([b"\xff"] * len(batch)).view(pa.string())
        batch = replace(batch, rows=batch.rows.add_column(1, "bad", bad))
    options = {"url": f"sqlite:///{file}", "table": "t", "key": ["id"], "on_bad_value": "dead_letter"}
    sink = SqlSink.configure("orders", options)
    anyio.run(deliver, sink, batch)
    with closing(sqlite3.connect(file)) as database:
        if letters:
            return [
                parsed(text)
                for (text,) in database.execute("SELECT row_json FROM lake_tailer_dead_letters ORDER BY rowid")
            ]
        found = database.execute("SELECT id, s, m, e, v FROM t ORDER BY id").fetchall()
    return [{"id": number} | dict(zip("smev", map(parsed, texts), strict=True)) for number, *texts in found]


PLACES: Final[dict[str, Callable[[ChangeBatch, Path], list[Any]]]] = {
    "kafka": lambda batch, _: _kafka(batch),
    "kafka, debezium": lambda batch, _: [each["after"] for each in _kafka(batch, envelope="debezium")],
    "kafka, cloudevents": lambda batch, _: [each["data"]["after"] for each in _kafka(batch, envelope="cloudevents")],
    "http": lambda batch, _: _http(batch, "json"),
    "http, cloudevents": lambda batch, _: [each["data"]["after"] for each in _http(batch, "cloudevents")],
    "http, dead letters": _dead_letters,
    "files": _files,
    "tail": lambda batch, _: [parsed(line) for line in _printed(batch, "jsonl").splitlines()],
    "tail, csv": lambda batch, _: _csv(batch),
    "spark": lambda batch, _: _spark(batch),
    "sql": _sql,
    "sql, dead letters": lambda batch, folder: _sql(batch, folder, letters=True),
}


@cases("place", PLACES)
def test_numbers_that_json_lacks_are_these_strings_everywhere(place: str, tmp_path: Path) -> None:
    found = PLACES[place](rows(), tmp_path / place)
    assert [row["id"] for row in found] == list(range(20))
    for number, row in enumerate(found):
        whole = expected(number)
        columns = whole.keys() & row.keys()
        assert columns >= {"s", "m", "e", "v"}
        assert {name: row[name] for name in columns} == {name: whole[name] for name in columns}


def test_variants_as_texts_of_json(tmp_path: Path) -> None:
    """By the library, and in typed encodings with `variant = "json"`: Parquet, Arrow, Avro, and embedded schemas."""
    value = variant()
    assert parsed(Variant(value["metadata"], value["value"]).to_json()) == expected(0)["v"]
    parquet.write_table(pa.table(in_form("orders", rows().rows, "json").select(["v"])), tmp_path / "f")
    assert {*map(str, map(parsed, parquet.read_table(tmp_path / "f")["v"].to_pylist()))} == {str(expected(0)["v"])}


def test_what_the_doctor_shows() -> None:
    values = {"x": float("nan"), "s": {"l": [INF, -INF]}}
    fault = FeedFault(version=1, operation=None, counts=Counter(), first=(FEED, "insert"), values=values)
    shown = parsed(json.dumps(fault.document()))["first"]["values"]
    assert shown == {"x": "NaN", "s": {"l": ["Infinity", "-Infinity"]}}
