"""Dictionaries of Lance: every index type, storage version and nesting, through every local sink and encoding.

pylance judges: what it reads of each version. Each fragment has its own values, and all fragments together have more of
them than a small index can count.
"""

import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import anyio
import fastavro
import lance
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

import tailer
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.tables import TableRef
from tailer.engine.local import LocalEngine
from tailer.events import METADATA_FIELDS, ChangeBatch
from tailer.pipeline.row_delivery import row_pipeline
from tailer.read.parquet.batch_sizes import BATCH_BYTES
from tailer.sink import Sink
from tailer.start import Start
from tailer.stores.wakeup import TimerWake
from tailer_sinks.delta.sink import DeltaSink
from tailer_sinks.encoding.avro.messages import FlatAvroEncoder
from tailer_sinks.encoding.cloudevents import CloudEventsEncoder
from tailer_sinks.encoding.debezium.images import PairingEncoder
from tailer_sinks.encoding.debezium.messages import DebeziumEncoder, Source
from tailer_sinks.encoding.flat_messages import ArrowMessages, FlatMessages
from tailer_sinks.encoding.messages import Messages
from tailer_sinks.files.sink import FilesSink
from tailer_sinks.kafka.encoders import joined
from tests.support.daemon.commands import tailer as command
from tests.support.tables.lance_histories import changes_of, rows_of

FRAGMENT: Final = 90  # values that an int8 can count; those of two fragments not
INDICES: Final = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
SOURCE: Final = Source("0.1.0", "lake", "sales", "orders", "s3://bucket/orders", db="main")
VERSIONS: Final = ("0.1", "2.0", "2.1", "2.2")
SOME: Final = ("2.0", "2.2")  # with nulls in dictionaries, and with maps
METADATA: Final = [field.name for field in METADATA_FIELDS]


def coded(values: Sequence[Any], index: pa.DataType, kind: pa.DataType) -> pa.DictionaryArray:
    """Encode values by a dictionary of their own."""
    known = list(dict.fromkeys(value for value in values if value is not None))
    indices = [None if value is None else known.index(value) for value in values]
    return pa.DictionaryArray.from_arrays(pa.array(indices, index), pa.array(known, kind))


def columns(number: int, storage: str) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns of the rows of a fragment: texts with nulls, on each level."""
    ids = range(number * FRAGMENT, (number + 1) * FRAGMENT)
    yield "id", pa.array(ids, pa.int64())
    named = range(FRAGMENT) if storage == "0.1" else ids  # it has one dictionary for all fragments
    texts = [None if each % 7 == 3 else f"{each}" for each in named]
    pairs = pa.array([*range(0, FRAGMENT, 2), *[FRAGMENT] * (FRAGMENT // 2 + 1)], pa.int32())
    nulls = None if storage == "2.0" else pa.array([each % 5 == 1 for each in ids])  # of structs, which it lacks
    for index in INDICES:
        words = coded(texts, index, pa.string())
        yield f"plain {index}", words
        yield f"struct {index}", pa.StructArray.from_arrays([words, words], ["a", "b"], mask=nulls)
        yield f"list {index}", pa.ListArray.from_arrays(pairs, words)
        structs = pa.StructArray.from_arrays([words], ["a"])
        yield f"structs {index}", pa.LargeListArray.from_arrays(pairs.cast(pa.int64()), structs)
        if storage == "2.2":
            keys = coded([f"key {each}" for each in ids], index, pa.string())
            yield f"map {index}", pa.MapArray.from_arrays(pa.array(range(FRAGMENT + 1), pa.int32()), keys, words)
    if storage != "0.1":
        yield "number", coded([each % 5 or None for each in ids], pa.int8(), pa.int64())
        yield "bytes", coded([bytes([each % 5]) for each in ids], pa.int8(), pa.large_binary())


@pytest.fixture(scope="module", params=VERSIONS)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three fragments, deletes in all of them, and a version of other rows."""
    path, storage = tmp_path_factory.mktemp("dataset") / "t", request.param
    for number in range(3):
        table = pa.table(dict(columns(number, storage)))
        lance.write_dataset(table, path, mode="append" if number else "create", data_storage_version=storage)
    lance.dataset(path).delete("id % 2 = 0")
    return path


