"""The `files` sink beyond the contract: file names, and errors of names and of the disk."""

import json
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tailer.errors import SinkFenced, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch
from tailer.plan import Position
from tailer.sink import Progress
from tailer.stores.port import ObjectMeta
from tailer_sinks.files.formats import JsonLines
from tailer_sinks.files.in_store import StoreFolders
from tailer_sinks.files.port import directory_name
from tailer_sinks.files.sink import FilesSink, Format
from tailer_sinks.testing import change_batch
from tailer_sinks.testing.announcements import change, gap, wider
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import SCHEMA, Item, deliver, up_to
from tests.support.cases import cases
from tests.support.cloud.memory_store import MemoryStore

APP = "pipeline/table-id"
Objects = list[ObjectMeta]

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The directory of the stream `APP`."""
    return tmp_path / "pipeline" / "table-id"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def data_file(first: int, last: int, form: str = "jsonl") -> str:
    return f"{first:020d}-{last:020d}.{form}"


def touch(folder: Path, *spans: tuple[int, int] | int) -> None:
    """Create files for ranges of versions, and reset markers for single numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    for span in spans:
        name = f"{span:020d}.reset" if isinstance(span, int) else data_file(*span)
        (folder / name).touch()


async def advance(sink: FilesSink, version: int) -> None:
    """Commit without rows."""
    async with sink.begin(APP, SCHEMA) as transaction:
        await transaction.commit(up_to(APP, version))


async def test_names_contain_the_versions(tmp_path: Path, folder: Path) -> None:
    sink = FilesSink("files", tmp_path)
    await deliver(sink, numbered(3), numbered(5), app_id=APP)
    await advance(sink, 6)
    await deliver(sink, numbered(9), app_id=APP)
    assert names(folder) == [data_file(3, 5), data_file(6, 6), data_file(7, 9)]
    assert (folder / data_file(6, 6)).read_bytes() == b""
    assert read_ids(folder / data_file(7, 9)) == [9_000_000, 9_000_001, 9_000_002]
    await sink.aclose()


async def test_a_start_without_rows_is_no_file_of_rows(tmp_path: Path, folder: Path) -> None:
    sink = FilesSink("files", tmp_path)
    await advance(sink, 41)
    assert names(folder) == ["00000000000000000042.reset"]
    assert await sink.progress(APP) == up_to(APP, 41)
    await deliver(sink, numbered(43), app_id=APP)
    assert names(folder)[0] == data_file(42, 43)
    await sink.aclose()


