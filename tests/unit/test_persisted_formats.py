"""Every persisted format as literal values: a failing test here means that old records become unreadable.

Do not change a value to make a test pass. A format changes by a new version of it, beside the old one, which stays
readable for ever. `tests/integration/test_old_targets.py` finishes the unfinished work of former code.
"""

import base64
import json
import sqlite3
from contextlib import closing
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import anyio
import pyarrow as pa
import pytest

from tailer.changelog.rules import Carryovers, PairingRules, check_reading, has_maps_in_order, renumbered
from tailer.config.pipelines import PipelineSettings, TablePattern, Template
from tailer.config.tables import TableRef
from tailer.daemon.fleet.backfills import BackfillFile
from tailer.errors import ConfigError, SinkRejected
from tailer.formats.lance.format import LANCE
from tailer.formats.lance.table import branch_id, dataset_id
from tailer.pipeline.backfill.command import BackfillCommand
from tailer.pipeline.backfill.delivery import backfill_plan
from tailer.pipeline.delivery import ResumePoint
from tailer.pipeline.policy import ChangeSource, Policy
from tailer.pipeline.status import PipelineStatus
from tailer.plan import (
    END,
    SNAPSHOT_TASKS,
    TASKS,
    ChangePlan,
    ChangeTask,
    DeletionVectorRef,
    FragmentRef,
    Position,
    Refinement,
    Regime,
    RowTracking,
    TaskKind,
)
from tailer.progress.state_table import StateTable
from tailer.read.shaping import with_condition, with_select
from tailer.shards.assignment import shard_numbers
from tailer.shards.resharding import Division, layout_id, stream_names
from tailer.sink import (
    Demands,
    Heartbeat,
    Progress,
    app_id_of,
    backfill_name,
    is_layout,
    pipeline_of,
    shard_name,
    shard_of,
    shards_in,
    table_of,
)
from tailer.spark.source.envelope import ENVELOPE, EnvelopeRows
from tailer.spark.source.plan_cache import Place, StreamPlace, offset_of, place_of
from tailer.start import Start, StartKind
from tailer.stores.local import LocalStore
from tailer_sinks.delta.mirror.keys import key_number
from tailer_sinks.delta.sink import DeltaSink
from tailer_sinks.encoding.cloudevents import CloudEventsEncoder
from tailer_sinks.encoding.debezium.messages import DebeziumEncoder
from tailer_sinks.files.sink import FilesSink
from tailer_sinks.heartbeats import decode_heartbeat, encode_heartbeat, heartbeat_name
from tailer_sinks.kafka import link as kafka_link
from tailer_sinks.kafka.encoders import key_form, source_of
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.options import read
from tailer_sinks.kafka.progress import Count, Entry, decode, encode
from tailer_sinks.sql.records import schema_from_text
from tailer_sinks.sql.sink import TABLE, SqlSink
from tailer_sinks.testing.rows import change_batch, numbered
from tailer_sinks.testing.snapshots import inside, part
from tailer_sinks.testing.suite import APP, SCHEMA, deliver, up_to
from tests.support.cases import cases

# App ids.


def test_ids_of_lance_datasets() -> None:
    assert dataset_id("/data/my.lance") == "bb89fdf7-35ff-52a5-bb53-21554f43f304"
    assert dataset_id("s3://lake/my.lance") == "332a8b90-4f7f-50f2-9a65-e676ac57f0b5"
    assert (
        branch_id("/data/my.lance/tree/dev", "6a1bf201136146d687be529e3e0704ff")
        == "32d353fa-260a-51ca-b1a7-4f4cdfdbc9ce"
    )


def test_positions_inside_net_differences() -> None:
    """Former releases numbered their tasks so; the multiples of `TASKS` are of rules of comparing."""
    for task in (0, 2**18 - 1, 2**40):
        assert ResumePoint.following(Position(6, 2**31 + 4 * 2**18 + task, 3)).in_net_difference
    snapshot = Position(6, SNAPSHOT_TASKS + 2**31, 0)
    others = (Position.end(6), Position.opening(6), Position.opening(6, snapshot=True), Position(6, 5, 0), snapshot)
    assert not any(ResumePoint.following(each).in_net_difference for each in others)


def test_app_ids() -> None:
    """They have no version: with another app id a pipeline would start over, and report progress that it does not know
    (`Sink.has_delivered`).
    """
    assert app_id_of("orders", "5f0c") == "orders/5f0c"
    assert shard_name("orders", 2, 4) == "orders/2-of-4"
    assert stream_names("orders", 3) == ["orders/0-of-3", "orders/1-of-3", "orders/2-of-3"]
    assert stream_names("orders", 0) == ["orders"]
    assert layout_id("orders") == "orders/shards/layout"
    app_id = "orders/2-of-4/5f0c"
    assert (pipeline_of(app_id), table_of(app_id), shard_of(app_id)) == ("orders/2-of-4", "5f0c", (2, 4))
    assert backfill_name("orders", "20260301T120005-1f3a5c7e") == "orders/~backfill-20260301T120005-1f3a5c7e"
    assert is_layout("orders/shards/layout")
    assert not is_layout(app_id)


