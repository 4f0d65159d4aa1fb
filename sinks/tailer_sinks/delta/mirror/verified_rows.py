"""The rows of a mirror, and rows of the source as it would hold them, to compare the two.

A version of a Delta table stays as it is, so the pipeline may go on meanwhile.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tailer.errors import SinkRejected, SinkUnavailable
from tailer.sink import MirrorCopy, app_id_of, backfilled_app_id, pipeline_of, stream_name
from tailer_sinks.delta.folder import TargetFolder
from tailer_sinks.delta.mirror.keys import key_in, key_name
from tailer_sinks.delta.mirror.repair import DeltaRepair
from tailer_sinks.delta.mirror.stored_rows import StoredRows
from tailer_sinks.delta.mirror.table import MirrorTable
from tailer_sinks.delta.table import Anchor
from tailer_sinks.delta.target import delivered_name
from tailer_sinks.delta.txns import position_in
from tailer_sinks.delta.variants import rows_schema_of

__all__ = ["open_rows"]


class DeltaMirrorRows:
    """A `tailer.sink.MirrorRows` of the state `anchor` of a table. `keys`: that of the options, and the source's."""

    def __init__(self, table: MirrorTable, anchor: Anchor, keys: tuple[Sequence[str], Sequence[str]]) -> None:
        assert anchor.expected is not None
        self.app_id = anchor.app_id
        self.version = anchor.expected.version
        self.columns = tuple(anchor.schema.names)
        self.key = key_in(table.name, table.path, anchor.schema, *keys)
        table.check_same_key(anchor, self.key)
        self._table = table
        self._anchor = anchor
        self._repair: DeltaRepair | None = None
        self._stored = StoredRows(table.name, table.path, anchor.schema)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """See `MirrorRows.rows`."""
        try:
            for rows in self._table.rows(self._anchor):
                yield self._stored.texts(rows)
        except SinkUnavailable as error:
            if not isinstance(error.__cause__, FileNotFoundError) and "not found" not in error.reason.lower():
                raise
            reason = f"files of {self._table.path} were removed while it was read, such as by VACUUM: {error.reason}"
            raise SinkRejected(self._table.name, reason, "Run `tailer verify` again.") from error

    def deleted_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield nothing: a mirror has no deleted rows."""
        return iter(())

    def as_stored(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """See `MirrorRows.as_stored`. Raises `SinkRejected` also where a column has another type in the table."""
        yield self._stored(rows)

    def stored_keys(self, rows: pa.RecordBatch) -> pa.Table:
        """See `MirrorRows.stored_keys`. Raises `SinkRejected` for a null: no MERGE could repair that row."""
        keys = self._stored.conformed(rows).select(self.key)
        if nulls := [column for column in self.key if keys.column(column).null_count]:
            reason = f"the key column {nulls[0]} is null in the source"
            raise SinkRejected(self._table.name, reason, "Set key to columns that are never null.")
        return pa.Table.from_batches([self._stored.texts(keys)])

    def begin_repair(self) -> DeltaRepair:
        """See `MirrorRows.begin_repair`."""
        self._repair = DeltaRepair(self._table, self._anchor, self.key, self._stored.conformed, self._stored.texts)
        return self._repair

    def copy(self) -> MirrorCopy:
        """See `MirrorRows.copy`."""
        return MirrorCopy(self._table.path, self._anchor.version, self._stored)

    def close(self) -> None:
        """Release what a repair holds."""
        if self._repair is not None:
            self._repair.close()


def open_rows(table: MirrorTable, pipeline: str, keys: tuple[Sequence[str], Sequence[str]]) -> DeltaMirrorRows:
    """Open the newest version of the mirror of `pipeline`. Raises as entering `Sink.open_mirror` does."""
    folder = table.folder
    login = folder.login()
    found, app_id = folder.open(login), None
    if found is not None:
        with folder.reading():
            table.check_target(found, app_id_of(pipeline, ""))
        app_id = _last_stream(folder, found.version(), pipeline)
    position = None
    if found is not None and app_id is not None:
        with folder.reading():
            table.check_target(found, app_id)
            position = position_in(found, app_id)
    if found is None or app_id is None or position is None:
        remedy = "Wait until its pipeline has delivered one: see `tailer status`."
        folder.reject(f"the table {table.path} has no version yet", remedy)
    schema, columns = rows_schema_of(found.schema()), found.metadata().partition_columns
    return DeltaMirrorRows(table, Anchor(app_id, position, schema, columns, found, found.version(), login=login), keys)


def _last_stream(folder: TargetFolder, newest: int, pipeline: str) -> str | None:
    """Return the app id under which `pipeline` has committed last: its table may have had several ids."""
    ours = delivered_name(pipeline), stream_name(f"{pipeline}/"), key_name(pipeline)
    for version in range(newest, -1, -1):
        names = folder.transactions(version)
        if names is None:
            reason = "its log no longer has the last commit of the pipeline, which says what it mirrors"
            folder.reject(reason, "Let the pipeline deliver a later version first.")
        for each in names:
            app_id = backfilled_app_id(each) or each
            if pipeline_of(app_id) == pipeline and each not in ours:
                return app_id
    return None
