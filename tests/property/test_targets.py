"""Targets with any content, by any spelling of their path: only our own and free ones are written to.

Each case is a configuration as a user writes it, checked and run. A foreign target keeps its bytes; our own, or a free
one, gets every change row once.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import pyarrow as pa
import pytest
from anyio import to_thread
from deltalake import DeltaTable, Schema, write_deltalake

from tailer.config.settings import load
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError, SinkRejected
from tailer.events import METADATA_FIELDS
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import Position
from tailer.sink import Progress, Sink
from tailer.start import Start, StartKind
from tailer.stores.wakeup import TimerWake
from tailer_sinks.delta.sink import DeltaSink

VERSIONS: Final = 3
ROWS: Final = pa.table({"id": [1, 2]})


def make_table(path: Path) -> None:
    for _ in range(VERSIONS):
        write_deltalake(path, ROWS, mode="append")


def deliver_earlier(path: Path, kind: str) -> None:
    """Write the target of an earlier pipeline of that name to `path`."""
    run_pipeline(path.parent / "source", path, kind)


def run_pipeline(source: Path, target: Path, kind: str, options: str = "", last: int = VERSIONS - 1) -> None:
    """Check and run a pipeline up to version `last`."""
    config = source.parent / "tailer.toml"
    config.write_text(
        f'[pipelines.orders]\ntable = "{source}"\n'
        f'[pipelines.orders.sink]\nkind = "{kind}"\npath = "{target}"\n{options}'
    )
    settings = load(config)
    (pipeline,) = settings.pipelines
    sink = settings.open_sink(pipeline)

    async def deliver(sink: Sink) -> None:
        end = Start(StartKind.VERSION, last)
        log = pipeline.open_table()
        try:
            await row_pipeline("orders", log, sink, LocalEngine(), TimerWake(), pipeline.start, end).run()
        finally:
            await sink.aclose()

    anyio.run(deliver, sink)


def created_only(path: Path, kind: str) -> None:
    """Make the target of a first writer that was killed after its first step."""
    if kind == "delta":
        DeltaTable.create(path, Schema.from_arrow(pa.schema([("id", pa.int64()), *METADATA_FIELDS])))
    else:
        (path / "orders" / str(DeltaTable(path.parent / "source").metadata().id)).mkdir(parents=True)


def copy_of_the_source(path: Path, _: str) -> None:
    shutil.copytree(path.parent / "source", path)


def folder_with_files(path: Path, _: str) -> None:
    path.mkdir()
    (path / "part-0.parquet").write_bytes(b"somebody's")


def folder_of_folders(path: Path, _: str) -> None:
    (path / "2026" / "03").mkdir(parents=True)
    (path / "2026" / "03" / "report.csv").write_bytes(b"somebody's")


# The content of the target's folder, and whether it may be written to.
LAYOUTS: Final[dict[str, tuple[Callable[[Path, str], object], bool]]] = {
    "nothing": (lambda _path, _kind: None, True),
    "empty folder": (lambda path, _kind: path.mkdir(), True),
    "empty log": (lambda path, _kind: (path / "_delta_log").mkdir(parents=True), True),
    "delivered to before": (deliver_earlier, True),
    "created only": (created_only, True),
    "another table": (lambda path, _kind: make_table(path), False),
    "copy of the source": (copy_of_the_source, False),
    "folder with files": (folder_with_files, False),
    "folder of folders": (folder_of_folders, False),
}


def plain(target: Path) -> str:
    return str(target)


def linked(target: Path) -> str:
    link = target.parent / "link"
    link.symlink_to(target)
    return str(link)


def below_a_link(target: Path) -> str:
    link = target.parent.parent / "linked"
    link.symlink_to(target.parent)
    return str(link / target.name)


def with_dots(target: Path) -> str:
    (target.parent / "aside").mkdir()
    return f"{target.parent}/aside/.././{target.name}/"


def relative(target: Path) -> str:
    return target.name


SPELLINGS: Final = (plain, linked, below_a_link, with_dots, relative)


def fingerprint(folder: Path) -> dict[str, str]:
    """Return all files in `folder`, with their contents."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def refused(source: Path, target: str, kind: str, options: str = "") -> str:
    """Return the reason why the check or the run refuses the pipeline; empty if neither does."""
    try:
        run_pipeline(source, Path(target), kind, options)
    except ExceptionGroup as group:
        errors = list(group.exceptions)
    except SinkRejected as error:
        errors = [error]
    else:
        return ""
    named = [error for error in errors if isinstance(error, ConfigError | SinkRejected) and error.hint]
    assert named == errors
    return str(named[0])


