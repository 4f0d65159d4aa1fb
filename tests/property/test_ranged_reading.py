"""Files of a store give the rows that they give on a local disk, whatever is in them and however they are fetched."""

import struct
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.errors import TailerError
from tailer.events import CHANGE_TYPE, ChangeBatch
from tailer.plan import END, ChangeTask, DeletionVectorRef, Refinement, TaskKind
from tailer.read.data_files import LOCAL, DataFiles
from tailer.read.execute import execute, row_groups
from tailer.stores.pieces import Limits
from tests.support.ranges import PREFIX, StoredObjects, long_footer
from tests.support.seeds import seeds
from tests.support.tables.log_files import marked, parquet, task, vector_file

KINDS: Final = ["insert", "delete", "update_preimage", "update_postimage"]
RAW: Final = pa.binary(12)
LIMITS: Final = {
    "as they are": Limits(),
    "tiny": Limits(tail_bytes=30, held_bytes=900, piece_bytes=200, least_bytes=50, near_bytes=10, gap_bytes=40),
    "one byte": Limits(tail_bytes=1, held_bytes=1, piece_bytes=500, least_bytes=500, near_bytes=500, gap_bytes=1),
    "large pieces": Limits(tail_bytes=500, held_bytes=50_000, piece_bytes=20_000, least_bytes=1000, near_bytes=2000),
}

Maker = Callable[[Random], object]
VALUES: Final[dict[str, tuple[pa.DataType, Maker]]] = {
    "number": (pa.int64(), lambda dice: dice.getrandbits(40)),
    "few": (pa.int32(), lambda dice: dice.randrange(3)),
    "text": (pa.string(), lambda dice: "é" * dice.randrange(40) + str(dice.random())),
    "word": (pa.string(), lambda dice: dice.choice(["red", "green", "x" * 500])),
    "bytes": (pa.binary(), lambda dice: dice.randbytes(dice.randrange(60))),
    "real": (pa.float64(), Random.random),
    "flag": (pa.bool_(), lambda dice: dice.random() < 0.5),
    "price": (pa.decimal128(20, 3), lambda dice: Decimal(dice.randrange(10**12)) / 1000),
    "moment": (pa.timestamp("us", "UTC"), lambda dice: dice.randrange(2**50)),
    "old_moment": (RAW, lambda dice: struct.pack("<qi", dice.randrange(86_400) * 10**9, 2_440_588 + dice.randrange(9))),
    "list": (pa.list_(pa.string()), lambda dice: [str(dice.random())] * dice.randrange(4)),
    "pair": (
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int32()))]),
        lambda dice: {"a": dice.randrange(9), "b": [dice.randrange(9)] * dice.randrange(3)},
    ),
    "map": (pa.map_(pa.string(), pa.int64()), lambda dice: [(str(key), key) for key in range(dice.randrange(4))]),
}


def random_file(path: Path, dice: Random) -> tuple[pa.Schema, int]:
    """Write a file of random columns in a random form; return what a task reads of it, and the number of rows."""
    count = dice.choice([0, 1, 50, 700, 3000])
    names = dice.sample(sorted(VALUES), dice.randrange(1, len(VALUES)))
    columns = {
        name: pa.array([None if dice.random() < 0.1 else make(dice) for _ in range(count)], kind)
        for name, (kind, make) in ((name, VALUES[name]) for name in names)
    }
    columns[CHANGE_TYPE] = pa.array([dice.choice(KINDS) for _ in range(count)])
    options: dict[str, Any] = {
        "compression": dice.choice(["none", "snappy", "zstd"]),
        "use_dictionary": dice.random() < 0.7,
        "data_page_size": dice.choice([100, 2000, 2**20]),
        "data_page_version": dice.choice(["1.0", "2.0"]),
        "row_group_size": dice.choice([40, 500, 2000, 10_000]),
        "write_page_checksum": dice.random() < 0.5,
        "write_page_index": dice.random() < 0.5,
    }
    write = parquet if dice.random() < 0.2 else long_footer
    write(path, pa.table(columns), store_schema=False, **options)
    if "old_moment" in names:
        content = path.read_bytes()
        size = int.from_bytes(content[-8:-4], "little")
        footer = content[-8 - size : -8].replace(b"\x15\x0e\x15\x18", b"\x15\x06\x15\x18")
        path.write_bytes(content[: -8 - size] + footer.replace(b"\x1c\x15\x0e", b"\x1c\x15\x06") + content[-8:])
    read = dice.sample(names, dice.randrange(1, len(names) + 1))
    kinds = {name: pa.timestamp("us", "UTC") if VALUES[name][0] == RAW else VALUES[name][0] for name in read}
    return pa.schema(kinds), count


