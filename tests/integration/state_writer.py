"""A process that records positions in a state table, for kills and races: arguments PATH, APP, LAST.

A fenced process continues, unlike the daemon, so two processes race until the last version. Prints how often it was
fenced.
"""

import sys
from pathlib import Path

import anyio
import pyarrow as pa

from tailer.errors import SinkFenced
from tailer.plan import Position
from tailer.progress.state_table import StateTable
from tailer.sink import Progress
from tailer.stores.local import LocalStore

__all__ = ["following"]


def following(position: Position | None) -> Position:
    """Yield positions: of each version two inside it, then its end."""
    if position is None:
        return Position(0, 0, 5)
    if position.closes_version:
        return Position(position.version + 1, 0, 5)
    return Position(position.version, 1, 7) if position.task == 0 else Position.end(position.version)


async def record(path: str, app: str, last: int) -> int:
    """Record until version `last` is closed; return how often another process was faster."""
    store = StateTable(LocalStore(Path(path)))
    fenced = 0
    progress = await store.progress(app)
    while progress is None or progress.position < Position.end(last):
        progress = Progress(app, following(progress.position if progress else None))
        try:
            await store.record(progress)
        except SinkFenced:
            fenced += 1
            progress = await store.progress(app)
    return fenced


if __name__ == "__main__":
    pa.scalar(0)  # pyarrow imports pandas at its first use, which may take longer than this process lives
    print("started", flush=True)
    print(anyio.run(record, sys.argv[1], sys.argv[2], int(sys.argv[3])))
