"""The golden tables with a known change feed, and their change rows for comparisons."""

import pyarrow as pa

from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from tests.support.oracle.rows import Rows, from_spark_json, rows_of
from tests.support.tables.golden import expected_feed

__all__ = ["SPARK_LOSES", "TABLES", "expected_table", "rows"]

TABLES = (
    "cdc_ict_table",
    "cdf-column-mapping-id-mode",
    "cdf-column-mapping-name-mode",
    "cdf-table",
    "cdf-table-backtick-column-names",
    "cdf-table-data-change",
    "cdf-table-delete-conditional-all-rows",
    "cdf-table-delete-unconditional",
    "cdf-table-non-partitioned",
    "cdf-table-simple",
    "cdf-table-update-ops",
    "cdf-table-with-cdc-and-dvs",
    "cdf-table-with-dv",
    "cdf-table",
    "simple_table_with_cdc",
)

# Spark misreads an inline vector that is padded as by the Rust crate z85, and loses two events.
SPARK_LOSES: dict[str, list[tuple[str, int, int]]] = {"cdf-table-with-dv": [("delete", 5, 3), ("insert", 6, 3)]}


def expected_table(name: str) -> pa.Table:
    """Return the change rows of a golden table, typed."""
    feed = expected_feed(name)
    lost = [
        {CHANGE_TYPE: kind, COMMIT_VERSION: version, "value": value}
        for kind, version, value in SPARK_LOSES.get(name, [])
    ]
    return from_spark_json([*feed.rows, *lost], feed.schema)


def rows(table: pa.Table) -> Rows:
    """Return change rows without the commit time, which a copied table does not keep."""
    return rows_of(table, [COMMIT_TIMESTAMP])