@cases(
    ("names", "name"),
    [
        (("orders",), "sales/orders"),
        (("eu", "orders_2026.v1-a"), "sales/eu/orders_2026.v1-a"),
        (("Größe = 5%~",), "sales/Gr%C3%B6%C3%9Fe%20%3D%205%25%7E"),
        (("\udcff",), "sales/%FF"),  # a byte of a local name that is no UTF-8
        (("0-of-4",), "sales/%30-of-4"),  # not the name of a shard
        (("0-of-4", "orders"), "sales/0-of-4/orders"),
    ],
)
def test_names_of_pipelines_of_a_template(names: tuple[str, ...], name: str) -> None:
    """The name of the template, and the names of the table below the folder of the pattern: a part of app ids."""
    tables, start = TableRef("/lake/*"), Start.parse("earliest")
    settings = PipelineSettings(
        name="sales",
        source=tables,
        start=start,
        policy=Policy(),
        pairing=PairingRules(),
        poll_interval_s=1.0,
        sink_kind="delta",
        sink_options={"path": "/out/{table}"},
    )
    found = Template(TablePattern("/lake", ("*",)), settings, 60.0).expand(names)
    assert (found.name, found.table) == (name, "/".join(("/lake", *names)))
    assert shard_of(app_id_of(found.name, "5f0c")) is None


def test_rows_of_shards() -> None:
    """The shard of a key's rows, and of a task's, is not recorded: it must be the same for ever."""
    keys = [pa.array([1, 2, 3, 10**12, None], pa.int64()), pa.array(["a", None, "ü", "", None])]
    assert shard_numbers(keys, 16).to_pylist() == [5, 3, 8, 10, 9]
    assert shard_numbers(keys[:1], 4).to_pylist() == [1, 3, 1, 2, 2]


# Kafka.


def options(**given: Any) -> Any:
    return read("sink", {"bootstrap_servers": "one:9092", "topic": "orders", "progress_topic": "progress", **given})


