"""Write the cases of `cases_data`: `python -m tests.generate_cases [test name ...]`, some minutes for all of them.

It runs the tests of `CASES` with Spark, and keeps every table they have checked, with Spark's answers, so that
`tests/property/test_written_cases.py` checks it again without Spark. Run it again for new or changed cases, and commit
its output. Spark names files at random, so the archives differ from run to run.
"""

import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.support.follow import Followed
from tests.support.histories.schema_evolution import EPOCH, STEP
from tests.support.oracle.recorded import CASES_DATA, judge, write
from tests.support.spark.table import Table

__all__ = ["CASES", "main"]

CASES: Final = tuple(
    Path(__file__).parent / "property" / f"test_{name}.py" for name in ("cases", "more_cases", "variant_cases")
)
# Modules imported here are imported before pytest rewrites their asserts.
UNWATCHED: Final = ("-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider", "--timeout=0")
DAY_S: Final = 86_400

Versions = list[Followed]


class Recorder:
    """A plugin of pytest: records the tables that tests check."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._test = ""
        self._checks = 0

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Remove the archives of the test's previous run."""
        name = item.name.removeprefix("test_").replace("[", " ").replace("]", "")
        self._test, self._checks = name.replace(",", "").replace(" ", "_"), 0
        for former in CASES_DATA.glob(f"{self._test}.*.tar.xz"):
            former.unlink()

    def check(self, table: Table, feed_from: int | None, feed_to: int | None, by_spark: bool) -> Versions:
        """Do the same as `Table.check`, and record the table and the answers."""
        date_commits(table)
        recorded = table.recorded(feed_from, feed_to, by_spark)
        versions = judge(recorded)
        if recorded.path.name == "clone with space":  # it refers to another table's files by absolute paths
            return versions
        self._checks += 1
        folder = self._scratch / f"{self._test}.{self._checks}"
        shutil.copytree(recorded.path, folder / "table")
        archive = CASES_DATA / f"{folder.name}.tar.xz"
        write(replace(recorded, path=folder / "table", title=self._test), archive)
        print(f"{archive.name}: {archive.stat().st_size} bytes")
        return versions


def date_commits(table: Table) -> None:
    """Round the times of new commits to whole seconds, as archives do. Times set by a test stay."""
    commits = [table.commit_file(version) for version in range(table.latest + 1)]
    if all(commit.stat().st_mtime > time.time() - DAY_S for commit in commits):
        for version, commit in enumerate(commits):
            os.utime(commit, (EPOCH + STEP * version, EPOCH + STEP * version))
        table.forget()


def main() -> None:
    """Write all cases, or those of the named tests."""

    def check(table: Table, feed_from: int | None = 0, feed_to: int | None = None, by_spark: bool = False) -> Versions:
        return recorder.check(table, feed_from, feed_to, by_spark)

    CASES_DATA.mkdir(exist_ok=True)
    chosen = ["-k", " or ".join(sys.argv[1:])] if sys.argv[1:] else []
    with tempfile.TemporaryDirectory() as scratch:
        recorder = Recorder(Path(scratch))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Table, "check", check)
            sys.exit(pytest.main(["-s", *UNWATCHED, *map(str, CASES), *chosen], [recorder]))


if __name__ == "__main__":
    main()
