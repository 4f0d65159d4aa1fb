"""Files of a store: few requests, only the bytes that are needed, errors as they are, nothing left behind."""

import pickle
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import Carryovers, PairingRules
from tailer.engine.local import LocalEngine
from tailer.errors import (
    ChangesUnavailable,
    DataCorrupt,
    FileVacuumed,
    ObjectNotFound,
    StorageRefused,
    StorageUnavailable,
    TailerError,
)
from tailer.events import CHANGE_TYPE, ChangeBatch
from tailer.plan import ChangePlan, ChangeTask, DeletionVectorRef, Regime, TaskKind
from tailer.read.data_files import LOCAL, DataFiles
from tailer.read.execute import execute, needed_files, row_groups
from tailer.shape.parse.texts import parse_condition
from tailer.stores.pieces import Limits
from tailer.stores.read_ahead import _THREADS
from tests.support.ranges import PREFIX, StoredObjects, long_footer
from tests.support.streams import become
from tests.support.tables.log_files import parquet, task, vector_file

pytestmark = pytest.mark.anyio
COLUMNS = 12
ROWS = 60_000
SCHEMA = pa.schema([(f"c{number}", pa.int64()) for number in range(COLUMNS)])


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 12 columns, each of 480 kB, in two row groups."""
    dice = Random(1)
    columns = {name: [dice.getrandbits(62) for _ in range(ROWS)] for name in SCHEMA.names}
    path = tmp_path_factory.mktemp("wide") / "f"
    return parquet(path, pa.table(columns), use_dictionary=False, compression="none", row_group_size=ROWS // 2)


def stored(path: Path | str, schema: pa.Schema, kind: TaskKind = TaskKind.INSERT) -> ChangeTask:
    return task(f"{PREFIX}{path}", schema, kind)


def rows(batches: list[ChangeBatch]) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.rows.to_pylist()]


def test_two_of_twelve_columns(wide: Path) -> None:
    objects = StoredObjects()
    schema = pa.schema([SCHEMA.field(3), SCHEMA.field(8)])
    found = list(execute(stored(wide, schema), files=DataFiles(objects)))
    assert found == list(execute(task(wide, schema)))
    chunks = [pq.read_metadata(wide).row_group(group).column(column) for group in (0, 1) for column in (3, 8)]
    needed = sum(chunk.total_compressed_size for chunk in chunks)
    assert objects.fetched_bytes <= 1.2 * needed + Limits().tail_bytes
    assert len(objects.requests) == 1 + 4


def test_all_columns_share_requests(wide: Path) -> None:
    objects = StoredObjects()
    assert sum(map(len, execute(stored(wide, SCHEMA), files=DataFiles(objects)))) == ROWS
    assert objects.fetched_bytes == wide.stat().st_size - 4  # without the magic number
    assert len(objects.requests) == 1 + 2 * 2


def test_only_row_groups_that_are_needed(wide: Path) -> None:
    objects = StoredObjects()
    found = list(execute(stored(wide, SCHEMA), after_row=ROWS - 10, files=DataFiles(objects)))
    assert sum(map(len, found)) == 9
    assert objects.fetched_bytes < 0.6 * wide.stat().st_size


@pytest.mark.parametrize("kind", TaskKind)
def test_a_small_file_takes_one_request(tmp_path: Path, kind: TaskKind) -> None:
    path = parquet(tmp_path / "f", pa.table({"a": range(100), CHANGE_TYPE: ["insert", "delete"] * 50}))
    objects = StoredObjects()
    assert list(execute(stored(path, pa.schema([("a", pa.int64())]), kind), files=DataFiles(objects)))
    assert len(objects.requests) == 1


@pytest.fixture
def narrow(tmp_path: Path) -> Path:
    """A file of 800 kB in two row groups."""
    dice = Random(3)
    data = pa.table({"a": [dice.getrandbits(62) for _ in range(100_000)]})
    return parquet(tmp_path / "f", data, use_dictionary=False, compression="none", row_group_size=50_000)


@pytest.mark.parametrize("known", [1.0, 0.7, 1.6])
def test_a_file_of_which_all_is_read_takes_one_request(narrow: Path, known: float) -> None:
    """Also where the log gives a larger size; a smaller one costs more requests, and no rows."""
    size, schema, objects = narrow.stat().st_size, pa.schema([("a", pa.int64())]), StoredObjects()
    job = replace(stored(narrow, schema), size_bytes=int(known * size))
    assert list(execute(job, files=DataFiles(objects))) == list(execute(task(narrow, schema)))
    assert len(objects.requests) == 1 or known < 1
    assert objects.fetched_bytes <= size


@pytest.mark.parametrize("text", ["a % 100 = 7", "a >= 0", "a = -1"])
def test_a_small_file_takes_no_more_requests_with_a_condition(narrow: Path, text: str) -> None:
    size, schema, objects = narrow.stat().st_size, pa.schema([("a", pa.int64())]), StoredObjects()
    job = replace(stored(narrow, schema), size_bytes=size, where=parse_condition(text, schema))
    found = list(execute(job, files=DataFiles(objects)))
    assert found == list(execute(replace(job, uri=str(narrow))))
    assert len(objects.requests) == 1


def test_of_a_larger_file_the_columns_of_a_condition_come_first(wide: Path) -> None:
    size, objects = wide.stat().st_size, StoredObjects()
    job = replace(stored(wide, SCHEMA), size_bytes=size, where=parse_condition("c0 = 5", SCHEMA))
    assert needed_files(job) == ((job.uri, 0),)
    assert not list(execute(job, files=DataFiles(objects)))
    assert objects.fetched_bytes < size / 4


def test_of_a_file_that_is_not_read_as_a_whole_parts_are_fetched(narrow: Path) -> None:
    size, schema = narrow.stat().st_size, pa.schema([("a", pa.int64())])
    job = replace(stored(narrow, schema), size_bytes=size)
    assert needed_files(job) == ((job.uri, size),)
    few = replace(job, include=DeletionVectorRef(None, "", 0, 1, 1))
    parts = [needed_files(job, 5), needed_files(job, through_row=5), needed_files(job, first_byte=9, end_byte=99)]
    kinds = [needed_files(replace(job, kind=kind)) for kind in (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS)]
    assert {needed_files(few), *parts, *kinds} == {((job.uri, 0),)}
    for some in (lambda files: execute(job, 99_990, files=files), lambda files: iter([row_groups(job, files)])):
        objects = StoredObjects()
        assert list(some(DataFiles(objects)))
        assert objects.fetched_bytes <= 0.6 * size
    objects = StoredObjects()
    limits = Limits(whole_bytes=size - 1)
    assert sum(map(len, execute(job, files=DataFiles(objects, limits)))) == 100_000
    assert len(objects.requests) > 1


def test_change_types_alone_where_nothing_else_is_needed(wide: Path, tmp_path: Path) -> None:
    table = pq.read_table(wide).append_column(CHANGE_TYPE, pa.array(["insert"] * ROWS))
    path = parquet(tmp_path / "f", table, use_dictionary=[CHANGE_TYPE], compression="none")
    objects = StoredObjects()
    assert list(execute(stored(path, SCHEMA, TaskKind.CDC_DELETES), files=DataFiles(objects))) == []
    assert len(objects.requests) <= 2
    assert objects.fetched_bytes <= Limits().tail_bytes + 2**16
    assert sum(map(len, execute(stored(path, SCHEMA, TaskKind.CDC_OTHERS), files=DataFiles(objects)))) == ROWS


@pytest.mark.parametrize(("before", "requests"), [(0, 1), (2_000_000, 2)])
def test_requests_of_a_deletion_vector(tmp_path: Path, before: int, requests: int) -> None:
    path = parquet(tmp_path / "f", pa.table({"a": range(10)}))
    descriptor = vector_file(tmp_path, range(0, before, 2), [3, 4])[1]["sizeInBytes"]
    (there,) = tmp_path.glob("*.bin")
    vector = DeletionVectorRef(f"{PREFIX}{there}", None, there.stat().st_size - descriptor - 8, descriptor, 2)
    objects = StoredObjects()
    job = replace(stored(path, pa.schema([("a", pa.int64())])), exclude=vector)
    assert sum(map(len, execute(job, files=DataFiles(objects)))) == 8
    assert len(objects.requests) == 1 + requests
    there.unlink()
    with pytest.raises(FileVacuumed, match="deletion_vector"):
        list(execute(job, files=DataFiles(objects)))


NUMBERS = pa.schema([("n", pa.int64()), ("s", pa.string()), ("t", pa.timestamp("us", "UTC"))])
TINY = Limits(tail_bytes=2000, held_bytes=4000, piece_bytes=1000, least_bytes=500, near_bytes=500)


@pytest.fixture
def varied(tmp_path: Path) -> Path:
    """A file of which also dictionaries and headers of pages are read apart."""
    dice = Random(2)
    raw = pa.array([bytes(8) + (2_440_588 + row % 5).to_bytes(4, "little") for row in range(3000)], pa.binary(12))
    texts = pa.array([str(dice.randrange(50)) * 200 for _ in range(3000)])
    table = pa.table({"n": [dice.getrandbits(60) for _ in range(3000)], "s": texts, "t": raw, CHANGE_TYPE: texts})
    path = long_footer(tmp_path / "f", table, row_group_size=1000, store_schema=False, data_page_size=1000)
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[begin:].replace(b"\x15\x0e\x15\x18", b"\x15\x06\x15\x18")
    path.write_bytes(content[:begin] + footer.replace(b"\x1c\x15\x0e", b"\x1c\x15\x06"))
    return path


def refuses(_data: bytes) -> bytes:
    raise StorageRefused("memory:/f", "no")


def stalls(_data: bytes) -> bytes:
    raise StorageUnavailable("memory:/f", "too slow")


def is_gone(_data: bytes) -> bytes:
    raise ObjectNotFound("memory:/f")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [TaskKind.INSERT, TaskKind.CDC_OTHERS])
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (refuses, StorageRefused),
        (stalls, StorageUnavailable),
        (is_gone, FileVacuumed),
        (lambda data: data[:-1], StorageUnavailable),
        (lambda _data: b"", StorageUnavailable),
    ],
    ids=["refused", "unavailable", "gone", "cut short", "empty"],
)
def test_an_error_at_each_request(
    varied: Path, spoil: Callable[[bytes], bytes], error: type[TailerError], kind: TaskKind
) -> None:
    """It comes out as it is, after all rows before it, and never as a broken file."""
    whole = rows(list(execute(task(varied, NUMBERS, kind))))
    objects = StoredObjects()
    assert rows(list(execute(stored(varied, NUMBERS, kind), files=DataFiles(objects, TINY)))) == whole
    assert len(objects.requests) > 20
    for failing in range(1, len(objects.requests) - 5):  # some are made ahead, or not, as it comes
        spoiled = StoredObjects(lambda number, data, at=failing: spoil(data) if number == at else data)  # type: ignore[misc]
        found: list[ChangeBatch] = []
        with pytest.raises(error):
            found.extend(execute(stored(varied, NUMBERS, kind), files=DataFiles(spoiled, TINY)))
        assert rows(found) == whole[: sum(map(len, found))]


def test_files_that_cannot_be_read(varied: Path) -> None:
    files = DataFiles(StoredObjects())
    with pytest.raises(FileVacuumed):
        list(execute(stored("/nowhere/f", NUMBERS), files=files))
    with pytest.raises(FileVacuumed):
        row_groups(stored("/nowhere/f", NUMBERS), files)
    content = varied.read_bytes()
    for spoiled in (b"", b"PAR1", b"x" * 5000, content[:-1], content[1000:], content[: len(content) // 2]):
        varied.write_bytes(spoiled)
        with pytest.raises(DataCorrupt):
            list(execute(stored(varied, NUMBERS), files=files))


def test_there_is_nothing_before_the_first_byte(varied: Path) -> None:
    with DataFiles(StoredObjects(), TINY).open(f"{PREFIX}{varied}") as file, pytest.raises(pa.ArrowInvalid):
        file.source.seek(-1)


def test_without_stores_there_are_only_local_files(varied: Path) -> None:
    with pytest.raises(ChangesUnavailable, match="is not a local path"):
        list(execute(stored(varied, NUMBERS), files=LOCAL))
    objects = StoredObjects()
    assert list(execute(task(varied, NUMBERS), files=DataFiles(objects)))
    assert objects.requests == []


def test_a_local_file_is_a_file_of_the_system(varied: Path) -> None:
    with LOCAL.open(str(varied)) as file:
        assert isinstance(file.source, pa.OSFile)
        assert file.read_ahead is None


def test_an_error_that_a_reader_hides_is_raised_in_the_end(varied: Path) -> None:
    objects = StoredObjects(lambda number, data: data if number == 1 else stalls(data))
    files = DataFiles(objects, TINY)

    def read() -> None:
        with files.open(f"{PREFIX}{varied}") as file:
            for _ in range(2):
                with suppress(StorageUnavailable):
                    file.source.read(10)

    with pytest.raises(StorageUnavailable, match="too slow"):
        read()
    assert len(objects.requests) == 2


def test_closing_in_the_middle_leaves_nothing_behind(wide: Path) -> None:
    limits = Limits(held_bytes=2**20, least_bytes=2**14)
    objects = StoredObjects(delay_s=0.01)
    batches = cast(Generator[ChangeBatch, None, None], execute(stored(wide, SCHEMA), files=DataFiles(objects, limits)))
    next(batches)
    batches.close()
    made = len(objects.requests)
    deadline = time.monotonic() + 10
    while objects.running and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.1)
    assert objects.running == 0
    assert len(objects.requests) <= made + _THREADS


def opens(uri: str) -> StoredObjects:
    raise AssertionError(uri)


def test_survives_pickle() -> None:
    files = DataFiles(opens, TINY)  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(files)) == files
    assert pickle.loads(pickle.dumps(LOCAL)) == LOCAL


async def test_engines_read_stores(tmp_path: Path) -> None:
    """Also rows that are compared with each other, and those found to be updated."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    before, after = (
        {"k": range(2000), "v": [row + change * (row % 7 == 0) for row in range(2000)]} for change in (0, 1)
    )
    paths = [parquet(tmp_path / name, pa.table(data)) for name, data in (("a", before), ("b", after))]
    kinds = (TaskKind.DELETE, TaskKind.INSERT)
    found = []
    for made, files in ((task, LOCAL), (stored, DataFiles(StoredObjects(), TINY))):
        tasks = [
            replace(made(path, schema, kind), index=at)
            for at, (path, kind) in enumerate(zip(paths, kinds, strict=True))
        ]
        plan = ChangePlan("t", "id", 3, 1000, None, Regime.FILES, schema, tuple(tasks))
        rules = PairingRules(carryovers=Carryovers.DROP, compute_updates=True, key=("k",))
        async with ChangelogEngine(LocalEngine(2, files), rules, files=files).run([plan]) as batches:
            found.append([row async for batch in batches for row in batch.rows.to_pylist()])
    assert found[0] == found[1]
    assert len(found[0]) == 2 * 286


