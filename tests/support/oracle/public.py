"""The tables of public projects in `golden/public.tar.xz`, and Spark's answers where delta-rs has none."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.feather

from tests.support.tables.golden import golden

__all__ = ["ANSWERS", "SPARK_DECIDES", "read_answers", "unpack_public"]

ANSWERS: Final = Path(__file__).parents[2] / "public_data" / "answers.tar.xz"

# Why delta-rs cannot judge a table, and the tables, which `tests.generate_public_answers` reads with Spark.
SPARK_DECIDES: Final[Mapping[str, tuple[str, ...]]] = {
    "delta-rs gives the bytes of Variants": (
        "delta-golden/spark-variant-checkpoint",
        "duckdb-delta/variant/basic",
        "trino/databricks153/variant",
        "trino/databricks153/variant_types",
        "trino/databricks154/test_variant_null",
        "trino/databricks154/variant_read_after_optimization",
    ),
    "delta-rs refuses the preview of shredded Variants": (
        "delta-kernel-defaults/spark-shredded-variant-preview-delta",
        "delta-rs/spark-shredded-variant-preview-delta",
        "delta-spark-resources/variant-stats-nested-no-checkpoint",
        "delta-spark-resources/variant-stats-no-checkpoint",
        "delta-spark-resources/variant-stats-state-reconstruction",
        "delta-spark-resources/variant-stats-with-struct-no-checkpoint",
    ),
    "delta-rs refuses type widening": (
        "trino/databricks153/type_widening",
        "trino/databricks153/type_widening_nested",
        "trino/databricks153/type_widening_partition",
        "trino/deltalake/type_widening",
        "trino/deltalake/type_widening_nested",
        "trino/deltalake/type_widening_unsupported",
    ),
    "delta-rs refuses another feature, or what a newer writer said about a table": (
        "delta-golden/basic-with-vacuum-protocol-check-feature",
        "trino/deltalake/unsupported_writer_version",
    ),
    "delta-rs reads nulls where columns are mapped by the ids of fields": ("dremio/columnMappingConvertedIceberg",),
    "delta-rs reads other moments before 1677 and after 2262 from INT96": (
        "trino/databricks73/old_timestamps",
        "trino/databricks73/pruning/parquet_struct_statistics",
        "trino/databricks73/pruning/timestamp",
        "trino/databricks73/read_timestamps",
    ),
    "delta-rs cannot read statistics that are null": ("trino/databricks73/pruning/no_stats",),
}


def unpack_public(folder: Path) -> dict[str, Path]:
    """Unpack all public tables into `folder`. Return their places by name."""
    with tarfile.open(golden("public.tar.xz")) as tar:
        tar.extractall(folder, filter="data")
    roots = sorted(log.parent for name in ("_delta_log", "_versions") for log in folder.rglob(name))
    return {str(path.relative_to(folder)): path for path in roots}


def read_answers() -> dict[str, dict[int, pa.Table]]:
    """Return the rows of every version of the tables in `SPARK_DECIDES`, as Spark reads them."""
    found: dict[str, dict[int, pa.Table]] = {}
    with tarfile.open(ANSWERS) as tar:
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            name, _, version = member.name.rpartition("/")
            found.setdefault(name, {})[int(version)] = pyarrow.feather.read_table(io.BytesIO(content.read()))
    return found
