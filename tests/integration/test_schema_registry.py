"""Avro messages and the client of schema registries against Apicurio's registry, by its Confluent API."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pyarrow as pa
import pytest
from fastavro import schemaless_reader

from tailer.errors import SinkRejected, SinkUnavailable
from tailer_sinks.encoding.avro.messages import DebeziumAvroEncoder, FlatAvroEncoder
from tailer_sinks.encoding.avro.registry import RegistryAccess, SchemaRegistry
from tailer_sinks.encoding.debezium.messages import Source
from tailer_sinks.encoding.messages import Encoder
from tailer_sinks.testing import change_batch
from tailer_sinks.testing.rows import DELTA_TYPES
from tests.jars.where import jars_dir
from tests.support.kafka.secure import make_certificates
from tests.support.servers.schema_registry import RegistryServer, serving_apicurio, serving_registry

pytestmark = pytest.mark.kafka

SOURCE: Final = Source("0.1.0", "lake", "sales", "orders")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    archives = list(jars_dir("registry").glob("*.tar.gz"))
    assert archives, f"no archive in {jars_dir('registry')}: `make setup` fetches it"
    with serving_apicurio(archives[0], tmp_path_factory.mktemp("registry")) as uri:
        yield uri


def client(registry: str, auto_register: bool = True) -> SchemaRegistry:
    return SchemaRegistry("kafka", RegistryAccess([registry]), auto_register)


def read(registry: str, message: bytes) -> Any:
    """Read a message as a consumer does, with nothing but the registry."""
    assert message[:1] == b"\x00"
    with urlopen(f"{registry}/schemas/ids/{int.from_bytes(message[1:5], 'big')}", timeout=60) as answer:
        schema = json.loads(json.load(answer)["schema"])
    return schemaless_reader(io.BytesIO(message[5:]), schema, None)


def encoder(registry: SchemaRegistry, schema: pa.Schema, topic: str, debezium: bool) -> Encoder:
    if debezium:
        return DebeziumAvroEncoder("kafka", schema, SOURCE, topic, registry.schema_id, ["id"])
    return FlatAvroEncoder("kafka", schema, topic, registry.schema_id, ["id"])


@pytest.mark.parametrize("debezium", [False, True])
def test_every_type_is_registered_and_read_back(registry: str, debezium: bool) -> None:
    columns = {name: pa.array([values[0], None], kind) for name, (kind, values) in DELTA_TYPES.items()}
    batch = change_batch(5, {"id": pa.array([1, 2]), **columns})
    topic = f"types-{debezium}"
    messages = encoder(client(registry), batch.rows.schema, topic, debezium).encode(batch, 1)
    assert messages.keys is not None
    assert [read(registry, key) for key in messages.keys.to_pylist()] == [{"id": 1}, {"id": 2}]
    first, second = (read(registry, value) for value in messages.values.to_pylist())
    row = first["after"] if debezium else first
    assert (row["string"], row["date"]) == (DELTA_TYPES["string"][1][0], DELTA_TYPES["date"][1][0])
    assert row["decimal_u002838_u002c18_u0029"] == DELTA_TYPES["decimal(38,18)"][1][0]
    row = second["after"] if debezium else second
    assert {name: value for name, value in row.items() if value is not None and name[0] != "_"} == {"id": 2}
    again = encoder(client(registry, auto_register=False), batch.rows.schema, topic, debezium).encode(batch, 1)
    assert again.values.equals(messages.values)


@pytest.mark.parametrize("debezium", [False, True])
def test_columns_that_come_go_and_change(registry: str, debezium: bool) -> None:
    topic = f"evolving-{debezium}"

    def register(auto_register: bool = True, **columns: pa.DataType) -> None:
        batch = change_batch(1, {"id": pa.array([1]), **{name: pa.nulls(1, kind) for name, kind in columns.items()}})
        encoder(client(registry, auto_register), batch.rows.schema, topic, debezium)

    register(a=pa.int32())
    register(a=pa.int32(), b=pa.struct([("c", pa.string())]))
    register(b=pa.struct([("c", pa.string())]))
    register(a=pa.int64())
    with urlopen(f"{registry}/subjects/{topic}-value/versions", timeout=60) as answer:
        assert json.load(answer) == [1, 2, 3, 4]
    with pytest.raises(SinkRejected, match=f"subject {topic}-value .* column a was long or null and is string or null"):
        register(a=pa.string())
    with pytest.raises(SinkRejected, match="does not have the schema of the rows"):
        register(auto_register=False, a=pa.bool_())
    register(auto_register=False, a=pa.int32())


def test_a_path_that_is_not_the_api(registry: str) -> None:
    with pytest.raises(SinkRejected, match="the schema registry: 404"):
        client(registry.removesuffix("/apis/ccompat/v7")).schema_id("t-value", '"string"')


ROW: Final = '{"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}'


def test_certificates(tmp_path: Path) -> None:
    """Against a registry in this process."""
    certificates = make_certificates(tmp_path)

    def client(server: RegistryServer, **access: Any) -> SchemaRegistry:
        return SchemaRegistry("kafka", RegistryAccess(server.uris, **access), True)

    shown: dict[str, Any] = {
        "certificate_file": str(certificates.certificate_file),
        "key_file": str(certificates.key_file),
    }
    ca_file = str(certificates.ca_file)
    with serving_registry(certificates=certificates) as server:
        assert client(server, ca_file=ca_file, **shown).schema_id("t-value", ROW) == 1
        with pytest.raises(SinkUnavailable, match=r"cannot be reached: .*certificate verify failed"):
            client(server).schema_id("t-value", ROW)
        with pytest.raises(SinkUnavailable, match="cannot be reached"):
            client(server, ca_file=ca_file).schema_id("t-value", ROW)
        missing, broken = tmp_path / "missing.pem", tmp_path / "broken.pem"
        broken.write_text("no certificate")
        wrong: list[tuple[dict[str, Any], Path]] = [
            ({"ca_file": str(missing)}, missing),
            ({"ca_file": str(broken)}, broken),
            ({"ca_file": ca_file, **shown, "certificate_file": str(broken)}, broken),
        ]
        for access, file in wrong:
            with pytest.raises(SinkRejected, match=f"{file} cannot be read"):
                client(server, **access).schema_id("t-value", ROW)
