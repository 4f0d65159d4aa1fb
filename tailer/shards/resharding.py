"""Resharding: the division of a pipeline into shards, and how it changes.

A pipeline is delivered by one stream, or by one stream for each of its shards: its layout. The sink stores the current
division (`Division`) as progress of a separate stream: its `end`. During a change that is its `opening`, and nobody
begins to write. A change, of the number of shards or of what rows belong to them, has four steps:

1. The old division is marked as being left.
2. All streams of the old layout are taken over. Their earlier writers are refused from now on. A writer that takes one
   over later checks the division before it writes (`LayoutSink`), finds the mark, and stops.
3. So the positions of the streams no longer change. They must be level, that is after the same version. If they are
   not, the old division is restored, and a person has to decide.
4. The streams of the new layout are set to that position, and then the new division is set.

A crash on the way leaves a marked division. The next instance repeats all steps, whatever division it wants. If that is
the marked one, the streams need not be level: it is restored.

If nothing was delivered yet, the streams are set to the start of the pipeline. So the start is decided once, for all
shards and for every restart.

A division is how many shards there are, and by what a row belongs to one of them. While shards have reached different
places, rows must stay where they are: a row that moves to a shard that is ahead is lost, and one that moves to a shard
behind comes twice. If the sink has a key, rows belong to shards by its columns. If not, they belong by their tasks.
Which tasks a version has, and which rows they have, depends on all that decides how rows are read and compared: the
rules, the condition, the chosen columns, whether row ids are among them, and `changes`.

A sink stores the division as the version of a position, so it is a persisted format: the number of shards, plus
`LAYOUT_SHARDS` times the rules. The rules are one more than the CRC-32, modulo 2**28, of JSON: `{"key":[...]}`, or
`{"changes":"compare","columns":[...],"row_ids":true,"rules":{...},"select":"...","where":"..."}`, without what is not
chosen, and with what `tailer.changelog.rules.unusual` returns. If they are 0, nobody knows them: a reset or a former
release has stored the number, or the pipeline is undivided.
"""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import pyarrow as pa
from anyio import CancelScope
from typing_extensions import override

from tailer.changelog.rules import unusual
from tailer.config.pipelines import PipelineSettings
from tailer.errors import ConfigError, SinkFenced, SinkRejected, TailerError
from tailer.events import METADATA_FIELDS
from tailer.pipeline.policy import ChangeSource
from tailer.plan import Position
from tailer.progress.lookup import check_new, find_progress, set_position
from tailer.sink import (
    LAYOUT,
    LAYOUT_SHARDS,
    Progress,
    Sink,
    SinkTransaction,
    SinkWrapper,
    app_id_of,
    shard_name,
    shards_in,
)
from tailer.start import Start
from tailer.table_log import TableLog

__all__ = ["Division", "Layout", "LayoutSink", "UndividedSink", "layout_id", "open_sink", "progress_of", "stream_names"]

_RULES: Final = 2**28


