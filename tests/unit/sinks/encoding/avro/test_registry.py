"""The client of schema registries against one in this process: ids, evolution, refusals, failover, credentials."""

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tailer.errors import ConfigError, SinkAccessRefused, SinkRejected, SinkUnavailable
from tailer.plan import output_schema
from tailer_sinks.encoding.avro.messages import DebeziumAvroEncoder, FlatAvroEncoder
from tailer_sinks.encoding.avro.registry import RegistryAccess, SchemaRegistry, check_address, differences
from tailer_sinks.encoding.debezium.messages import Source
from tests.support.cases import cases
from tests.support.servers.ports import free_ports
from tests.support.servers.schema_registry import RegistryServer, serving_registry

SECRET = "open-sesame-4711"
LOOK_UP, VERSIONS, CHECK, FORMER, RULE, REGISTER = (
    "POST /subjects/t-value",
    "GET /subjects/t-value/versions",
    "POST /compatibility/subjects/t-value/versions/1?verbose=true",
    "GET /subjects/t-value/versions/1",
    "GET /config/t-value?defaultToGlobal=true",
    "POST /subjects/t-value/versions",
)


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with serving_registry() as registry:
        yield registry


def client(server: RegistryServer, auto_register: bool = True, **access: Any) -> SchemaRegistry:
    return SchemaRegistry("kafka", RegistryAccess(server.uris, **access), auto_register)


def record(*fields: pa.Field, debezium: bool = False) -> str:
    """Make the schema of rows with these columns."""
    found: dict[str, str] = {}

    def register(subject: str, schema: str) -> int:
        found[subject] = schema
        return 1

    schema = output_schema(pa.schema(fields))
    if debezium:
        DebeziumAvroEncoder("kafka", schema, Source("1", "lake", None, "t"), "t", register)
    else:
        FlatAvroEncoder("kafka", schema, "t", register)
    return found["t-value"]


ID = pa.field("id", pa.int64(), nullable=False)
FIRST = record(ID)


def test_a_schema_is_registered_once(server: RegistryServer) -> None:
    registry = client(server)
    assert registry.schema_id("t-value", FIRST) == 1
    assert server.asked == [LOOK_UP, VERSIONS, REGISTER]
    assert registry.schema_id("t-value", FIRST) == 1
    assert registry.schema_id("t-key", FIRST) == 1
    assert registry.schema_id("t-value", record(ID, pa.field("a", pa.int32()))) == 2
    server.asked.clear()
    assert client(server).schema_id("t-value", FIRST) == 1
    assert server.asked == [LOOK_UP]
    assert {subject: len(versions) for subject, versions in server.subjects.items()} == {"t-value": 2, "t-key": 1}