async def test_rows_are_written_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is slow holds up no other pipeline."""
    threads: list[int] = []
    write = JsonLines.write

    def noted(draft: JsonLines, rows: pa.RecordBatch) -> None:
        threads.append(threading.get_ident())
        write(draft, rows)

    monkeypatch.setattr(JsonLines, "write", noted)
    sink = FilesSink("files", tmp_path)
    await deliver(sink, numbered(1), app_id=APP)
    await sink.aclose()
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
async def test_rows_are_hidden_until_the_commit(tmp_path: Path, folder: Path, form: Format) -> None:
    sink = FilesSink("files", tmp_path, form)
    async with sink.begin(APP, SCHEMA) as transaction:
        await transaction.write(numbered(1, rows=10))
        (hidden,) = names(folder)
        assert hidden.startswith(".")
        assert hidden.endswith(".tmp")
        await transaction.commit(up_to(APP, 1))
    assert names(folder) == [data_file(1, 1, form)]
    async with sink.begin(APP, SCHEMA) as transaction:
        await transaction.write(numbered(2))
    assert names(folder) == [data_file(1, 1, form)]
    await sink.aclose()


async def test_parquet_keeps_the_schema_and_makes_row_groups_of_many_batches(tmp_path: Path, folder: Path) -> None:
    sink = FilesSink("files", tmp_path, "parquet")
    batches = [numbered(1, rows=1000, first_row=1000 * n) for n in range(150)]
    await deliver(sink, *batches, app_id=APP)
    await advance(sink, 2)
    file = parquet.ParquetFile(folder / data_file(1, 1, "parquet"))
    assert file.schema_arrow.equals(SCHEMA)
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [132_000, 18_000]
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert file.read().equals(pa.Table.from_batches([batch.rows for batch in batches]))
    empty = parquet.read_table(folder / data_file(2, 2, "parquet"))
    assert empty.num_rows == 0
    assert empty.schema.equals(SCHEMA)
    await sink.aclose()


@pytest.mark.parametrize(
    ("spans", "end"),
    [
        ([], None),
        ([(0, 4)], 4),
        ([(0, 4), (5, 5), (6, 90)], 90),
        ([(17, 18), (19, 19)], 19),
        ([5], 4),
        ([0], -1),
        ([5, (5, 9)], 9),
        ([(0, 4), 8], 7),
        ([(0, 4), 5, (5, 6)], 6),
        ([(0, 4), 8, (8, 9)], 9),
        ([(0, 4), 8, 20, (20, 20)], 20),
    ],
)
async def test_progress_is_read_from_names(tmp_path: Path, folder: Path, spans: list[object], end: int | None) -> None:
    touch(folder, *spans)  # type: ignore[arg-type]
    (folder / "README").touch()
    (folder / "0-1.jsonl").touch()
    (folder / f".{data_file(91, 99)}").touch()
    sink = FilesSink("files", tmp_path, adopt=True)
    assert await sink.progress(APP) == (None if end is None else up_to(APP, end))


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([(0, 4), (6, 6)], "no file holds versions 5 to 5"),
        ([(0, 4), (4, 6)], "holds versions that other files hold too"),
        ([(0, 4), (3, 4)], "holds versions that other files hold too"),
        ([(0, 4), 8, (5, 8)], "holds versions that other files hold too"),
        ([(0, 4), 8, (9, 9)], "no file holds versions 8 to 8"),
        ([(4, 2)], "ends before it begins"),
    ],
)
async def test_contradicting_names_stop_everything(
    tmp_path: Path, folder: Path, spans: list[object], reason: str
) -> None:
    touch(folder, *spans)  # type: ignore[arg-type]
    sink = FilesSink("files", tmp_path)
    with pytest.raises(SinkRejected, match=reason) as raised:
        await sink.progress(APP)
    assert str(folder) in raised.value.hint
    with pytest.raises(SinkRejected, match=reason):
        await advance(sink, 99)
    await sink.aclose()


async def test_reset_back_below_files_is_refused_with_the_way_out(tmp_path: Path, folder: Path) -> None:
    sink = FilesSink("files", tmp_path)
    for version in (1, 2, 3):
        await deliver(sink, numbered(version), app_id=APP)
    with pytest.raises(SinkRejected, match=f"{data_file(2, 2)} holds versions after 1") as raised:
        await sink.reset(up_to(APP, 1))
    assert raised.value.hint == f"Move {data_file(2, 2)} and the files after it out of {folder}, then reset again."
    assert await sink.progress(APP) == up_to(APP, 3)
    for version in (2, 3):
        (folder / data_file(version, version)).unlink()
    await sink.reset(up_to(APP, 1))
    assert await sink.progress(APP) == up_to(APP, 1)
    await deliver(sink, numbered(2), app_id=APP)
    await sink.aclose()


async def test_reset_takes_back_a_reset(tmp_path: Path, folder: Path) -> None:
    sink = FilesSink("files", tmp_path)
    await deliver(sink, numbered(1), app_id=APP)
    await sink.reset(up_to(APP, 100))
    await sink.reset(up_to(APP, 50))
    assert await sink.progress(APP) == up_to(APP, 50)
    await sink.reset(up_to(APP, 1))
    assert names(folder) == [data_file(1, 1), "00000000000000000002.reset"]
    await deliver(sink, numbered(2), app_id=APP)
    assert await sink.progress(APP) == up_to(APP, 2)
    await sink.aclose()


async def test_reset_inside_a_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkRejected, match="whole versions"):
        await FilesSink("files", tmp_path).reset(Progress(APP, Position(3, 0, 7)))
    assert names(tmp_path) == []


async def test_a_second_instance_waits_outside(tmp_path: Path) -> None:
    first, second = FilesSink("files", tmp_path), FilesSink("files", tmp_path)
    await deliver(first, numbered(1), app_id=APP)
    assert await second.progress(APP) == up_to(APP, 1)
    with pytest.raises(SinkFenced, match=rf"another instance took over \(process {os.getpid()} on .+\): .*\.lock"):
        await deliver(second, numbered(2), app_id=APP)
    with pytest.raises(SinkFenced, match=r"\.lock"):
        await second.reset(up_to(APP, 5))
    await deliver(second, numbered(2), app_id="pipeline/another")
    await first.aclose()
    await deliver(second, numbered(2), app_id=APP)
    await second.aclose()


async def test_an_existing_file_is_never_replaced(tmp_path: Path, folder: Path) -> None:
    sink = FilesSink("files", tmp_path)
    async with sink.begin(APP, SCHEMA) as transaction:
        await transaction.write(numbered(1))
        (folder / data_file(1, 1)).write_text("somebody else's")
        with pytest.raises(SinkFenced, match=data_file(1, 1)):
            await transaction.commit(up_to(APP, 1))
    assert (folder / data_file(1, 1)).read_text() == "somebody else's"
    await sink.aclose()


@pytest.mark.parametrize("version", [0, 2, 9])
async def test_rows_that_do_not_belong_are_refused(tmp_path: Path, folder: Path, version: int) -> None:
    sink = FilesSink("files", tmp_path)
    await deliver(sink, numbered(2), app_id=APP)
    with pytest.raises(SinkRejected, match="do not belong"):
        await deliver(sink, numbered(version), app_id=APP, progress=up_to(APP, 5))
    with pytest.raises(SinkRejected, match="do not belong"):
        await advance(sink, 2)
    assert names(folder) == [data_file(2, 2)]
    await sink.aclose()


async def test_rows_of_another_schema_are_refused(tmp_path: Path) -> None:
    sink = FilesSink("files", tmp_path, "parquet")
    async with sink.begin(APP, SCHEMA) as transaction:
        with pytest.raises(SinkRejected, match="another schema"):
            await transaction.write(change_batch(1, {"id": pa.array([1])}))
    await sink.aclose()


async def test_events_are_lines_between_lines(tmp_path: Path, folder: Path) -> None:
    sink = FilesSink("files", tmp_path)
    await deliver(sink, numbered(5), change(6), wider(6), gap(7, 9), app_id=APP)
    lines = (folder / data_file(5, 9)).read_text().splitlines()
    assert [json.loads(line)["_change_type"] for line in lines] == [
        *["insert"] * 3,
        "schema_change",
        *["insert"] * 3,
        "gap",
    ]
    assert lines[3] == (
        '{"_change_type":"schema_change","_commit_version":6,"_commit_timestamp":"2026-03-01T12:00:00.000000Z",'
        '"changes":["column extra was added, \\"quoted\\"","é"]}'
    )
    assert lines[-1] == (
        '{"_change_type":"gap","_commit_version":9,"_commit_timestamp":"2026-03-01T12:00:00.000000Z","first_version":7,'
        '"reason":"the log was cleaned up","snapshot":false}'
    )
    assert [list(json.loads(line))[2] for line in (lines[0], lines[4])] == ["_change_type", "extra"]
    await sink.aclose()


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
async def test_names_show_the_lost_versions(tmp_path: Path, folder: Path, form: Format) -> None:
    sink = FilesSink("files", tmp_path, form)
    await deliver(sink, gap(3, 6), app_id=APP)
    await deliver(sink, gap(7, 9, snapshot=True), numbered(9), app_id=APP)
    await deliver(sink, change(10), app_id=APP)
    assert names(folder) == [data_file(3, 6, form), data_file(7, 9, form), data_file(10, 10, form)]
    await sink.aclose()


async def test_a_parquet_file_has_the_columns_of_all_its_rows(tmp_path: Path, folder: Path) -> None:
    """Many row groups of three schemas; wider types, a dropped, an added and a nested column."""
    rows = 200_000
    numbers = pa.array(range(rows), pa.int32())
    first = change_batch(1, {"id": numbers, "a": numbers.cast(pa.string()), "s": pa.array([{"x": 1}] * rows)})
    second = change_batch(2, {"id": pa.array([2**40, None]), "s": pa.array([{"x": 1, "y": [1.5]}, None])})
    third = change_batch(3, {"id": pa.array([7], pa.int16()), "a": pa.array(["z"]), "day": pa.array([0], pa.date32())})
    batches = [first, second, third]
    items: list[Item] = [first]
    for before, after in pairwise(batches):
        items += [change(after.version, before.rows.schema, after.rows.schema), after]
    sink = FilesSink("files", tmp_path, "parquet")
    await deliver(sink, *items, app_id=APP)
    assert names(folder) == [data_file(1, 3, "parquet")]
    found = parquet.read_table(folder / data_file(1, 3, "parquet"))
    assert found.schema.names == ["id", "a", "s", "day", *third.rows.schema.names[-3:]]
    assert found.schema.field("id").type == pa.int64()
    assert found["id"].to_pylist() == [*range(rows), 2**40, None, 7]
    assert found["a"].to_pylist() == [*map(str, range(rows)), None, None, "z"]
    assert found["s"].slice(rows - 1).to_pylist() == [{"x": 1, "y": None}, {"x": 1, "y": [1.5]}, None, None]
    assert found["day"].null_count == rows + 2
    assert found["_commit_version"].to_pylist() == [1] * rows + [2, 2, 3]
    await sink.aclose()


async def test_parquet_rows_that_cannot_share_a_file_are_refused_with_the_way_out(tmp_path: Path, folder: Path) -> None:
    sink = FilesSink("files", tmp_path, "parquet")
    number, text = (change_batch(1, {"v": column}) for column in (pa.array([1]), pa.array(["x"])))
    event = change(1, number.rows.schema, text.rows.schema)
    with pytest.raises(SinkRejected, match="column v is int64 in some rows and string in others") as raised:
        await deliver(sink, number, event, text, app_id=APP)
    assert 'format = "jsonl"' in raised.value.hint
    assert names(folder) == []
    # The change itself is valid: if one side has no rows there is one schema.
    await deliver(sink, event, text, app_id=APP)
    assert parquet.read_table(folder / data_file(1, 1, "parquet"))["v"].to_pylist() == ["x"]
    other = change_batch(2, {"v": pa.array(["y"])})
    await deliver(sink, other, change(3, text.rows.schema, number.rows.schema), app_id=APP)
    assert parquet.read_table(folder / data_file(2, 3, "parquet"))["v"].to_pylist() == ["y"]
    await deliver(sink, change_batch(4, {"v": pa.array([1])}), app_id=APP)
    await sink.aclose()


async def test_a_gap_in_parquet_is_a_row_of_nulls(tmp_path: Path, folder: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *SCHEMA.remove(0)])
    rows = numbered(1)
    strict = ChangeBatch(rows.table_id, 1, 0, rows.rows.cast(schema), rows.row_index)
    sink = FilesSink("files", tmp_path, "parquet")
    async with sink.begin(APP, schema) as transaction:
        await transaction.write(strict)
        await transaction.announce(gap(2, 4))
        await transaction.commit(up_to(APP, 4))
    found = parquet.read_table(folder / data_file(1, 4, "parquet")).to_pylist()
    assert [row["id"] for row in found] == [1_000_000, 1_000_001, 1_000_002, None]
    moment = datetime(2026, 3, 1, 12, tzinfo=UTC)
    stamp = {"_change_type": "gap", "_commit_version": 4, "_commit_timestamp": moment}
    assert found[-1] == {"id": None, "name": None, **stamp}
    await sink.aclose()


async def test_parquet_files_on_the_way_leave_nothing(tmp_path: Path, folder: Path) -> None:
    sink = FilesSink("files", tmp_path, "parquet")
    async with sink.begin(APP, SCHEMA) as transaction:
        await transaction.write(numbered(1))
        await transaction.announce(change(1))
        await transaction.write(wider(1, task=1))
        (hidden,) = names(folder)
        assert hidden.startswith(".")
    assert names(folder) == []
    with largest_file(100_000), pytest.raises(SinkUnavailable):
        await deliver(sink, numbered(1), change(1), wider(1, rows=100_000), app_id=APP)
    assert names(folder) == []
    await deliver(sink, numbered(1), change(1), wider(1, task=1), app_id=APP)
    assert names(folder) == [data_file(1, 1, "parquet")]
    await sink.aclose()


async def test_a_type_without_a_form_is_refused(tmp_path: Path) -> None:
    batch = change_batch(1, {"v": pa.nulls(1, pa.month_day_nano_interval())})
    for form, reason in (("jsonl", "no JSON form"), ("parquet", "no Parquet form")):
        sink = FilesSink("files", tmp_path, form)  # type: ignore[arg-type]
        with pytest.raises(SinkRejected, match=reason):
            await deliver(sink, batch, app_id=APP)
        with pytest.raises(SinkRejected, match=reason):
            await deliver(sink, numbered(1), change(1, SCHEMA, batch.rows.schema), batch, app_id=APP)
        await sink.aclose()


async def test_a_value_without_a_form_is_refused_by_the_name_of_its_column(tmp_path: Path, folder: Path) -> None:
    """Rows should not contradict their schema, but some tables' files do."""
    x = pa.field("x", pa.int64(), nullable=False)
    columns = [
        pa.array([[{"x": 1}], [{"x": None}]], pa.list_(pa.struct([x]))),
        pa.array([[("k", 1)], [("k", None)]], pa.map_(pa.string(), x)),
    ]
    for column in columns:
        batch = change_batch(1, {"id": pa.array([1, 2]), "outer": column})
        sink = FilesSink("files", tmp_path, "parquet")
        with pytest.raises(SinkRejected, match=r"of outer: .*non-nullable") as raised:
            await deliver(sink, batch, app_id=APP)
        assert 'format = "jsonl"' in raised.value.hint
        with pytest.raises(SinkRejected, match=r"of outer: .*non-nullable"):  # where rows are copied
            await deliver(sink, batch, change(1, batch.rows.schema, SCHEMA), numbered(1, task=1), app_id=APP)
        assert names(folder) == []
        await deliver(sink, numbered(1), app_id=APP)
        await sink.aclose()
        (folder / data_file(1, 1, "parquet")).unlink()


