"""A process that delivers a table to Kafka as the daemon does: arguments TABLE, OPTIONS, FROM and UNTIL.

OPTIONS are those of the sink, as JSON. Prints the time, from the first read of the log to the last commit, the
processor time of all threads, and the largest resident memory, as JSON. Starting Python does not count.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import anyio

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.daemon.sinks import close_sinks
from tailer.engine.local import LocalEngine
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.row_delivery import row_pipeline
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer_sinks.kafka.sink import KafkaSink

__all__ = ["deliver"]


async def deliver(table: Path, options: dict[str, Any], start: str, until: str) -> dict[str, float]:
    """Deliver the table; return `seconds` and `cpu_s`."""
    started, cpu_s = time.perf_counter(), time.process_time()
    sink = KafkaSink.configure("bench", options)
    key = tuple(options.get("key", ()))
    log = DeltaTableLog(LocalStore(table))
    pipeline = row_pipeline(
        "bench",
        log,
        sink,
        ChangelogEngine(LocalEngine(), PairingRules(compute_updates=bool(key), key=key, null_keys=bool(key))),
        log.make_wake(),
        Start.parse(start),
        until=Start.parse(until),
    )
    await pipeline.run()
    taken = {"seconds": time.perf_counter() - started, "cpu_s": time.process_time() - cpu_s}
    await close_sinks([sink])
    return taken


if __name__ == "__main__":
    found = anyio.run(deliver, Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], sys.argv[4])
    peak_kb = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    print(json.dumps(found | {"peak_mb": peak_kb / 1024}))
