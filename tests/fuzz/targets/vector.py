"""Deletion vectors: the number of positions, then the bitmap. What is read is a set in order, and survives encoding."""

import pyarrow as pa
from pyroaring import BitMap64

from tailer.files.deletion_vector import load, z85_decode
from tailer.plan import DeletionVectorRef
from tests.fuzz.target import Target, outcome
from tests.support.tables.log_files import task, vector_data, z85

_OF = task("f", pa.schema([]))


def _seeds() -> list[bytes]:
    rows = [[], [1, 5, 9], range(3000), range(0, 20_000, 2), [2**32 + 5, 2**33], [*range(100, 700), 2**31]]
    bitmaps = [BitMap64(some) for some in rows]
    for bitmap in bitmaps:
        bitmap.run_optimize()
    plain = [(len(some), vector_data(some)) for some in rows]
    packed = [(len(each), vector_data([])[:4] + each.serialize()) for each in bitmaps]
    return [count.to_bytes(3, "little") + data for count, data in (*plain, *packed)]


def _run(data: bytes) -> None:
    outcome(lambda: z85_decode(data.decode("latin-1"), len(data) // 5 * 4), ValueError)
    cardinality, body = int.from_bytes(data[:3], "little"), data[3:]
    ref = DeletionVectorRef(None, z85(body), None, len(body), cardinality)
    found = outcome(lambda: load(ref, _OF, lambda *_: b""))
    if found is not None:
        rows = list(found)
        assert len(rows) == cardinality
        assert rows == sorted(set(rows))
        assert list(BitMap64.deserialize(found.serialize())) == rows


TARGET = Target(_run, _seeds, ("tailer.files.deletion_vector",))