def test_many_threads_ask_once(server: RegistryServer) -> None:
    registry, found = client(server), []
    threads = [threading.Thread(target=lambda: found.append(registry.schema_id("t-value", FIRST))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8
    assert server.asked == [LOOK_UP, VERSIONS, REGISTER]


@pytest.mark.parametrize("debezium", [False, True])
def test_columns_that_come_and_go_are_new_versions(server: RegistryServer, debezium: bool) -> None:
    a, b = pa.field("a", pa.int32()), pa.field("b", pa.struct([("c", pa.string())]))
    wider = pa.field("a", pa.int64())
    versions = [[ID, a], [ID, a, b], [ID, b], [ID], [ID, a], [ID, wider]]
    schemas = [record(*fields, debezium=debezium) for fields in versions]
    assert [client(server).schema_id("t-value", schema) for schema in schemas] == [1, 2, 3, 4, 1, 5]


@pytest.mark.parametrize("debezium", [False, True])
@pytest.mark.parametrize("verbose", [True, False])
def test_a_changed_type_is_refused(server: RegistryServer, debezium: bool, verbose: bool) -> None:
    server.verbose = verbose
    price = pa.field("unit price", pa.decimal128(10, 2))
    client(server).schema_id("t-value", record(ID, price, debezium=debezium))
    server.asked.clear()
    changed = record(ID, pa.field("unit price", pa.float64()), pa.field("n", pa.int8()), debezium=debezium)
    with pytest.raises(SinkRejected) as caught:
        client(server).schema_id("t-value", changed)
    said = str(caught.value)
    assert (
        "subject t-value of the schema registry rejects the new schema by its rule BACKWARD: column unit price" in said
    )
    assert "unit price was decimal(10,2) or null and is double or null; column n is new: int8 or null" in said
    assert ("it says: {path" in said) == verbose
    assert "oldSchema" not in said
    assert "deliver to a new topic" in caught.value.hint
    assert server.asked == [LOOK_UP, VERSIONS, CHECK, FORMER, RULE]
    server.rule = "NONE"
    assert client(server).schema_id("t-value", changed) == 2


def test_a_column_that_must_be_there_is_refused(server: RegistryServer) -> None:
    client(server).schema_id("t-value", FIRST)
    with pytest.raises(SinkRejected, match="column n is new: long"):
        client(server).schema_id("t-value", record(ID, pa.field("n", pa.int64(), nullable=False)))


def test_a_refusal_at_registration(server: RegistryServer) -> None:
    client(server).schema_id("t-value", FIRST)
    for status, code in ((409, 409), (422, 42201)):
        body = json.dumps({"error_code": code, "message": "incompatible with version 1"}).encode()
        server.broken["/subjects/t-value/versions"] = (status, body)
        with pytest.raises(
            SinkRejected, match=f"t-value .* by its rule BACKWARD .it says: {status} .*: incompatible with v"
        ) as caught:
            client(server).schema_id("t-value", record(ID, pa.field("a", pa.int64())))
        assert "deliver to a new topic" in caught.value.hint


@pytest.mark.parametrize("rule", ["FORWARD_TRANSITIVE", "FULL_TRANSITIVE", "BACKWARD_TRANSITIVE"])
def test_a_transitive_rule_is_about_all_versions(server: RegistryServer, rule: str) -> None:
    """The column comes back with another type: the latest version has none of that name."""
    columns: tuple[list[pa.Field], ...] = ([pa.field("a", pa.int32())], [], [pa.field("a", pa.string())])
    first, second, third = (record(ID, *fields) for fields in columns)
    server.rules["t-value"] = rule
    for schema in (first, second):
        client(server).schema_id("t-value", schema)
    with pytest.raises(SinkRejected, match=f"by its rule {rule} beside version 1: column a was int or null and is"):
        client(server).look("t-value", third)
    server.rules["t-value"] = rule.removesuffix("_TRANSITIVE")
    assert client(server).look("t-value", third) == 0
    assert client(server).schema_id("t-value", third) == 3


def test_a_registry_that_does_not_tell_its_rule(server: RegistryServer) -> None:
    client(server).schema_id("t-value", record(ID, pa.field("a", pa.int64())))
    server.broken = {"/config/t-value": (403, b""), "/config": (404, b"")}
    with pytest.raises(SinkRejected, match="rejects the new schema: column a was long or null and is string or null"):
        client(server).schema_id("t-value", record(ID, pa.field("a", pa.string())))
    server.broken["/config"] = (200, b'{"compatibilityLevel":"FULL"}')
    with pytest.raises(SinkRejected, match="by its rule FULL: column a was"):
        client(server).schema_id("t-value", record(ID, pa.field("a", pa.string())))


def test_without_the_right_to_register(server: RegistryServer) -> None:
    with pytest.raises(SinkRejected, match="subject t-value of the schema registry does not have") as caught:
        client(server, auto_register=False).schema_id("t-value", FIRST)
    assert FIRST in caught.value.hint
    assert server.asked == [LOOK_UP]
    client(server).schema_id("t-value", FIRST)
    assert client(server, auto_register=False).schema_id("t-value", FIRST) == 1
    assert client(server, auto_register=False).look("t-key", FIRST, passes_new=True) == 0
    with pytest.raises(SinkRejected, match=r"subject t-value .* does not have"):
        client(server, auto_register=False).look("t-value", record(ID, pa.field("a", pa.int64())), passes_new=True)
    with pytest.raises(SinkRejected, match="does not have"):
        client(server, auto_register=False).schema_id("t-value", record(ID, pa.field("a", pa.int64())))


def test_another_address_is_tried() -> None:
    with serving_registry(ports=3) as server:
        first, second, third = (f":{uri.rpartition(':')[2]}" for uri in server.uris)
        registry = client(server)
        server.broken = {first: (503, b"<html>"), second: (500, b'{"error_code":50003,"message":"no leader"}')}
        assert registry.schema_id("t-value", FIRST) == 1
        server.asked.clear()
        assert registry.schema_id("t-key", FIRST) == 1
        assert server.asked == [each.replace("value", "key") for each in (LOOK_UP, VERSIONS, REGISTER)]
        server.broken[third] = (429, b"")
        with pytest.raises(SinkUnavailable) as caught:
            client(server).schema_id("t-value", FIRST)
        assert f"127.0.0.1{first} answers 503 Service Unavailable; " in str(caught.value)
        assert f"127.0.0.1{second} answers 500 Internal Server Error; " in str(caught.value)
        assert f"127.0.0.1{third} answers 429 Too Many Requests" in str(caught.value)


def test_no_address_answers(server: RegistryServer) -> None:
    gone = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(SinkUnavailable, match=r"the schema registry: 127\.0\.0\.1:\d+ cannot be reached"):
        SchemaRegistry("kafka", RegistryAccess([gone])).schema_id("t-value", FIRST)
    assert SchemaRegistry("kafka", RegistryAccess([gone, *server.uris])).schema_id("t-value", FIRST) == 1


def test_no_answer_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SinkUnavailable, match=r"the schema registry: 127\.0\.0\.1:\d+ does not answer in time"):
            SchemaRegistry("kafka", RegistryAccess([uri], timeout_s=0.2)).schema_id("t-value", FIRST)


def test_nothing_is_kept_of_an_error(server: RegistryServer) -> None:
    registry = client(server)
    server.broken["/subjects/t-value/versions"] = (500, b"")
    with pytest.raises(SinkUnavailable):
        registry.schema_id("t-value", FIRST)
    server.broken.clear()
    assert registry.schema_id("t-value", FIRST) == 1


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"<html>please log in</html>", "its answer is not that of a schema registry"),
        (200, b'{"id":"1"}', "its answer is not that of a schema registry"),
        (200, b'{"id":4294967296}', "it gives the id 4294967296 in subject t-value, which does not fit into a message"),
        (302, b"", "302 Found"),
        (404, b"no such page", "404 Not Found"),
        (404, b'{"error_code":404,"message":"HTTP 404"}', "404 Not Found: HTTP 404"),
        (400, b'{"message":"bad\\nrequest"}', "400 Bad Request: bad request"),
    ],
)
def test_answers_that_are_not_a_registrys(server: RegistryServer, status: int, body: bytes, said: str) -> None:
    server.broken["/subjects/t-value"] = (status, body)
    with pytest.raises(SinkRejected) as caught:
        client(server).schema_id("t-value", FIRST)
    assert f"the schema registry: {said}" in str(caught.value)
    assert "registry_url" in caught.value.hint


