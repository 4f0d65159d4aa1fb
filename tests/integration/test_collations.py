"""Keys, partitions and mirrors of a table whose texts have a collation: values are compared as bytes everywhere."""

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import tailer
from tailer.pipeline.policy import Policy
from tests.support.mirrors.databases import SqliteDatabase, opened, rows_in, verified
from tests.support.mirrors.planted import follow, log_of
from tests.support.tables.log_files import add, metadata, parquet, remove, write_commit

FEATURES: Final = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata", "collations"]}


def field(name: str, kind: str = "string") -> dict[str, Any]:
    collated = {"__COLLATIONS": {name: "spark.UTF8_LCASE"}} if kind == "string" else {}
    return {"name": name, "type": kind, "nullable": True, "metadata": collated}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with the key `s`, partitioned by `p`: both are UTF8_LCASE, and have values that differ in case alone."""
    path = tmp_path / "orders"
    schema = json.dumps({"type": "struct", "fields": [field("s"), field("p"), field("n", "long")]})

    def file(name: str, part: str, *rows: tuple[str, int]) -> dict[str, Any]:
        parquet(path / name, pa.table({"s": [key for key, _ in rows], "n": [number for _, number in rows]}))
        return add(name, partitionValues={"p": part}, size=(path / name).stat().st_size)

    path.mkdir()
    write_commit(path, 0, {"protocol": FEATURES}, metadata(schema, ["p"]), file("a", "x", ("abc", 1), ("ABC", 2)))
    gone = remove("a", partitionValues={"p": "x"}, size=1)
    write_commit(path, 1, gone, file("b", "x", ("abc", 7), ("ABC", 2)))
    write_commit(path, 2, remove("b", partitionValues={"p": "x"}, size=1), file("c", "X", ("aBC", 7), ("ABC", 2)))
    return path


def test_images_of_an_update_have_equal_bytes_in_the_key(table: Path) -> None:
    found = [
        (row["_commit_version"], row["_change_type"], row["s"], row["p"], row["n"])
        for batch in tailer.changes(table, start=1, compute_updates=True, key=["s"])
        for row in batch.to_pylist()
    ]
    assert sorted(found) == [
        (1, "update_postimage", "abc", "x", 7),
        (1, "update_preimage", "abc", "x", 1),
        (2, "delete", "abc", "x", 7),
        (2, "insert", "aBC", "X", 7),
        (2, "update_postimage", "ABC", "X", 2),
        (2, "update_preimage", "ABC", "x", 2),
    ]


@pytest.mark.anyio
async def test_a_mirror_has_a_row_for_each_text(table: Path, tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "mirror.db")
    for last, expected in ((0, ["ABC 2 x", "abc 1 x"]), (1, ["ABC 2 x", "abc 7 x"]), (2, ["ABC 2 X", "aBC 7 X"])):
        async with opened(database, key=["s"]) as sink:
            await follow(sink, table, last, Policy())
            assert sorted(" ".join(map(str, (r["s"], r["n"], r["p"]))) for r in rows_in(database, "orders")) == expected
            assert (await verified(sink, "orders", log_of(table), Policy())).is_equal
