"""Progress of `tailer tail` on standard error: a line with the first version and, on a terminal, the current step.

If rows are printed to a terminal, the display hides while they come, and returns after `QUIET_S` seconds without any.
If rows go to a file, it stays. If they go to a pipe, it ends with the first row: the reader may be a pager.
"""

import os
import stat
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Final, TextIO

import anyio
import click
import pyarrow as pa
from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tailer.engine.background import background
from tailer.engine.port import Engine
from tailer.errors import TailerError
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, Position
from tailer.start import Start, StartKind, StartPoint
from tailer.stores.wakeup import Wake, WakeWrapper
from tailer.table_log import TableLog

__all__ = ["Display", "FollowedLog", "ShownEngine", "announcement", "early_end"]

QUIET_S: Final = 0.5
_LOOK_S: Final = 0.1


class Display:
    """A display of the current step of `tail`, if standard error is a terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._is_shown = self._console.is_terminal and not self._console.is_dumb_terminal
        self._shares_terminal = sys.stdout.isatty()
        self._feeds_pipe = _is_pipe(sys.stdout)
        self._text: str | None = None
        self._since = 0.0
        self._progress: Progress | None = None
        self._is_level = False
        self._idle_since: float | None = None
        self.is_waiting = False
        self.has_answer = False  # of the table's log

    @property
    def idle_s(self) -> float:
        """For how many seconds there was no new version, since the rows of the last one were delivered."""
        return 0.0 if self._idle_since is None else time.monotonic() - self._idle_since

    def level(self) -> None:
        """Note that there is no new version; `advance` ends that."""
        self.idle()
        self._is_level = True

    def advance(self) -> None:
        """Note that there is a new version, or that nobody knows."""
        self._is_level, self._idle_since = False, None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Note that the pipeline waits, for the length of the block: all rows of the versions it knows are delivered.

        It also waits after errors, which is not idle.
        """
        if self._is_level and self._idle_since is None:
            self._idle_since = time.monotonic()
        self.is_waiting = self._is_level
        try:
            yield
        finally:
            self.is_waiting = False

    def say(self, text: str) -> None:
        """Print a line, also if standard error is not a terminal."""
        self.idle()
        with suppress(OSError):  # nobody reads standard error
            click.echo(text, err=True)

    def busy(self, text: str) -> None:
        """Show a step that may take long, or its progress."""
        if self._text is None:
            self._since = time.monotonic()
        self._text = text
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], description=text)

    def rows_come(self) -> None:
        """Hide the display before rows are printed."""
        if self._feeds_pipe:
            self._is_shown = False
        if self._shares_terminal or self._feeds_pipe:
            self.idle()

    def idle(self) -> None:
        """Hide the display: nothing is under way."""
        self._text = None
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        """Show the display for the length of the block."""
        async with background() as group:
            if self._is_shown:
                group.start_soon(self._look)
            try:
                yield
            finally:
                self.idle()

    async def _look(self) -> None:
        while True:
            if (
                self._is_shown
                and self._progress is None
                and self._text is not None
                and time.monotonic() - self._since >= QUIET_S
            ):
                columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
                self._progress = Progress(*columns, console=self._console, transient=True, redirect_stdout=False)
                self._progress.add_task(self._text, total=None)
                self._progress.start()
            await anyio.sleep(_LOOK_S)


class FollowedLog(TableLog):
    """The log `table`, which shows on `display` what it does, and announces the versions to be shown."""

    def __init__(self, table: TableLog, display: Display) -> None:
        self.uri = table.uri
        self._table = table
        self._display = display
        self._last: int | None = None
        self._latest: int | None = None
        self._to_latest = False
        self._early_end = ""

    @property
    def retention_ms(self) -> int | None:
        """See `TableLog.retention_ms`."""
        return self._table.retention_ms

    @property
    def state_id(self) -> str | None:
        """See `TableLog.state_id`."""
        return self._table.state_id

    async def table_id(self) -> str:
        """See `TableLog.table_id`."""
        found = await self._table.table_id()
        self._display.has_answer = True
        return found

    async def key(self, version: int) -> tuple[str, ...]:
        """See `TableLog.key`."""
        return await self._table.key(version)

    async def ids(self, since: int) -> tuple[str, ...]:
        """See `TableLog.ids`."""
        return await self._table.ids(since)

    async def latest(self) -> int:
        """See `TableLog.latest`."""
        return await self._table.latest()

    async def resolve(self, start: Start) -> StartPoint:
        """See `TableLog.resolve`."""
        self._display.busy("reading the log")
        point = await self._table.resolve(start)
        # A start after the end is an error, unless there may just be nothing newer, as with `latest` or a timestamp.
        between = self._to_latest or start.kind in (StartKind.LATEST, StartKind.TIMESTAMP, StartKind.TAG)
        if self._last is None or point.version - between <= self._last:
            self._display.say(announcement(self.uri, point, self._last, self._latest) + self._early_end)
        self._display.busy("reading the log")
        return point

    async def resolve_end(self, end: Start) -> int:
        """See `TableLog.resolve_end`."""
        self._display.busy("reading the log")
        self._last, self._to_latest = await self._table.resolve_end(end), end.kind is StartKind.LATEST
        self._latest, self._early_end = await self._table.latest(), early_end(end)
        return self._last

    async def seek(self, version: int) -> pa.Schema | None:
        """See `TableLog.seek`."""
        return await self._table.seek(version)

    async def next_plan(self) -> ChangePlan | None:
        """See `TableLog.next_plan`."""
        self._display.busy("reading the log")
        try:
            plan = await self._table.next_plan()
        except Exception:
            self._display.advance()  # during an outage, versions may come that nobody sees
            raise
        if plan is None:
            self._display.level()
        else:
            self._display.advance()
        return plan

    async def confirm(self, delivered: Position | None) -> None:
        """See `TableLog.confirm`."""
        await self._table.confirm(delivered)

    def snapshot_plans(self, version: int) -> AsyncGenerator[ChangePlan, None]:
        """See `TableLog.snapshot_plans`."""
        return self._table.snapshot_plans(version)

    async def after_loss(self, error: TailerError, version: int) -> int:
        """See `TableLog.after_loss`."""
        return await self._table.after_loss(error, version)

    def make_wake(self) -> Wake:
        """See `TableLog.make_wake`."""
        return _FollowedWake(self._table.make_wake(), self._display)