def test_transactional_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app id itself. Another one would not fence an instance of former code; the progress topic would show it."""
    taken: list[str] = []
    monkeypatch.setattr(kafka_link, "producer_factory", lambda *_: lambda *settings: taken.append(settings[-1]))
    Link("sink", options()).producer("orders/2-of-4/5f0c")
    assert taken == ["orders/2-of-4/5f0c"]


ENTRIES: Final = [
    (
        b'{"instance":"me","topic":"orders","partitions":6}',
        b'{"instance":"me","topic":"orders","partitions":6,"format":2}',
        Entry(None, "me", "orders", 6),
    ),
    (
        b'{"instance":"me","topic":"orders","partitions":6,"key":"json, decimals as string: id integer","version":7}',
        (
            b'{"instance":"me","topic":"orders","partitions":6,"key":"json, decimals as string: id integer",'
            b'"version":7,"format":2}'
        ),
        Entry(Position.end(7), "me", "orders", 6, "json, decimals as string: id integer"),
    ),
    (
        (
            b'{"instance":"me","topic":"orders","partitions":6,"version":7,"task":35455599273574404,"row":99,"events":120,'
            b'"dead_letters":1}'
        ),
        (
            b'{"instance":"me","topic":"orders","partitions":6,"version":7,"task":35455599273574404,"row":99,"events":120,'
            b'"dead_letters":1,"format":2}'
        ),
        Entry(Position(7, 35455599273574404, 99), "me", "orders", 6, count=Count(120, 1)),
    ),
    (
        b'{"instance":"me","topic":"orders","partitions":6,"version":0,"task":4611686018427387906,"row":9,"events":20}',
        (
            b'{"instance":"me","topic":"orders","partitions":6,"version":0,"task":4611686018427387906,"row":9,"events":20,'
            b'"format":2}'
        ),
        Entry(Position(0, 4611686018427387906, 9), "me", "orders", 6, count=Count(20)),
    ),
]


@pytest.mark.parametrize(("old", "new", "entry"), ENTRIES)
def test_kafka_progress(old: bytes, new: bytes, entry: Entry) -> None:
    """`format` is its version; a record without one is of format 1."""
    assert decode("sink", "progress", {b"orders/5f0c": old}) == {"orders/5f0c": entry}
    assert decode("sink", "progress", {b"orders/5f0c": new}) == {"orders/5f0c": entry}
    assert encode(entry) == new


def test_kafka_progress_with_an_id_of_its_topic() -> None:
    value = b'{"instance":"me","topic":"orders","partitions":6,"version":7,"topic_id":"226281ba-0a32","format":2}'
    entry = Entry(Position.end(7), "me", "orders", 6, topic_id="226281ba-0a32")
    assert encode(entry) == value
    assert decode("sink", "progress", {b"orders/5f0c": value}) == {"orders/5f0c": entry}


def test_keys_of_progress_records() -> None:
    sent: list[tuple[str, Any, int]] = []

    class Producer:
        def send(self, topic: str, messages: Any, partition: int) -> None:
            sent.append((topic, messages, partition))

    app_id = "orders/2-of-4/5f0c"
    Link("sink", options()).record_progress(Producer(), app_id, Entry(None, "me", "orders", 6))  # type: ignore[arg-type]
    [(topic, messages, partition)] = sent
    assert (topic, partition, messages.keys.to_pylist()) == ("progress", 0, [b"orders/2-of-4/5f0c"])


def test_layout_records() -> None:
    """The number of shards as a version; while a layout is being left, the position before the first row of that
    version.

    They are progress records, and have their `format`.
    """
    in_force = b'{"instance":"me","topic":"orders","partitions":6,"version":4,"format":2}'
    being_left = (
        b'{"instance":"me","topic":"orders","partitions":6,"version":4,"task":-1,"row":-1,"events":0,"dead_letters":0,'
        b'"format":2}'
    )
    for position, value in ((Position.end(4), in_force), (Position.opening(4), being_left)):
        found = decode("sink", "progress", {b"orders/shards/layout": value})
        assert found == {"orders/shards/layout": Entry(position, "me", "orders", 6)}
    assert encode(Entry(Position.end(4), "me", "orders", 6)) == in_force


def test_divisions() -> None:
    """The number of shards, and by what rows belong to them, as one number."""
    keep = PairingRules(Carryovers.KEEP)
    found = {
        Division(4): 4,
        divided(4, ("id", "é")): 17139423838212,
        divided(4): 3432858517508,
        divided(4, (), keep, ("b", "a")): 14891559419908,
        divided(1024, (), keep): 14041441567744,
        divided(4, row_ids=True): 16423137116164,
        divided(4, where="a > 1", select="a, b", changes=ChangeSource.COMPARE): 2487188979716,
    }
    assert [division.end for division in found] == [Position.end(version) for version in found.values()]
    for division, version in found.items():
        assert Division.stored(Position.end(version)) == Division.stored(Position.opening(version)) == division
        assert shards_in(version) == division.shards


def divided(
    shards: int,
    key: tuple[str, ...] = (),
    rules: PairingRules | None = None,
    columns: tuple[str, ...] = (),
    **choices: Any,
) -> Division:
    """Return the division of a pipeline."""
    rules = rules or PairingRules()
    sink: Any = SimpleNamespace(demands=Demands(key=key))
    start, policy = Start(StartKind.EARLIEST), Policy(columns=columns, **choices)
    settings = PipelineSettings(
        name="p",
        source=TableRef("t"),
        start=start,
        policy=policy,
        pairing=rules,
        poll_interval_s=1.0,
        sink_kind="kafka",
        sink_options={},
        shards=shards,
    )
    return Division.of(settings, sink)


@cases(
    ("kind", "form"),
    [
        (pa.int32(), "json, decimals as string: id integer"),
        (pa.int64(), "json, decimals as string: id integer"),
        (pa.string(), "json, decimals as string: id string"),
        (pa.binary(), "json, decimals as string: id binary"),
        (pa.bool_(), "json, decimals as string: id bool"),
        (pa.float64(), "json, decimals as string: id double"),
        (pa.decimal128(10, 2), "json, decimals as string: id decimal128(10, 2)"),
        (pa.date32(), "json, decimals as string: id date32[day]"),
        (pa.timestamp("us", "UTC"), "json, decimals as string: id timestamp[us, tz=UTC]"),
        (pa.timestamp("us"), "json, decimals as string: id timestamp[us]"),
    ],
)
def test_forms_of_keys(kind: pa.DataType, form: str) -> None:
    """Forms of keys in progress records. They contain pyarrow's names of types. If pyarrow renames one, pipelines with
    such a key stop with `SinkRejected`, and the name must be mapped to the old one.
    """
    assert key_form(options(key=["id"]), pa.schema([("id", kind)])) == form


def test_forms_of_keys_with_schemas() -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    embedded = options(key=["id", "name"], envelope="debezium", embed_schemas=True)
    assert key_form(embedded, schema) == "json with schemas, decimals as string: id int64, name string"
    assert key_form(options(), schema) is None


# Delta tables.


def txns(table: Path) -> list[dict[str, int]]:
    """The `txn` actions of each commit that has any."""
    found = []
    for commit in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        found.append({each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each})
    return [each for each in found if each]


# A digest of orders/5f0c, also in the commits of its backfills.
STREAM: Final = {"orders/#stream": 8877881556094224074}


@pytest.mark.anyio
async def test_txns_of_the_delta_sink(tmp_path: Path) -> None:
    """They have no version: former code would read a position in a snapshot as the version before it. So new meanings
    need new names of txns, beside these.
    """
    sink = DeltaSink("target", str(tmp_path / "target"))
    first, second = part(7, 0, 3), part(7, 1, 3)
    await deliver(sink, first, app_id="orders/5f0c", progress=replace(inside(first), app_id="orders/5f0c"))
    await deliver(sink, second, app_id="orders/5f0c", progress=replace(inside(second), app_id="orders/5f0c"))
    await deliver(sink, numbered(7), app_id="orders/5f0c")
    await deliver(sink, numbered(8), app_id="orders/5f0c")
    assert txns(tmp_path / "target") == [
        {"orders/5f0c": 6, "orders/5f0c#task": 2**62, "orders/5f0c#row": 2, **STREAM, "orders/#delivered": 1},
        {"orders/5f0c": 6, "orders/5f0c#task": 2**62 + 1, "orders/5f0c#row": 2, **STREAM},
        {"orders/5f0c": 7, "orders/5f0c#task": 2**63 - 1, "orders/5f0c#row": 2**63 - 1, **STREAM},
        {"orders/5f0c": 8, **STREAM},
    ]


@pytest.mark.anyio
async def test_another_source_table_for_the_delta_sink(tmp_path: Path) -> None:
    """Its commits change the number of the pipeline's stream."""
    sink = DeltaSink("target", str(tmp_path))
    await deliver(sink, numbered(7), app_id="orders/5f0c")
    await deliver(sink, numbered(1), app_id="orders/6a1d")
    assert txns(tmp_path) == [
        {"orders/5f0c": 7, **STREAM, "orders/#delivered": 1},
        {"orders/6a1d": 1, "orders/#stream": 4155170019604031784},
    ]