def truth(path: Path) -> dict[int, list[tuple[str, Any]]]:
    """Return the changes of each version, by what pylance reads of all versions."""
    found: dict[int, list[tuple[str, Any]]] = {}
    before: Counter[Any] = Counter()
    for each in lance.dataset(path).versions():
        after = rows_of(lance.dataset(path, version=each["version"]).to_table())
        found[each["version"]] = [
            (kind, row)
            for kind, rows in (("delete", before - after), ("insert", after - before))
            for row in rows.elements()
        ]
        before = after
    return found


def in_order(changes: dict[int, list[tuple[str, Any]]]) -> dict[int, list[tuple[str, Any]]]:
    return {version: sorted(rows, key=repr) for version, rows in changes.items() if rows}


def assert_plain(kind: pa.DataType) -> None:
    """Assert that there are no dictionaries on any level."""
    assert not pa.types.is_dictionary(kind)
    for index in range(kind.num_fields):
        assert_plain(kind.field(index).type)


def test_the_api_has_the_values(dataset: Path) -> None:
    batches = list(tailer.changes(dataset))
    assert in_order(changes_of(batches)) == in_order(truth(dataset))
    for field in pa.concat_batches(batches).schema:
        assert_plain(field.type)
    snapshot = changes_of(tailer.changes(dataset, start="snapshot"))
    assert Counter(row for _, row in snapshot[4]) == rows_of(lance.dataset(dataset).to_table())


