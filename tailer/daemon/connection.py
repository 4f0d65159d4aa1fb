"""Reach the tables and sinks of a configuration: `tailer check --connect`.

Whatever a pipeline needs to read is asked for once: the log is listed, its newest commit is read, the first file that
the commit names is opened, and the sink tells its progress. A store tells whether it can be written to only when it is:
in a target or a state table there, an empty hidden object is created and deleted. So a key, a permission or an address
that is wrong shows before anything is delivered. A table that can tell says which of its newest versions contradict
its state.
"""

import secrets
from dataclasses import dataclass

from tailer.config.pipelines import PipelineSettings, Settings
from tailer.config.tables import open_files
from tailer.daemon.fleet import find_existing
from tailer.daemon.serve import close_sinks, open_sink
from tailer.daemon.standing import Standing, standing_of
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
    """The table and the sink of one pipeline, reached.

    `standing`: None where there is no table yet, and the pipeline would wait for it. `file`: the data file that was
    opened; None where the newest version names none. `contradictions`: as in `TableLog`.
    """

    standing: Standing | None
    file: str | None
    contradictions: tuple[Contradiction, ...] = ()


async def connect(settings: Settings) -> dict[str, Connection | TailerError]:
    """Reach the table and the sink of each pipeline of `settings`; return the results by name, errors included."""
    found: dict[str, Connection | TailerError] = {}
    for pipeline in settings.pipelines:
        try:
            contradictions: tuple[Contradiction, ...] = ()
            located = await find_existing(pipeline)
            if located is None:
                file, standing = None, None
                await _reach_sink(settings, pipeline)
            else:
                table = located.open_table()
                file = await _open_newest_file(table, open_files(pipeline.stores))
                standing = await standing_of(settings, located)
                contradictions = await table.contradictions()
            for location in _target_stores(settings, pipeline):
                # Readers of tables and folders ignore the object by its name.
                store = pipeline.stores.open_uploads(location)
                name = f".lake-tailer-check-{secrets.token_hex(8)}"
                await store.put_if_absent(name, b"")
                await store.delete(name)
            found[pipeline.name] = Connection(standing, file, contradictions)
        except TailerError as error:
            found[pipeline.name] = error
    return found


async def _reach_sink(settings: Settings, pipeline: PipelineSettings) -> None:
    """Ask the sink for progress, of no table. Raises `SinkError`."""
    sink = open_sink(settings, pipeline)
    try:
        await sink.has_delivered(pipeline.name)
    finally:
        await close_sinks([sink])


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