@pytest.mark.anyio
async def test_a_mirror_of_the_delta_sink(tmp_path: Path) -> None:
    """`lakeTailer.mirror` names the pipeline, and every commit has all txns, also of an ordered snapshot.

    The version of `#key` is a digest of the key, whose columns may be in any order.
    """
    sink = DeltaSink.configure("orders", {"path": str(tmp_path), "mode": "mirror", "key": ["id"]})
    for version in (7, 8):
        await deliver(sink, numbered(version), app_id="orders/5f0c")
    await deliver(sink, numbered(9), app_id="orders/~backfill-20260301T115001-1f3a5c7e/5f0c")
    assert txns(tmp_path) == [
        {"orders/5f0c": 7, "orders/#delivered": 1, "orders/#key": 9100170826253435838, **STREAM},
        {"orders/5f0c": 8, "orders/#delivered": 1, "orders/#key": 9100170826253435838, **STREAM},
        {
            "orders/~backfill-20260301T115001-1f3a5c7e/5f0c": 9,
            "orders/#delivered": 1,
            "orders/#key": 9100170826253435838,
            **STREAM,
        },
    ]
    created = (tmp_path / "_delta_log" / "00000000000000000000.json").read_text()
    metadata = next(action for line in created.splitlines() if (action := json.loads(line).get("metaData")))
    assert metadata["configuration"] == {"lakeTailer.mirror": "orders"}
    assert key_number(["number", "country"]) == key_number(["country", "number"]) == 5414895288916510082
    assert key_number(["Größe"]) == 4314129577653673825


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "past"), [({"mode": "mirror", "deletes": "mark"}, "mark"), ({"mode": "history"}, "history")]
)
async def test_a_mirror_of_the_delta_sink_that_keeps_the_past(
    tmp_path: Path, options: dict[str, str], past: str
) -> None:
    """`lakeTailer.mirror.past` says what it keeps.

    A history has the first version that it knows, and a digest of the columns that the source had last.
    """
    sink = DeltaSink.configure("orders", {"path": str(tmp_path), "key": ["id"], **options})
    for version in (7, 8):
        await deliver(sink, numbered(version), app_id="orders/5f0c")
    every = {"orders/#delivered": 1, "orders/#key": 9100170826253435838, **STREAM}
    every |= {"orders/#columns": 6549489825329010502} if past == "history" else {}
    known_from = {"orders/#known-from": 7} if past == "history" else {}
    assert txns(tmp_path) == [{"orders/5f0c": 7, **every, **known_from}, {"orders/5f0c": 8, **every}]
    created = (tmp_path / "_delta_log" / "00000000000000000000.json").read_text()
    metadata = next(action for line in created.splitlines() if (action := json.loads(line).get("metaData")))
    assert metadata["configuration"] == {"lakeTailer.mirror": "orders", "lakeTailer.mirror.past": past}


@pytest.mark.anyio
async def test_the_state_table(tmp_path: Path) -> None:
    """`lakeTailer.progress` in its metadata is its version."""
    table = StateTable(LocalStore(tmp_path))
    positions = [Position.end(7), Position(8, 35455599273574404, 2), Position(0, SNAPSHOT_TASKS + 3, 99)]
    for position in positions:
        await table.record(Progress("orders/5f0c", position))
    found = [{name: value for name, value in each.items() if "#writer" not in name} for each in txns(tmp_path)]
    assert found == [
        {"orders/5f0c": 7, "orders/5f0c#task": 2**63 - 1, "orders/5f0c#row": 2**63 - 1},
        {"orders/5f0c": 7, "orders/5f0c#task": 35455599273574404, "orders/5f0c#row": 2},
        {"orders/5f0c": -1, "orders/5f0c#task": 4611686018427387907, "orders/5f0c#row": 99},
    ]
    assert all("orders/5f0c#writer" in each for each in txns(tmp_path))
    created = (tmp_path / "_delta_log" / "00000000000000000000.json").read_text()
    metadata = next(action for line in created.splitlines() if (action := json.loads(line).get("metaData")))
    assert metadata["configuration"] == {"lakeTailer.progress": "1"}


# Tables of the `sql` sink.

COLUMNS: Final = (
    "/////6gAAAAQAAAAAAAKAAwABgAFAAgACgAAAAABBAAMAAAACAAIAAAABAAIAAAABAAAAAIAAABEAAAABAAAANT///8AAAEFEAAA"
    "ABwAAAAEAAAAAAAAAAQAAABuYW1lAAAAAAQABAAEAAAAEAAUAAgABgAHAAwAAAAQABAAAAAAAAECEAAAABwAAAAEAAAAAAAAAAIA"
    "AABpZAAACAAMAAgABwAIAAAAAAAAAUAAAAA="
)


@pytest.mark.anyio
async def test_tables_of_the_sql_sink(tmp_path: Path) -> None:
    file, app_id = tmp_path / "shop.db", "orders/5f0c"
    sink = SqlSink.configure("orders", {"url": f"sqlite:///{file}", "key": ["id"]})
    part_of_it = part(7, 0, 3)

    def rows(query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(file)) as connection:
            return connection.execute(query).fetchall()

    await deliver(sink, part_of_it, app_id=app_id, progress=replace(inside(part_of_it), app_id=app_id))
    stream = (1, "orders/#stream", 8_877_881_556_094_224_074, 2**63 - 1, 2**63 - 1, None)
    query = "SELECT format, app_id, version, task, row, parts FROM lake_tailer_progress"
    progress, *streams = rows(f"{query} ORDER BY app_id DESC")
    assert streams == [stream]
    (waiting,) = json.loads(progress[-1])
    assert progress[:-1] == (1, "orders/5f0c", 7, 2**62, 2)
    assert schema_from_text(waiting.pop("schema")) == part_of_it.rows.schema
    assert waiting == {
        "origins": None,
        "table": "lake_tailer_part_f6692479f9fa0d95_0",
        "versions": [7, 7],
        "deletes": False,
        "replace": True,
        "changed_us": 1_772_366_400_000_007,
    }
    names = [name for _, name, *_ in rows(f"PRAGMA table_info({waiting['table']})")]
    assert names == ["id", "name", "_commit_version", "_change_type"]
    await deliver(sink, part(7, 1, 3), app_id=app_id)
    await sink.aclose()
    closed = (1, "orders/5f0c", 7, 2**63 - 1, 2**63 - 1, None)
    assert rows("SELECT * FROM lake_tailer_progress ORDER BY app_id") == [stream, closed]
    (mirror,) = rows("SELECT * FROM lake_tailer_mirrors")
    assert mirror[:6] == ("orders", "orders", "orders/5f0c", "mirror", 7, "2026-03-01T12:00:00.000007+00:00")
    assert mirror[7] == '{"configured": ["id"], "columns": ["id"]}'
    assert mirror[8] == COLUMNS
    assert schema_from_text(COLUMNS).names == ["id", "name"]


