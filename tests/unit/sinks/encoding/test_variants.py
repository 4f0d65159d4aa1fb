"""Variants in the form that the option `variant` of a sink gives them, read back by other libraries."""

import base64
import io
import json
from decimal import Decimal
from itertools import repeat
from pathlib import Path
from typing import Any, Final, cast

import duckdb
import pyarrow as pa
import pytest
from fastavro import schemaless_reader
from pyarrow import parquet

from tailer.errors import ConfigError, SinkRejected
from tailer.events import VARIANT, ChangeBatch, Gap, SchemaChange
from tailer.plan import output_schema
from tailer.variant import Variant, json_texts
from tailer_sinks.encoding.avro.registry import SchemaRegistry
from tailer_sinks.encoding.variants import form_schema, in_form
from tailer_sinks.files.formats import HiddenFile, JsonLines, Parquet
from tailer_sinks.files.sink import FilesSink
from tailer_sinks.kafka.encoders import encoder_for
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.options import read
from tailer_sinks.testing import change_batch
from tests.support.variant.encoder import Layout, Scalar
from tests.support.variant.shredder import Shredding, shred

NULL: Final = Scalar(0, None, "null")
TEXT: Final = Scalar(16, 'Æ"sir', "")
PRICE: Final = Scalar(8, Decimal("1.50"), "")
PLAIN: Final = shred([{"a": TEXT, "b": [PRICE]}, None, NULL, TEXT], Shredding(), repeat(Layout())).cast(VARIANT)
TEXTS: Final = ['{"a":"Æ\\"sir","b":["1.50"]}', None, "null", '"Æ\\"sir"']
LISTS: Final = pa.ListArray.from_arrays(pa.array(range(5), pa.int32()), PLAIN)
NO_REGISTRY: Final = {"encoding": "avro", "registry_url": "http://one:8081"}
MARKED: Final = {"type": "string", "connect.version": 1, "connect.name": "io.debezium.data.Json"}


def rows() -> ChangeBatch:
    """Make rows with the Variants in a column, and in a list, a map and a struct."""
    ends = pa.array([0, 1, 3, 3, 4], pa.int32())
    return change_batch(
        5,
        {
            "id": pa.array(range(4)),
            "v": PLAIN,
            "l": pa.ListArray.from_arrays(ends, PLAIN),
            "m": pa.MapArray.from_arrays(ends, pa.array(list("klmn")), PLAIN),
            "s": pa.StructArray.from_arrays([PLAIN], ["x"], mask=pa.array([False, False, False, True])),
        },
    )


class Registered:
    """A registry that keeps schemas."""

    def __init__(self) -> None:
        self.schemas: list[Any] = []

    def schema_id(self, _: str, schema: str) -> int:
        """Return the number of a schema."""
        self.schemas.append(json.loads(schema))
        return len(self.schemas) - 1

    def look(self, _: str, schema: str) -> int:
        """Return a number of no schema."""
        assert schema
        return 0

    def read(self, message: bytes) -> Any:
        """Read a message as a consumer does."""
        return schemaless_reader(io.BytesIO(message[5:]), self.schemas[int.from_bytes(message[1:5], "big")], None)


def messages(batch: ChangeBatch, **options: Any) -> tuple[list[bytes], Registered]:
    """Return the values of the messages that a sink with these options makes of the rows."""
    registered = Registered()
    link = Link("orders", read("orders", {"bootstrap_servers": "one:9092", "topic": "orders", **options}))
    link.registry = cast("SchemaRegistry", registered)
    encoder = encoder_for(link, batch.rows.schema)
    sent = [*encoder.encode(batch, 0), *encoder.flush(0)]
    assert encoder.pending is None
    return [value for _, part, _ in sent for value in part.values.to_pylist()], registered


def told(value: Any) -> Any:
    """Return a decoded row with the JSON texts of its encoded Variants."""
    if isinstance(value, dict) and value.keys() == {"metadata", "value"}:
        metadata, data = (
            base64.b64decode(part) if isinstance(part, str) else part for part in (value["metadata"], value["value"])
        )
        return Variant(metadata, data).to_json()
    if isinstance(value, dict):
        return {name: told(child) for name, child in value.items()}
    return [told(child) for child in value] if isinstance(value, list) else value


