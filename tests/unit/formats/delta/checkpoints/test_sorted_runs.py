"""The external sort against `sorted`, for runs and blocks of any size."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.formats.delta.checkpoints import sorted_runs as module
from tailer.formats.delta.checkpoints.sorted_runs import SpillingSort

SCHEMA = pa.schema(
    {"number": pa.int64(), "text": pa.string(), "order": pa.int64(), "rest": pa.struct({"x": pa.int64()})}
)
# Code points whose order is another one in UTF-16, and texts that begin with others.
TEXTS = st.sampled_from(["", "a", "a\0", "aa", "b", "é", "\uffff", "\U00010000"])
ROWS = st.lists(st.tuples(st.integers(-1, 2), TEXTS), max_size=60)


@given(ROWS, st.integers(1, 7), st.integers(1, 300), st.integers(1, 400), st.integers(1, 9), st.integers(2, 17))
def test_rows_come_in_order_and_equal_ones_as_they_were_added(
    rows: list[tuple[int, str]], batch_rows: int, block_bytes: int, run_bytes: int, blocks: int, runs: int
) -> None:
    keys = ("number", "text")
    with pytest.MonkeyPatch.context() as patch, SpillingSort(SCHEMA, keys, run_bytes, block_bytes) as some:
        patch.setattr(module, "_MERGED_BLOCKS", blocks)
        patch.setattr(module, "_MOST_RUNS", runs)
        for begin in range(0, len(rows), batch_rows):
            part = [
                {"number": number, "text": text, "order": begin + each, "rest": {"x": each} if each % 2 else None}
                for each, (number, text) in enumerate(rows[begin : begin + batch_rows])
            ]
            some.add(pa.RecordBatch.from_pylist(part, SCHEMA))
        for _ in range(2):
            batches = list(some)
            assert all(len(batch) for batch in batches)
            found = [(row["number"], row["text"], row["order"]) for batch in batches for row in batch.to_pylist()]
            assert found == sorted((*row, each) for each, row in enumerate(rows))
            rest = [row["rest"] for batch in batches for row in batch.to_pylist()]
            expected = [each % batch_rows for _, _, each in found]
            assert rest == [{"x": each} if each % 2 else None for each in expected]
