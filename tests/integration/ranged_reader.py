"""Read a file, locally or as an object of a store, and print the peak of resident memory and the number of rows.

`python -m tests.integration.ranged_reader FILE PREFIX` runs in a process of its own, which reads nothing else.
"""

import json
import re
import sys
from pathlib import Path

import pyarrow.parquet as pq

from tailer.read.data_files import DataFiles
from tailer.read.execute import execute
from tests.support.ranges import StoredObjects
from tests.support.tables.log_files import task


def main(path: str, prefix: str) -> None:
    """Read the file."""
    schema = pq.read_schema(path)
    objects = StoredObjects(delay_s=0.002)
    rows = 0
    for batch in execute(task(prefix + path, schema), files=DataFiles(objects)):
        rows += len(batch)
    # Not `ru_maxrss`: that includes the memory of the parent at the start.
    peak_kb = int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])
    print(json.dumps({"rows": rows, "peak_bytes": peak_kb * 1024, "fetched_bytes": objects.fetched_bytes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
