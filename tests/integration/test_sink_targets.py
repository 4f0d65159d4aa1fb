"""Targets that change under a sink, cannot be written, or were written by an earlier lake-tailer."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tailer.errors import Retry, SinkError, SinkFenced, SinkRejected, SinkUnavailable, StorageRefused
from tailer.sink import Sink
from tailer.stores.local import LocalStore
from tailer_sinks.delta import table as delta_table
from tailer_sinks.delta.sink import DeltaSink
from tailer_sinks.files.sink import FilesSink
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import APP, OTHER, SCHEMA, deliver, up_to

pytestmark = pytest.mark.anyio

GONE: Final = "was deleted or replaced"
KINDS: Final[dict[str, Callable[[Path], Sink]]] = {
    "delta": lambda path: DeltaSink("target", str(path)),
    "files": lambda path: FilesSink("target", path),
}


def empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


def replaced_by_a_table(path: Path) -> None:
    shutil.rmtree(path)
    write_deltalake(path, pa.table({"id": [1]}))


def replaced_by_files(path: Path) -> None:
    empty(path)
    (path / "report.csv").touch()


def everything(folder: Path) -> list[Path]:
    """Return all paths below `folder`."""
    return sorted(folder.rglob("*"))


async def deliver_while(sink: Sink, version: int, change: Callable[[Path], object], target: Path) -> None:
    """Deliver a version in a transaction in which `change` happens to the target."""
    async with sink.begin(APP, SCHEMA) as transaction:
        await transaction.write(numbered(version))
        change(target)
        await transaction.commit(up_to(APP, version))


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [shutil.rmtree, empty, moved, replaced_by_a_table, replaced_by_files])
async def test_a_target_that_goes_while_in_use_is_named(
    tmp_path: Path, kind: str, change: Callable[[Path], None]
) -> None:
    """No other instance took over, and the sink must not start over: delivered rows are lost."""
    target = tmp_path / "target"
    sink = KINDS[kind](target)
    await deliver(sink, numbered(1), app_id=APP)
    change(target)
    after = everything(tmp_path)
    for _ in range(2):
        with pytest.raises(
            SinkRejected, match=f"{GONE}|not written to|is not empty|is the folder of a Delta"
        ) as raised:
            await deliver(sink, numbered(2), app_id=APP)
        assert "took over" not in str(raised.value)
        assert "Position(" not in str(raised.value)
        assert raised.value.hint
        with pytest.raises(SinkRejected):
            await sink.progress(APP)
    assert everything(tmp_path) == after
    await sink.aclose()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [shutil.rmtree, empty, moved])
async def test_a_target_that_goes_in_the_middle_of_a_transaction_is_named(
    tmp_path: Path, kind: str, change: Callable[[Path], None]
) -> None:
    target = tmp_path / "target"
    sink = KINDS[kind](target)
    await deliver(sink, numbered(1), app_id=APP)
    with pytest.raises(SinkError) as raised:
        await deliver_while(sink, 2, change, target)
    assert not isinstance(raised.value, SinkFenced)
    with pytest.raises(SinkRejected, match=GONE):
        await sink.progress(APP)
    await sink.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_another_instance_continues_in_a_recreated_target(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    sink = KINDS[kind](target)
    await deliver(sink, numbered(1), app_id=APP)
    shutil.rmtree(target)
    await sink.aclose()
    again = KINDS[kind](target)
    assert await again.progress(APP) is None
    await deliver(again, numbered(1), app_id=APP)
    await again.aclose()


async def test_a_removed_lock_is_not_another_directory(tmp_path: Path) -> None:
    sink = FilesSink("target", tmp_path)
    await deliver(sink, numbered(1), app_id=APP)
    for path in everything(tmp_path):
        if path.name == ".lock":
            path.unlink()
    await deliver(sink, numbered(2), app_id=APP)
    await sink.aclose()


async def test_a_table_with_only_our_progress_goes_on(tmp_path: Path) -> None:
    """As if the operator had dropped the metadata columns: an earlier lake-tailer wrote the table."""
    for name in (APP, "orders/#delivered"):
        target = tmp_path / name.replace("/", "_")
        properties = CommitProperties(app_transactions=[Transaction(name, 3)])
        write_deltalake(target, pa.table({"id": [1]}), commit_properties=properties)
        sink = DeltaSink("target", str(target))
        assert await sink.progress(APP) == (up_to(APP, 3) if name == APP else None)
        await deliver(sink, numbered(4), app_id=APP)
        strange = DeltaSink("target", str(target))
        assert await strange.progress("invoices/1") is None  # it has our columns by now


async def test_progress_of_others_is_not_ours(tmp_path: Path) -> None:
    properties = CommitProperties(app_transactions=[Transaction("etl", 3), Transaction(OTHER, 3)])
    write_deltalake(tmp_path, pa.table({"id": [1]}), commit_properties=properties)
    with pytest.raises(SinkRejected, match="has not written to") as raised:
        await DeltaSink("target", str(tmp_path)).progress("invoices/1")
    assert "adopt = true" in raised.value.hint


async def test_a_foreign_table_created_meanwhile_is_not_written_to(tmp_path: Path) -> None:
    target = tmp_path / "target"
    sink = DeltaSink("target", str(target))
    with pytest.raises(SinkRejected, match="has not written to"):
        await deliver_while(sink, 1, lambda path: write_deltalake(path, pa.table({"id": [1]})), target)
    assert DeltaTable(target).version() == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_an_impossible_folder_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("missing")
    for name in ("file/target", "loop", "loop/target", "nowhere"):
        sink = KINDS[kind](tmp_path / name)
        with pytest.raises(SinkRejected) as raised:
            await deliver(sink, numbered(1), app_id=APP)
        assert raised.value.retry is Retry.MANUAL, name
        assert raised.value.hint
        await sink.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_where_no_folder_can_be_created_the_reason_is_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").touch()
    reasons = {"/proc/target": "/proc has no room for files", f"{tmp_path}/file/target": "file is a file, not a folder"}
    for target, reason in reasons.items():
        sink = KINDS[kind](Path(target))
        with pytest.raises(SinkRejected, match=reason) as raised:
            await deliver(sink, numbered(1), app_id=APP)
        assert target in str(raised.value)
        assert "another path" in raised.value.hint
        await sink.aclose()


async def test_where_no_state_table_can_be_created_the_reason_is_named() -> None:
    store = LocalStore(Path("/proc/state"))
    with pytest.raises(StorageRefused, match="/proc has no room for files"):
        await store.put_if_absent("_delta_log/0.json", b"{}")


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("Generic LocalFileSystem error: Permission denied (os error 13)", SinkRejected, "Permission denied"),
        (
            'Could not create: Os { code: 30, kind: ReadOnlyFilesystem, message: "Read-only file system" }',
            SinkRejected,
            "Read-only file system",
        ),
        ("Generic LocalFileSystem error: No space left on device (os error 28)", SinkUnavailable, "No space left"),
        (
            "Generic LocalFileSystem error\n ↳ Unable to copy data to file\n ↳ No space left on device (os error 28)\n",
            SinkUnavailable,
            "LocalFileSystem error: No space left on device$",
        ),
        ("Generic LocalFileSystem error: connection reset", SinkUnavailable, "connection reset"),
    ],
)
async def test_a_table_that_cannot_be_written_is_no_destination_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: type[SinkError], reason: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(text)

    sink = DeltaSink("target", str(tmp_path / "target"))
    await deliver(sink, numbered(1), app_id=APP)
    monkeypatch.setattr(delta_table, "write_deltalake", fail)
    with pytest.raises(error, match=reason):
        await deliver(sink, numbered(2), app_id=APP)


async def test_a_full_disk_below_the_files_may_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sink = FilesSink("target", tmp_path)
    monkeypatch.setattr("os.link", fail)
    with pytest.raises(SinkUnavailable, match="No space left") as raised:
        await deliver(sink, numbered(1), app_id=APP)
    assert "disk is not full" in raised.value.hint
    await sink.aclose()


async def test_a_table_replaced_by_its_operator_keeps_its_progress(tmp_path: Path) -> None:
    """The hint for a wider column: the rewritten table has another id and the old progress, and the sink continues."""
    sink = DeltaSink("target", str(tmp_path))
    await deliver(sink, numbered(1), app_id=APP)
    log = tmp_path / "_delta_log"
    first = [json.loads(line) for line in (log / f"{0:020d}.json").read_text().splitlines()]
    (metadata,) = [action["metaData"] for action in first if "metaData" in action]
    metadata["id"] = "00000000-0000-4000-8000-000000000000"
    (log / f"{2:020d}.json").write_text(json.dumps({"metaData": metadata}) + "\n")
    await deliver(sink, numbered(2), app_id=APP)
    assert await DeltaSink("target", str(tmp_path)).progress(APP) == up_to(APP, 2)
