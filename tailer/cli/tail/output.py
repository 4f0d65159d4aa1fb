"""The output of `tail`: rows on standard output, and what their pipeline does on standard error."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import anyio
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tailer.cli.display.display import Display, count, duration, size, versions
from tailer.config.shapes import RangeOptions
from tailer.config.tables import configure_sink
from tailer.daemon.runs import Drainable, run_all
from tailer.engine import background
from tailer.errors import ConfigError, SinkRejected
from tailer.events import CHANGE_TYPE, EXPLAIN, METADATA_FIELDS, ChangeBatch, ChangeType, ControlEvent
from tailer.pipeline.status import PipelineStatus
from tailer.plan import TASKS, ChangePlan, ChangeTask, Regime, TaskKind
from tailer.sink import AtLeastOnceSink
from tailer.start import Start, StartKind, StartPoint

__all__ = ["Output", "Shown", "announcement", "early_end"]

_IMAGES: Final = pa.array([ChangeType.UPDATE_PREIMAGE.value, ChangeType.UPDATE_POSTIMAGE.value])


class Explainer:
    """Explains rows by the plans that they are from. `compares`: whether the rows of a plan are compared."""

    def __init__(self, compares: Callable[[ChangePlan], bool]) -> None:
        self._compares = compares
        self._plans: dict[int, ChangePlan] = {}

    def note(self, plan: ChangePlan) -> None:
        """Note a plan whose rows come."""
        self._plans[plan.version] = plan

    def explained(self, batch: ChangeBatch) -> ChangeBatch:
        """Return the rows with the column `EXPLAIN`, before those that every change has. Earlier plans are dropped.

        Raises `ConfigError` where the table has a column of that name.
        """
        if EXPLAIN in map(str.lower, batch.rows.schema.names):
            raise ConfigError("--explain", f"the table has a column {EXPLAIN}", "Leave the column out: --columns.")
        self._plans = {version: plan for version, plan in self._plans.items() if version >= batch.version}
        plan = self._plans.get(batch.version)
        tasks = () if plan is None else plan.tasks
        task = next((task for task in tasks if task.index % TASKS == batch.task % TASKS), None)
        if plan is None or task is None:
            texts = pa.repeat(pa.scalar("unknown"), len(batch))
        else:
            texts = self._texts(batch, plan, task)
        rows = batch.rows.add_column(batch.rows.num_columns - len(METADATA_FIELDS), EXPLAIN, texts)
        return ChangeBatch(batch.table_id, batch.version, batch.task, rows, batch.row_index, batch.kind)

    def _texts(self, batch: ChangeBatch, plan: ChangePlan, task: ChangeTask) -> pa.Array:
        file = task.uri.rpartition("/")[2]
        if task.fragment is not None:
            file = f"fragment {task.fragment.number} of version {task.fragment.version}"
        place = pc.binary_join_element_wise(f"{file}, row ", batch.row_index.cast(pa.string()), ": ", "")
        rule = _rule(plan, task)
        if not self._compares(plan):
            return pc.binary_join_element_wise(place, rule, "")
        is_image = pc.is_in(batch.rows.column(CHANGE_TYPE), _IMAGES)
        before, after = "the row before the update", "the row after the update"
        this, other = (before, after) if task.kind is TaskKind.DELETE else (after, before)
        paired = f"{this}; compared, and paired with {other}"
        alone = f"{rule}; compared, and no equal row was on the other side"
        return pc.binary_join_element_wise(place, pc.if_else(is_image, paired, alone), "")


def _rule(plan: ChangePlan, task: ChangeTask) -> str:
    if plan.regime is Regime.SNAPSHOT:
        return f"in the table at version {plan.version}"
    if task.kind in (TaskKind.CDC_DELETES, TaskKind.CDC_OTHERS):
        return "from a change file, as the writer wrote it"
    is_part = task.include is not None or (task.fragment is not None and task.fragment.chosen is not None)
    if task.kind is TaskKind.DELETE:
        return "the file stays, and the row is marked as deleted now" if is_part else "the file was removed"
    return "the file stays, and the row is not marked as deleted any more" if is_part else "the file was added"


_UPDATES: Final = (ChangeType.UPDATE_PREIMAGE.value, ChangeType.UPDATE_POSTIMAGE.value)
_NAMES: Final = {"insert": "inserted", "update_postimage": "updated", "delete": "deleted"}


class HiddenUpdates:
    """Says once that `--type`, which chose `types` (none: all), hides updates that no rule computes.

    `computes`: whether updates are computed.
    """

    def __init__(self, types: frozenset[str], computes: bool, say: Callable[[str], None]) -> None:
        self._is_due = not computes and not types.isdisjoint(_UPDATES) and not types.issuperset(("insert", "delete"))
        self._say = say

    def note(self, plan: ChangePlan) -> None:
        """Note a plan whose rows come."""
        if self._is_due and {TaskKind.DELETE, TaskKind.INSERT} <= {task.kind for task in plan.tasks}:
            self._is_due = False
            what = f"version {plan.version} deletes and inserts rows, and --type hides those that together are updates"
            self._say(f"{what}; --compute-updates with --key makes them updates")


class EnoughShownError(Exception):
    """The cause of the error that ends the stream after the last row that is wanted."""


class ChosenRows(AtLeastOnceSink):
    """Hands changes over to `sink`, up to `limit` (None: all of them).

    Each image of an update is a row; an update whose first image is the last row is handed over whole. After the last
    row, `SinkRejected` ends the stream, with an `EnoughShownError` as its cause.

    `display`: hides while rows are printed. `explainer`: adds a column to the rows; None: they stay as they are.
    """

    def __init__(
        self,
        sink: AtLeastOnceSink,
        display: Display,
        limit: int | None = None,
        explainer: Explainer | None = None,
    ) -> None:
        self.name = sink.name
        self.writes_together = sink.writes_together
        self._sink = sink
        self._display = display
        self._limit = limit
        self._explainer = explainer
        self._counts: Counter[str] = Counter()
        self._versions: set[int] = set()

    @override
    async def write(self, batch: ChangeBatch) -> None:
        await self.write_all([batch])

    @override
    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        left = None if self._limit is None else self._limit - self._counts.total()
        chosen: list[ChangeBatch] = []
        for batch in batches:
            if left is not None and left <= 0:
                break
            some = batch
            if left is not None:
                # One more where that would cut an update in half.
                cut = batch.rows.column(CHANGE_TYPE).slice(left - 1, 2).to_pylist() == list(_UPDATES)
                some = batch.slice(0, left + cut)
                left -= len(some)
            if len(some):
                chosen.append(some if self._explainer is None else self._explainer.explained(some))
        if chosen:
            self._display.rows_come()
            await self._sink.write_all(chosen)
        for batch in chosen:
            self._counts.update(batch.rows.column(CHANGE_TYPE).to_pylist())
            self._versions.add(batch.version)
        self._display.busy(f"version {batches[-1].version}: {count(self._counts.total(), 'row')} so far")
        if left is not None and left <= 0:
            await self._sink.flush()
            raise SinkRejected(self.name, "enough was shown") from EnoughShownError()

    @override
    async def announce(self, event: ControlEvent) -> None:
        await self._sink.announce(event)

    @override
    async def flush(self) -> None:
        await self._sink.flush()

    @override
    async def aclose(self) -> None:
        await self._sink.aclose()

    def summary(self, seconds: float) -> str:
        """Return the sentence about what was shown in so many seconds."""
        kinds = [f"{self._counts[kind]:,} {name}" for kind, name in _NAMES.items()]
        kinds += [f"{number:,} {kind}" for kind, number in self._counts.items() if kind not in (*_NAMES, _UPDATES[0])]
        versions = count(len(self._versions), "version")
        return f"{', '.join(kinds)}; in {versions} with changes; {duration(seconds)}"


# Ctrl-C ends it at once, but after the line that is being written, if possible.
DRAIN_S: Final = 0.5
_LOOK_S: Final = 0.05
_SILENT_S: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The options of `tail` that say what is shown, and for how long."""

    form: str | None
    limit: int | None
    idle_s: float | None
    explain: bool
    stats: bool


