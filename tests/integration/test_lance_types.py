"""Types of Lance that Delta lacks, through the real commands: literal bytes in JSON and Avro, printed and in Kafka."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa
import pytest

from tests.jars.where import jars_dir
from tests.support.daemon.commands import tailer
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.lanes import Daemon
from tests.support.kafka.topics import create_topic, read_topic
from tests.support.servers.schema_registry import serving_apicurio

BLOB: Final = {"lance-encoding:blob": "true"}
ENDS: Final = 1_700_000_000_123_456_789
# For each column: its type, a value, and the forms of the value in JSON and, without the branch of a union, in Avro.
COLUMNS: Final[dict[str, tuple[pa.DataType, Any, str, bytes]]] = {
    "half": (pa.float16(), 0.0999755859375, "0.099975586", bytes.fromhex("00c0cc3d")),
    "vector": (pa.list_(pa.float16(), 2), [1.5, -0.0], "[1.5,-0.0]", bytes.fromhex("04 02 0000c03f 02 00000080 00")),
    "time_s": (pa.time32("s"), 86399, '"23:59:59"', bytes.fromhex("b0e0b252")),
    "time_ms": (pa.time32("ms"), 1, '"00:00:00.001"', b"\x02"),
    "time_us": (pa.time64("us"), 1, '"00:00:00.000001"', b"\x02"),
    "time_ns": (pa.time64("ns"), 86_399_999_999_999, '"23:59:59.999999999"', bytes.fromhex("fe ff f7 94 92 a5 27")),
    "span_s": (pa.duration("s"), -1, '"-PT1S"', bytes.fromhex("ff887a")),
    "span_ns": (pa.duration("ns"), 1_000_000_001, '"PT1.000000001S"', bytes.fromhex("82 a8 d6 b9 07")),
    "at_s": (pa.timestamp("s"), 1, '"1970-01-01T00:00:01"', bytes.fromhex("d00f")),
    "at_ms": (pa.timestamp("ms", "UTC"), -1, '"1969-12-31T23:59:59.999Z"', b"\x01"),
    "at_ns": (pa.timestamp("ns", "UTC"), ENDS, '"2023-11-14T22:13:20.123456789Z"', bytes.fromhex("aab4aed8c7bfce972f")),
    "day": (pa.date64(), -86_400_000, '"1969-12-31"', b"\x01"),
    "number": (pa.uint64(), 2**64 - 1, "18446744073709551615", b"\x12\x00" + b"\xff" * 8),
    "word": (pa.dictionary(pa.int32(), pa.string()), "é", '"é"', b"\x04\xc3\xa9"),
    "fixed": (pa.binary(2), b"\x00\xff", '"AP8="', b"\x04\x00\xff"),
    "large": (pa.large_binary(), b"abc", '"YWJj"', b"\x06abc"),
    "blob": (pa.large_binary(), b"abc", '"YWJj"', b"\x06abc"),
}

ROW: Final = ",".join(f'"{name}":{text}' for name, (_, _, text, _) in COLUMNS.items())
NULLS: Final = ",".join(f'"{name}":null' for name in COLUMNS)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset whose first version has a row with each value, and one of nulls."""
    fields = [pa.field(name, kind, metadata=BLOB if name == "blob" else None) for name, (kind, *_) in COLUMNS.items()]
    values = [_of(kind, value) for kind, value, *_ in COLUMNS.values()]
    lance.write_dataset(pa.table(values, pa.schema(fields)), path := tmp_path / "t", data_storage_version="2.1")
    return path


def _of(kind: pa.DataType, value: Any) -> pa.Array:
    """Make an array of the value and null."""
    if pa.types.is_temporal(kind):
        return pa.array([value, None], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return (
        pa.array([value, None]).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array([value, None], kind)
    )


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    (archive,) = jars_dir("registry").glob("*.tar.gz")
    with serving_apicurio(archive, tmp_path_factory.mktemp("registry")) as uri:
        yield uri


def test_tail_prints_each_digit(dataset: Path) -> None:
    done = tailer("tail", dataset, "--from", "earliest", "--to", "latest", "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    rows = [line.partition(',"_change_type":"insert","_commit_version":1,')[0] for line in done.stdout.splitlines()]
    assert rows == [f"{{{ROW}", f"{{{NULLS}"]


@pytest.mark.kafka
def test_kafka_has_each_digit(dataset: Path, kafka: KafkaCluster, registry: str) -> None:
    """Flat JSON, Debezium's and flat Avro of the same rows. The registry is a real one and accepts the schema."""
    servers = kafka.bootstrap_servers
    forms = {
        "flat": "",
        "debezium": 'envelope = "debezium"\n',
        "avro": f'encoding = "avro"\nregistry_url = "{registry}"\n',
    }
    topics = {form: create_topic(servers) for form in forms}
    (config := dataset.parent / "tailer.toml").write_text(
        "".join(
            f'[pipelines.{form}]\ntable = "{dataset}"\nstart = "earliest"\n[pipelines.{form}.sink]\nkind = "kafka"\n'
            f'bootstrap_servers = "{servers}"\ntopic = "{topics[form]}"\ncreate_topics = true\n{options}'
            for form, options in forms.items()
        )
    )

    def found() -> dict[str, list[bytes]]:
        return {form: [each.value or b"" for each in read_topic(servers, topics[form])] for form in forms}

    with Daemon(config) as daemon:
        daemon.await_running()
        daemon.wait_for(lambda: all(len(values) == 2 for values in found().values()))
    values = {form: [value.decode() for value in found()[form]] for form in ("flat", "debezium")}
    assert [value.partition(',"_change_type"')[0] for value in values["flat"]] == [f"{{{ROW}", f"{{{NULLS}"]
    for value, row in zip(values["debezium"], (ROW, NULLS), strict=True):
        assert value.startswith(f'{{"before":null,"after":{{{row}}},"source":{{')
    first, second = (value[5:] for value in found()["avro"])
    assert first.startswith(b"".join(b"\x02" + form for *_, form in COLUMNS.values()) + b"\x02\x0cinsert\x02\x02")
    assert second.startswith(b"\0" * len(COLUMNS) + b"\x02\x0cinsert\x02\x02")
