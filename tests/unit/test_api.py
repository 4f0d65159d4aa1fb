"""`tailer.changes`: the changes of a table from Python."""

import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable, write_deltalake

import tailer
from tailer import api
from tailer.changelog.rules import Carryovers
from tailer.errors import (
    ConfigError,
    FileVacuumed,
    NotATable,
    SchemaChanged,
    StorageUnavailable,
    TailerError,
    UnsupportedFeature,
    VersionAhead,
)
from tailer.formats.delta.table import DeltaTableLog
from tailer.plan import ChangePlan
from tailer.start import Start
from tests.support.cases import cases

METADATA = ["_change_type", "_commit_version", "_commit_timestamp"]


@pytest.fixture
def orders(tmp_path: Path) -> str:
    """Write five rows in two versions, an update of one and a delete of one, without a change feed."""
    path = str(tmp_path / "orders")
    for ids in ([1, 2, 3], [4, 5]):
        write_deltalake(path, pa.table({"id": ids, "amount": [10.0 * each for each in ids]}), mode="append")
    DeltaTable(path).update(updates={"amount": "amount + 1"}, predicate="id = 2")
    DeltaTable(path).delete("id = 4")
    return path


CHANGES = [
    (1, 10.0, "insert", 0),
    (2, 20.0, "insert", 0),
    (3, 30.0, "insert", 0),
    (4, 40.0, "insert", 1),
    (5, 50.0, "insert", 1),
    (2, 20.0, "delete", 2),
    (2, 21.0, "insert", 2),
    (4, 40.0, "delete", 3),
]


def rows(batches: Iterator[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """Return all rows without their timestamps."""
    return [tuple(row[name] for name in row if name != METADATA[2]) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("name", ["_change_type", "_commit_version", "_Commit_Timestamp"])
def test_a_column_with_a_name_of_ours_is_refused_unless_it_is_left_out(tmp_path: Path, name: str) -> None:
    """Its rows, and what a later version changes, come without it."""
    write_deltalake(tmp_path / "t", pa.table({"id": [1, 2], name: ["x", "y"]}))
    DeltaTable(tmp_path / "t").delete("id = 2")
    for columns in ([], [name], [name, "id"]):
        with pytest.raises(UnsupportedFeature, match=f"version 0 needs column {name}") as caught:
            list(tailer.changes(tmp_path / "t", columns=columns))
        assert "--columns" in caught.value.hint
    with pytest.raises(UnsupportedFeature):
        tailer.changes(tmp_path / "t", start=2).to_arrow()
    found = rows(iter(tailer.changes(tmp_path / "t", columns=["id"])))
    assert found == [(1, "insert", 0), (2, "insert", 0), (2, "delete", 1)]


def test_a_missing_file_is_named_as_in_the_log_too(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"id": [1], "p": ["a b"]}), partition_by=["p"])
    (file,) = tmp_path.glob("t/p=*/*.parquet")
    file.unlink()
    with pytest.raises(FileVacuumed, match=f"needs {file} .p=a%2520b/{file.name} in the log."):
        list(tailer.changes(tmp_path / "t"))


@pytest.mark.parametrize(
    ("start", "end"), [(4, 2), (12, 9), (datetime(2031, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC))]
)
def test_a_start_after_the_end_is_refused_before_anything_is_read(start: int | datetime, end: int | datetime) -> None:
    with pytest.raises(ConfigError, match=r"start: \S+ ?\S* comes after the end, "):
        tailer.changes("nowhere", start=start, end=end)


def check_traceback(error: TailerError) -> None:
    """Check that it has one frame, the caller's, and ends with the next step, given once."""
    text = "".join(traceback.format_exception(error))
    assert text.count("  File ") == 1
    assert error.hint
    assert text.endswith(f"{error}\n{error.hint}\n")
    assert text.count(error.hint) == 1


@pytest.mark.parametrize("has_cause", [False, True])
def test_an_error_has_no_frames_of_ours_and_the_next_step(tmp_path: Path, has_cause: bool) -> None:
    if has_cause:
        write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
        next(tmp_path.glob("t/*.parquet")).write_bytes(b"no Parquet")
    with pytest.raises(TailerError) as caught:
        tailer.changes(tmp_path / "t").to_arrow()
    check_traceback(caught.value)
    assert isinstance(caught.value.__cause__, pa.ArrowInvalid) == has_cause


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_without_its_library_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=f"to_{library}: needs {library}: ") as caught:
        getattr(tailer.changes(tmp_path), f"to_{library}")()
    assert caught.value.hint == f"Install it: pip install {library}."
    check_traceback(caught.value)


@pytest.mark.anyio
async def test_an_error_in_a_loop_of_an_event_loop_is_as_short(tmp_path: Path) -> None:
    with pytest.raises(NotATable) as caught:
        async for _ in tailer.changes(tmp_path / "t"):
            pass
    check_traceback(caught.value)


def test_all_changes_in_order(orders: str) -> None:
    assert rows(iter(tailer.changes(orders))) == CHANGES


