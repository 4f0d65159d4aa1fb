"""A process that finds the live files of a table; prints their number and its peak memory."""

import json
import sys
import time
from pathlib import Path

import anyio

from tailer.formats.delta.checkpoints.checkpoint import from_sound_checkpoint, read_state
from tailer.formats.delta.checkpoints.live_files import LiveFiles, live_files
from tailer.formats.delta.log.listing import CommitLog, LogSegment
from tailer.formats.delta.snapshot import CLOCK_WINDOW
from tailer.stores.local import LocalStore


async def bootstrap(table: Path) -> dict[str, object]:
    """Find state and live files of the latest version."""
    store = LocalStore(table)
    listing = await CommitLog(store).recent(CLOCK_WINDOW)

    async def files(segment: LogSegment) -> LiveFiles:
        return await live_files(store, segment)

    started = time.monotonic()
    _, metadata = await read_state(store, listing.segment(listing.latest))
    state_s = time.monotonic() - started
    live = await from_sound_checkpoint(lambda: CommitLog(store).listing(), listing, listing.latest, files)
    count, ordered, last = 0, True, -1
    with live:
        for file in live:
            count += 1
            ordered, last = ordered and last <= file.modification_time, file.modification_time
    found: dict[str, object] = {
        "files": count,
        "ordered": ordered,
        "id": metadata.id if metadata else None,
        "state_s": state_s,
    }
    return found | {"seconds": time.monotonic() - started, "resident_mb": resident_mb()}


def resident_mb() -> float:
    """Return the peak resident memory of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    print(json.dumps(anyio.run(bootstrap, Path(sys.argv[1]))))
