"""A process that reads all changes of a table and keeps no row: arguments READER, PATH and FIRST, a version.

It prints the rows, the seconds of reading, its processor time and its largest resident memory, as JSON. Imports do not
count as reading. It is a separate process, so that the memory of each reader is its own. Of ours, "counted" also says
how many rows were decoded.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

__all__ = ["READERS"]

_API: Final = "tailer.api"
_EVENT_LOOP: Final = "anyio._backends._asyncio"  # imported by anyio when it is first used
_decoded: Final[list[int]] = []


def _ours(library: Any, path: str, first: int, **options: object) -> Iterator[int]:
    return (batch.num_rows for batch in library.changes(path, start=first, **options))


def _counted(library: Any, path: str, first: int) -> Iterator[int]:
    sizes = import_module("tailer.read.parquet.batch_sizes").BatchSizes
    decode = sizes.decode

    def counting(self: Any, file: Any, group: int) -> Iterator[Any]:
        for batch in decode(self, file, group):
            _decoded.append(batch.num_rows)
            yield batch

    sizes.decode = counting
    yield from _ours(library, path, first)


def _delta_rs(library: Any, path: str, first: int) -> Iterator[int]:
    return (batch.num_rows for batch in library.DeltaTable(path).load_cdf(starting_version=first))


def _polars(library: Any, path: str, _: int) -> Iterator[int]:
    """Decode the data files of all versions alone, one after the other on each of two threads."""
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(lambda file: library.read_parquet(file).height, sorted(Path(path).glob("*.parquet")))


READERS: Final[dict[str, tuple[str, Callable[[Any, str, int], Iterator[int]]]]] = {
    "ours": (_API, _ours),
    "ours, counted": (_API, _counted),
    "ours, carry-overs kept": (_API, partial(_ours, carryovers="keep")),
    "delta-rs": ("deltalake", _delta_rs),
    "Polars": ("polars", _polars),
}


def _main(reader: str, path: str, first: str) -> None:
    library, read = READERS[reader]
    module = import_module(library)
    if library == _API:
        import_module(_EVENT_LOOP)
    start, cpu = time.perf_counter(), time.process_time()
    rows = sum(read(module, path, int(first)))
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    peak_mb = int(_peak_kb()) / 1024
    taken = {"rows": rows, "seconds": seconds, "cpu_s": cpu_s, "peak_mb": peak_mb, "decoded_rows": sum(_decoded)}
    print(json.dumps(taken))


def _peak_kb() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    _main(*sys.argv[1:])
