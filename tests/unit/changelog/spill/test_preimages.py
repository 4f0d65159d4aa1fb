"""Spilled preimages are paired with their postimages, in any order and of any size."""

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from tailer.changelog.spill import SpilledPreimages
from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), *METADATA_FIELDS])


def rows(ids: list[int], kind: str, text: str = "") -> pa.RecordBatch:
    metadata = [[kind] * len(ids), [7] * len(ids), [None] * len(ids)]
    arrays = [
        pa.array(values, field.type) for values, field in zip([ids, [text] * len(ids), *metadata], SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def in_batches(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(batch), size):
        yield batch.slice(start, size)


def ranks(order: list[int], size: int) -> Iterator[pa.RecordBatch]:
    yield from in_batches(pa.record_batch({"rank": pa.array(order, pa.int64())}), size)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("run_bytes", [1, 3000, 2**20])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_every_postimage_has_its_own(run_bytes: int, size: int) -> None:
    """Two files: in the first every third row is updated, in the second every row; preimages come shuffled."""
    chance = random.Random(run_bytes * size)
    updated = {4: list(range(0, 300, 3)), 9: list(range(200))}
    ids = [task * 1000 + row for task, places in updated.items() for row in places]
    order = chance.sample(range(len(ids)), len(ids))
    with SpilledPreimages(run_bytes) as preimages:
        bitmaps = {task: BitMap64(places) for task, places in updated.items()}
        shuffled = rows([ids[rank] for rank in order], "update_preimage")
        preimages.keep(in_batches(shuffled, 13), ranks(order, 17), bitmaps)
        for task in (4, 9):
            start = chance.randrange(50)  # as if the earlier rows were delivered already
            places = list(range(start, 300 if task == 4 else 200))
            whole = rows([task * 1000 + row for row in places], "insert")
            found: list[tuple[str, int, int]] = []
            for at in range(0, len(places), size):
                positions = pa.array(places[at : at + size], pa.int64())
                batch = ChangeBatch("id", 7, task, whole.slice(at, size), positions)
                for piece in preimages.joined(batch):
                    kinds, keys = piece.rows[CHANGE_TYPE].to_pylist(), piece.rows["id"].to_pylist()
                    found += zip(kinds, keys, piece.row_index.to_pylist(), strict=True)
            expected: list[tuple[str, int, int]] = []
            for row in places:
                if row in updated[task]:
                    expected.append(("update_preimage", task * 1000 + row, row))
                expected.append(("insert", task * 1000 + row, row))
            assert found == expected


def test_wide_preimages_of_narrow_rows_come_in_pieces() -> None:
    """Batches are sized by their postimages; the preimages put before them may be much larger."""
    ids = list(range(600))
    with SpilledPreimages(run_bytes=2**18) as preimages:
        wide = rows(ids, "update_preimage", "x" * 10_000)
        preimages.keep(in_batches(wide, 20), ranks(ids, 100), {0: BitMap64(ids)})
        batch = ChangeBatch("id", 7, 0, rows(ids, "update_postimage"), pa.array(ids, pa.int64()))
        pieces = list(preimages.joined(batch))
        assert max(piece.size_bytes for piece in pieces) < 2**20
        assert sum(map(len, pieces)) == 1200
        for piece in pieces:
            assert piece.rows[CHANGE_TYPE].to_pylist() == ["update_preimage", "update_postimage"] * (len(piece) // 2)
            assert piece.rows["id"].to_pylist()[::2] == piece.rows["id"].to_pylist()[1::2]
