"""The progress of the pipelines of a configuration, as their sinks report it."""

from dataclasses import dataclass, replace

from tailer.config.pipelines import PipelineSettings, Settings
from tailer.daemon.fleet.awaited import find_existing
from tailer.daemon.fleet.discovery import with_found_tables
from tailer.daemon.sinks import close_sinks, open_layout
from tailer.errors import TailerError
from tailer.plan import Position
from tailer.progress.lookup import find_progress
from tailer.shards.resharding import stream_names
from tailer.sink import Sink, app_id_of
from tailer.table_log import TableLog

__all__ = ["Standing", "standing_in", "standing_of", "survey"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The progress of one pipeline: its position in the sink (None: nothing yet), and the table's newest version.

    `app_id`, `latest`: None where there is no table yet, and the pipeline waits for it.
    """

    pipeline: str
    table: str
    app_id: str | None = None
    position: Position | None = None
    latest: int | None = None

    @property
    def delivered(self) -> int | None:
        """The last version that the sink has completely; None for none."""
        return None if self.position is None or self.position.whole_version < 0 else self.position.whole_version

    @property
    def lag(self) -> int | None:
        """The number of versions that are not completely delivered; None before the first delivery."""
        if self.position is None or self.latest is None:
            return None
        return self.latest - self.position.whole_version


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
                standings.append(Standing(pipeline=pipeline.name, table=pipeline.table))
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
    streams = [await find_progress(name, log, table_id, sink) for name in stream_names(pipeline.name, shards)]
    progress = min(streams, key=lambda stream: Position.opening(-1) if stream is None else stream.position)
    position, app_id = None, app_id_of(pipeline.name, table_id)
    if progress is not None:
        position, app_id = progress.position, progress.app_id
    latest = await log.latest()
    return Standing(pipeline=pipeline.name, table=pipeline.table, app_id=app_id, position=position, latest=latest)