def test_a_subject_with_odd_letters(server: RegistryServer) -> None:
    assert client(server).schema_id("a/b c-value", FIRST) == 1
    assert "a/b c-value" in server.subjects


def test_names_and_tokens(server: RegistryServer) -> None:
    server.authorization = f"Bearer {SECRET}"
    assert client(server, token=SECRET).schema_id("t-value", FIRST) == 1
    server.authorization = "Basic YWRhOm9wZW4tc2VzYW1lLTQ3MTE="
    assert client(server, username="ada", password=SECRET).schema_id("t-value", FIRST) == 1
    for wrong in (RegistryAccess(server.uris, "bob", SECRET), RegistryAccess(server.uris, token=SECRET)):
        with pytest.raises(SinkAccessRefused, match="refuses access: 401 Unauthorized: Unauthorized") as caught:
            SchemaRegistry("kafka", wrong).schema_id("t-value", FIRST)
        assert "registry_password, or registry_token" in caught.value.hint
        assert SECRET not in repr(wrong) + str(caught.value) + caught.value.hint
    server.broken["/subjects/t-value"] = (403, b"")
    with pytest.raises(SinkAccessRefused, match="refuses access: 403 Forbidden"):
        client(server, username="ada", password=SECRET).schema_id("t-value", FIRST)


@cases(
    ("url", "reason"),
    [
        (f"https://ada:{SECRET}@registry:8081", "contains a user name or a password"),
        (f"https://{SECRET}@registry", "contains a user name or a password"),
        ("registry:8081", "is not an address"),
        ("ftp://registry", "is not an address"),
        ("https://", "is not an address"),
        ("https://registry:port", "is not an address"),
        (f"https://registry/?token={SECRET}", "is not an address"),
        ("", "is not an address"),
    ],
)
def test_addresses_that_are_none(url: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SchemaRegistry("kafka", RegistryAccess([url]))
    assert str(caught.value) == f"kafka.registry_url: {reason}"
    assert SECRET not in caught.value.hint


def test_addresses_that_are_some() -> None:
    for url in ("http://registry", "https://registry:8081/", "http://[::1]:8081/apis/ccompat/v7"):
        check_address("kafka.registry_url", url)
    with pytest.raises(ConfigError, match="is not an address"):
        SchemaRegistry("kafka", RegistryAccess([]))
    with pytest.raises(ConfigError, match="registry_token: is given together with a username"):
        SchemaRegistry("kafka", RegistryAccess(["http://registry"], "ada", SECRET, SECRET))


def test_differences_in_words() -> None:
    item = pa.struct([("n", pa.int32())])
    old = record(
        *(pa.field("s", pa.struct([("a", pa.int32()), ("b", pa.string())])), pa.field("l", pa.list_(pa.int32()))),
        *(pa.field("m", pa.map_(pa.string(), item)), pa.field("d", pa.date32()), pa.field("x", pa.int64())),
    )
    new = record(
        *(pa.field("s", pa.struct([("a", pa.string())])), pa.field("l", pa.list_(pa.float64()))),
        *(pa.field("m", pa.map_(pa.string(), pa.bool_())), pa.field("d", pa.timestamp("us"))),
    )
    assert differences(old, new) == [
        "column s.a was int or null and is string or null",
        "column l was array of (int or null) or null and is array of (double or null) or null",
        "column m was map of (record (n int or null) or null) or null and is map of (boolean or null) or null",
        "column d was date or null and is local-timestamp-micros or null",
        "column s.b was removed",
        "column x was removed",
    ]
    assert differences(old, "{}") == differences('"string"', new) == differences("no JSON", new) == []
