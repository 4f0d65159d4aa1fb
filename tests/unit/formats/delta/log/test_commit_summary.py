"""Rows of a commit, counted by its file actions alone."""

from tailer.formats.delta.log.actions import AddWithStatistics, DeletionVector, RemoveWithStatistics
from tailer.formats.delta.log.commit_summary import FileTally
from tailer.formats.inspection import RowCounts
from tests.support.cases import cases

UNKNOWN = RowCounts(None, 0, None)


def vector(name: str, cardinality: int) -> DeletionVector:
    return DeletionVector("u", name, 40, cardinality)


@cases(
    ("before", "after", "rows"),
    [
        (None, vector("a", 2), RowCounts(0, 0, 2)),
        (vector("a", 2), None, RowCounts(2, 0, 0)),
        (vector("a", 2), vector("b", 2), UNKNOWN),  # 5 and 6 become 1 and 2: two rows come, two go
        (vector("a", 2), vector("b", 3), UNKNOWN),
        (vector("a", 3), vector("b", 2), UNKNOWN),
        (vector("a", 2), vector("a", 2), RowCounts(0, 0, 0)),
        (vector("a", 0), vector("b", 2), RowCounts(0, 0, 2)),
        (vector("a", 2), vector("b", 0), RowCounts(2, 0, 0)),
        (None, vector("b", 0), RowCounts(0, 0, 0)),
    ],
)
def test_vectors_of_a_file_that_stays_count_only_where_one_of_them_is_empty(
    before: DeletionVector | None, after: DeletionVector | None, rows: RowCounts
) -> None:
    tally = FileTally()
    tally.note(RemoveWithStatistics(path="f", data_change=True, deletion_vector=before))
    tally.note(AddWithStatistics(path="f", partition_values={}, size=1, data_change=True, deletion_vector=after))
    assert tally.rows == rows
