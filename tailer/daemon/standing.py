"""The progress of the pipelines of a configuration, as their sinks report it."""

from dataclasses import dataclass, replace

from tailer.config.pipelines import PipelineSettings, Settings
from tailer.daemon.fleet import find_existing, with_found_tables
from tailer.daemon.sinks import close_sinks, open_layout
from tailer.errors import TailerError
from tailer.plan import Position
from tailer.progress.lookup import find_progress
from tailer.shards.resharding import stream_names
from tailer.sink import Sink, app_id_of
from tailer.table_log import TableLog

__all__ = ["Standing", "standing_in", "standing_of", "survey"]


@dataclass(frozen=True, slots=True)
class Standing:
    """The progress of one pipeline: its position in the sink (None: nothing yet), and the table's newest version.

    `app_id`, `latest`: None where there is no table yet, and the pipeline waits for it.
    """

    pipeline: str
    table: str
    app_id: str | None
    position: Position | None
    latest: int | None

    @property
    def delivered(self) -> int | None:
        """The last version that the sink has completely; None for none."""
        if self.position is None:
            return None
        version = self.position.version - (not self.position.closes_version)
        return None if version < 0 else version

    @property
    def lag(self) -> int | None:
        """The number of versions that are not completely delivered; None before the first delivery."""
        if self.position is None or self.latest is None:
            return None
        return self.latest - self.position.version + (not self.position.closes_version)


async def survey(settings: Settings) -> tuple[list[Standing], list[Exception]]:
    """Query every table and sink of `settings`; return the progress of pipelines, and the errors.

    Each error has a note that names its pipeline.
    """
    standings: list[Standing] = []
    errors: list[Exception] = []
    for pipeline in (await with_found_tables(settings)).pipelines:
        try:
            located = await find_existing(pipeline)
            if located is None:
                standings.append(Standing(pipeline.name, pipeline.table, None, None, None))
            else:
                standings.append(replace(await standing_of(settings, located), table=pipeline.table))
        except TailerError as error:
            error.add_note(pipeline.name)
            errors.append(error)
    return standings, errors


async def standing_of(settings: Settings, pipeline: PipelineSettings) -> Standing:
    """Query the table and the sink of one pipeline, which is `located`. Raises their errors."""
    sink = settings.open_sink(pipeline)
    try:
        return await standing_in(pipeline, pipeline.open_table(), sink)
    finally:
        await close_sinks([sink])


async def standing_in(pipeline: PipelineSettings, log: TableLog, sink: Sink) -> Standing:
    """Query the table and the sink of one pipeline, which are open. Raises their errors."""
    table_id = await log.table_id()
    # Of a pipeline with shards, that of the slowest shard.
    shards = await open_layout(pipeline, sink).in_force() if sink.distributes else 0
    found = [await find_progress(name, log, table_id, sink) for name in stream_names(pipeline.name, shards)]
    progress = min(found, key=lambda each: Position.opening(-1) if each is None else each.position)
    if progress is None:
        app_id = app_id_of(pipeline.name, table_id)
        return Standing(pipeline.name, pipeline.table, app_id, None, await log.latest())
    return Standing(pipeline.name, pipeline.table, progress.app_id, progress.position, await log.latest())