def test_a_batch_has_rows_of_one_version(tmp_path: Path) -> None:
    """Also where small versions are read together."""
    for number in range(30):
        write_deltalake(tmp_path, pa.table({"id": [number, number + 100]}), mode="append")
    versions = [batch["_commit_version"].to_pylist() for batch in tailer.changes(tmp_path)]
    assert versions == [[number] * 2 for number in range(30)]


def test_iterating_again_reads_again(orders: str) -> None:
    changes = tailer.changes(Path(orders), start=2, end=2)
    assert rows(iter(changes)) == CHANGES[5:7]
    assert rows(iter(changes)) == CHANGES[5:7]


@pytest.mark.anyio
async def test_asynchronous_iteration_gives_the_same(orders: str) -> None:
    batches = [batch async for batch in tailer.changes(orders)]
    assert rows(iter(batches)) == CHANGES


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"start": 3}, CHANGES[7:]),
        ({"start": "latest"}, []),
        ({"start": 4}, []),
        ({"start": 4, "net": True}, []),
        ({"end": 0}, CHANGES[:3]),
        ({"start": datetime(2000, 1, 1, tzinfo=UTC), "end": datetime(2100, 1, 1, tzinfo=UTC)}, CHANGES),
        ({"start": "snapshot", "end": 3}, [(1, 10.0), (2, 21.0), (3, 30.0), (5, 50.0)]),
        ({"start": 3, "columns": ["amount"]}, [(40.0, "delete", 3)]),
        ({"start": 2, "end": 2, "carryovers": "keep"}, 6),
        ({"net": True}, [(1, 10.0), (3, 30.0), (5, 50.0), (2, 21.0)]),
        ({"net": True, "start": 1, "end": 2}, CHANGES[3:7]),
        ({"start": 3, "row_ids": True}, [(4, 40.0, None, None, "delete", 3)]),
    ],
)
def test_options(orders: str, options: dict[str, Any], expected: Any) -> None:
    found = rows(iter(tailer.changes(orders, **options)))
    if isinstance(expected, int):
        assert len(found) == expected
    elif expected and len(expected[0]) == 2:
        assert sorted(row[:2] for row in found) == sorted(expected)
        assert {row[2] for row in found} == {"insert"}
    else:
        assert found == expected


@pytest.mark.parametrize("net", [False, True])
def test_nothing_new_has_the_columns_of_the_table(orders: str, net: bool) -> None:
    assert tailer.changes(orders, start=4, net=net).to_arrow().column_names == ["id", "amount", *METADATA]
    with pytest.raises(VersionAhead):
        tailer.changes(orders, start=5, net=net).to_arrow()


