"""Write `public_data/answers.tar.xz`: `python -m tests.generate_public_answers [table ...]`, some minutes for all.

It reads every version of the public tables that delta-rs cannot judge (`SPARK_DECIDES`) with Spark. Run it again for
new tables of that list, and commit its output. The tables themselves stay where they are.
"""

import io
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.support.histories.random_history import quick
from tests.support.oracle.public import ANSWERS, SPARK_DECIDES, read_answers, unpack_public
from tests.support.oracle.rows import collected
from tests.support.oracle.whole_table import commits
from tests.support.spark.session import build_spark

__all__ = ["main"]


def read_versions(spark: SparkSession, name: str, path: Path) -> dict[int, pa.Table]:
    """Read the versions of a table up to the first one that Spark refuses."""
    found: dict[int, pa.Table] = {}
    for version in commits(path):
        try:
            frame = spark.read.format("delta").option("versionAsOf", version).load(str(path))
            table = collected(frame).combine_chunks()
        except (PySparkException, Py4JJavaError) as error:
            print(f"{name} version {version}: {str(error)[:400]}")
            break
        found[version] = pa.table(table.columns, schema=table.schema.remove_metadata())
    return found


def write(answers: Mapping[str, Mapping[int, pa.Table]]) -> None:
    """Write the archive; the same answers make the same file."""
    with tarfile.open(ANSWERS, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as tar:
        for name, versions in sorted(answers.items()):
            for version, table in sorted(versions.items()):
                content = io.BytesIO()
                pyarrow.feather.write_feather(table, content, compression="uncompressed")
                member = tarfile.TarInfo(f"{name}/{version}")
                member.size = content.tell()
                content.seek(0)
                tar.addfile(member, content)


def main() -> None:
    """Write the answers of all tables, or of the named ones and keep the others."""
    listed = sorted(chain(*SPARK_DECIDES.values()))
    answers = {name: found for name, found in read_answers().items() if name in listed} if sys.argv[1:] else {}
    ANSWERS.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        tables = unpack_public(Path(scratch) / "tables")
        spark = build_spark(Path(scratch))
        with quick(spark):
            for name in sys.argv[1:] or listed:
                found = answers[name] = read_versions(spark, name, tables[name])
                print(f"{name}: rows by version", {at: len(table) for at, table in found.items()}, flush=True)
                write(answers)
        spark.stop()
    print(f"{ANSWERS.name}: {ANSWERS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
