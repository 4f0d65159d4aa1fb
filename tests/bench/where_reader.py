"""A process that reads the changes of a table that fulfil a condition: arguments READER, PATH and CONDITION.

It prints the rows, the seconds of reading, its processor time, its largest resident memory, as `change_readers`, and
the bytes that reading again takes, when all modules are loaded. Spark reads once more before, for Java's compiler.
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["main"]


class _Ours:
    """`tailer.changes`. Its imports do not count."""

    pid: int | str = "self"

    def __init__(self, path: str, where: str | None) -> None:
        import tailer.api  # noqa: PLC0415
        import tailer.shape.parse.bind  # noqa: PLC0415

        self._path, self._where, self._read = path, where, tailer.changes

    def rows(self) -> int:
        """Read, and return the number of rows."""
        return sum(batch.num_rows for batch in self._read(self._path, where=self._where))

    def read_bytes(self) -> int:
        """Return the bytes that the process which reads has got from files, as the system counts them."""
        counts = Path(f"/proc/{self.pid}/io").read_text().split()
        return int(counts[counts.index("rchar:") + 1])


class _DeltaRs(_Ours):
    """`load_cdf` of delta-rs."""

    def __init__(self, path: str, where: str | None) -> None:
        from deltalake import DeltaTable  # noqa: PLC0415

        self._path, self._where, self._table = path, where, DeltaTable

    def rows(self) -> int:
        """See `_Ours.rows`."""
        changes = self._table(self._path).load_cdf(starting_version=0, predicate=self._where)
        return sum(batch.num_rows for batch in changes)


class _OnSpark(_Ours):
    """A reader of Delta on Spark, into a sink that keeps no row."""

    def __init__(self, path: str, where: str | None) -> None:
        from tests.support.spark.session import build_spark  # noqa: PLC0415

        self._path, self._where = path, where
        self._spark = build_spark(Path(tempfile.mkdtemp()))
        self._spark.conf.set("spark.databricks.delta.changelogV2.enabled", "true")
        java: Any = self._spark.sparkContext._gateway
        self.pid = java.proc.pid
        self.rows()

    def changes(self) -> "DataFrame":
        """Return the changes of all versions."""
        raise NotImplementedError

    def rows(self) -> int:
        """See `_Ours.rows`."""
        from pyspark.sql import Observation  # noqa: PLC0415
        from pyspark.sql.functions import count, lit  # noqa: PLC0415

        counted = Observation()
        rows = self.changes().where(self._where or "true")
        rows.observe(counted, count(lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
        return int(counted.get["rows"])


class _Changes(_OnSpark):
    """`CHANGES`."""

    def changes(self) -> "DataFrame":
        """See `_OnSpark.changes`."""
        return self._spark.read.options(startingVersion=0).changes(f"delta.`{self._path}`")


class _Feed(_OnSpark):
    """The change feed."""

    def changes(self) -> "DataFrame":
        """See `_OnSpark.changes`."""
        return self._spark.read.format("delta").options(readChangeFeed=True, startingVersion=0).load(self._path)


READERS: Final[Mapping[str, type[_Ours]]] = {"ours": _Ours, "delta-rs": _DeltaRs, "CHANGES": _Changes, "feed": _Feed}


def main(name: str, path: str, where: str) -> None:
    """Read, and print what it took."""
    reader = READERS[name](path, where or None)
    start, cpu = time.perf_counter(), time.process_time()
    rows = reader.rows()
    taken = {"seconds": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}
    status = Path("/proc/self/status").read_text()
    peak_mb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    before = reader.read_bytes()
    reader.rows()
    read_bytes = reader.read_bytes() - before
    print(json.dumps({"rows": rows, **taken, "peak_mb": peak_mb, "read_bytes": read_bytes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