class _FollowedWake(WakeWrapper):
    """The wake `wake`, whose waits are noted on `display`."""

    def __init__(self, wake: Wake, display: Display) -> None:
        super().__init__(wake)
        self._display = display

    async def wait(self, timeout_s: float) -> None:
        """See `Wake.wait`."""
        with self._display.waiting():
            await super().wait(timeout_s)


class ShownEngine(Engine):
    """Runs plans on `engine`.

    `compares`: whether it compares the rows of a plan before it yields the first one. `notes`: are told each plan.
    """

    def __init__(
        self,
        engine: Engine,
        display: Display,
        compares: Callable[[ChangePlan], bool],
        notes: Sequence[Callable[[ChangePlan], None]] = (),
    ) -> None:
        self._engine = engine
        self._notes = notes
        self._display = display
        self._compares = compares

    @property
    def key(self) -> tuple[str, ...]:
        """See `Engine.key`."""
        return self._engine.key

    @asynccontextmanager
    async def run(self, plan: ChangePlan, after: Position | None = None) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        """See `Engine.run`."""
        for note in self._notes:
            note(plan)
        work = f"{len(plan.tasks):,} {'file' if len(plan.tasks) == 1 else 'files'}, {decimal(plan.size_bytes)}"
        self._display.busy(f"version {plan.version}: {'comparing' if self._compares(plan) else 'reading'} {work}")
        async with self._engine.run(plan, after) as batches:
            self._display.busy(f"version {plan.version}: reading {work}")
            async with aclosing(self._passed(plan, work, batches)) as passed:
                yield passed

    def expect(self, plan: ChangePlan) -> bool:
        """See `Engine.expect`."""
        return self._engine.expect(plan)

    def forget(self) -> None:
        """See `Engine.forget`."""
        self._engine.forget()

    def takes(self, plan: ChangePlan) -> bool:
        """See `Engine.takes`."""
        return self._engine.takes(plan)

    async def read_together(self, plans: Sequence[ChangePlan]) -> Sequence[Sequence[ChangeBatch]]:
        """See `Engine.read_together`."""
        self._display.busy(f"reading versions {plans[0].version} to {plans[-1].version}")
        for plan in plans:
            for note in self._notes:
                note(plan)
        found = await self._engine.read_together(plans)
        self._display.rows_come()
        return found

    async def _passed(
        self, plan: ChangePlan, work: str, batches: AsyncIterator[ChangeBatch]
    ) -> AsyncGenerator[ChangeBatch, None]:
        rows = 0
        async for batch in batches:
            rows += len(batch)
            self._display.rows_come()
            yield batch
            self._display.busy(f"version {plan.version}: reading {work}; {rows:,} rows so far")


def _is_pipe(stream: TextIO) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):  # a stream in memory, or closed
        return False


def announcement(table: str, point: StartPoint, last: int | None, latest: int | None = None) -> str:
    """Return the sentence that names the versions of `table` that are shown.

    `last`: the last version to show; None: no end. `latest`: the newest version, where `last` may not exist yet.
    """
    waits = ""
    if last is not None and latest is not None and last > latest:
        waits = f"; the latest is version {latest}, so this waits for version {last} (Ctrl-C to stop)"
    if last is not None and point.version > last:
        return f"{table}: nothing is newer than version {last}"
    if point.snapshot:
        end = "" if last is None else f" up to version {last}"
        return f"{table}: all rows of version {point.version}, then the changes{end}{waits}"
    if last is None:
        return f"{table}: following changes from version {point.version} on"
    versions = f"version {last}" if point.version == last else f"versions {point.version} to {last}"
    return f"{table}: changes of {versions}{waits}"


def early_end(end: Start) -> str:
    """Return what to say about an `end` in the future: versions are awaited, times are not."""
    if end.kind is not StartKind.TIMESTAMP or end.moment <= datetime.now(UTC):
        return ""
    return f"; {end.moment.isoformat()} has not come yet, so this ends with the latest version"