def expected(row: int) -> dict[str, Any]:
    """Return a row with the JSON texts of its Variants."""
    ends = [0, 1, 3, 3, 4]
    of_row = slice(ends[row], ends[row + 1])
    return {
        "id": row,
        "v": TEXTS[row],
        "l": TEXTS[of_row],
        "m": dict(zip("klmn"[of_row], TEXTS[of_row], strict=True)),
        "s": None if row == 3 else {"x": TEXTS[row]},
    }


def columns_of(row: dict[str, Any]) -> dict[str, Any]:
    """Leave out the metadata columns, and the envelope around a row."""
    payload = row.get("payload", row)
    whole = payload.get("after", payload)
    return {name: value for name, value in whole.items() if not name.startswith("_")}


@pytest.mark.parametrize("envelope", ["flat", "debezium"])
@pytest.mark.parametrize("variant", ["json", "encoded", None])
def test_avro(envelope: str, variant: str | None) -> None:
    found, registered = messages(rows(), **NO_REGISTRY, envelope=envelope, variant=variant)
    decoded = [columns_of(registered.read(message)) for message in found]
    assert [told(row) for row in decoded] == [expected(row) for row in range(4)]
    assert isinstance(decoded[3]["v"], str if variant == "json" else dict)
    assert (json.dumps(MARKED) in json.dumps(registered.schemas)) == (variant == "json")


@pytest.mark.parametrize("envelope", ["flat", "debezium"])
def test_the_form_of_avro_itself_has_the_same_bytes(envelope: str) -> None:
    """Existing topics keep their schemas."""
    options = {**NO_REGISTRY, "envelope": envelope}
    (default, registered), (chosen, again) = messages(rows(), **options), messages(rows(), **options, variant="encoded")
    assert (default, registered.schemas) == (chosen, again.schemas)


@pytest.mark.parametrize("variant", ["json", "encoded"])
def test_schemas_embedded_in_json(variant: str) -> None:
    options = {"envelope": "debezium", "embed_schemas": True, "key": ["id"]}
    found, _ = messages(rows(), **options, variant=variant)
    decoded = [json.loads(message) for message in found]
    assert [told(columns_of(row)) for row in decoded] == [expected(row) for row in range(4)]
    after = next(field for field in decoded[0]["schema"]["fields"] if field["field"] == "after")
    field = after["fields"][1]
    if variant == "json":
        assert field == {
            "type": "string",
            "optional": True,
            "name": "io.debezium.data.Json",
            "version": 1,
            "field": "v",
        }
    else:
        assert [(part["field"], part["type"], part["optional"]) for part in field["fields"]] == [
            ("metadata", "bytes", False),
            ("value", "bytes", False),
        ]
    with pytest.raises(SinkRejected, match="column v has Variants, which need the option variant"):
        messages(rows(), **options)


@pytest.mark.parametrize("envelope", ["flat", "debezium", "cloudevents"])
def test_json(envelope: str) -> None:
    """Values by default; encoded ones keep what JSON has no types for."""
    default, _ = messages(rows(), envelope=envelope)
    assert '"v":{"a":"Æ\\"sir","b":["1.50"]}' in default[0].decode()
    encoded, _ = messages(rows(), envelope=envelope, variant="encoded")
    data = {"cloudevents": "data"}.get(envelope)
    decoded = [json.loads(message) for message in encoded]
    assert [told(columns_of(row[data] if data else row)) for row in decoded] == [expected(row) for row in range(4)]


@pytest.mark.parametrize("variant", ["json", "encoded", None])
def test_arrow(variant: str | None) -> None:
    (message,), _ = messages(rows(), encoding="arrow", variant=variant)
    found = pa.ipc.open_stream(message).read_all()
    found.validate(full=True)
    kind = found.schema.field("v").type
    assert kind == (pa.json_(pa.large_string()) if variant == "json" else VARIANT)
    decoded = [columns_of(row) | {"m": dict(row["m"])} for row in found.to_pylist()]
    assert [told(row) for row in decoded] == [expected(row) for row in range(4)]


