"""The rows of a mirror, and rows of the source as it would hold them, to compare the two.

A version of a Delta table stays as it is, so the pipeline may go on meanwhile.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from typing_extensions import override

from tailer.errors import SinkRejected, SinkUnavailable
from tailer.sink import MirrorRows, app_id_of, main_app_id, pipeline_of, stream_name
from tailer_sinks.delta.folder import TargetFolder
from tailer_sinks.delta.mirror.keys import columns_name, key_in, key_name, known_from_name
from tailer_sinks.delta.mirror.past import STATES
from tailer_sinks.delta.mirror.repair import DeltaRepair
from tailer_sinks.delta.mirror.stored_rows import StoredRows
from tailer_sinks.delta.mirror.table import MirrorTable
from tailer_sinks.delta.table import Anchor
from tailer_sinks.delta.target import delivered_name
from tailer_sinks.delta.txns import position_in
from tailer_sinks.delta.variants import rows_schema_of
from tailer_sinks.mirrors import time_us_of

__all__ = ["check_goes_on", "open_rows"]


class DeltaMirrorRows(MirrorRows):
    """A `tailer.sink.MirrorRows` of the state `anchor` of a table. `keys`: that of the options, and the source's.

    `version`: of a history, the rows as of this version; None: the newest. `columns` are those of all its versions.
    """

    def __init__(
        self, table: MirrorTable, anchor: Anchor, keys: tuple[Sequence[str], Sequence[str]], version: int | None
    ) -> None:
        assert anchor.expected is not None
        past, newest = table.past, anchor.expected.version
        schema = past.source(anchor.schema)
        known_from = table.number(anchor, known_from_name) if past is STATES else None
        self.app_id = anchor.app_id
        self.known_from = newest if known_from is None else known_from
        self.version = newest if version is None else version
        if not self.known_from <= self.version <= newest:
            reason = f"{table.path} has the history of versions {self.known_from} to {newest}, and not {self.version}"
            raise SinkRejected(table.name, reason, "Choose one of these versions.")
        self.columns = tuple(schema.names)
        self.columns_at = newest if past is STATES else None
        self.key = key_in(table.name, table.path, schema, *keys)
        table.check_same_key(anchor, self.key)
        self._table = table
        self._anchor = anchor
        self._repair: DeltaRepair | None = None
        self._time_us: int | None = None  # of the version of the source
        self._stored = StoredRows(table.name, table.path, schema, lacks_columns=past is STATES)
        self._condition = past.is_open() if version is None else past.holds_at(version)

    @override
    def rows(self) -> Iterator[pa.RecordBatch]:
        try:
            for rows in self._table.rows(self._anchor, self.columns, self._condition):
                yield self._stored.texts(rows)
        except SinkUnavailable as error:
            if not isinstance(error.__cause__, FileNotFoundError) and "not found" not in error.reason.lower():
                raise
            reason = f"files of {self._table.path} were removed while it was read, such as by VACUUM: {error.reason}"
            raise SinkRejected(self._table.name, reason, "Run `tailer verify` again.") from error

    def deleted_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield nothing: rows that are deleted are no rows of the source."""
        return iter(())

    @override
    def as_stored(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Raises `SinkRejected` also where a column has another type in the table."""
        self._time_us = time_us_of(rows) or self._time_us
        yield self._stored(rows)

    @override
    def stored_keys(self, rows: pa.RecordBatch) -> pa.Table:
        """Raises `SinkRejected` for a null: no MERGE could repair that row."""
        keys = self._stored.conformed(rows).select(self.key)
        if nulls := [column for column in self.key if keys.column(column).null_count]:
            reason = f"the key column {nulls[0]} is null in the source"
            raise SinkRejected(self._table.name, reason, "Set key to columns that are never null.")
        return pa.Table.from_batches([self._stored.texts(keys)])

    @override
    def begin_repair(self) -> DeltaRepair:
        stored = self._stored
        self._repair = DeltaRepair(self._table, self._anchor, self.key, stored.conformed, stored.texts, self._time_us)
        return self._repair

    def close(self) -> None:
        """Release what a repair holds."""
        if self._repair is not None:
            self._repair.close()


def open_rows(
    table: MirrorTable, pipeline: str, keys: tuple[Sequence[str], Sequence[str]], version: int | None
) -> DeltaMirrorRows:
    """Open the newest version of the mirror of `pipeline`, or of a history, its rows as of `version`.

    Raises as entering `Sink.open_mirror` does.
    """
    folder = table.folder
    login = folder.login()
    delta_table, app_id = folder.open(login), None
    if delta_table is not None:
        with folder.reading():
            table.check_target(delta_table, app_id_of(pipeline, ""))
        app_id = _last_stream(folder, delta_table.version(), pipeline)
    position = None
    if delta_table is not None and app_id is not None:
        with folder.reading():
            table.check_target(delta_table, app_id)
            position = position_in(delta_table, app_id)
    if delta_table is None or app_id is None or position is None:
        remedy = "Wait until its pipeline has delivered one: see `tailer status`."
        folder.reject(f"the table {table.path} has no version yet", remedy)
    schema, columns = rows_schema_of(delta_table.schema()), delta_table.metadata().partition_columns
    anchor = Anchor(app_id, position, schema, columns, delta_table, delta_table.version(), login=login)
    return DeltaMirrorRows(table, anchor, keys, version)


def check_goes_on(table: MirrorTable, anchor: Anchor, first: int) -> None:
    """Refuse the first commit of a stream into a history that has the version `first`, with which the rows begin.

    An ordered snapshot may be one of the last version of the same table.
    """
    if anchor.table is None:
        return
    last = _last_stream(table.folder, anchor.table.version(), pipeline_of(main_app_id(anchor.app_id)))
    position = None if last is None else position_in(anchor.table, last)
    is_same = last == main_app_id(anchor.app_id)
    if position is not None and first < position.version + (not is_same):
        whose = "a history" if is_same else "the history of another table"
        reason = f"{table.path} has {whose} up to version {position.version}, and version {first} follows"
        raise SinkRejected(table.name, reason, "Choose a new path.")


def _last_stream(folder: TargetFolder, newest: int, pipeline: str) -> str | None:
    """Return the app id under which `pipeline` has committed last: its table may have had several ids."""
    ours = (
        stream_name(f"{pipeline}/"),
        *(name_of(pipeline) for name_of in (delivered_name, key_name, columns_name, known_from_name)),
    )
    for version in range(newest, -1, -1):
        names = folder.transactions(version)
        if names is None:
            reason = "its log no longer has the last commit of the pipeline, which says what it mirrors"
            folder.reject(reason, "Let the pipeline deliver a later version first.")
        for name in names:
            app_id = main_app_id(name)
            if pipeline_of(app_id) == pipeline and name not in ours:
                return app_id
    return None
