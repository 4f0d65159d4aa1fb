"""A large table whose version 1 rewrites every file for a few rows, without partitions, feed or row tracking.

The rows are those of `tests.bench.rewritten`, twelve columns of all common kinds, in files as Spark writes them. The
update sets `total` of every n-th row to -1.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tests.bench.rewritten import DELTA_TYPES, shop_rows
from tests.bench.spark_files import write_as_spark
from tests.support.tables.log_files import add, commit_info, metadata, protocol, remove, schema_string, write_commit

__all__ = ["write_large"]


def write_large(path: Path, files: int, rows: int, changed: int) -> None:
    """Write `files` files of `rows` rows, and the same again with `changed` changed rows in all."""
    path.mkdir()
    step = files * rows // changed
    names = [(f"before-{number:03}.parquet", f"after-{number:03}.parquet") for number in range(files)]
    for number, (before, after) in enumerate(names):
        ids = pa.array(range(number * rows, (number + 1) * rows), pa.int64())
        found = shop_rows(ids)
        write_as_spark(found, path / before)
        hit = pc.equal(pc.subtract(ids, pc.multiply(pc.divide(ids, step), step)), step // 2)
        total = pc.if_else(hit, pa.scalar(-1, pa.int64()), found["total"])
        place = found.schema.get_field_index("total")
        write_as_spark(found.set_column(place, "total", total), path / after)
    sizes = {name: (path / name).stat().st_size for pair in names for name in pair}
    table = metadata(schema_string(**DELTA_TYPES))
    added = [[add(name, size=sizes[name]) for name in pair] for pair in names]
    removed = [remove(before, size=sizes[before]) for before, _ in names]
    write_commit(path, 0, commit_info(operation="WRITE"), protocol(), table, *(before for before, _ in added))
    write_commit(path, 1, commit_info(operation="UPDATE"), *(after for _, after in added), *removed)
