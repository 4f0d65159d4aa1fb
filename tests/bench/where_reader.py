"""A process that reads the changes of a table that fulfil a condition: arguments READER, PATH and CONDITION.

It prints the rows, the seconds of reading, its processor time and its largest resident memory, as `change_readers`.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["main"]


def _ours(path: str, where: str | None) -> Iterator[int]:
    import tailer  # noqa: PLC0415

    return (batch.num_rows for batch in tailer.changes(path, where=where))


def _delta_rs(path: str, where: str | None) -> Iterator[int]:
    from deltalake import DeltaTable  # noqa: PLC0415

    return (batch.num_rows for batch in DeltaTable(path).load_cdf(starting_version=0, predicate=where))


def main(reader: str, path: str, where: str) -> None:
    """Read, and print what it took."""
    read = {"ours": _ours, "delta-rs": _delta_rs}[reader]
    if reader == "ours":  # imports do not count
        import tailer.api  # noqa: PLC0415
        import tailer.shape.parse.bind  # noqa: F401, PLC0415
    start, cpu = time.perf_counter(), time.process_time()
    rows = sum(read(path, where or None))
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    status = Path("/proc/self/status").read_text()
    peak_mb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    print(json.dumps({"rows": rows, "seconds": seconds, "cpu_s": cpu_s, "peak_mb": peak_mb}))


if __name__ == "__main__":
    main(*sys.argv[1:])