async def test_small_files_are_opened_ahead(tmp_path: Path) -> None:
    """Also where a file is read twice; one that is gone is an error at its place."""
    schema = pa.schema([("a", pa.int64())])
    paths = [parquet(tmp_path / f"{number:02}", pa.table({"a": [number]})) for number in range(40)]
    paths[21:21] = [paths[20], paths[20]]
    tasks = tuple(replace(stored(path, schema), index=index) for index, path in enumerate(paths))
    plan = ChangePlan("t", "id", 3, 1000, None, Regime.FILES, schema, tasks)
    objects = StoredObjects(delay_s=0.005)

    async def values(found: list[int]) -> None:
        async with LocalEngine(1, DataFiles(objects)).run([plan]) as batches:
            async for batch in batches:
                found += batch.rows.column("a").to_pylist()

    found: list[int] = []
    await values(found)
    assert found == [*range(21), 20, 20, *range(21, 40)]
    assert len(objects.requests) == len(paths)
    assert objects.most_running > 4
    paths[-1].unlink()
    found = []
    with pytest.raises(FileVacuumed, match="39"):
        await values(found)
    assert found == [*range(21), 20, 20, *range(21, 39)]


async def test_larger_files_are_opened_before_a_thread_is_free(tmp_path: Path) -> None:
    """No more of them than the engine may hold, and none after it was left."""
    dice, schema = Random(4), pa.schema([("a", pa.int64())])
    data = pa.table({"a": [dice.getrandbits(62) for _ in range(140_000)]})
    paths = [parquet(tmp_path / f"{number:02}", data, use_dictionary=False) for number in range(20)]
    tasks = tuple(
        replace(stored(path, schema), index=index, size_bytes=path.stat().st_size) for index, path in enumerate(paths)
    )
    plan = ChangePlan("t", "id", 3, 1000, None, Regime.FILES, schema, tasks)
    objects = StoredObjects(delay_s=0.02)
    async with LocalEngine(1, DataFiles(objects)).run([plan]) as batches:
        assert sum([len(batch) async for batch in batches]) == 20 * len(data)
    assert len(objects.requests) == len(paths)
    assert objects.most_running > 4
    objects = StoredObjects(delay_s=0.02)
    async with LocalEngine(1, DataFiles(objects)).run([plan]) as batches:
        await anext(batches)
    await become(lambda: not objects.running)
    assert 1 < len(objects.requests) <= 8