def count(target: Path, kind: str) -> int:
    """The number of change rows at the target."""
    if kind == "delta":
        return len(pa.table(DeltaTable(target).scan(["id"])))
    return sum(len(path.read_bytes().splitlines()) for path in target.rglob("*.jsonl"))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ["delta", "files"])
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_own_and_free_targets_are_written_to(
    tmp_path: Path, layout: str, spelling: Callable[[Path], str], kind: str
) -> None:
    folder = tmp_path / "data"
    make, is_free = LAYOUTS[layout]
    source, target = folder / "source", folder / "target"
    make_table(source)
    make(target, kind)
    before = fingerprint(folder / "source"), fingerprint(target)
    reason = refused(source, spelling(target), kind)
    if spelling is linked and not target.exists():
        assert "is a link that leads nowhere" in reason
        return
    assert fingerprint(source) == before[0]
    if is_free:
        assert reason == ""
        assert count(target, kind) == VERSIONS * len(ROWS)
        assert refused(source, str(target), kind) == ""
        assert count(target, kind) == VERSIONS * len(ROWS)
    else:
        assert str(target.name) in reason or "link" in reason or "aside" in reason
        assert fingerprint(target) == before[1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["delta", "files"])
@pytest.mark.parametrize("options", ["", "adopt = true"])
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("where", ["source", "source/inside", "."])
def test_the_source_is_never_written_to(
    tmp_path: Path, where: str, spelling: Callable[[Path], str], options: str, kind: str
) -> None:
    """Neither the source itself, nor a folder inside it, nor one around it, with or without `adopt`."""
    source = tmp_path / "more" / "data" / "source"
    make_table(source)
    (source / "inside").mkdir()
    before = fingerprint(source)
    target = Path(os.path.normpath(source.parent / where))
    path = str(source.parent / where) if spelling is relative else spelling(target)
    assert refused(source, path, kind, options)
    assert fingerprint(source) == before


@pytest.mark.parametrize("kind", ["delta", "files"])
@pytest.mark.parametrize("options", ["", "adopt = true"])
def test_nothing_is_begun_inside_another_table(tmp_path: Path, options: str, kind: str) -> None:
    """Its VACUUM would delete our files."""
    make_table(tmp_path / "source")
    make_table(tmp_path / "other")
    before = fingerprint(tmp_path / "other")
    for below in ("inside", "inside/deeper"):
        reason = refused(tmp_path / "source", str(tmp_path / "other" / below), kind, options)
        assert f"is inside the Delta table {tmp_path / 'other'}" in reason
    assert fingerprint(tmp_path / "other") == before


@pytest.mark.parametrize("kind", ["delta", "files"])
def test_foreign_targets_are_accepted_with_adopt(tmp_path: Path, kind: str) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    make_table(source)
    if kind == "delta":
        make_table(target)
    else:
        folder_with_files(target, kind)
    before = fingerprint(target)
    reason = refused(source, str(target), kind)
    assert "adopt" not in reason
    assert refused(source, str(target), kind, "adopt = true") == ""
    assert before.items() <= fingerprint(target).items()
    there = VERSIONS * len(ROWS) if kind == "delta" else 0
    assert count(target, kind) == there + VERSIONS * len(ROWS)
    # From then on it is ours, and needs no `adopt`.
    assert refused(source, str(target), kind) == ""


@pytest.mark.anyio
@pytest.mark.parametrize("adopt", [False, True])
async def test_a_source_that_no_path_shows_is_known_by_its_id(tmp_path: Path, adopt: bool) -> None:
    """As if a disk were mounted twice: neither links nor folders show that it is one table."""
    await to_thread.run_sync(make_table, tmp_path)
    table_id = await to_thread.run_sync(lambda: str(DeltaTable(tmp_path).metadata().id))
    sink, before = DeltaSink("orders", str(tmp_path), adopt=adopt), fingerprint(tmp_path)
    with pytest.raises(SinkRejected, match=f"is the source table, or a copy of it: both .* {table_id}"):
        await sink.progress(f"orders/{table_id}")
    with pytest.raises(SinkRejected, match="is the source table"):
        async with sink.begin(f"orders/{table_id}", pa.schema([*ROWS.schema, *METADATA_FIELDS])):
            pass
    with pytest.raises(SinkRejected, match="is the source table"):
        await sink.reset(Progress(f"orders/{table_id}", Position.end(3)))
    assert fingerprint(tmp_path) == before
