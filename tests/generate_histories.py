"""Write the histories of `histories_data`: `python -m tests.generate_histories [number ...]`, some minutes for ten.

Run it again, for all of them or for some, after a change of `tests.support.histories.schema_evolution`, and commit the
archives. A history is a function of its seed, but Spark names files at random, so archives differ between runs.
"""

import sys
import tempfile
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from tests.support.histories.random_history import quick
from tests.support.histories.schema_evolution import EVOLVING, EvolvingHistory
from tests.support.oracle.recorded import HISTORIES, RecordedTable, write
from tests.support.spark.session import build_spark

__all__ = ["main"]

SEED: Final = 20260901
STEPS: Final = 30


def make(spark: SparkSession, number: int, scratch: Path) -> None:
    """Make one history and write it."""
    folder = scratch / str(number)
    folder.mkdir()
    history = EvolvingHistory(spark, folder / "table", SEED + number, EVOLVING[number]).run(STEPS)
    recorded = RecordedTable.of(history)
    archive = HISTORIES / f"{number:02d}.tar.xz"
    write(recorded, archive)
    print(history.describe(), *(f"  refused {refusal}" for refusal in history.refused), sep="\n")
    refusals = {version: answer.refusal for version, answer in history.answers.items() if answer.refusal}
    print(f"  no feed: {refusals}\n  {archive.name}: {archive.stat().st_size} bytes, from version {recorded.first}")


def main() -> None:
    """Write all histories, or those with the given numbers."""
    numbers = [int(number) for number in sys.argv[1:]] or list(range(len(EVOLVING)))
    with tempfile.TemporaryDirectory() as scratch:
        spark = build_spark(Path(scratch))
        with quick(spark):
            for number in numbers:
                make(spark, number, Path(scratch))
        spark.stop()


if __name__ == "__main__":
    main()
