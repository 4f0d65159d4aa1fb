"""Reach the tables and sinks of a configuration: `tailer check --connect`.

Whatever a pipeline needs to read is asked for once: the log is listed, its newest commit is read, the first file that
the commit names is opened, and the sink tells its progress and whether it would take the first rows
(`tailer.daemon.checks.first_rows`). A store tells whether it can be written to only when it is: in a target or a state
table there, an empty hidden object is created and deleted. So what is wrong shows before anything is delivered. A table
that can tell says which of its newest versions contradict its state.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from tailer.config.pipelines import PipelineSettings, Settings
from tailer.config.tables import open_files
from tailer.daemon.checks.errors import Errors
from tailer.daemon.checks.first_rows import FirstRows
from tailer.daemon.fleet import find_existing
from tailer.daemon.sinks import close_sinks
from tailer.daemon.standing import Standing, standing_in
from tailer.errors import FileVacuumed, TailerError
from tailer.formats.rows import row_groups
from tailer.read.data_files import DataFiles
from tailer.sink import Sink
from tailer.stores.location import is_local
from tailer.stores.port import in_thread
from tailer.table_log import Contradiction, TableLog

__all__ = ["Connection", "connect"]


@dataclass(frozen=True, slots=True)
class Connection:
    """The table and the sink of one pipeline, as far as they could be reached.

    `standing`: None where there is no table yet, and the pipeline would wait for it. `file`: the data file that was
    opened; None where the newest version names none. `contradictions`: as in `TableLog`. `errors`: all that is wrong;
    the rest may be missing then.
    """

    standing: Standing | None
    file: str | None
    contradictions: Sequence[Contradiction]
    errors: Sequence[TailerError]


async def connect(settings: Settings) -> dict[str, Connection]:
    """Reach the table and the sink of each pipeline of `settings`; return the results by name."""
    return {pipeline.name: await _connect(settings, pipeline) for pipeline in settings.pipelines}


async def _connect(settings: Settings, pipeline: PipelineSettings) -> Connection:
    errors, located, table, standing, file = Errors(), None, None, None, None
    contradictions: Sequence[Contradiction] = ()
    with errors.gathered():
        located = await find_existing(pipeline)
        table = None if located is None else located.open_table()
    if table is not None:
        with errors.gathered():
            file = await _open_newest_file(table, open_files(pipeline.stores))
            contradictions = await table.contradictions()
    with errors.gathered():
        sink = settings.open_sink(pipeline)
        try:
            sink.only_look()
            if located is None or table is None:
                await sink.has_delivered(pipeline.name)
            else:
                with errors.gathered():
                    standing = await standing_in(located, table, sink)
                await FirstRows(located, table, sink, standing).examine(errors)
        finally:
            await close_sinks([sink])
    for location in _target_stores(settings, pipeline):
        with errors.gathered():
            # Readers of tables and folders ignore the object by its name.
            store = pipeline.stores.open_uploads(location)
            name = f".lake-tailer-check-{secrets.token_hex(8)}"
            await store.put_if_absent(name, b"")
            await store.delete(name)
    return Connection(standing, file, contradictions, errors.found)


def _target_stores(settings: Settings, pipeline: PipelineSettings) -> list[str]:
    """Return the locations in stores that the pipeline writes to."""
    keeps_progress = isinstance(pipeline.make_sink(), Sink)
    found = (pipeline.target, None if keeps_progress else settings.state_table)
    return [location for location in found if location is not None and not is_local(location)]


async def _open_newest_file(table: TableLog, files: DataFiles) -> str | None:
    """Open the first file of the newest version, and return its location. A file that is gone counts as reached."""
    await table.seek(await table.latest())
    plan = await table.next_plan()
    if plan is None or not plan.tasks:
        return None
    task = plan.tasks[0]
    try:
        await in_thread(row_groups, task, files)
    except FileVacuumed:
        return None
    return task.uri