async def test_files_of_a_killed_writer_are_removed(tmp_path: Path, folder: Path) -> None:
    touch(folder)
    (folder / ".deadbeef.tmp").write_text("half a l")
    (folder / ".other").touch()
    sink = FilesSink("files", tmp_path)
    await deliver(sink, numbered(1), app_id=APP)
    assert names(folder) == [".other", data_file(1, 1)]
    await sink.aclose()


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Limit the size of files, so that writes fail as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
async def test_a_disk_that_is_full_leaves_nothing_and_may_be_tried_again(
    tmp_path: Path, folder: Path, form: Format
) -> None:
    sink = FilesSink("files", tmp_path, form)
    batches = [numbered(1, rows=50_000, task=task) for task in range(4)]
    with largest_file(100_000), pytest.raises(SinkUnavailable) as raised:
        await deliver(sink, *batches, app_id=APP)
    assert str(folder) in str(raised.value)
    assert names(folder) == []
    assert await sink.progress(APP) is None
    await deliver(sink, *batches, app_id=APP)
    assert names(folder) == [data_file(1, 1, form)]
    await sink.aclose()


async def test_a_path_that_is_no_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "pipeline").touch()
    sink = FilesSink("files", tmp_path)
    for adopt, reason in ((False, "it holds"), (True, "is a file, not a folder")):
        with pytest.raises(SinkRejected, match=reason) as raised:
            await deliver(FilesSink("files", tmp_path, adopt=adopt), numbered(1), app_id=APP)
        assert str(tmp_path / "pipeline") in str(raised.value)
    with pytest.raises(SinkRejected, match="is a file, not a folder"):
        await sink.progress(APP)


