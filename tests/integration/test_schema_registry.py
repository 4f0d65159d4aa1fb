"""Avro messages and the client of schema registries against Apicurio's registry, by its Confluent API."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest
from fastavro import schemaless_reader
from typing_extensions import override

from tailer.errors import SinkRejected, SinkUnavailable
from tailer.plan import output_schema
from tailer_sinks.encoding.avro.messages import DebeziumAvroEncoder, FlatAvroEncoder
from tailer_sinks.encoding.avro.registry import RegistryAccess, SchemaRegistry
from tailer_sinks.encoding.debezium.images import PairingEncoder
from tailer_sinks.encoding.debezium.messages import Source
from tailer_sinks.testing import change_batch
from tailer_sinks.testing.rows import DELTA_TYPES
from tests.house import ROOT
from tests.jars.where import jars_dir
from tests.support.daemon.commands import background
from tests.support.daemon.walks import KafkaTarget, Walk
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.secure import make_certificates
from tests.support.kafka.topics import read_topic, unique_name
from tests.support.servers.schema_registry import RegistryServer, serving_apicurio, serving_registry
from tests.support.variant.avro_records import AvroReader
from tests.support.waiting import until

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


def encoder(registry: SchemaRegistry, schema: pa.Schema, topic: str, debezium: bool) -> PairingEncoder:
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
    for _ in range(2):
        with pytest.raises(
            SinkRejected, match=f"subject {topic}-value .* column a was long or null and is string or n"
        ):
            register(a=pa.string())
        set_rule(registry, "NONE", f"{topic}-value")  # in Apicurio: the global rule
    with pytest.raises(SinkRejected, match="does not have the schema of the rows"):
        register(auto_register=False, a=pa.bool_())
    register(auto_register=False, a=pa.int32())


def test_a_path_that_is_not_the_api(registry: str) -> None:
    with pytest.raises(SinkRejected, match="the schema registry: 404"):
        client(registry.removesuffix("/apis/ccompat/v7")).schema_id("t-value", '"string"')


def a_column(kind: pa.DataType, nullable: bool = True, name: str = "a") -> list[pa.Field]:
    return [pa.field(name, kind, nullable)]


def a_struct(*fields: tuple[str, pa.DataType]) -> list[pa.Field]:
    return a_column(pa.struct(fields))


BYTE, INT, LONG, DOUBLE, TEXT = pa.int8(), pa.int32(), pa.int64(), pa.float64(), pa.string()
NTZ: Final = pa.timestamp("us")
Change = tuple[list[pa.Field], list[pa.Field]]
# The rows of the table in docs/kafka.md, each with what it stands for.
CHANGES: Final[dict[str, list[Change]]] = {
    "a column, or a field of a struct, comes or goes": [
        ([], a_column(LONG)),
        (a_column(LONG), []),
        (a_struct(("x", INT)), a_struct(("x", INT), ("y", TEXT))),
        (a_struct(("x", INT), ("y", TEXT)), a_struct(("x", INT))),
    ],
    "one with `NOT NULL` comes": [([], a_column(LONG, nullable=False))],
    "one with `NOT NULL` goes": [(a_column(LONG, nullable=False), [])],
    "a column is renamed: one goes, another comes": [(a_column(LONG), a_column(LONG, name="b"))],
    "one with `NOT NULL` is renamed": [(a_column(LONG, nullable=False), a_column(LONG, nullable=False, name="b"))],
    "`NOT NULL` is dropped": [(a_column(LONG, nullable=False), a_column(LONG))],
    "byte to short to int": [(a_column(BYTE), a_column(pa.int16())), (a_column(pa.int16()), a_column(INT))],
    "int to long, float to double, int to double, also inside of a column": [
        (a_column(INT), a_column(LONG)),
        (a_column(pa.float32()), a_column(DOUBLE)),
        (a_column(INT), a_column(DOUBLE)),
        (a_struct(("x", INT)), a_struct(("x", LONG))),
        (a_column(pa.list_(INT)), a_column(pa.list_(LONG))),
        (a_column(pa.map_(TEXT, INT)), a_column(pa.map_(TEXT, LONG))),
    ],
    "a decimal gets more digits (a)": [
        (a_column(pa.decimal128(10, 2)), a_column(pa.decimal128(12, 2))),
        (a_column(pa.decimal128(10, 2)), a_column(pa.decimal128(12, 4))),
    ],
    "date to timestamp_ntz (a)": [(a_column(pa.date32()), a_column(NTZ))],
    "long to timestamp, timestamp to timestamp_ntz, string to binary, decimal to string (a)": [
        (a_column(LONG), a_column(pa.timestamp("us", "UTC"))),
        (a_column(pa.timestamp("us", "UTC")), a_column(NTZ)),
        (a_column(TEXT), a_column(pa.binary())),
        (a_column(pa.decimal128(10, 2)), a_column(TEXT)),
    ],
    "int to decimal, int to string, string to int": [
        (a_column(INT), a_column(pa.decimal128(10, 0))),
        (a_column(INT), a_column(TEXT)),
        (a_column(TEXT), a_column(INT)),
    ],
}
RULES: Final = ("BACKWARD", "FORWARD", "FULL", "NONE")


def set_rule(registry: str, rule: str, subject: str = "") -> None:
    """Set the rule of a subject, or of all that have none."""
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = Request(f"{registry}/config/{subject}".rstrip("/"), json.dumps({"compatibility": rule}).encode(), headers)
    request.method = "PUT"
    with urlopen(request, timeout=60):
        pass


@pytest.mark.sampled(1)
@pytest.mark.parametrize("debezium", [False, True])
def test_the_table_of_changes_and_rules_is_true(registry: str, debezium: bool) -> None:
    """In docs/kafka.md, cell by cell, as a registry answers."""
    asking = client(registry)

    def answer(topic: str, change: Change) -> str:
        before, after = (output_schema(pa.schema([pa.field("id", LONG), *fields])) for fields in change)
        encoder(asking, before, topic, debezium)
        try:
            encoder(asking, after, topic, debezium)
        except SinkRejected:
            return "stops"
        return "yes"

    cells: dict[str, list[str]] = {text: [] for text in CHANGES}
    try:
        for rule in RULES:
            set_rule(registry, rule)
            for row, (text, changes) in enumerate(CHANGES.items()):
                answers = {answer(f"{rule}-{debezium}-{row}-{number}", change) for number, change in enumerate(changes)}
                cells[text].append(" or ".join(sorted(answers)))
    finally:
        set_rule(registry, "BACKWARD")
    lines = [f"| {text} | {' | '.join(answers)} |" for text, answers in cells.items()]
    assert "\n".join(lines) in (ROOT / "docs" / "kafka.md").read_text()


class AvroTarget(KafkaTarget):
    """A topic whose messages are read with the registry."""

    def __init__(self, servers: str, registry: str) -> None:
        super().__init__(servers, unique_name())
        self.registry = registry
        self.sink += f'\nencoding = "avro"\nregistry_url = "{registry}"'

    @override
    def events(self) -> list[dict[str, Any]]:
        records = AvroReader(self.registry).as_json(read_topic(self.servers, self.topic))
        return [json.loads(record.value or b"") for record in records]


def add_column(walk: Walk, *names: str) -> None:
    """Commit two rows, then the last of these columns, all with `NOT NULL`, and two rows with it."""
    walk.table.commit(walk.added(**{name: [1, 2] for name in names[:-1]}))
    fields = [{"name": name, "type": "long", "nullable": name == "id", "metadata": {}} for name in ("id", *names)]
    walk.table.metadata["schemaString"] = json.dumps({"type": "struct", "fields": fields})
    walk.table.commit({"metaData": walk.table.metadata}, walk.added(**{name: [1, 2] for name in names}))


def test_the_ways_out_of_a_refused_schema(registry: str, kafka: KafkaCluster, tmp_path: Path) -> None:
    """The pipeline stops with all versions before delivered. It goes on when the rule or the columns allow it."""
    target = AvroTarget(kafka.bootstrap_servers, registry)
    walk, subject = Walk(tmp_path, target, alone=True), f"{target.topic}-value"
    walk.insert()

    def delivered() -> bool:
        return sorted(walk.copied()) == sorted(walk.ids)

    with background("run", "--config", walk.config, "--log-format", "text") as walk.process:
        walk.delivers()
        commands = walk.stop("SinkRejected", lambda: add_column(walk, "n"))
        assert f"subject {subject} of the schema registry rejects the new schema by its rule BACKWARD: " in walk.why
        assert "column n is new: long" in walk.why
        assert sorted(target.ids()) == sorted(walk.ids - set(walk.last_ids))
        set_rule(registry, "FORWARD", subject)
        walk.run(commands[-1])
        until(delivered, said=lambda: str(walk.report))
        set_rule(registry, "BACKWARD", subject)
        walk.stop("SinkRejected", lambda: add_column(walk, "n", "m"))
        assert sorted(target.ids()) == sorted(walk.ids - set(walk.last_ids))
        walk.edit('table = "t"\n', 'table = "t"\nselect = "* EXCLUDE (m)"\n')
        until(delivered, said=lambda: str(walk.report))


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
