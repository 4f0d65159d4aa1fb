"""Into how many shards a pipeline is divided is part of its progress, and this is who keeps it.

A pipeline is delivered by one stream, or by one for each of its shards: its layout. Which one is in force the sink
says, as progress of a stream of its own whose version is the number of shards, 0 for none: `Position.end(n)`. While one
layout is left for another it is `Position.opening(n)`, and nobody begins to write. From one to the other:

1. The number is marked as being left.
2. All streams of the old layout are taken over. Whoever wrote one before is refused from now on. Who takes one over
   from now on looks at the number before it writes (`LayoutSink`), finds it marked, and stops.
3. So where the streams are stays as it is. They must be level, that is behind the same version; else the old number is
   in force again, and a person has to decide.
4. The streams of the new layout are set to that place, and then the new number is in force.

Whoever is killed on the way leaves a number that is marked: the next one does it all again, whichever number it wants.

Where nothing was delivered yet, the streams are set to where the pipeline is to start: made definite once, for all
shards and for whoever comes after a crash.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pyarrow as pa
from anyio import CancelScope

from tailer.errors import ConfigError, SinkFenced, SinkRejected, TailerError
from tailer.events import METADATA_FIELDS
from tailer.plan import Position
from tailer.progress.lookup import app_id_of, check_new, find_progress, set_position
from tailer.sink import LAYOUT, Demands, FirstStart, Heartbeat, Progress, Sink, SinkTransaction, shard_name
from tailer.start import Start
from tailer.table_log import TableLog

__all__ = ["NO_COLUMNS", "Layout", "LayoutSink", "UndividedSink", "layout_id", "place_of", "stream_names"]

NO_COLUMNS: Final = pa.schema(METADATA_FIELDS)


def layout_id(pipeline: str) -> str:
    """Under which name a sink keeps the number of shards of `pipeline`."""
    return f"{pipeline}{LAYOUT}"


def stream_names(pipeline: str, shards: int) -> list[str]:
    """What the streams of a layout are called as pipelines; `shards` 0: there is one, not divided."""
    return [shard_name(pipeline, shard, shards) for shard in range(shards)] or [pipeline]


async def place_of(stream: str, table: TableLog, sink: Sink) -> Position:
    """Where a stream of a layout is that is in force.

    Raises `TableReplaced` where that was in another table, `SinkRejected` where the sink does not know any more.
    """
    table_id = await table.table_id()
    found = await find_progress(stream, table, table_id, sink)
    if found is None:
        await check_new(stream, table, table_id, sink)
        remedy = "Set where it is: `tailer progress reset CONFIG --to VERSION`."
        raise SinkRejected(sink.name, f"the progress of {stream} is gone", remedy)
    return found.position


class Layout:
    """The layout of `pipeline` over `table`. `sink`: claims the number, and knows when somebody else has done so.

    `make_sink`: a sink with the same options, for taking streams over: it is closed at once, so that others may. Both
    must be of those that `distributes`. Methods raise what table and sink raise; `SinkUnavailable` and the like pass,
    and everything may be done again then.
    """

    def __init__(self, pipeline: str, table: TableLog, sink: Sink, make_sink: Callable[[], Sink]) -> None:
        self._pipeline = pipeline
        self._table = table
        self._sink = sink
        self._make_sink = make_sink
        self._number_id = layout_id(pipeline)

    async def in_force(self) -> int:
        """How many shards there are by now, 0 where the pipeline is not divided.

        Raises `SinkFenced` where another instance has claimed the number since this one did.
        """
        known = await self._sink.progress(self._number_id)
        return 0 if known is None else known.position.version

    async def settle(self, shards: int, start: Start) -> None:
        """Put `shards` in force; where nothing was delivered yet, with streams at `start`. Divided, claim the number.

        Raises `ConfigError` where streams of another layout are not level, `TableReplaced` where nothing was delivered
        of this table but of another one.
        """
        known = await self._sink.progress(self._number_id)
        if shards == 0 and (known is None or known.position == Position.end(0)):
            return
        had = 0 if known is None else known.position.version
        if had == 0:
            await self._check_new()
        await self._claim(self._sink, self._number_id)
        if known is not None and known.position == Position.end(shards) and await self._has_begun(shards):
            return
        await self._set_number(Position.opening(had))
        async with self._other_sink() as sink:
            await self._take_streams(sink, had)
            try:
                position = await self._level(sink, had, shards) or await self._opening(start)
            except TailerError:
                await self._set_number(Position.end(had))
                raise
            await self._put(sink, shards, position)

    async def force(self, shards: int, version: int) -> None:
        """Put `shards` in force, with streams that count `version` as delivered wherever they were: the operator's."""
        known = await self._sink.progress(self._number_id)
        async with self._other_sink() as sink:
            if known is None and shards == 0:
                await set_position(self._pipeline, self._table, sink, Position.end(version))
                return
            had = 0 if known is None else known.position.version
            await self._set_number(Position.opening(had))
            if had != shards:
                # Who writes one of them is refused from here on.
                for stream in stream_names(self._pipeline, had):
                    await set_position(stream, self._table, sink, Position.end(version))
            await self._put(sink, shards, Position.end(version))

    async def places(self, shards: int) -> list[Position]:
        """Where each shard is, of a layout that is in force. Raises as `place_of` does."""
        async with self._other_sink() as sink:
            return [await place_of(stream, self._table, sink) for stream in stream_names(self._pipeline, shards)]

    async def _check_new(self) -> None:
        """Raise as `check_new` does, before anything is claimed: what is claimed counts as begun."""
        table_id = await self._table.table_id()
        if await find_progress(self._pipeline, self._table, table_id, self._sink) is None:
            await check_new(self._pipeline, self._table, table_id, self._sink)

    async def _has_begun(self, shards: int) -> bool:
        return not all(place.opens_version for place in await self.places(shards))

    async def _take_streams(self, sink: Sink, shards: int) -> None:
        """Have every stream of a layout, under whichever id the table had."""
        ids = dict.fromkeys([await self._table.table_id(), *await self._table.ids(-1)])
        for stream in stream_names(self._pipeline, shards):
            for table_id in ids:
                await self._claim(sink, app_id_of(stream, table_id))

    async def _claim(self, sink: Sink, app_id: str) -> Progress | None:
        """Take a stream over; where it is, and stays."""
        found = await sink.progress(app_id)
        async with sink.begin(app_id, NO_COLUMNS):
            return found

    async def _level(self, sink: Sink, had: int, shards: int) -> Position | None:
        """The version behind which all streams of the layout `had` are, None where nothing was delivered yet."""
        if had:
            places = [await place_of(stream, self._table, sink) for stream in stream_names(self._pipeline, had)]
        else:
            found = await find_progress(self._pipeline, self._table, await self._table.table_id(), sink)
            places = [] if found is None else [found.position]
        if all(place.opens_version for place in places):
            return None
        level = max(places)
        if min(places) < level or not level.closes_version:
            raise _not_level(self._pipeline, had, shards, places)
        return level

    async def _opening(self, start: Start) -> Position:
        """The place before the first row to deliver. Raises what the table says to a start that cannot be."""
        point = await self._table.resolve(start)
        if not point.snapshot:
            await self._table.seek(point.version)
        return Position.opening(point.version, point.snapshot)

    async def _put(self, sink: Sink, shards: int, position: Position) -> None:
        """Put `shards` in force, with all streams at `position`."""
        for stream in stream_names(self._pipeline, shards):
            await set_position(stream, self._table, sink, position)
        await self._set_number(Position.end(shards))

    async def _set_number(self, position: Position) -> None:
        await self._sink.reset(Progress(self._number_id, position))

    @asynccontextmanager
    async def _other_sink(self) -> AsyncIterator[Sink]:
        sink = self._make_sink()
        try:
            yield sink
        finally:
            with CancelScope(shield=True):
                await sink.aclose()


