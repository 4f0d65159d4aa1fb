"""Reach the tables and sinks of a configuration, and write nothing: `tailer check --connect`.

Whatever a pipeline needs to read is asked for once: the log is listed, its newest commit is read, the first file that
the commit names is opened, and the sink tells its progress. So a key, a permission or an address that is wrong shows
before anything is delivered.
"""

from dataclasses import dataclass

from tailer.config.pipelines import Settings
from tailer.config.tables import open_files
from tailer.daemon.standing import Standing, standing_of
from tailer.errors import FileVacuumed, TailerError
from tailer.read.data_files import DataFiles
from tailer.read.execute import row_groups
from tailer.stores.port import in_thread
from tailer.table_log import TableLog

__all__ = ["Connection", "connect"]


@dataclass(frozen=True, slots=True)
class Connection:
    """The table and the sink of one pipeline, reached.

    `file`: the data file that was opened; None where the newest version names none.
    """

    standing: Standing
    file: str | None


async def connect(settings: Settings) -> dict[str, Connection | TailerError]:
    """Reach the table and the sink of each pipeline of `settings`; return the results by name, errors included."""
    found: dict[str, Connection | TailerError] = {}
    for pipeline in settings.pipelines:
        try:
            file = await _open_newest_file(pipeline.open_table(), open_files(pipeline.stores))
            found[pipeline.name] = Connection(await standing_of(settings, pipeline), file)
        except TailerError as error:
            found[pipeline.name] = error
    return found


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
