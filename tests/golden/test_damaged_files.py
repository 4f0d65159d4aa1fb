"""Damaged Parquet files of three writers: rows or an error of ours, and never the end of the process.

One to eight bits of a table's Parquet files are flipped. Spark writes checksums of pages, so all rows are right, those
before an error, too, unless the damage is in a footer. Others write none, so a flipped bit of a value is another value.
A process of its own reads the tables, in case one of them ends it: then there is no answer, as if it hung.
"""

import multiprocessing
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import tailer
from tailer.errors import TailerError
from tests.fuzz.archives import files_of
from tests.support.oracle.public import unpack_public
from tests.support.oracle.recorded import CASES_DATA
from tests.support.seeds import seeds

pytestmark = pytest.mark.golden

COPIES: Final = 150
TABLES: Final = 12  # of each writer
AT_ONCE: Final = 25
MOST_BITS: Final = 8
FOOTER_END: Final = 8
ANSWER_S: Final = 120


def of_spark(folder: Path) -> Iterator[Path]:
    """Unpack recorded tables."""
    archives = sorted(CASES_DATA.glob("*.tar.xz"))
    for archive in archives[:: len(archives) // TABLES]:
        for name, data in files_of(archive):
            path = folder / archive.stem / name.partition("/")[2]
            if not name.startswith("answers/"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        yield folder / archive.stem


def of_databricks(folder: Path) -> Iterator[Path]:
    """Unpack public tables."""
    found = [path for name, path in unpack_public(folder).items() if name.startswith("trino/databricks")]
    yield from found[:: max(1, len(found) // TABLES)]


def of_delta_rs(folder: Path) -> Iterator[Path]:
    """Write tables of several types and sizes."""
    for number in range(TABLES):
        count = 10 ** (1 + number % 4)
        ids = pa.array(range(count), pa.int64())
        texts = pa.array([f"a text of {each % 17}" if each % 5 else None for each in range(count)], pa.string())
        lists = pa.array([[each, None] if each % 3 else [] for each in range(count)], pa.list_(pa.float64()))
        write_deltalake(folder / str(number), pa.table({"id": ids, "text": texts, "list": lists}))
        yield folder / str(number)


WRITERS: Final[dict[str, Callable[[Path], Iterator[Path]]]] = {
    "spark": of_spark,
    "databricks": of_databricks,
    "delta-rs": of_delta_rs,
}


def changes(table: Path) -> Iterator[str]:
    for batch in tailer.changes(str(table), start="earliest"):
        try:
            yield from map(repr, batch.to_pylist())
        except (OverflowError, ValueError):  # Python lacks the date, or the text is none
            yield from ["of damaged values"] * len(batch)


@cache
def expected(table: Path) -> tuple[list[str], bool]:
    """Return the rows of an undamaged table, and whether they are all of its rows."""
    found: list[str] = []
    try:
        found.extend(changes(table))
    except TailerError:
        return found, False
    return found, True


def damage(table: Path, chance: random.Random) -> bool:
    """Flip bits of a table's Parquet files. Return whether checksums of pages cover all of them, if there are any."""
    files = sorted(table.rglob("*.parquet"))
    is_covered = True
    for _ in range(chance.randint(1, MOST_BITS)):
        file = chance.choice([each for each in files if "_delta_log" not in each.parts])
        data = bytearray(file.read_bytes())
        at = chance.randrange(len(data))
        is_covered &= at < len(data) - FOOTER_END - int.from_bytes(data[-FOOTER_END:-4], "little")
        data[at] ^= 1 << chance.randrange(8)
        file.unlink()  # a link to the undamaged one
        file.write_bytes(data)
    return is_covered


def judge(tables: list[Path], first: int, *, has_checksums: bool) -> Counter[str]:
    """Read some damaged copies. Return how many gave the same rows, an error, and other rows."""
    verdicts: Counter[str] = Counter()
    for seed in range(first, first + AT_ONCE):
        table = tables[seed % len(tables)]
        try:
            verdicts[verdict_on(table, random.Random(seed), has_checksums=has_checksums)] += 1
        except Exception as error:
            error.add_note(f"seed {seed}, {table.name}")
            raise
    return verdicts


def verdict_on(table: Path, chance: random.Random, *, has_checksums: bool) -> str:
    rows, is_all = expected(table)
    found: list[str] = []
    with TemporaryDirectory(dir=table.parent) as folder:
        copy = Path(folder) / table.name
        shutil.copytree(table, copy, copy_function=os.link)
        is_covered = damage(copy, chance) and has_checksums
        try:
            found.extend(changes(copy))
            verdict = "the same" if found == rows else "others"
        except TailerError:
            verdict, rows = "an error" if is_all else "the same error", rows[: len(found)]
    assert not is_covered or found == rows
    return verdict


@pytest.mark.parametrize("writer", WRITERS)
def test_each_is_an_error_or_has_its_rows(tmp_path: Path, writer: str) -> None:
    made = WRITERS[writer](tmp_path)
    tables = [table for table in made if any("_delta_log" not in each.parts for each in table.rglob("*.parquet"))]
    verdicts: Counter[str] = Counter()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for first in seeds(COPIES)[::AT_ONCE]:
            print(f"{writer}, from seed {first}")
            reading = pool.apply_async(judge, (tables, first), {"has_checksums": writer == "spark"})
            verdicts += reading.get(ANSWER_S)
    print(f"{writer}: {dict(verdicts)} of {len(tables)} tables")
    assert verdicts["an error"] > 0
    assert verdicts["the same"] > 0
