"""Lookup of progress under any id that the table has had.

`REPLACE TABLE` gives a table a new id in the middle of its log, and the stream continues. Rows before that version were
delivered under `<pipeline>/<old id>`, later rows under `<pipeline>/<new id>`. So the position of a pipeline is the
furthest that the sink has under any id in the log. A table that was deleted and created again has a new log without the
old id, so the old progress does not apply. The sink still has it (`Sink.has_delivered`), and the new table is
never continued unasked.
"""

from tailer.errors import SinkFenced, SinkRejected, TableReplaced
from tailer.plan import Position
from tailer.sink import Progress, Sink, app_id_of
from tailer.table_log import TableLog

__all__ = ["check_new", "find_progress", "set_position"]


async def find_progress(pipeline: str, table: TableLog, table_id: str, sink: Sink) -> Progress | None:
    """Find the progress in `sink` of `table`, whose current id is `table_id`. None: no progress.

    Raises what the table and the sink raise.
    """
    progress = await sink.progress(app_id_of(pipeline, table_id))
    for former_id in await table.ids(-1 if progress is None else progress.position.version):
        if former_id != table_id:
            former = await sink.progress(app_id_of(pipeline, former_id))
            if former is not None and (progress is None or former.position > progress.position):
                progress = former
    return progress


async def check_new(pipeline: str, table: TableLog, table_id: str, sink: Sink) -> None:
    """Raise `TableReplaced` if `sink` has no progress in `table`, but has some of the pipeline in another table.

    Raises `SinkFenced` if it now has progress in this one, and what `Sink.check_first_start` raises.
    """
    refusal: SinkRejected | None = None
    try:
        await sink.check_first_start(pipeline, list(dict.fromkeys([table_id, *await table.ids(-1)])))
    except SinkRejected as error:
        refusal = error
    # Asked last: what the sink refuses may be the rows of another instance that has begun meanwhile.
    if await sink.has_delivered(pipeline):
        if await find_progress(pipeline, table, table_id, sink) is not None:
            raise SinkFenced(sink.name, f"another instance has delivered for {pipeline} meanwhile")
        raise TableReplaced(table.uri, 0, "another one", table_id)
    if refusal is not None:
        raise refusal


async def set_position(pipeline: str, table: TableLog, sink: Sink, position: Position) -> None:
    """Make `sink` continue after `position`, whatever progress it has under any id of the table.

    Raises what the table and the sink raise.
    """
    table_id = await table.table_id()
    for any_id in {table_id: None} | dict.fromkeys(await table.ids(-1)):
        app_id = app_id_of(pipeline, any_id)
        had = await sink.progress(app_id)
        if any_id == table_id or (had is not None and had.position > position):
            await sink.reset(Progress(app_id, position))