def test_a_large_value_that_many_rows_repeat(tmp_path: Path) -> None:
    """A batch is small, though its dictionary has the value once; on each level, and where rows are left out."""
    count, size_bytes = 60, 2**20
    words = pa.DictionaryArray.from_arrays(
        pa.array([0, 1] * (count // 2), pa.int8()), pa.array(["x" * size_bytes, "y"])
    )
    lists = pa.ListArray.from_arrays(pa.array(range(count + 1), pa.int32()), words)
    table = pa.table({"id": range(count), "word": words, "list": lists})
    lance.write_dataset(table, tmp_path / "t", data_storage_version="2.0")
    lance.dataset(tmp_path / "t").delete("id < 9")
    for start, end, ids in (("earliest", 1, range(count)), ("snapshot", "latest", range(9, count))):
        found = []
        for batch in tailer.changes(tmp_path / "t", start=start, end=end):
            assert batch.nbytes < BATCH_BYTES + size_bytes
            found += [(row["id"], row["word"][0], row["list"][0][0]) for row in batch.to_pylist()]
        assert found == [(each, "xy"[each % 2], "xy"[each % 2]) for each in ids]


def test_an_overwrite_with_another_index_type(tmp_path: Path) -> None:
    """The column is another one, as it has always been: pipelines that are inside such a version go on there."""
    for index in (pa.int8(), pa.int8(), pa.int32()):
        table = pa.table({"id": [1], "word": coded(["a"], index, pa.string())})
        lance.write_dataset(table, tmp_path / "t", mode="overwrite")
    kinds = {
        version: [kind for kind, _ in rows] for version, rows in changes_of(tailer.changes(tmp_path / "t")).items()
    }
    assert kinds == {1: ["insert"], 3: ["delete", "insert"]}
    deliver(tmp_path / "t", DeltaSink("delta", str(tmp_path / "copy")))
    rows = DeltaTable(tmp_path / "copy").to_pyarrow_table().to_pylist()
    assert [(row["_commit_version"], row["word"]) for row in sorted(rows, key=lambda row: row["_commit_version"])] == [
        (1, "a"),
        (3, "a"),
        (3, "a"),
    ]


def deliver(dataset: Path, sink: Sink) -> None:
    """Deliver all changes, compared by key, into a sink."""
    rules = PairingRules(compute_updates=True, key=("id",))
    begin, end = Start.parse("earliest"), Start.parse("latest")

    async def run() -> None:
        engine = ChangelogEngine(LocalEngine(), rules)
        await row_pipeline("p", TableRef(str(dataset)).open(), sink, engine, TimerWake(), begin, end).run()

    anyio.run(run)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.split("\n") if line]


def printed(dataset: Path, _: Path) -> list[dict[str, Any]]:
    return lines(command("tail", dataset, "--from", "earliest", "--to", "latest", "--format", "jsonl").stdout)


def in_lines(dataset: Path, out: Path) -> list[dict[str, Any]]:
    deliver(dataset, FilesSink("files", out))
    return [row for file in out.rglob("*.jsonl") for row in lines(file.read_text())]


def in_parquet(dataset: Path, out: Path) -> list[dict[str, Any]]:
    deliver(dataset, FilesSink("files", out, "parquet"))
    return [row for file in out.rglob("*.parquet") for row in parquet.read_table(file).to_pylist()]


def in_delta(dataset: Path, out: Path) -> list[dict[str, Any]]:
    deliver(dataset, DeltaSink("delta", str(out)))
    rows: list[dict[str, Any]] = DeltaTable(out).to_pyarrow_table().to_pylist()
    return rows


def as_json(value: Any) -> Any:
    """Return a value of `to_pylist`, or of `rows_of`, in the form that JSON gives it."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, list | tuple):
        is_map = bool(value) and all(isinstance(each, tuple) and len(each) == 2 for each in value)
        return as_json(dict(value)) if is_map else [as_json(each) for each in value]
    return {key: as_json(each) for key, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dataset", SOME, indirect=True)
@pytest.mark.parametrize("read", [printed, in_lines, in_parquet, in_delta])
def test_each_sink_has_the_values(
    dataset: Path, tmp_path: Path, read: Callable[[Path, Path], list[dict[str, Any]]]
) -> None:
    names = lance.dataset(dataset).schema.names

    def text(row: dict[str, Any]) -> str:
        return json.dumps({name: as_json(row[name]) for name in names}, sort_keys=True)

    wanted = Counter(
        (version, kind, text(dict(row))) for version, changes in truth(dataset).items() for kind, row in changes
    )
    rows = read(dataset, tmp_path / "out")
    assert Counter((row["_commit_version"], row["_change_type"], text(row)) for row in rows) == wanted


@pytest.mark.parametrize("dataset", SOME, indirect=True)
def test_messages_have_the_values(dataset: Path) -> None:
    """Of each encoder that Kafka has, also where versions are encoded together."""
    batches = [
        ChangeBatch("id", number, 0, rows, pa.array(range(len(rows)), pa.int64()))
        for number, rows in enumerate(tailer.changes(dataset))
    ]
    schema, rows = batches[0].rows.schema, pa.Table.from_batches([batch.rows for batch in batches]).to_pylist()
    flat = [value for each in encoded(FlatMessages("sink", schema), batches) for value in each.values.to_pylist()]
    words = [name for name in schema.names if name not in METADATA]
    assert [{name: json.loads(value)[name] for name in words} for value in flat] == [
        {name: as_json(row[name]) for name in words} for row in rows
    ]
    key, wanted, schemas = ("id", "plain int8"), [[as_json(row[name]) for name in words] for row in rows], []
    others: list[PairingEncoder] = [
        FlatMessages("sink", schema, key, tombstones=False),
        DebeziumEncoder("sink", schema, SOURCE, key, tombstones=False),
        DebeziumEncoder("sink", schema, SOURCE, key, embed_schemas=True, tombstones=False),
        CloudEventsEncoder("sink", schema, "source", key, tombstones=False),
    ]
    for encoder in others:
        images = [
            image_of(json.loads(value)) for each in encoded(encoder, batches) for value in each.values.to_pylist()
        ]
        assert [[image[name] for name in words] for image in images] == wanted, encoder

    def register(_subject: str, text: str) -> int:
        schemas.append(json.loads(text))
        return 1

    avro = encoded(FlatAvroEncoder("sink", schema, "topic", register, key, tombstones=False), batches)
    value_schema = fastavro.parse_schema(schemas[-1])
    places = [schema.names.index(name) for name in words]
    bodies = [BytesIO(value[5:]) for each in avro for value in each.values.to_pylist()]
    records: list[Any] = [fastavro.schemaless_reader(body, value_schema) for body in bodies]
    assert [[as_json([*record.values()][place]) for place in places] for record in records] == wanted
    streams = [
        pa.ipc.open_stream(value)
        for each in encoded(ArrowMessages("sink", schema), batches)
        for value in each.values.to_pylist()
    ]
    assert [row for stream in streams for row in stream.read_all().to_pylist()] == rows


def image_of(message: dict[str, Any]) -> dict[str, Any]:
    """Return the row in a message of any envelope in JSON."""
    body = message.get("payload", message)
    body = body.get("data", body)
    found: dict[str, Any] = body if "after" not in body else body["after"] or body["before"]
    return found


def encoded(encoder: PairingEncoder, batches: Sequence[ChangeBatch]) -> list[Messages]:
    return [encoder.encode(batch, 0) for batch, _ in joined(encoder, batches)]