@cases(
    ("part", "name"),
    [
        ("orders-2_b.c~", "orders-2_b.c~"),
        ("a b:c%", "a%20b%3Ac%25"),
        ("é", "%C3%A9"),
        (".", "%2E"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("", "%"),
        ("a\x00b", "a%00b"),
    ],
)
def test_odd_names_become_plain_ones(part: str, name: str) -> None:
    assert directory_name(part) == name


async def test_no_app_id_leads_out_of_the_path(tmp_path: Path) -> None:
    sink = FilesSink("files", tmp_path / "out")
    await deliver(sink, numbered(1), app_id="../../x/./y")
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "%2E." / "%2E." / "x" / "%2E" / "y" / data_file(1, 1)).exists()
    await sink.aclose()


def read_ids(file: Path) -> list[int]:
    if file.suffix == ".parquet":
        ids: list[int] = parquet.read_table(file).column("id").to_pylist()
        return ids
    return [row["id"] for row in map(json.loads, file.read_bytes().splitlines()) if "id" in row]


async def test_the_format_of_a_stream_in_a_store_cannot_change() -> None:
    """Two instances with different formats would not want the same name, and both would succeed."""
    store = MemoryStore()
    await deliver(FilesSink("out", StoreFolders("out", store), "jsonl"), numbered(1))
    with pytest.raises(SinkRejected, match="is of another format") as raised:
        await deliver(FilesSink("out", StoreFolders("out", store), "parquet"), numbered(2))
    assert "choose another path" in raised.value.hint
    await deliver(FilesSink("out", StoreFolders("out", store), "jsonl"), numbered(2))