# Folders of files.


@pytest.mark.anyio
async def test_names_of_files(tmp_path: Path) -> None:
    """They have no version: unknown names are ignored, so another form of name would be a gap, which stops with
    `SinkRejected`.
    """
    sink = FilesSink("files", tmp_path)
    first, second = part(7, 0, 3), part(7, 11, 3)
    await sink.reset(Progress(APP, Position.end(6)))
    await deliver(sink, first, progress=inside(first))
    await deliver(sink, second, progress=inside(second))
    await deliver(sink, numbered(7), numbered(8), progress=up_to(APP, 8))
    await deliver(sink, numbered(9))
    await sink.aclose()
    folder = tmp_path / "orders" / "5f0c6a1e-77aa-4f3b-9d0e-6a3c1b2d4e5f"
    seven, row = f"{7:020d}", f"{2:020d}"
    assert sorted(file.name for file in folder.iterdir()) == [
        ".lock",
        f"{seven}-{seven}.{0:020d}.{row}.jsonl",
        f"{seven}.{0:020d}.{row}-{seven}.{11:020d}.{row}.jsonl",
        f"{seven}.{11:020d}.{row}-00000000000000000008.jsonl",
        "00000000000000000007.reset",
        "00000000000000000009-00000000000000000009.jsonl",
    ]


# Spark.

PLACE: Final = StreamPlace(Place("5e5f", Position(12, 3, 99)), Position.end(2))
OFFSET: Final = (
    '{"tableId": "5e5f", "version": 12, "task": 3, "row": 99, "startVersion": 2, "startTask": 9223372036854775807}'
)
SNAPSHOT: Final = StreamPlace(Place("5e5f", Position.end(12)), Position.opening(3, snapshot=True))
NAMED: Final = (
    '{"appId": "orders", "tableId": "5e5f", "version": 12, "task": 9223372036854775807, "row": 9223372036854775807, '
    '"startVersion": 3, "startTask": 4611686018427387904}'
)


@pytest.mark.parametrize(("place", "app_id", "offset"), [(PLACE, None, OFFSET), (SNAPSHOT, "orders", NAMED)])
def test_offsets_of_spark(place: StreamPlace, app_id: str | None, offset: str) -> None:
    """They have no version, and Spark compares them as text: a new field makes another offset. An offset that lacks a
    field stops with `ConfigError`, so a new field must be optional.
    """
    assert json.dumps(offset_of(place, app_id)) == offset  # as PySpark serializes it
    assert place_of(json.loads(offset), app_id) == place


# Task numbers.

BY_KEY: Final = PairingRules(compute_updates=True, key=("id",))
COUNTRIES: Final = pa.schema([("id", pa.int64()), ("country", pa.string())])
ODD: Final = 'it\'s "é"'
# Columns, rules, and the task numbers of formats 1 and 2 divided by 2**32.
READINGS: Final = [
    (["id", "amount"], PairingRules(), 174565636, 501154184),
    (["id", "amount"], PairingRules(Carryovers.KEEP), 126192812, 513166445),
    (["id", "amount"], BY_KEY, 131444930, 528253013),
    (["id", "amount"], replace(BY_KEY, null_keys=True), 58815269, 338515641),
    (["id", ODD], PairingRules(Carryovers.KEEP, True, ("id", ODD), True, True), 117013693, 405698864),
    (["id"], PairingRules(skip_unchanged=True), 44592599, 277062126),
]


def planned(columns: list[str], deleted: pa.Schema | None = None) -> ChangePlan:
    """Plan version 7, which rewrites a file."""
    schema = pa.schema([pa.field(name, pa.int64()) for name in columns])
    tasks = (
        ChangeTask("/t", "id", 7, 1000, 0, TaskKind.DELETE, "/t/0.parquet", 1, deleted or schema),
        ChangeTask("/t", "id", 7, 1000, 1, TaskKind.INSERT, "/t/1.parquet", 1, schema),
    )
    return ChangePlan("/t", "id", 7, 1000, "UPDATE", Regime.FILES, schema, tasks)


def numbers(plan: ChangePlan) -> list[int]:
    return [task.index for task in plan.tasks]


@cases(("columns", "rules", "old", "new"), READINGS)
def test_task_numbers(columns: list[str], rules: PairingRules, old: int, new: int) -> None:
    """The number itself is the version: up to 2**28 that of format 1, up to 2**29 that of format 2."""
    plan = planned(columns)
    assert 1 <= old <= 2**28 < new <= 2**29
    assert (2**29 + 1) * TASKS < SNAPSHOT_TASKS
    for after in (None, Position.end(6), Position.end(7), Position(6, old * 2**32, 9), Position(7, new * 2**32, 9)):
        assert numbers(renumbered(plan, rules, after)) == [new * 2**32, new * 2**32 + 1]
    inside = Position(7, old * 2**32 + 1, 9)
    goes_on = renumbered(plan, rules, inside)
    assert numbers(goes_on) == [old * 2**32, old * 2**32 + 1]
    check_reading(goes_on, inside)


def test_task_numbers_where_row_ids_alone_pair_rows() -> None:
    plan = replace(planned(["id", "v"]), paired=True)
    assert numbers(renumbered(plan, PairingRules())) == [413522752 * 2**32, 413522752 * 2**32 + 1]


