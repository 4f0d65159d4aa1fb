"""The change reader of delta-kernel-rs: its wrong rows and failures, and our correct answers.

On every landing: nothing: it tests another reader, and says why we do not do the same.
"""

from pathlib import Path

import pyarrow as pa
import pytest
from delta_kernel_rust_sharing_wrapper import PythonInterface, TableChangesScanBuilder
from delta_kernel_rust_sharing_wrapper import Table as KernelTable

from tailer.events import COMMIT_TIMESTAMP
from tests.support.oracle.rows import Rows, rows_of
from tests.support.spark.table import Table, kinds

pytestmark = pytest.mark.nightly


def kernel_feed(path: Path, first: int, last: int) -> pa.Table:
    """Read the changes of some versions with delta-kernel-rs."""
    root = f"{path.as_uri()}/"
    engine = PythonInterface(root)
    scan = TableChangesScanBuilder(KernelTable(root), engine, first, last).build()
    return pa.table(scan.execute(engine).read_all())


def counted(feed: pa.Table) -> dict[str, int]:
    """Count the rows of a feed by change type."""
    found = feed.group_by("_change_type").aggregate([([], "count_all")]).to_pylist()
    return {row["_change_type"]: row["count_all"] for row in found}


def test_the_kernel_agrees_where_nothing_is_special(table: Table) -> None:
    table.create("id BIGINT, p STRING", "SELECT id, 'x' FROM range(10)", vectors=True, partition="p")
    table.sql("DELETE FROM {t} WHERE id = 3")
    table.sql("UPDATE {t} SET p = 'y' WHERE id = 4")
    table.sql("INSERT OVERWRITE {t} SELECT id, 'z' FROM range(2)")
    versions = table.check()
    found = sum((rows_of(version.table, [COMMIT_TIMESTAMP]) for version in versions), Rows())
    assert rows_of(kernel_feed(table.path, 0, 4), [COMMIT_TIMESTAMP]) == found


def test_the_kernel_shows_a_merge_that_changed_nothing(table: Table) -> None:
    table.create("id BIGINT, n INT", "SELECT id, 1 FROM range(10)")
    table.sql(
        "MERGE INTO {t} t USING (SELECT id FROM range(5)) s ON t.id = s.id "
        "WHEN NOT MATCHED BY SOURCE AND t.n > 5 THEN DELETE"
    )
    assert kinds(table.check()[2]) == {}
    assert counted(kernel_feed(table.path, 2, 2)) == {"delete": 10, "insert": 10}


@pytest.mark.parametrize(
    "change",
    ["ADD COLUMN m INT", "RENAME COLUMN n TO m", "DROP COLUMN n"],
)
def test_the_kernel_stops_at_any_change_of_schema(table: Table, change: str) -> None:
    mapped = "'delta.columnMapping.mode' = 'name'"
    table.create("id BIGINT, n INT", "SELECT id, 1 FROM range(4)", properties=mapped)
    table.sql(f"ALTER TABLE {{t}} {change}")
    table.sql("DELETE FROM {t} WHERE id = 2")
    assert kinds(table.check(feed_from=3)[3]) == {"delete": 1}
    with pytest.raises(ValueError, match=r"(?i)schema"):
        kernel_feed(table.path, 0, 3)


def test_the_kernel_refuses_a_range_in_which_the_feed_was_off(table: Table) -> None:
    table.create("id BIGINT, n INT", "SELECT id, 1 FROM range(4)")
    table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')")
    table.sql("DELETE FROM {t} WHERE id = 2")
    versions = table.check(0, 1)
    assert [version.plan.feed for version in versions] == [True, True, False, False]
    with pytest.raises(ValueError, match="Change data feed is unsupported for the table at version 3"):
        kernel_feed(table.path, 0, 3)
