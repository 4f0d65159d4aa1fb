"""A process that follows the version with a rewrite: arguments PATH and the comparison rules as JSON.

Prints the kind and the id of each change, and the peak memory in bytes, as JSON. It uses the maximal number of threads,
so that memory does not depend on the machine.
"""

import json
import re
import sys
from pathlib import Path

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.engine.local import MAX_THREADS, LocalEngine
from tailer.events import CHANGE_TYPE, ChangeBatch
from tests.bench.rewritten import pass_rewrite

__all__ = ["report"]


def report(path: Path, rules: PairingRules) -> str:
    """Return the output."""
    changes: list[tuple[str, int]] = []

    def take(batch: ChangeBatch) -> None:
        columns = (batch.rows[name].to_pylist() for name in (CHANGE_TYPE, "id"))
        changes.extend(zip(*columns, strict=True))

    pass_rewrite(path, ChangelogEngine(LocalEngine(MAX_THREADS), rules), take)
    # Not `ru_maxrss`: that includes the memory of the parent at the start.
    peak_kb = int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])
    return json.dumps({"changes": changes, "peak_bytes": peak_kb * 1024})


if __name__ == "__main__":
    print(report(Path(sys.argv[1]), PairingRules(**json.loads(sys.argv[2]))))