def test_task_numbers_where_files_are_read_in_place_of_a_feed() -> None:
    plan = replace(planned(["id", "v"]), compared=True)
    assert numbers(renumbered(plan, PairingRules())) == [508357069 * 2**32, 508357069 * 2**32 + 1]
    inside = Position(7, numbers(renumbered(plan, PairingRules()))[0], 5)
    fed = replace(plan, compared=False)
    for other in (fed, renumbered(fed, PairingRules()), replace(plan, regime=Regime.NONE, tasks=())):
        with pytest.raises(ConfigError, match="version 7 was delivered in part"):
            check_reading(other, inside)


def test_task_numbers_where_columns_have_maps() -> None:
    """Format 3 ends before 2**30. A version begun by a number of format 1 or 2 is finished with maps in order."""
    maps = pa.schema([("id", pa.int64()), ("amount", pa.list_(pa.map_(pa.string(), pa.int64())))])
    plan = planned(["id", "amount"])
    plan = replace(plan, schema=maps, tasks=tuple(replace(task, schema=maps) for task in plan.tasks))
    _, rules, first, second = READINGS[0]
    third = second + 2**28
    assert 2**29 < third <= 2**29 + 2**28 < 2**30
    places: dict[int, list[Position | None]] = {
        third: [None, Position.end(6), Position(7, third * TASKS, 9), Position(7, (third + 1) * TASKS, 9)],
        second: [Position(7, second * TASKS + 1, 9)],
        first: [Position(7, first * TASKS, 9)],
    }
    for number, afters in places.items():
        for after in afters:
            found = renumbered(plan, rules, after)
            assert numbers(found) == [number * TASKS, number * TASKS + 1]
            assert has_maps_in_order(found) == (number != third)
    assert not has_maps_in_order(plan)
    deleted = planned(["id"], pa.schema([("id", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))]))
    assert numbers(renumbered(deleted, rules))[0] > 2**29 * TASKS


def test_task_numbers_of_a_condition() -> None:
    """Format 4 ends before 2**30. Where rows are compared, `where` and `select` are in the text of formats 2 and 3."""
    whole = planned(["id", "country"])
    whole = replace(whole, schema=COUNTRIES, tasks=tuple(replace(task, schema=COUNTRIES) for task in whole.tasks))
    plan = with_condition(whole, "country = 'DE'")
    assert numbers(plan) == [995139706 * TASKS, 995139706 * TASKS + 1]
    assert 3 * 2**28 < 995139706 < 2**30
    assert numbers(renumbered(plan, PairingRules())) == [272654480 * TASKS, 272654480 * TASKS + 1]
    selected = with_select(plan, "id, country")
    assert numbers(selected) == [896249277 * TASKS, 896249277 * TASKS + 1]
    assert numbers(renumbered(selected, PairingRules())) == [362897470 * TASKS, 362897470 * TASKS + 1]
    snapshot = replace(whole, tasks=tuple(replace(task, index=SNAPSHOT_TASKS + task.index) for task in whole.tasks))
    found = with_condition(snapshot, "country = 'DE'")
    assert numbers(found) == [SNAPSHOT_TASKS + 995139706 * TASKS, SNAPSHOT_TASKS + 995139706 * TASKS + 1]
    assert all(Position(7, number, 0).in_snapshot for number in numbers(found))


def test_task_numbers_of_a_backfill() -> None:
    """Their readings end before those of format 2, and are made of the order's id and of what shapes the rows."""
    whole = planned(["id", "country"])
    tasks = tuple(replace(task, index=SNAPSHOT_TASKS + task.index, schema=COUNTRIES) for task in whole.tasks)
    page = replace(whole, schema=COUNTRIES, tasks=tasks)
    order = BackfillCommand("20260301T120005-1f3a5c7e", 7)
    found = {
        (None, None): 79966295,
        ("country = 'DE'", None): 250924331,
        (None, "id > 1"): 64972728,
        ("country = 'DE'", "id > 1"): 119188400,
    }
    for (own, where), reading in found.items():
        plan = backfill_plan(page, replace(order, where=where), Policy(where=own))
        assert numbers(plan) == [SNAPSHOT_TASKS + reading * TASKS, SNAPSHOT_TASKS + reading * TASKS + 1]
        assert 0 < reading <= 2**28
    other = backfill_plan(page, replace(order, id="20260301T120005-1f3a5c7f"), Policy())
    assert numbers(other)[0] == SNAPSHOT_TASKS + 6624591 * TASKS


def test_the_file_of_orders(tmp_path: Path) -> None:
    path, status = tmp_path / "tailer.backfills.json", PipelineStatus("orders")
    text = (
        '{"format":1,"backfills":{"orders":{"id":"20260301T120005-1f3a5c7e","version":7,"where":"id > 1",'
        '"announces_gap":true}}}'
    )
    path.write_text('{"format":1,"backfills":{"orders":{"id":"20260301T120005-1f3a5c7e"}}}')
    BackfillFile(path).restore(status)
    assert status.backfills.command == BackfillCommand("20260301T120005-1f3a5c7e")
    path.write_text(text)
    BackfillFile(path).restore(status)
    order = BackfillCommand("20260301T120005-1f3a5c7e", 7, "id > 1", announces_gap=True)
    assert status.backfills.command == order
    path.unlink()
    BackfillFile(path).restore(status)
    anyio.run(status.backfills.give, order)
    assert path.read_text() == text