class BehindStore(MemoryStore):
    """A store whose listings have only the first `listed` objects of a folder; None: all."""

    listed: int | None = None

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        first = (await super().list(prefix))[: self.listed]
        return [meta for meta in await super().list(prefix, start_after) if meta in first]


@pytest.mark.parametrize("listed", [0, 2, 3])
async def test_a_listing_that_is_behind_is_not_another_instance(listed: int) -> None:
    """The sink is asked after a commit, after an error, and for progress."""
    store = BehindStore()
    sink = FilesSink("out", StoreFolders("out", store))
    for version in range(1, 4):
        await deliver(sink, numbered(version), app_id=APP)
    store.listed = listed
    await deliver(sink, numbered(4), app_id=APP)
    with pytest.raises(ZeroDivisionError):
        async with sink.begin(APP, SCHEMA):
            raise ZeroDivisionError
    await deliver(sink, numbered(5), app_id=APP)
    assert await sink.progress(APP) == up_to(APP, 5)
    store.listed = None
    assert await FilesSink("out", StoreFolders("out", store)).progress(APP) == up_to(APP, 5)


class TornStore(MemoryStore):
    """A store whose next listing lacks the object before the last one of a folder, if `is_torn`."""

    is_torn = False

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        found = list(await super().list(prefix, start_after))
        if self.is_torn:
            del found[-2]
            self.is_torn = False
        return found


async def test_a_file_that_one_listing_alone_lacks_is_not_missing() -> None:
    store = TornStore()
    for version in range(1, 4):
        await deliver(FilesSink("out", StoreFolders("out", store)), numbered(version), app_id=APP)
    sink = FilesSink("out", StoreFolders("out", store))
    store.is_torn = True
    assert await sink.progress(APP) == up_to(APP, 3)
    await deliver(sink, numbered(4), app_id=APP)
    await store.delete(f"{APP}/{3:020d}.jsonl")
    with pytest.raises(SinkRejected, match="is the next file"):
        await FilesSink("out", StoreFolders("out", store)).progress(APP)


async def test_files_that_were_removed_from_the_end_are_missed() -> None:
    """The sink asks for what a listing lacks, and does not just trust its own commits."""
    store = MemoryStore()
    sink = FilesSink("out", StoreFolders("out", store))
    for version in range(1, 4):
        await deliver(sink, numbered(version), app_id=APP)
    await store.delete(f"{APP}/{3:020d}.jsonl")
    with pytest.raises(SinkFenced, match="ends with version 2 now"):
        await deliver(sink, numbered(4), app_id=APP)
