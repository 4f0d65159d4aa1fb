"""A process that writes one transaction of many rows into a `DeltaSink`: arguments PATH and ROWS.

Prints the peak memory in bytes.
"""

import re
import sys
from pathlib import Path

import anyio
import pyarrow as pa

from tailer.events import ChangeBatch
from tailer.plan import Position, output_schema
from tailer.sink import Progress
from tailer_sinks.delta.sink import DeltaSink

__all__ = ["deliver"]

_ROWS = 65536
_SCHEMA = output_schema(pa.schema([("id", pa.int64()), ("text", pa.string()), ("number", pa.float64())]))


def _batch(first: int) -> ChangeBatch:
    numbers = pa.array(range(first, first + _ROWS), pa.int64())
    rows = pa.RecordBatch.from_arrays(
        [
            numbers,
            numbers.cast(pa.string()),
            numbers.cast(pa.float64()),
            pa.repeat(pa.scalar("insert"), _ROWS),
            pa.repeat(pa.scalar(1, pa.int64()), _ROWS),
            pa.repeat(pa.scalar(1, pa.timestamp("us", tz="UTC")), _ROWS),
        ],
        schema=_SCHEMA,
    )
    return ChangeBatch("table", 1, 0, rows, numbers)


async def deliver(path: str, count: int) -> None:
    """Write and commit at least `count` rows."""
    async with DeltaSink("target", path).begin("bulk", _SCHEMA) as transaction:
        for first in range(0, count, _ROWS):
            await transaction.write(_batch(first))
        await transaction.commit(Progress("bulk", Position.end(1)))


if __name__ == "__main__":
    anyio.run(deliver, sys.argv[1], int(sys.argv[2]))
    # Not `ru_maxrss`: that includes the memory of the parent at the start.
    print(int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) * 1024)