class Output:
    """The rows that `read` chooses, as `tail` shows them, and what their pipeline does.

    `compares`: whether the rows of a plan are compared.
    """

    def __init__(self, shown: Shown, read: RangeOptions, compares: Callable[[ChangePlan], bool]) -> None:
        self.status: Final = PipelineStatus("tail")
        self.display: Final = Display(self.status)
        self._shown = shown
        self._reads_compared = read.net  # all is compared before the first plan comes
        self._compares = compares
        self._explainer = Explainer(compares)
        self._hidden = HiddenUpdates(read.policy().types, read.compute_updates, self.display.say)
        stdout = configure_sink("stdout", "stdout", {"format": shown.form or "auto"})
        assert isinstance(stdout, AtLeastOnceSink)
        self.rows: Final = ChosenRows(stdout, self.display, shown.limit, self._explainer if shown.explain else None)
        self._last: int | None = None
        self.status.on_plan = self._note_plan

    async def show(self, work: Drainable) -> None:
        """Do the work, whose rows go to `rows`. Raises its error, but for those that are a normal end."""
        begun_s = time.monotonic()
        try:
            async with self.display.shown(), background() as group:
                group.start_soon(self._say_if_silent)
                group.start_soon(self._say_if_waiting)
                if self._shown.idle_s is not None:
                    group.start_soon(self._stop_when_idle, work, self._shown.idle_s)
                failures = await run_all({"tail": work}, DRAIN_S)
        finally:
            if self._shown.stats:
                self.display.say(self.rows.summary(time.monotonic() - begun_s))
        for error in failures.values():
            if not isinstance(error.__cause__, EnoughShownError):
                # The reader of the pipe has gone, which is a normal end for `tail | head`.
                raise error.__cause__ if isinstance(error.__cause__, BrokenPipeError) else error

    def announce(self, table: str, start: StartPoint, last: int | None, end: Start | None, more: str = "") -> None:
        """Name the versions of `table` that are shown, up to `last`, which is that of `end`; `more`: added to that."""
        self._last = last
        self.display.say(announcement(table, start, last) + more + early_end(end))

    def _note_plan(self, plan: ChangePlan) -> None:
        self._explainer.note(plan)
        self._hidden.note(plan)
        word = "comparing" if self._compares(plan) and not self._reads_compared else "reading"
        work = f"{count(len(plan.tasks), 'file')}, {size(plan.size_bytes)}"
        self.display.busy(f"version {plan.version}: {word} {work}")

    async def _say_if_silent(self) -> None:
        await anyio.sleep(_SILENT_S)
        if not self.status.has_answer:
            self.display.say("the table has not answered yet; trying again for a while (Ctrl-C to stop)")

    async def _say_if_waiting(self) -> None:
        while self._last is None or not self.status.waits:  # noqa: ASYNC110 - the status is only looked at
            await anyio.sleep(_LOOK_S)
        latest = f"version {self.status.backlog.latest} is the latest"
        self.display.say(f"{latest}, so this waits for version {self._last} (Ctrl-C to stop)")

    async def _stop_when_idle(self, work: Drainable, idle_s: float) -> None:
        while True:
            since_s = self.status.backlog.level_since_s
            left_s = idle_s if since_s is None else since_s + idle_s - time.time()
            if left_s <= 0 and self.status.waits:
                work.stop()
                return
            await anyio.sleep(max(left_s, _LOOK_S))


def announcement(table: str, start: StartPoint, last: int | None) -> str:
    """Return the sentence that names the versions of `table` that are shown. `last`: the last one; None: no end."""
    if last is not None and start.version > last:
        return f"{table}: nothing is newer than version {last}"
    if start.snapshot:
        end = "" if last is None else f" up to version {last}"
        return f"{table}: all rows of version {start.version}, then the changes{end}"
    if last is None:
        return f"{table}: following changes from version {start.version} on"
    return f"{table}: changes of {versions(start.version, last)}"


def early_end(end: Start | None) -> str:
    """Return what to say about an `end` in the future: versions are awaited, times are not."""
    if end is None or end.kind is not StartKind.TIMESTAMP or end.moment <= datetime.now(UTC):
        return ""
    return f"; {end.moment.isoformat()} has not come yet, so this ends with the latest version"
