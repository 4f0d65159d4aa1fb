"""A process that follows an imaginary table into a `DeltaSink`, for kills and races: arguments PATH, APP, LAST.

Version v has `v % 5` rows, so some have none. Every 16th version changes the columns after these rows and then has two
more. A fenced process reads its progress again and continues, unlike the daemon, so two processes race until the last
version. Prints how often it was fenced.
"""

import sys
import time

import anyio
import pyarrow as pa

from tailer.errors import SinkFenced, SinkUnavailable
from tailer.events import ChangeBatch, SchemaChange
from tailer.plan import Position, output_schema
from tailer.sink import Progress
from tailer_sinks.delta.sink import DeltaSink

__all__ = ["SCHEMA", "batch", "expected_rows"]

SCHEMA = output_schema(pa.schema([("app", pa.string()), ("n", pa.int64())]))
AFTER = output_schema(pa.schema([("n", pa.int32()), ("app", pa.string()), ("extra", pa.list_(pa.int64()))]))


def expected_rows(app: str, version: int) -> list[tuple[str, int, int]]:
    """Return the rows of one version: app, n, version."""
    return [(app, n, version) for n in [*range(version % 5), *([100, 101] if version % 16 == 15 else [])]]


def batch(app: str, version: int) -> ChangeBatch:
    """Return the version's first rows as the pipeline would pass them."""
    return _batch(app, version, 0, range(version % 5), SCHEMA)


def _batch(app: str, version: int, task: int, numbers: range, schema: pa.Schema) -> ChangeBatch:
    stamp = {"_change_type": "insert", "_commit_version": version, "_commit_timestamp": version}
    rows = pa.RecordBatch.from_pylist([{"app": app, "n": n, **stamp} for n in numbers], schema=schema)
    return ChangeBatch(app, version, task, rows, pa.array(numbers, pa.int64()))


async def deliver(path: str, app: str, last: int) -> int:
    """Bring the sink to version `last`; return how often another process was faster."""
    sink = DeltaSink("target", path)
    fenced = 0
    while True:
        done = await sink.progress(app)
        version = done.position.version + 1 if done else 0
        if version > last:
            return fenced
        try:
            async with sink.begin(app, SCHEMA) as transaction:
                await transaction.write(batch(app, version))
                if version % 16 == 15:
                    await transaction.announce(SchemaChange(app, version, 0, SCHEMA, AFTER, ("n was narrowed",)))
                    await transaction.write(_batch(app, version, 1, range(100, 102), AFTER))
                await transaction.commit(Progress(app, Position.end(version)))
        except (SinkFenced, SinkUnavailable):
            fenced += 1


if __name__ == "__main__":
    print(f"started {time.time()}", flush=True)
    print(anyio.run(deliver, sys.argv[1], sys.argv[2], int(sys.argv[3])))
