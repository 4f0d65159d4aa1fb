"""Images of updates that lie side by side in change files, as Spark's MERGE and UPDATE write them.

If every preimage of a version comes right before a postimage of the same key, these pairs are the ones that
`tailer.changelog.carryovers` defines, and no index is needed to find them. The rows stay where they are, and only the
preimages get other positions (`JoinedImages`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.events import CHANGE_TYPE, METADATA_FIELDS, ChangeBatch, ChangeType, joined_rows
from tailer.plan import END, Position

__all__ = ["JoinedImages", "before_preimage", "can_lie_side_by_side", "count_side_by_side"]

_PREIMAGE: Final = pa.scalar(ChangeType.UPDATE_PREIMAGE.value)
_POSTIMAGE: Final = pa.scalar(ChangeType.UPDATE_POSTIMAGE.value)
# Types whose values are equal in Arrow if and only if they are equal as keys.
_PLAIN_TYPES: Final[Sequence[Callable[[pa.DataType], bool]]] = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_boolean,
    pa.types.is_decimal,
)


def can_lie_side_by_side(key: pa.Schema) -> bool:
    """Return whether keys of these columns can be compared in Arrow."""
    return len(key) > 0 and all(any(is_type(field.type) for is_type in _PLAIN_TYPES) for field in key)


def count_side_by_side(batches: Iterable[ChangeBatch], null_keys: bool) -> int | None:
    """Return how many pairs of images there are; None if some image does not lie beside one of the same key.

    `batches`: the rows of one task, in the columns of the key. `null_keys`: whether nulls in keys are equal; if not,
    images must not have any.
    """
    pairs = 0
    waiting: pa.RecordBatch | None = None  # a preimage at the end of a batch
    for batch in batches:
        rows = batch.rows if waiting is None else pa.concat_batches([waiting, batch.rows])
        others = rows.num_rows - 1
        is_before, is_after = (pc.equal(rows[CHANGE_TYPE], kind) for kind in (_PREIMAGE, _POSTIMAGE))
        if is_after[0].as_py() or not is_before.slice(0, others).equals(is_after.slice(1)):
            return None
        before, after = (rows.slice(offset, others).filter(is_before.slice(0, others)) for offset in (0, 1))
        keys = range(rows.num_columns - len(METADATA_FIELDS))
        if not all(before[key].equals(after[key]) and (null_keys or before[key].null_count == 0) for key in keys):
            return None
        pairs += before.num_rows
        waiting = rows.slice(others) if is_before[others].as_py() else None
    return pairs if waiting is None else None


def before_preimage(after: Position | None) -> Position | None:
    """Return where to begin reading for the rows after a position, which may be that of a preimage in its file.

    The preimage comes with its postimage, whose position it is given.
    """
    return replace(after, row=after.row - 1) if after is not None and 0 <= after.row < END else after


class JoinedImages:
    """Gives each preimage the position of the postimage, which is the next row, and delivers both in one batch."""

    def __init__(self) -> None:
        self._waiting: ChangeBatch | None = None

    def lacks_postimage(self, following: ChangeBatch | None) -> int | None:
        """Return the task whose last preimage is not followed by a row of it. `following`: None at the end."""
        if self._waiting is None or (following is not None and following.task == self._waiting.task):
            return None
        return self._waiting.task

    def add(self, batch: ChangeBatch) -> Iterator[ChangeBatch]:
        """Yield the rows of the next batch, but for a preimage at its end, which comes with the next one."""
        rest = batch
        if self._waiting is not None:
            postimage, rest = batch.slice(0, 1), batch.slice(1, len(batch) - 1)
            positions = pa.concat_arrays([postimage.row_index, postimage.row_index])
            yield replace(postimage, rows=joined_rows([self._waiting, postimage]), row_index=positions)
            self._waiting = None
        is_before = pc.equal(rest.rows[CHANGE_TYPE], _PREIMAGE)
        count = len(rest)
        if count and is_before[count - 1].as_py():
            count -= 1
            self._waiting = rest.slice(count, 1)
        if count:
            following = pa.concat_arrays([rest.row_index.slice(1), rest.row_index.slice(len(rest) - 1)])
            positions = pc.if_else(is_before, following, rest.row_index)
            yield replace(rest.slice(0, count), row_index=positions.slice(0, count))
