"""Reading data files of a store: our ranges, Arrow's S3 file system and obstore, at a server of this machine.

The server answers each request after `DELAY_S`, as an object store does, from another process. One run measures all
contenders and the same files on the local disk; Arrow and obstore read files one after the other, in one thread. Where
obstore is not installed, it is left out. Nothing is asserted about time. `make bench` prints the table.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from anyio import run

from tailer.engine.local import LocalEngine
from tailer.plan import ChangePlan, Regime
from tailer.read.data_files import LOCAL, DataFiles
from tests.support.servers.ranged_http import HttpObjects, serving
from tests.support.tables.log_files import parquet, task

RUNS: Final = 3
DELAY_S: Final = float(os.environ.get("LAKE_TAILER_BENCH_DELAY_S", "0.02"))
KINDS: Final[dict[str, tuple[pa.DataType, Callable[[Random], object]]]] = {
    "numbers": (pa.int64(), lambda dice: dice.getrandbits(60)),
    "reals": (pa.float64(), Random.random),
    "texts": (pa.string(), lambda dice: f"a text of some length {dice.getrandbits(40)}"),
}
COLUMNS: Final = [f"{name}{number}" for number in range(4) for name in KINDS]
FILES: Final = {  # number, rows, and rows of a row group
    "one file of 2,000,000 rows": (1, 2_000_000, 1_000_000),
    "40 files of 50,000 rows": (40, 50_000, 50_000),
    "50 files of 10 rows": (50, 10, 10),
}


def written(folder: Path, count: int, rows: int, group: int) -> list[Path]:
    """Write files of 12 columns; a value of a column comes again after 50,000 rows."""
    dice, some = Random(1), min(rows, 50_000)
    made = {name: pa.array([make(dice) for _ in range(some)], kind) for name, (kind, make) in KINDS.items()}
    columns = {name: pa.concat_arrays([made[name[:-1]]] * (rows // some)) for name in COLUMNS}
    options: dict[str, Any] = {"use_dictionary": False, "compression": "snappy", "row_group_size": group}
    return [parquet(folder / f"{number:04}", pa.table(columns), **options) for number in range(count)]


def plan(paths: list[Path], prefix: str, columns: list[str]) -> ChangePlan:
    schema = pa.schema([(name, KINDS[name[:-1]][0]) for name in columns])
    tasks = [
        replace(
            task(f"{prefix}{path if not prefix else '/bucket/' + path.name}", schema),
            index=index,
            size_bytes=path.stat().st_size,
        )
        for index, path in enumerate(paths)
    ]
    return ChangePlan("t", "id", 3, 1000, None, Regime.FILES, schema, tuple(tasks))


def ours(made: ChangePlan, files: DataFiles) -> int:
    """Run a plan; return the number of rows."""

    async def rows() -> int:
        async with LocalEngine(files=files).run(made) as batches:
            return sum([len(batch) async for batch in batches])

    return run(rows)


def theirs(sources: Iterator[Any], columns: list[str], **options: Any) -> int:
    """Decode files one after the other, in batches as we do; return the number of rows."""
    rows = 0
    for source in sources:
        with pq.ParquetFile(source, **options) as file:
            rows += sum(batch.num_rows for batch in file.iter_batches(8192, columns=columns, use_threads=False))
    return rows


def contenders(port: int, paths: list[Path], columns: list[str]) -> Iterator[tuple[str, Callable[[], int]]]:
    yield "local disk", lambda: ours(plan(paths, "", columns), LOCAL)
    yield "our ranges", lambda: ours(plan(paths, "http:/", columns), DataFiles(HttpObjects(port)))
    arrow = pyarrow.fs.S3FileSystem(
        access_key="a", secret_key="b", endpoint_override=f"127.0.0.1:{port}", scheme="http", region="us-east-1"
    )
    names = [f"bucket/{path.name}" for path in paths]
    for name, options in (
        ("Arrow, buffered", {"buffer_size": 2**20, "pre_buffer": False}),
        ("Arrow, whole groups", {}),
    ):
        yield name, lambda options=options: theirs(map(arrow.open_input_file, names), columns, **options)  # type: ignore[misc]
    if find_spec("obstore") is not None:  # not a dependency
        obstore: Any = import_module("obstore")
        store = obstore.store.S3Store(
            "bucket",
            endpoint=f"http://127.0.0.1:{port}",
            access_key_id="a",
            secret_access_key="b",
            region="us-east-1",
            client_options={"allow_http": True},
        )
        opened = (pa.PythonFile(_Reader(obstore.open_reader(store, path.name)), "r") for path in paths)
        yield "obstore, buffered", lambda: theirs(opened, columns, buffer_size=2**20, pre_buffer=False)


class _Reader:
    """A reader of obstore as Arrow wants a file."""

    closed = False

    def __init__(self, reader: Any) -> None:
        self.seek, self.tell = reader.seek, reader.tell
        self._reader = reader

    def read(self, length: int) -> bytes:
        return bytes(self._reader.read(length))

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS[2:8:5]], ids=["12 columns", "2 of 12 columns"])
@pytest.mark.parametrize("kind", FILES)
def test_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, columns: list[str]) -> None:
    count, rows, group = FILES[kind]
    paths = written(tmp_path, count, rows, group)
    times: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        port = stack.enter_context(serving(tmp_path, DELAY_S))
        for _ in range(RUNS):
            for name, work in contenders(port, paths, columns):
                start, cpu = time.perf_counter(), time.process_time()
                assert work() == count * rows
                times.setdefault(name, []).append((time.perf_counter() - start, time.process_time() - cpu))
    local = statistics.median(seconds for seconds, _ in times["local disk"])
    with capsys.disabled():
        size = sum(path.stat().st_size for path in paths) / 2**20
        print(f"\n{kind}, {size:.0f} MB, {len(columns)} columns; {1000 * DELAY_S:.0f} ms a request; medians of {RUNS}")
        for name, found in times.items():
            seconds, cpu = (statistics.median(values) for values in zip(*found, strict=True))
            speed = f"{count * rows / seconds / 1e6:.3f} Mrows/s, {local / seconds:.2f} of local"
            print(f"{name}: {seconds:.2f} s, {cpu:.2f} s of CPU, {speed}")