def test_another_condition_does_not_go_on_in_the_middle_of_a_version() -> None:
    whole = planned(["id", "country"])
    whole = replace(whole, schema=COUNTRIES, tasks=tuple(replace(task, schema=COUNTRIES) for task in whole.tasks))
    partitioned = replace(
        whole, tasks=tuple(replace(task, partition_values=(("country", "DE"),)) for task in whole.tasks)
    )
    place = Position(7, numbers(with_condition(whole, "country = 'DE'"))[0], 5)
    check_reading(with_condition(whole, "country = 'DE'"), place)
    others = [whole, with_condition(whole, "country = 'FR'"), with_condition(partitioned, "country = 'FR'")]
    for plan in others:
        with pytest.raises(ConfigError, match="version 7 was delivered in part"):
            check_reading(plan, place)
        check_reading(plan, Position.end(7))
        check_reading(plan, Position.opening(7))
    assert others[-1].tasks == ()


@pytest.mark.parametrize("number", [4, 5])
def test_old_numbers_of_other_rules_are_refused(number: int) -> None:
    columns, rules, _, new = READINGS[0]
    inside = Position(7, READINGS[number][2] * 2**32, 9)
    plan = renumbered(planned(columns), rules, inside)
    assert numbers(plan)[0] == new * 2**32
    with pytest.raises(ConfigError, match="version 7 was delivered in part"):
        check_reading(plan, inside)


def test_old_numbers_of_a_version_that_changes_columns_are_refused() -> None:
    """Its rows are compared in more columns than with format 1, so other rows came before the position."""
    columns, rules, old, new = READINGS[0]
    inside = Position(7, old * 2**32 + 1, 9)
    plain = planned(columns)
    added = planned(columns, pa.schema([("id", pa.int64())]))
    widened = planned(columns, pa.schema([("id", pa.int32()), ("amount", pa.int64())]))
    mapped = planned(
        columns, pa.schema([pa.field("id", pa.int64(), metadata={"a": "b"}), plain.schema.field("amount")])
    )
    compared = replace(plain, tasks=(replace(plain.tasks[0], compared=added.tasks[0].schema), plain.tasks[1]))
    for plan in (added, widened, mapped, compared):
        found = renumbered(plan, rules, inside)
        assert numbers(found)[0] == new * 2**32
        with pytest.raises(ConfigError, match="version 7 was delivered in part"):
            check_reading(found, inside)


def test_every_rule_is_in_task_numbers() -> None:
    """A version could be resumed by other rules if one was missing."""
    others: dict[str, Any] = {
        "carryovers": Carryovers.KEEP,
        "compute_updates": True,
        "key": ("id",),
        "skip_unchanged": True,
        "null_keys": True,
    }
    assert set(others) == {field.name for field in fields(PairingRules)}
    changed = [replace(PairingRules(), **{name: value}) for name, value in others.items()]
    plan = planned(["id", "amount"])
    assert len({numbers(renumbered(plan, rules))[0] for rules in (PairingRules(), *changed)}) == 1 + len(changed)


# Event ids. They have no version: consumers compare them. A task number in them says its own format.


def test_ids_of_cloudevents() -> None:
    encoder = CloudEventsEncoder("sink", SCHEMA, "orders")
    [value] = encoder.encode(replace(numbered(5, rows=1), task=501154184 * 2**32 + 3), 0).values.to_pylist()
    assert json.loads(value)["id"] == "orders;table;5;2152440830533566467;0;c"


@pytest.mark.parametrize(("task", "snapshot"), [(3, "false"), (SNAPSHOT_TASKS + 3, "true")])
def test_positions_in_debezium_s_source_block(task: int, snapshot: str) -> None:
    source = replace(source_of("orders", "lake.sales.orders"), version="1")
    encoder = DebeziumEncoder("sink", SCHEMA, source)
    [value] = encoder.encode(replace(numbered(5, rows=1, first_row=9), task=task), 0).values.to_pylist()
    assert json.loads(value)["source"] == {
        "version": "1",
        "connector": "delta",
        "name": "lake",
        "ts_ms": 1772366400000,
        "snapshot": snapshot,
        "db": "",
        "sequence": f'["5","{task}","9"]',
        "ts_us": 1772366400000005,
        "ts_ns": 1772366400000005000,
        "schema": "sales",
        "table": "orders",
        "table_id": "table",
        "table_uri": None,
        "commit_version": 5,
        "operation": None,
        "txn_id": None,
        "file": None,
        "row_index": 9,
        "row_id": None,
        "row_commit_version": None,
    }


def test_columns_of_the_envelope() -> None:
    assert ENVELOPE.simpleString() == (
        "struct<_event_id:string,_change_type:string,_commit_version:bigint,_commit_timestamp:timestamp,"
        "_table_id:string,_task:bigint,_row:bigint,value:string>"
    )
    [rows] = EnvelopeRows().batches(change_batch(5, {"id": pa.array([1])}, task=501154184 * 2**32 + 3, first_row=9))
    [row] = rows.drop_columns(["_commit_timestamp"]).to_pylist()
    assert row == {
        "_event_id": "table/5/2152440830533566467/9/insert",
        "_change_type": "insert",
        "_commit_version": 5,
        "_table_id": "table",
        "_task": 2152440830533566467,
        "_row": 9,
        "value": '{"id":1}',
    }


# Plans.