def _not_level(pipeline: str, had: int, shards: int, places: Sequence[Position]) -> ConfigError:
    first, last = min(places), max(places)
    where = f"a place inside of version {last.version}"
    if first.version != last.version:
        where = f"versions {first.version} to {last.version}"
    reason = f"it was delivered {_divided(had)}, up to {where}, and cannot be delivered {_divided(shards)} from there"
    setting = f'write = "executors" and shards = {had}' if had else 'write = "driver"'
    whole = first.version if first.closes_version else first.version - 1
    remedy = (
        f"Run it with {setting} until it has caught up, stop it with SIGTERM, then change it. Or set all of it to one "
        f"version with `tailer progress reset CONFIG --to VERSION`: up to {whole} no change is left out."
    )
    return ConfigError(f"{pipeline}.shards", reason, remedy)


def _divided(shards: int) -> str:
    return f"in {shards} shards" if shards else "undivided"


class LayoutSink:
    """`sink` for streams of `pipeline`, as long as it is divided into `shards` (0: not divided), and no longer.

    Raises `SinkFenced` when a stream is entered for the first time and the number is another one.
    """

    def __init__(self, sink: Sink, pipeline: str, shards: int) -> None:
        self._sink = sink
        self._number_id = layout_id(pipeline)
        self._shards = shards
        self._checked: set[str] = set()

    @property
    def name(self) -> str:
        """See `Sink.name`."""
        return self._sink.name

    @property
    def splits_versions(self) -> bool:
        """See `Sink.splits_versions`."""
        return self._sink.splits_versions

    @property
    def splits_snapshots(self) -> bool:
        """See `Sink.splits_snapshots`."""
        return self._sink.splits_snapshots

    @property
    def demands(self) -> Demands:
        """See `Sink.demands`."""
        return self._sink.demands

    @property
    def distributes(self) -> bool:
        """See `Sink.distributes`."""
        return self._sink.distributes

    async def progress(self, app_id: str) -> Progress | None:
        """See `Sink.progress`."""
        return await self._sink.progress(app_id)

    async def has_delivered(self, pipeline: str) -> bool:
        """See `Sink.has_delivered`."""
        return await self._sink.has_delivered(pipeline)

    async def check_first_start(self, pipeline: str, table_ids: Sequence[str]) -> None:
        """See `FirstStart.check_first_start`."""
        if isinstance(self._sink, FirstStart):
            await self._sink.check_first_start(pipeline, table_ids)

    async def reset(self, progress: Progress) -> None:
        """See `Sink.reset`."""
        await self._sink.reset(progress)

    @asynccontextmanager
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[SinkTransaction]:
        """See `Sink.begin`."""
        async with self._sink.begin(app_id, schema) as transaction:
            if app_id not in self._checked:
                await self.check()
                self._checked.add(app_id)
            yield transaction

    async def check(self) -> None:
        """Raise `SinkFenced` unless so many shards are in force."""
        known = await self._sink.progress(self._number_id)
        at = Position.end(0) if known is None else known.position
        if at != Position.end(self._shards):
            reason = f"the pipeline is delivered {_divided(at.version)}"
            raise SinkFenced(self.name, reason if at.closes_version else "the number of its shards is being changed")

    async def aclose(self) -> None:
        """See `Sink.aclose`."""
        await self._sink.aclose()


class UndividedSink(LayoutSink):
    """`sink` for a pipeline that is not divided, and that may have been: what was divided is put together first.

    Is a `Heartbeat`, too, if `sink` is one. `layout`: over the same sink.
    """

    def __init__(self, sink: Sink, pipeline: str, layout: Layout, start: Start) -> None:
        super().__init__(sink, pipeline, 0)
        self._layout = layout
        self._start = start
        self._settled = False

    async def progress(self, app_id: str) -> Progress | None:
        """See `Sink.progress`. Raises as `Layout.settle` does, too."""
        if not self._settled:
            await self._layout.settle(0, self._start)
            self._settled = True
        return await super().progress(app_id)

    async def beat(self, app_id: str) -> None:
        """See `Heartbeat.beat`."""
        if isinstance(self._sink, Heartbeat):
            await self._sink.beat(app_id)