def random_task(folder: Path, dice: Random) -> ChangeTask:
    """Write a file and make a task that reads it, with any deletion vectors."""
    schema, count = random_file(folder / "f", dice)

    def some() -> DeletionVectorRef | None:
        rows = sorted(dice.sample(range(count), dice.randrange(count + 1)))
        if dice.random() < 0.5:
            return None
        if dice.random() < 0.5:
            return marked(rows)
        noise = range(0, dice.choice([5, 200_000]), 2)
        vector_file(folder, noise, rows)
        found = vector_file(folder, noise, rows)[1]["sizeInBytes"]
        at = max(folder.glob("*.bin"), key=lambda path: path.stat().st_mtime_ns)
        return DeletionVectorRef(str(at), None, at.stat().st_size - found - 8, found, len(rows))

    made = task(folder / "f", schema, dice.choice(list(TaskKind)), include=some(), exclude=some())
    made = replace(made, size_bytes=(folder / "f").stat().st_size)
    return replace(made, refinement=Refinement(dropped=some(), updated=some())) if dice.random() < 0.3 else made


def stored(made: ChangeTask) -> ChangeTask:
    """Return the task with all its files in a store, but for what comparing rows has spilled."""
    include, exclude = (
        vector if vector is None or vector.uri is None else replace(vector, uri=PREFIX + vector.uri)
        for vector in (made.include, made.exclude)
    )
    return replace(made, uri=PREFIX + made.uri, include=include, exclude=exclude)


def outcome(
    made: ChangeTask, files: DataFiles, after: int = -1, through: int = END, first: int = 0, end: int = END
) -> list[ChangeBatch] | str:
    """Return all batches, or the error's text without locations."""
    try:
        return list(execute(made, after, through, first, end, files=files))
    except TailerError as error:
        return f"{type(error).__name__}: {error}".replace(PREFIX, "")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("seed", seeds(15))
def test_any_file(tmp_path: Path, seed: int, limits: str) -> None:
    dice = Random(seed)
    made = random_task(tmp_path, dice)
    files = DataFiles(StoredObjects(), LIMITS[limits])
    groups = row_groups(made)
    assert row_groups(stored(made), files) == groups
    size = made.size_bytes
    first = dice.randrange(size)
    for part in [(), (dice.randrange(-1, 3000),), (-1, dice.randrange(3000), first, dice.randrange(first, 2 * size))]:
        assert outcome(stored(made), files, *part) == outcome(made, LOCAL, *part)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("seed", seeds(3))
def test_any_damaged_file(tmp_path: Path, seed: int, limits: str) -> None:
    """A file that is cut short or changed gives the same rows, or the same error."""
    dice = Random(seed)
    made = random_task(tmp_path, dice)
    path = tmp_path / "f"
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    files = DataFiles(StoredObjects(), LIMITS[limits])
    for _ in range(20):
        spoiled = bytearray(whole)
        for _ in range(dice.randrange(3)):
            spoiled[dice.randrange(dice.choice([0, footer]), len(whole))] ^= 1 << dice.randrange(8)
        if dice.random() < 0.3:
            begin = dice.randrange(len(whole))
            del spoiled[begin : begin + dice.randrange(1, 2000)]
        path.write_bytes(spoiled)
        assert outcome(stored(made), files) == outcome(made, LOCAL)
