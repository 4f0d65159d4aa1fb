"""Conditions that name no column, on every way to rows but Spark's executors (`test_spark_where`)."""

import json
import time
from pathlib import Path
from typing import Final

import lance
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import tailer as api
from tailer.errors import ConfigError
from tests.support.daemon.commands import background, tailer
from tests.support.oracle.recorded import CASES_DATA, read
from tests.support.spark.queries import read_batch

WAIT_S: Final = 60.0
FEED: Final = CASES_DATA / "replace_where_writes_change_files.1.tar.xz"
ALL: Final = ["true", "1 = 1", "NULL IS NULL AND 50 NOT IN (0.3)", "id = 1 OR true"]
NONE: Final = ["false", "null", "id = 1 AND null", "id = 1 AND false"]
REFUSED: Final = ["1/0 = 1", "id = 1 OR 1/0 = 1", "current_date() > DATE'2024-01-01'", "rand() < 1", "1", "'a'", ""]


def rewritten(path: Path) -> Path:
    """Write a Delta table without a feed: two appends, and a rewritten file."""
    for first in (0, 2):
        write_deltalake(path, pa.table({"id": [first, first + 1]}), mode="append")
    DeltaTable(path).delete("id = 1")
    return path


def fragments(path: Path) -> Path:
    """Write a Lance dataset alike."""
    for first in (0, 2):
        lance.write_dataset(pa.table({"id": [first, first + 1]}), str(path), mode="append" if first else "create")
    lance.dataset(str(path)).delete("id = 1")
    return path


def changes(path: Path, where: str | None, *, compute_updates: bool = False) -> list[str]:
    """Return all changes of a table by the Python API, as text."""
    found = api.changes(path, start=1, where=where, compute_updates=compute_updates)
    return sorted(map(str, (row for batch in found for row in batch.to_pylist())))


def shown(path: Path, where: str | None) -> list[str]:
    """Return what `tailer tail` shows."""
    done = tailer("tail", path, "--from", 1, "--to", 2, *(() if where is None else ("--where", where)))
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A table with change files, one that is compared, and one of Lance."""
    folder = tmp_path_factory.mktemp("tables")
    made = {"feed": read(FEED, folder / "feed").path, "files": rewritten(folder / "files")}
    return made | {"lance": fragments(folder / "dataset.lance")}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("where", [*ALL, *NONE])
@pytest.mark.parametrize("name", ["feed", "files", "lance"])
def test_a_constant_lets_all_rows_through_or_none(tables: dict[str, Path], name: str, where: str) -> None:
    path = tables[name]
    for updates in (False, True):
        expected = changes(path, None, compute_updates=updates) if where in ALL else []
        assert expected or where in NONE
        assert changes(path, where, compute_updates=updates) == expected
    assert shown(path, where) == (shown(path, None) if where in ALL else [])
    if name != "lance":
        options = {"path": path, "startingVersion": 1, "endingVersion": 2}
        whole, rows = read_batch(**options), read_batch(**options, where=where)
        assert rows.num_rows == whole.num_rows * (where in ALL)


@pytest.mark.parametrize("where", REFUSED)
def test_a_constant_that_is_no_condition_is_refused(tables: dict[str, Path], where: str) -> None:
    for path in tables.values():
        with pytest.raises(ConfigError):
            changes(path, where)
        assert tailer("tail", path, "--from", 1, "--where", where).returncode == 2


def test_a_daemon_delivers_all_rows_or_none(tables: dict[str, Path], tmp_path: Path) -> None:
    texts = {f"{name}_{number}": (name, where) for name in tables for number, where in enumerate([*ALL[:2], *NONE[:2]])}
    config = tmp_path / "tailer.toml"
    config.write_text(
        "".join(
            f'[pipelines.{pipeline}]\ntable = "{tables[name]}"\nstart = 1\nwhere = {json.dumps(where)}\n'
            f'sink = {{kind = "files", path = "{tmp_path / pipeline}"}}\n'
            for pipeline, (name, where) in texts.items()
        )
    )

    def rows(pipeline: str) -> int:
        files = (tmp_path / pipeline).rglob("[0-9]*.jsonl")
        return sum(len(file.read_text().splitlines()) for file in files)

    expected = {
        pipeline: len(changes(tables[name], None)) * (where in ALL) for pipeline, (name, where) in texts.items()
    }
    with background("run", "--config", config) as daemon:
        deadline = time.monotonic() + WAIT_S
        while {pipeline: rows(pipeline) for pipeline in texts} != expected:
            assert daemon.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        daemon.terminate()
        assert daemon.wait(WAIT_S) == 0
    assert {pipeline: rows(pipeline) for pipeline in texts} == expected
