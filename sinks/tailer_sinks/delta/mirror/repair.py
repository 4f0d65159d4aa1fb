"""The repair of a mirror: rows that are replaced by those of the source, in one commit.

The commit is made on top of the version of the table that was compared, and fails if there is any other one since, so
it replaces just the rows that were found. It has the progress that the table has already. It is a MERGE, as those of
the pipeline, unless the table has a key twice, or without a value: then all rows are written again, without these.

Where the mirror keeps deleted rows, or each state, rows end in the version that was compared, at its time. Where the
source has no rows, that of the repair takes its place.
"""

import shutil
import time
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from typing_extensions import override

from tailer.changelog.spill.directory import scratch_folder
from tailer.changelog.spill.scratch_database import open_database
from tailer.errors import SinkFenced, SinkRejected, SinkUnavailable, TailerError
from tailer.sink import MirrorRepair
from tailer_sinks.delta.mirror.changes import Changes, Contradiction
from tailer_sinks.delta.mirror.table import MirrorStep, MirrorTable, all_valid
from tailer_sinks.delta.schema import partition_refusal
from tailer_sinks.delta.table import Anchor
from tailer_sinks.encoding.typed import conform
from tailer_sinks.mirrors import RESNAPSHOT

__all__ = ["DeltaRepair"]

_Convert = Callable[[pa.RecordBatch], pa.RecordBatch]

_FIND: Final = "SELECT place, number FROM given JOIN removed ON {equal} ORDER BY place"


class DeltaRepair(MirrorRepair):
    """A `tailer.sink.MirrorRepair` of the mirror that was read as `anchor`. `key`: its columns that identify a row.

    `conformed` gives rows of the source the types of the table, and `as_texts` turns rows into what is compared.
    `time_us`: of the version; None: not known.
    """

    def __init__(
        self,
        table: MirrorTable,
        anchor: Anchor,
        key: tuple[str, ...],
        conformed: _Convert,
        as_texts: _Convert,
        time_us: int | None,
    ) -> None:
        self._table = table
        self._anchor = anchor
        self._key = key
        self._conformed = conformed
        self._as_texts = as_texts
        assert anchor.expected is not None
        self._position = anchor.expected
        self._changes = Changes(table.name, table.past)
        self._changes.times.note(self._position.version, time_us or time.time_ns() // 1000)
        self._names = [f"key_{number}" for number in range(len(key))]
        self._folder = str(scratch_folder())
        self._database = open_database(self._folder)
        columns = ", ".join(f"{name} VARCHAR" for name in self._names)
        self._count = 0
        try:
            self._query(f"CREATE TABLE removed (number BIGINT, {columns})")
        except TailerError:
            self.close()
            raise

    @override
    def remove(self, keys: pa.RecordBatch) -> None:
        numbers = pa.array(range(self._count, self._count + len(keys)), pa.int64())
        rows = pa.table([numbers, *keys.columns], ["number", *self._names])
        self._query("INSERT INTO removed SELECT * FROM given", rows)
        self._count += len(keys)

    @override
    def add(self, rows: pa.RecordBatch) -> None:
        kept = self._conformed(rows)
        if (refusal := partition_refusal(kept, self._anchor.partition_by)) is not None:
            raise SinkRejected(self._table.name, refusal, "Partition the target by another column.")
        self._take(kept, kept, inserted=True)

    @override
    def commit(self) -> bool:
        """Return False, too, if anybody else has changed the table since it was read."""
        table, anchor = self._table, self._anchor
        try:
            exact = self._find_removed()
            self._changes.reduce()
            table.apply(anchor, MirrorStep(position=self._position, key=self._key, exact=exact), self._changes)
        except Contradiction as twice:
            reason = f"the source has a key twice; the key of {table.path} is {', '.join(self._key)}"
            remedy = f"Set key to columns whose values are unique. {RESNAPSHOT}"
            raise SinkRejected(table.name, reason, remedy) from twice
        except SinkFenced:
            return False
        except SinkUnavailable:
            if table.is_newest(anchor):
                raise
            return False
        return True

    def close(self) -> None:
        """Release memory and files."""
        self._changes.close()
        self._database.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _find_removed(self) -> bool:
        """Delete the removed keys that the table has. Return whether it has each of them once, with a value."""
        exact, is_there = True, bytearray(self._count)
        equal = " AND ".join(f"given.{name} IS NOT DISTINCT FROM removed.{name}" for name in self._names)
        table = self._table
        for keys in table.rows(self._anchor, self._key, table.past.is_open()):
            places = pa.array(range(len(keys)), pa.int64())
            texts = pa.table([places, *self._as_texts(keys).columns], ["place", *self._names])
            first: list[int] = []
            for place, number in self._query(_FIND.format(equal=equal), texts):
                if not is_there[number]:
                    first.append(place)
                exact, is_there[number] = exact and not is_there[number], 1
            rows = keys.take(pa.array(first, pa.int64()))
            if any(column.null_count for column in rows.columns):
                exact = False
                rows = rows.filter(all_valid(rows))
            if len(rows):
                self._take(conform(rows, table.past.source(self._anchor.schema)), rows, inserted=False)
        return exact

    def _query(self, statement: str, given: pa.Table | None = None) -> list[tuple[Any, ...]]:
        if given is not None:
            self._database.register("given", given)
        try:
            return self._database.execute(statement).fetchall()
        except Exception as error:
            raise self._changes.failure(error) from error

    def _take(self, rows: pa.RecordBatch, keys: pa.RecordBatch, *, inserted: bool) -> None:
        version = pa.repeat(pa.scalar(self._position.version, pa.int64()), len(rows))
        self._changes.add(rows, [keys.column(column) for column in self._key], version, inserted=inserted)
