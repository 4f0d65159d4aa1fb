"""The contract of a sink as mirrors keep it: they have the rows that are left of the changes."""

from typing import Any

from tailer.events import METADATA_FIELDS, Gap
from tailer_sinks.testing import SinkTests
from tailer_sinks.testing.suite import Rows

__all__ = ["METADATA", "OfMirrors"]

METADATA = frozenset(field.name for field in METADATA_FIELDS)
_NOT_OF_MIRRORS = (
    # These deliver columns without a key, or a key twice, or null in it.
    "test_small_batches_may_come_together",
    "test_a_batch_may_be_wide",
    "test_columns_come_and_go_in_a_transaction",
    "test_narrower_numbers_arrive",
    "test_wider_numbers_arrive_or_are_refused_by_name",
    # These begin with other columns than the table has, without an announcement.
    "test_a_new_column_comes_with_the_next_transaction",
    "test_a_fault_loses_and_doubles_nothing",
    # These leave versions out, which a mirror refuses: `test_delta_mirror.py`, `test_sql_sink.py` in `integration`.
    "test_an_event_may_come_without_rows",
    "test_a_gap_stands_where_it_was_announced",
    "test_an_aborted_transaction_leaves_no_event",
    "test_events_and_progress_become_visible_together",
    "test_a_snapshot_that_is_lost_half_way_ends_in_a_gap",
    # A reset is refused.
    "test_reset_goes_forward_and_keeps_rows",
    "test_reset_may_come_first",
    "test_a_reset_counts_as_delivered",
    "test_reset_leaves_the_rest_of_a_snapshot_out",
    # In these two streams share a table.
    "test_streams_are_independent",
    "test_other_streams_do_not_see_a_snapshot",
)


class OfMirrors(SinkTests):
    """The tests of the contract for a mirror. Of a gap it only has the snapshot behind it."""

    def _compare_rows(self, found: Rows, wanted: Rows) -> None:
        left: dict[Any, dict[str, Any]] = {}
        for row in wanted:
            if row["_change_type"] == Gap.kind:
                left.clear()
            else:
                left[row["id"]] = _without_metadata(row)
        super()._compare_rows([_without_metadata(row) for row in found], list(left.values()))


for name in _NOT_OF_MIRRORS:
    setattr(OfMirrors, name, None)


def _without_metadata(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in METADATA}