@pytest.mark.parametrize("envelope", ["flat", "debezium"])
@pytest.mark.parametrize("encoding", ["json", "avro"])
@pytest.mark.parametrize("variant", ["json", "encoded"])
def test_keys_cannot_have_variants_in_any_form(envelope: str, encoding: str, variant: str) -> None:
    options = NO_REGISTRY if encoding == "avro" else {}
    with pytest.raises(SinkRejected, match="column v of the key has Variants"):
        messages(rows(), **options, envelope=envelope, variant=variant, key=["v"])


@pytest.mark.parametrize("form", ["json", "encoded", None])
@pytest.mark.parametrize("length", [0, 4])
def test_parquet(tmp_path: Path, form: Any, length: int) -> None:
    """DuckDB knows columns of JSON by their logical type."""
    batch = rows().rows.slice(0, length)
    file = tmp_path / "f.parquet"
    draft = Parquet("files", lambda: HiddenFile.named(file), batch.schema, form)
    draft.write(batch)
    draft.finish()
    found = duckdb.connect().execute("SELECT typeof(v) FROM read_parquet(?)", [str(file)]).fetchall()
    assert found == [("JSON" if form == "json" else 'STRUCT(metadata BLOB, "value" BLOB)',)] * length
    decoded = [columns_of(row) | {"m": dict(row["m"])} for row in parquet.read_table(file).to_pylist()]
    schema = parquet.read_schema(file)
    draft.remove()
    assert [told(row) for row in decoded] == [expected(row) for row in range(length)]
    assert form_schema(batch.schema, form).equals(schema) or form == "encoded"


def test_parquet_files_with_gaps_and_schema_changes(tmp_path: Path) -> None:
    """A file that is copied to a wider schema keeps its texts, with those of the new column."""
    before, after = (change_batch(5, columns) for columns in ({"v": PLAIN}, {"v": PLAIN, "w": LISTS}))
    files = iter([tmp_path / "a", tmp_path / "b"])
    draft = Parquet("files", lambda: HiddenFile.named(next(files)), before.rows.schema, "json")
    draft.write(before.rows)
    draft.announce(Gap("t", 5, 5, 0, "lost", snapshot=False))
    draft.announce(SchemaChange("t", 6, 0, before.rows.schema, after.rows.schema, ()))
    draft.write(after.rows)
    found = parquet.read_table(draft.finish())
    draft.remove()
    assert found["v"].to_pylist() == [*TEXTS, None, *TEXTS]
    assert found["w"].to_pylist() == [*[None] * 5, *([text] for text in TEXTS)]


def test_json_lines(tmp_path: Path) -> None:
    batch = rows().rows
    draft = JsonLines("files", lambda: HiddenFile.named(tmp_path / "f"), batch.schema, "encoded")
    draft.write(batch)
    lines = draft.finish().read_text().splitlines()
    draft.remove()
    assert [told(columns_of(json.loads(line))) for line in lines] == [expected(row) for row in range(4)]


def test_options_of_files(tmp_path: Path) -> None:
    assert FilesSink.configure("files", {"path": str(tmp_path), "variant": "json"}).name == "files"
    with pytest.raises(ConfigError, match="variant"):
        FilesSink.configure("files", {"path": str(tmp_path), "variant": "text"})


def test_broken_variants_are_named() -> None:
    broken = pa.array([{"metadata": b"\1\0\0", "value": b"\x50"}], VARIANT)
    batch = change_batch(5, {"v": broken})
    with pytest.raises(SinkRejected, match="column v holds a Variant that is not sound: row 0"):
        in_form("files", batch.rows, "json")
    assert in_form("files", batch.rows, "encoded").column("v").to_pylist() == broken.to_pylist()


def test_rows_of_another_schema() -> None:
    link = Link("orders", read("orders", {"bootstrap_servers": "one:9092", "encoding": "arrow", "variant": "json"}))
    encoder = encoder_for(link, output_schema(pa.schema([("v", VARIANT)])))
    with pytest.raises(SinkRejected, match="another schema than was announced"):
        encoder.encode(rows(), 0)


def test_rows_without_variants_are_not_copied() -> None:
    batch = change_batch(5, {"id": pa.array([1])}).rows
    assert in_form("files", batch, "json") is batch
    assert json_texts(PLAIN) == TEXTS