@dataclass(frozen=True, slots=True)
class Division:
    """`shards` streams, 0 for an undivided pipeline, with rows by `rules`; 0: not known."""

    shards: int
    rules: int = 0

    @classmethod
    def of(cls, settings: PipelineSettings, sink: Sink) -> "Division":
        """Return the division of a pipeline whose shards go to `sink`."""
        policy = settings.policy
        text: dict[str, Any] = {"key": list(sink.demands.key)}
        if not sink.demands.key:
            text = {"rules": unusual(settings.pairing)}
            text |= {"columns": sorted(policy.columns)} if policy.columns else {}
            text |= {"row_ids": True} if policy.row_ids else {}
            texts = {"select": policy.select, "where": policy.where}
            text |= {name: value for name, value in texts.items() if value is not None}
            text |= {"changes": policy.changes.value} if policy.changes is not ChangeSource.FEED else {}
        canonical = json.dumps(text, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
        return cls(settings.shards, 1 + crc32(canonical.encode("ascii")) % _RULES)

    @classmethod
    def stored(cls, position: Position) -> "Division":
        """Return the division that is stored as `end` or `opening`."""
        return cls(shards_in(position.version), position.version // LAYOUT_SHARDS)

    @property
    def end(self) -> Position:
        """The position that stands for it while it is in force."""
        return Position.end(self._version)

    @property
    def opening(self) -> Position:
        """The position that stands for it while it is being left."""
        return Position.opening(self._version)

    @property
    def _version(self) -> int:
        return self.shards + LAYOUT_SHARDS * self.rules

    def __str__(self) -> str:
        """Describe how rows are delivered."""
        return f"in {self.shards} shards" if self.shards else "undivided"


UNDIVIDED: Final = Division(0)


NO_COLUMNS: Final = pa.schema(METADATA_FIELDS)


def layout_id(pipeline: str) -> str:
    """Return the app id under which a sink keeps the division of `pipeline`."""
    return f"{pipeline}{LAYOUT}"


def stream_names(pipeline: str, shards: int) -> list[str]:
    """Return the pipeline names of the streams of a layout; `shards` 0: one, undivided."""
    return [shard_name(pipeline, shard, shards) for shard in range(shards)] or [pipeline]


@asynccontextmanager
async def open_sink(make: Callable[[], Sink]) -> AsyncIterator[Sink]:
    """Make a sink, and close it at the end, also if cancelled."""
    sink = make()
    try:
        yield sink
    finally:
        with CancelScope(shield=True):
            await sink.aclose()


async def progress_of(stream: str, table: TableLog, sink: Sink) -> Progress:
    """Return the progress of a stream of the current layout.

    Raises `TableReplaced` if that was in another table, `SinkRejected` if the sink no longer has it.
    """
    table_id = await table.table_id()
    progress = await find_progress(stream, table, table_id, sink)
    if progress is None:
        await check_new(stream, table, table_id, sink)
        remedy = "Set its position: `tailer progress reset PIPELINE --to VERSION`."
        raise SinkRejected(sink.name, f"the progress of {stream} is gone", remedy)
    return progress


class Layout:
    """The layout of `pipeline` over `table`.

    `sink`: claims the division, and notices if another instance does so. `make_sink`: makes a sink with the same
    options, to take streams over; it is closed at once, so that others can take over from it. Both sinks must have
    `distributes`. Methods raise what table and sink raise. After a temporary error such as `SinkUnavailable` everything
    may be repeated.
    """

    def __init__(self, pipeline: str, table: TableLog, sink: Sink, make_sink: Callable[[], Sink]) -> None:
        self._pipeline = pipeline
        self._table = table
        self._sink = sink
        self._make_sink = make_sink
        self._division_id = layout_id(pipeline)

    async def in_force(self) -> int:
        """Return the current number of shards, 0 if the pipeline is undivided.

        Raises `SinkFenced` if another instance has claimed the division since this one did.
        """
        stored = await self._sink.progress(self._division_id)
        return 0 if stored is None else Division.stored(stored.position).shards

    async def settle(self, division: Division, start: Start | Position) -> None:
        """Change the layout to `division`. If nothing was delivered yet, set its streams to `start`.

        If the pipeline is divided, claim the division. Raises `ConfigError` if streams of the old layout are not level,
        `TableReplaced` if changes of another table, but not of this one, were delivered.
        """
        stored = await self._sink.progress(self._division_id)
        had = UNDIVIDED if stored is None else Division.stored(stored.position)
        if division == UNDIVIDED and (stored is None or stored.position == UNDIVIDED.end):
            return
        if had.shards == 0:
            # Before anything is claimed: a claim counts as a beginning.
            table_id = await self._table.table_id()
            if await find_progress(self._pipeline, self._table, table_id, self._sink) is None:
                await check_new(self._pipeline, self._table, table_id, self._sink)
        await self._claim(self._sink, self._division_id)
        # Of a division without rules, nobody knows any better.
        same = had in (division, Division(division.shards))
        if stored is not None and stored.position == had.end and same:
            places = await self.places(division.shards)
            if not all(place.opens_version for place in places):
                if had != division:
                    await self._set_division(division.end)
                return
        await self._set_division(had.opening)
        async with open_sink(self._make_sink) as sink:
            await self._take_streams(sink, had.shards)
            try:
                places = await self._places(sink, had)
                if not _are_level(places) and same:
                    await self._set_division(division.end)
                    return
                position = await self._next(places, had, division, start)
            except TailerError:
                await self._set_division(had.end)
                raise
            await self._put(sink, division, position)

    async def force(self, shards: int, version: int) -> None:
        """Change the layout to `shards` with streams that count `version` as delivered. For operators only."""
        stored = await self._sink.progress(self._division_id)
        async with open_sink(self._make_sink) as sink:
            if stored is None and shards == 0:
                await set_position(self._pipeline, self._table, sink, Position.end(version))
                return
            had = UNDIVIDED if stored is None else Division.stored(stored.position)
            await self._set_division(had.opening)
            if had.shards != shards:
                # Their writers are refused from here on.
                for stream in stream_names(self._pipeline, had.shards):
                    await set_position(stream, self._table, sink, Position.end(version))
            await self._put(sink, Division(shards), Position.end(version))

    async def places(self, shards: int) -> list[Position]:
        """Return the positions of the shards of the current layout. Raises as `progress_of` does."""
        async with open_sink(self._make_sink) as sink:
            return await self._positions(sink, shards)

    async def _take_streams(self, sink: Sink, shards: int) -> None:
        """Take over every stream of a layout, under every id that the table has had."""
        ids = dict.fromkeys([await self._table.table_id(), *await self._table.ids(-1)])
        for stream in stream_names(self._pipeline, shards):
            for table_id in ids:
                await self._claim(sink, app_id_of(stream, table_id))

    async def _claim(self, sink: Sink, app_id: str) -> None:
        """Take a stream over: its position no longer changes."""
        await sink.progress(app_id)
        async with sink.begin(app_id, NO_COLUMNS):
            return

    async def _places(self, sink: Sink, had: Division) -> list[Position]:
        """Return the positions of the streams of a layout that have one."""
        if had.shards:
            return await self._positions(sink, had.shards)
        progress = await find_progress(self._pipeline, self._table, await self._table.table_id(), sink)
        return [] if progress is None else [progress.position]

    async def _positions(self, sink: Sink, shards: int) -> list[Position]:
        streams = stream_names(self._pipeline, shards)
        return [(await progress_of(stream, self._table, sink)).position for stream in streams]

    async def _next(
        self, places: Sequence[Position], had: Division, wanted: Division, start: Start | Position
    ) -> Position:
        """Return the position from which the streams of a new layout go on.

        Raises `ConfigError` if those of the old one are not level, and what the table raises for an impossible start.
        """
        if not _are_level(places):
            raise _not_level(self._pipeline, had, wanted, places)
        if not all(place.opens_version for place in places):
            return max(places)
        if isinstance(start, Position):
            return start
        point = await self._table.resolve(start)
        if not point.snapshot:
            await self._table.seek(point.version)
        return Position.opening(point.version, point.snapshot)

    async def _put(self, sink: Sink, division: Division, position: Position) -> None:
        """Set the division, after setting all its streams to `position`."""
        for stream in stream_names(self._pipeline, division.shards):
            await set_position(stream, self._table, sink, position)
        await self._set_division(division.end)

    async def _set_division(self, position: Position) -> None:
        await self._sink.reset(Progress(self._division_id, position))


def _are_level(places: Sequence[Position]) -> bool:
    """Return whether all streams stand at the same version."""
    if all(place.opens_version for place in places):
        return True
    level = max(places)
    return min(places) == level and level.closes_version


def _not_level(pipeline: str, had: Division, wanted: Division, places: Sequence[Position]) -> ConfigError:
    first, last = min(places), max(places)
    where = f"{last}" if first == last else f"{first} in one and {last} in another"
    reason = f"it was delivered {had}, up to {where}, and cannot be delivered {_other(had, wanted)} from there"
    option = f"{pipeline}.shards"
    setting = f'write = "executors" and shards = {had.shards}' if had.shards else 'write = "driver"'
    if had.shards == wanted.shards:
        option = pipeline
        choices = "key, where, select, columns, row_ids, changes, carryovers, compute_updates and skip_unchanged"
        setting = f"the {choices} that it had"
    whole = first.version if first.closes_version else first.version - 1
    remedy = (
        f"Run it with {setting} until it has caught up, stop it, then change it. Or set all of it to one "
        f"version with `tailer progress reset PIPELINE --to VERSION`: up to {whole} no change is left out."
    )
    return ConfigError(option, reason, remedy)


def _other(one: Division, other: Division) -> str:
    """Describe how `other` delivers rows, unlike `one`."""
    return "by another key, other columns or other rules" if one.shards == other.shards else str(other)


class LayoutSink(SinkWrapper):
    """`sink` for streams of `pipeline` while it has the division, and no longer.

    Entering a stream for the first time raises `SinkFenced` if the division is another one.
    """

    def __init__(self, sink: Sink, pipeline: str, division: Division) -> None:
        super().__init__(sink)
        self._division_id = layout_id(pipeline)
        self._division = division
        self._checked: set[str] = set()

    @asynccontextmanager
    @override
    async def begin(self, app_id: str, schema: pa.Schema) -> AsyncIterator[SinkTransaction]:
        async with self._sink.begin(app_id, schema) as transaction:
            if app_id not in self._checked:
                await self.check()
                self._checked.add(app_id)
            yield transaction

    async def check(self) -> None:
        """Raise `SinkFenced` unless the current division is the expected one."""
        stored = await self._sink.progress(self._division_id)
        position = UNDIVIDED.end if stored is None else stored.position
        if position != self._division.end:
            reason = f"the pipeline is delivered {_other(self._division, Division.stored(position))}"
            reason = reason if position.closes_version else "the number of its shards is being changed"
            raise SinkFenced(self.name, reason)


class UndividedSink(LayoutSink):
    """`sink` for an undivided pipeline that may have been divided before: its shards are merged first.

    `layout`: over the same sink.
    """

    def __init__(self, sink: Sink, pipeline: str, layout: Layout, start: Start) -> None:
        super().__init__(sink, pipeline, UNDIVIDED)
        self._layout = layout
        self._start = start
        self._settled = False

    @override
    async def progress(self, app_id: str) -> Progress | None:
        """Settle the layout first. Raise also as `Layout.settle` does."""
        if not self._settled:
            await self._layout.settle(UNDIVIDED, self._start)
            self._settled = True
        return await super().progress(app_id)
