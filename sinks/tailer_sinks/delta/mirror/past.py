"""The past that a mirror keeps: nothing, deleted rows with a mark, or each state of each row.

A row of the table is open as long as the source has it. A mirror that keeps deleted rows ends an open one with the
version that deletes it, and a history ends each state with the version that changes or deletes it. So the rows that
are open equal the source, and a key is in one of them at most.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer_sinks.mirrors import DELETED_AT, DELETED_VERSION, VALID_FROM, VALID_FROM_VERSION, VALID_TO, VALID_TO_VERSION

__all__ = [
    "DELETE",
    "DELETED",
    "GONE",
    "INSERT",
    "LATER",
    "NOTHING",
    "STATES",
    "UPDATE",
    "Past",
    "Times",
    "past_of",
    "remaining",
]

# What becomes of a key in a transaction. `GONE`: it comes and goes, so the table must not have it, before or
# afterwards. `LATER`: a state of a history after the first one, which meets no row of the table.
INSERT, UPDATE, DELETE, GONE, LATER = 1, 2, 3, 4, 5

_VERSION: Final = pa.int64()
_TIME: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Past:
    """The choice of what a mirror keeps. `name`: in the property of its table; empty: nothing.

    `words`: the option, in errors. `began`, `ended`: the columns that say when a row became open, and when it ended:
    the version, and its time.
    """

    name: str
    words: str
    began: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the table has beside those of the source."""
        return (*self.began, *self.ended)

    def source(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a table with `schema` that come from the source."""
        return pa.schema([column for column in schema if column.name not in self.columns])

    def table(self, source: pa.Schema) -> pa.Schema:
        """Return the columns of a table for rows of `source`."""
        types = zip(self.columns, (_VERSION, _TIME) * 2, strict=False)
        return pa.schema([*source, *(pa.field(name, kind) for name, kind in types)])

    def is_open(self) -> Any:
        """Return the filter of rows that are open; None: all are."""
        return pc.field(self.ended[0]).is_null() if self.ended else None

    def holds_at(self, version: int) -> Any:
        """Return the filter of the states of a history that hold at `version`."""
        began, ended = pc.field(self.began[0]), pc.field(self.ended[0])
        return (began <= version) & (ended.is_null() | (ended > version))


NOTHING: Final = Past("", 'mode = "mirror" and deletes = "remove"')
DELETED: Final = Past("mark", 'deletes = "mark"', ended=(DELETED_VERSION, DELETED_AT))
STATES: Final = Past(
    "history", 'mode = "history"', began=(VALID_FROM_VERSION, VALID_FROM), ended=(VALID_TO_VERSION, VALID_TO)
)


def past_of(mode: str, deletes: str) -> Past:
    """Return what a mirror with these options keeps."""
    if mode == "history":
        return STATES
    return DELETED if deletes == "mark" else NOTHING


class Times:
    """The times of versions."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}

    def note(self, version: int, time_us: int) -> None:
        """Take the time of a version, in microseconds since 1970."""
        self._times[version] = time_us

    def of(self, versions: pa.Array) -> pa.Array:
        """Return the time of each version; null for null."""
        places = pc.index_in(versions, value_set=pa.array(list(self._times), _VERSION), skip_nulls=True)
        return pa.array(list(self._times.values()), _TIME).take(places)


def remaining(
    past: Past, rows: pa.RecordBatch, changes: pa.Table, times: Times, snapshot: int | None
) -> tuple[pa.RecordBatch, Counter[int]]:
    """Return the rows of the table that stay, ended where they end, and how many open ones change in each way.

    `changes`: of each of `rows` the columns `change` and `ended`, null if it does not change, and, with a snapshot,
    whether it has the `same` values. `snapshot`: the version of one that has all rows of the source; None: there is
    none.
    """
    change = changes["change"].combine_chunks()
    if past is NOTHING:
        return rows.filter(change.is_null()), _counted(change)
    is_open, no_row = rows.column(past.ended[0]).is_null(), pa.repeat(pa.scalar(False), len(rows))
    ended = changes["ended"].combine_chunks()
    if snapshot is None:
        ends = _is(change, DELETE)
        revived = pc.and_(_is(change, INSERT), pc.invert(is_open))
        replaced = pc.or_(_is(change, UPDATE), revived) if past is DELETED else no_row
    elif past is DELETED:
        ends, replaced = change.is_null(), change.is_valid()
        ended = pa.repeat(pa.scalar(snapshot, _VERSION), len(rows))
    else:
        ends, replaced = pc.invert(no_row), no_row
        ended = pc.if_else(pc.fill_null(changes["same"].combine_chunks(), False), ended, snapshot)
    ends = pc.and_(ends, is_open)
    if past.began:  # a state that a repair replaces in the version that it begins with holds for no version
        is_empty = pc.fill_null(pc.equal(rows.column(past.began[0]), ended), False)
        replaced = pc.or_(replaced, pc.and_(ends, is_empty))
    columns = {name: rows.column(name) for name in rows.schema.names}
    for name, values in zip(past.ended, (ended, times.of(ended)), strict=True):
        columns[name] = pc.if_else(ends, values, columns[name])
    kept = pa.RecordBatch.from_arrays(list(columns.values()), schema=rows.schema).filter(pc.invert(replaced))
    return kept, _counted(change.filter(is_open))


def _is(change: pa.Array, kind: int) -> pa.Array:
    return pc.fill_null(pc.equal(change, kind), False)


def _counted(change: pa.Array) -> Counter[int]:
    return Counter({count["values"]: count["counts"] for count in change.drop_null().value_counts().to_pylist()})