def test_an_empty_range_of_net_changes_stays_empty(orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that comes while the range is resolved is not delivered as it is."""
    resolve_end = DeltaTableLog.resolve_end

    async def resolve_then_commit(self: DeltaTableLog, end: Start) -> int:
        found = await resolve_end(self, end)
        more = pa.table({"id": [9], "amount": [9.0]})
        await to_thread.run_sync(lambda: write_deltalake(orders, more, mode="append"))
        return found

    monkeypatch.setattr(DeltaTableLog, "resolve_end", resolve_then_commit)
    assert tailer.changes(orders, start=4, net=True).to_arrow().num_rows == 0


def test_updates_by_key(orders: str) -> None:
    changes = tailer.changes(orders, start=2, end=2, compute_updates=True, key=["id"])
    assert rows(iter(changes)) == [(2, 20.0, "update_preimage", 2), (2, 21.0, "update_postimage", 2)]


@cases(
    ("options", "where"),
    [
        ({"carryovers": "perhaps"}, "carryovers"),
        ({"columns": "id"}, "columns"),
        ({"key": ["id"]}, "key"),
        ({"key": ["id"], "compute_updates": True, "columns": ["amount"]}, "key"),
        ({"net": True, "end": None}, "net"),
        ({"net": True, "start": "snapshot"}, "net"),
        ({"net": True, "carryovers": "keep"}, "carryovers"),
        ({"net": True, "skip_unchanged": True}, "skip_unchanged"),
        ({"start": "yesterday"}, "start"),
        ({"end": "earliest"}, "end"),
        ({"start": 4, "end": 2}, "start"),
        ({"key": 3}, "key"),
        ({"columns": ["payload:$."]}, "columns"),
        ({"row_ids": "yes"}, "row_ids"),
        ({"allowed_roots": [3]}, "allowed_roots"),
        ({"table_format": "delt"}, "table_format"),
        ({"branch": "x", "table_format": "delta"}, "branch"),
    ],
)
def test_options_that_cannot_be_are_refused_before_any_reading(options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as refused:
        tailer.changes("nowhere", **options)
    assert refused.value.where == where
    check_traceback(refused.value)


@cases("table", [5, None, b"orders", ["orders"], "", Path("a\0b")])
def test_what_is_no_path_is_refused(table: Any) -> None:
    with pytest.raises(ConfigError, match="table: ") as refused:
        tailer.changes(table)
    check_traceback(refused.value)


def test_a_range_of_net_changes_must_exist(orders: str) -> None:
    with pytest.raises(ConfigError, match="version 9 does not exist"):
        list(tailer.changes(orders, net=True, end=9))


def test_an_option_of_another_type_is_named() -> None:
    for option in signature(tailer.changes).parameters.keys() - {"table"}:
        for value in (object(), -1, 1.5):
            given: dict[str, Any] = {option: value}
            with pytest.raises(ConfigError, match=option) as raised:
                tailer.changes("orders", **given)
            assert raised.value.hint
    with pytest.raises(ConfigError, match="allowed_roots: 'lake' is one string"):
        tailer.changes("orders", allowed_roots="lake")


def test_words_may_be_those_of_an_enumeration() -> None:
    found = tailer.changes("orders", carryovers=Carryovers.KEEP, table_format="lance", columns=iter("ab"))
    assert (found.read.carryovers, found.table.table_format) == (Carryovers.KEEP, "lance")
    assert found.read.columns == ["a", "b"]


@pytest.mark.parametrize("path", ["nowhere", "hdfs://bucket/orders"])
def test_paths_without_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((NotATable, ConfigError)):
        list(tailer.changes(path))


def test_a_reader_that_stops_leaves_nothing_running(orders: str) -> None:
    before = threading.active_count()
    for batch in tailer.changes(orders, end=None):
        assert batch.num_rows == 3
        break
    while threading.active_count() > before:
        time.sleep(0.01)


SYNCHRONOUS = """
batches = iter(changes)
print(next(batches).num_rows)
"""
ASYNCHRONOUS = """
async def first():
    global batches
    batches = aiter(changes)
    print((await anext(batches)).num_rows)

asyncio.run(first())
"""


@pytest.mark.parametrize("use", [SYNCHRONOUS, ASYNCHRONOUS], ids=["synchronous", "asynchronous"])
def test_a_program_ends_although_it_holds_an_iterator(orders: str, use: str) -> None:
    program = f"import asyncio, tailer\nchanges = tailer.changes({orders!r})\n{use}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


@pytest.mark.anyio
async def test_following_yields_what_is_committed_meanwhile(orders: str) -> None:
    found: list[tuple[Any, ...]] = []
    new = pa.table({"id": [6], "amount": [60.0]})
    with anyio.fail_after(300):
        async for batch in tailer.changes(orders, start=3, end=None):
            found += rows(iter([batch]))
            if len(found) == 2:
                break
            await to_thread.run_sync(lambda: write_deltalake(orders, new, mode="append"))
    assert found == [CHANGES[7], (6, 60.0, "insert", 4)]


def test_a_retry_repeats_no_row(orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    next_plans, failures = DeltaTableLog.next_plans, iter([True] * 2)

    async def failing(log: DeltaTableLog, most: int) -> Sequence[ChangePlan]:
        plans = await next_plans(log, most)
        if any(plan.version == 2 for plan in plans) and next(failures, False):
            raise StorageUnavailable(orders, "the disk is away")
        return plans

    monkeypatch.setattr(DeltaTableLog, "next_plans", failing)
    assert rows(iter(tailer.changes(orders))) == CHANGES


def test_a_table_of_everything_has_the_columns_of_all_versions(orders: str) -> None:
    new = pa.table({"id": [6], "amount": [60.0], "note": ["new"]})
    write_deltalake(orders, new, mode="append", schema_mode="merge")
    table = tailer.changes(orders, start=3).to_arrow()
    assert table.schema.names == ["id", "amount", "note", *METADATA]
    assert table["note"].to_pylist() == [None, "new"]


def test_a_table_without_rows_has_columns(orders: str) -> None:
    DeltaTable(orders).optimize.compact()
    table = tailer.changes(orders, start=4).to_arrow()
    assert table.num_rows == 0
    assert table.schema.names == ["id", "amount", *METADATA]


def test_columns_of_two_types_do_not_become_one_table(orders: str) -> None:
    new = pa.table({"id": ["six"], "amount": [60.0]})
    write_deltalake(orders, new, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SchemaChanged, match="do not fit into one table") as caught:
        tailer.changes(orders).to_arrow()
    check_traceback(caught.value)


def test_polars(orders: str) -> None:
    frame = tailer.changes(orders, start=3).to_polars()
    assert frame.select("id", "_change_type").rows() == [(4, "delete")]


def test_version() -> None:
    assert tailer.__version__ == version("lake-tailer")


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    script = "import sys, tailer; print('pyarrow' in sys.modules, tailer.changes.__module__)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "tailer.api"]


def test_at_most_one_batch_is_read_ahead(orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handed_over = 0
    write = api._BatchTransaction.write

    async def counting(transaction: Any, batch: Any) -> None:
        nonlocal handed_over
        await write(transaction, batch)
        handed_over += 1

    monkeypatch.setattr(api._BatchTransaction, "write", counting)
    batches = iter(tailer.changes(orders))
    assert len(list(islice(batches, 1))) == 1
    time.sleep(0.2)
    assert handed_over <= 2
    batches.close()