# Arrow's own format, which has a version and is read for ever: one column, `id: int64`, with metadata.
SCHEMA_TEXT: Final = (
    "/////7AAAAAQAAAAAAAKAAwABgAFAAgACgAAAAABBAAMAAAACAAIAAAABAAIAAAABAAAAAEAAAAYAAAAAAASABgACAAGAAcADAAAABAAFAASAAAA"
    "AAABAhQAAABMAAAACAAAABAAAAAAAAAAAgAAAGlkAAABAAAADAAAAAgADAAEAAgACAAAABAAAAAEAAAAAQAAAGIAAAABAAAAYQAAAAgADAAIAAcA"
    "CAAAAAAAAAFAAAAAAAAAAA=="
)
VECTOR: Final = {"uri": "/t/dv.bin", "inline": None, "offset": 1, "size_bytes": 34, "cardinality": 2}
TASK: Final = {
    "table": "/t",
    "table_id": "id",
    "version": 7,
    "timestamp_ms": 1000,
    "index": 3,
    "kind": "insert",
    "uri": "/t/x.parquet",
    "size_bytes": 10,
    "schema": SCHEMA_TEXT,
    "partition_values": {"p": "a", "q": None},
    "include": VECTOR,
    "exclude": None,
    "tracking": {"base_row_id": 5, "default_row_commit_version": 6, "id_column": None, "version_column": None},
    "refinement": {"dropped": VECTOR, "updated": None, "exactly": True},
    "compared": None,
}
PLAN: Final = {
    "table": "/t",
    "table_id": "id",
    "version": 7,
    "timestamp_ms": 1000,
    "operation": "WRITE",
    "regime": "files",
    "schema": SCHEMA_TEXT,
    "tasks": [TASK],
    "feed": True,
}


def test_plans_as_json() -> None:
    """They have no version: they pass between processes of one version. An unknown or a missing field is an error;
    later fields (`compared`, `feed`) may be missing.
    """
    schema = pa.schema([pa.field("id", pa.int64(), metadata={"a": "b"})])
    vector = DeletionVectorRef(**VECTOR)  # type: ignore[arg-type]
    values = (("p", "a"), ("q", None))
    task = ChangeTask("/t", "id", 7, 1000, 3, TaskKind.INSERT, "/t/x.parquet", 10, schema, values, vector)
    task = replace(task, tracking=RowTracking(5, 6), refinement=Refinement(vector, None, exactly=True))
    plan = ChangePlan("/t", "id", 7, 1000, "WRITE", Regime.FILES, schema, (task,), feed=True)
    assert ChangePlan.from_json(json.dumps(PLAN)) == plan
    assert ChangeTask.from_dict(TASK) == task
    decoded = json.loads(plan.to_json())
    for part_of in (decoded, decoded["tasks"][0]):
        text = part_of["schema"]
        assert pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).equals(schema, check_metadata=True)
        part_of["schema"] = SCHEMA_TEXT
    assert decoded == PLAN
    former = {name: value for name, value in PLAN.items() if name != "feed"}
    former["tasks"] = [{name: value for name, value in TASK.items() if name != "compared"}]
    assert ChangePlan.from_json(json.dumps(former)) == replace(plan, feed=False)


def test_fragments_in_plans_as_json() -> None:
    fragment = {"version": 6, "number": 2, "rows": 10, "chosen": "AAA=", "columns": [["a", 4]]}
    written = TASK | {"fragment": fragment, "reader": "lance"}
    task = ChangeTask.from_dict(written)
    assert (task.reader, task.fragment) == (LANCE.name, FragmentRef(6, 2, 10, "AAA=", (("a", 4),)))
    found = json.loads(json.dumps(task.to_dict()))
    assert (found["fragment"], found["reader"]) == (fragment, "lance")
    alone = fragment | {"path": "a.lance", "fields": [0, 4]}
    task = ChangeTask.from_dict(TASK | {"fragment": alone, "reader": "lance"})
    assert task.fragment == FragmentRef(6, 2, 10, "AAA=", (("a", 4),), "a.lance", (0, 4))
    assert json.loads(json.dumps(task.to_dict()))["fragment"] == alone


def test_names_of_kinds() -> None:
    assert [kind.value for kind in TaskKind] == ["insert", "delete", "cdc_deletes", "cdc_others"]
    assert [regime.value for regime in Regime] == ["cdc", "files", "snapshot", "none"]
    assert [asdict(Position.end(7)), asdict(Position.opening(7)), asdict(Position.opening(7, snapshot=True))] == [
        {"version": 7, "task": 9223372036854775807, "row": 9223372036854775807},
        {"version": 7, "task": -1, "row": -1},
        {"version": 7, "task": 4611686018427387904, "row": -1},
    ]
    assert (END, SNAPSHOT_TASKS, TASKS) == (9223372036854775807, 4611686018427387904, 4294967296)


@pytest.mark.anyio
async def test_heartbeats(tmp_path: Path) -> None:
    text = '{"format":1,"instance":"host-7-0a1b","term":3,"count":12,"released":false}'
    beat = Heartbeat("host-7-0a1b", 3, 12)
    assert encode_heartbeat(beat) == text
    assert decode_heartbeat("s", "here", text) == beat
    with pytest.raises(SinkRejected, match="format 2, and this release knows 1"):
        decode_heartbeat("s", "here", text.replace('"format":1', '"format":2'))
    sqlite = SqlSink.configure("s", {"url": f"sqlite:///{tmp_path}/m.db"})
    for sink, folder in ((DeltaSink("s", str(tmp_path / "t")), "t"), (sqlite, ".m.db")):
        place = sink.open_heartbeats("sales/eu", 1.0)
        assert place is not None
        await place.write(beat)
        assert (tmp_path / folder / "_lake_tailer/heartbeats/sales%2Feu.json").read_text() == text
    assert heartbeat_name("Sales") == "_lake_tailer/heartbeats/sales!8de4e0ea7370e4e6.json"
    assert heartbeat_name("s" * 101) == f"_lake_tailer/heartbeats/{'s' * 100}!38c233e68474a62a.json"
    assert TABLE == "lake_tailer_heartbeats"
    assert kafka_link._HEARTBEATS == "lake-tailer-heartbeat-"
