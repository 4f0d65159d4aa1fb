"""Progress of a table that was another one before.

`REPLACE TABLE` gives a table a new id in the middle of its log. Its history goes on, and so does the stream: rows up to
that version were delivered under `<pipeline>/<old id>`, rows from it on are under `<pipeline>/<new id>`. Where a
pipeline is, is therefore the furthest that the sink has under any of the ids that the log knows. A table that was
deleted and made anew has a log of its own, in which the old id does not occur: nothing of its progress applies. That
there was such a table the sink still knows (`Sink.has_delivered`), and nobody goes on with the new one unasked.
"""

from tailer.errors import SinkFenced, TableReplaced
from tailer.plan import Position
from tailer.sink import FirstStart, Progress, Sink
from tailer.table_log import TableLog

__all__ = ["app_id_of", "check_new", "find_progress", "set_position", "set_progress"]


def app_id_of(pipeline: str, table_id: str) -> str:
    """Under which name a sink keeps the progress of `pipeline` in the table `table_id`."""
    return f"{pipeline}/{table_id}"


async def find_progress(pipeline: str, table: TableLog, table_id: str, sink: Sink) -> Progress | None:
    """What `sink` has of `table`, whose id is `table_id` by now; None if nothing. Raises what the two raise."""
    found = await sink.progress(app_id_of(pipeline, table_id))
    for former_id in await table.ids(-1 if found is None else found.position.version):
        if former_id != table_id:
            former = await sink.progress(app_id_of(pipeline, former_id))
            if former is not None and (found is None or former.position > found.position):
                found = former
    return found


async def check_new(pipeline: str, table: TableLog, table_id: str, sink: Sink) -> None:
    """Raise `TableReplaced` if `sink`, which had no progress in `table`, has some of the pipeline in another table.

    Raises `SinkFenced` if it has some in this one by now, and what a `FirstStart` raises.
    """
    if await sink.has_delivered(pipeline):
        if await find_progress(pipeline, table, table_id, sink) is not None:
            raise SinkFenced(sink.name, f"it has delivered for {pipeline} since this one looked")
        raise TableReplaced(table.uri, 0, "another one", table_id)
    if isinstance(sink, FirstStart):
        await sink.check_first_start(pipeline, list(dict.fromkeys([table_id, *await table.ids(-1)])))


async def set_progress(pipeline: str, table: TableLog, sink: Sink, version: int) -> None:
    """Make `sink` count `version` as delivered, whatever it has under whichever id. Raises what the two raise."""
    await set_position(pipeline, table, sink, Position.end(version))


async def set_position(pipeline: str, table: TableLog, sink: Sink, position: Position) -> None:
    """Make `position` the place to go on behind, whatever `sink` has under whichever id. Raises what the two raise."""
    table_id = await table.table_id()
    for each in {table_id: None} | dict.fromkeys(await table.ids(-1)):
        app_id = app_id_of(pipeline, each)
        had = await sink.progress(app_id)
        if each == table_id or (had is not None and had.position > position):
            await sink.reset(Progress(app_id, position))
