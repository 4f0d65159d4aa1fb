"""A process that writes one transaction into a mirror of the `delta` sink: arguments PATH, VERSION and what it changes.

The last argument has options of the sink, as JSON.

`snapshot ROWS`: a snapshot of so many rows of 200 bytes. `ends ROWS`: an update of the first and the last of them.
`all ROWS`: an update of all. Prints the peak memory in bytes.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import anyio
import pyarrow as pa

from tailer.events import METADATA_FIELDS, ChangeBatch
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer.sink import Progress
from tailer_sinks.delta.sink import DeltaSink

_APP: Final = "orders/5f0c6a1e"
_ROWS: Final = 16384
_SCHEMA: Final = pa.schema([("id", pa.int64()), ("text", pa.string()), *METADATA_FIELDS])


def _batch(version: int, kind: str, ids: Iterable[int], task: int = 0) -> ChangeBatch:
    numbers = pa.array(ids, pa.int64())
    texts = pa.array([f"{each:012d}-{version}-" * 12 for each in numbers.to_pylist()], pa.string())
    metadata = [
        pa.repeat(pa.scalar(value, field.type), len(numbers))
        for value, field in zip((kind, version, 1), METADATA_FIELDS, strict=True)
    ]
    rows = pa.RecordBatch.from_arrays([numbers, texts, *metadata], schema=_SCHEMA)
    return ChangeBatch("table", version, task, rows, pa.array(range(len(numbers)), pa.int64()))


def _batches(version: int, what: str, count: int) -> Iterator[ChangeBatch]:
    if what == "ends":
        for kind in ("update_preimage", "update_postimage"):
            yield _batch(version, kind, [0, count - 1])
        return
    kinds, task = (["insert"], SNAPSHOT_TASKS) if what == "snapshot" else (["update_preimage", "update_postimage"], 0)
    for kind in kinds:
        for first in range(0, count, _ROWS):
            yield _batch(version, kind, range(first, min(first + _ROWS, count)), task)


async def _deliver(path: str, version: int, what: str, count: int, options: dict[str, str]) -> None:
    sink = DeltaSink.configure("orders", {"path": path, "mode": "mirror", "key": ["id"], **options})
    async with sink.begin(_APP, _SCHEMA) as transaction:
        for batch in _batches(version, what, count):
            await transaction.write(batch)
        await transaction.commit(Progress(_APP, Position.end(version)))


if __name__ == "__main__":
    anyio.run(_deliver, sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5]))
    peak = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    assert peak is not None
    print(int(peak[1]) * 1024)
