"""`tailer tail`: print the changes of one table, without any stored progress."""

import logging
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import anyio
import click

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.net_changes import net_changes
from tailer.changelog.report import ChangelogReport
from tailer.changelog.rules import Carryovers, concerns
from tailer.cli.display.changes import Display, FollowedLog, ShownEngine, announcement, early_end
from tailer.cli.table_options import allow_root, choose_branch, choose_format, folders, places, table_ref
from tailer.cli.tail.chosen_rows import ChosenRows, EnoughShownError, HiddenUpdates
from tailer.cli.tail.explanation import Explainer
from tailer.config.shapes import RangeOptions
from tailer.config.sink_kinds import configure_sink
from tailer.config.tables import TableRef, open_files
from tailer.daemon.logs import log_to_stderr
from tailer.daemon.runs import Drainable, run_all
from tailer.engine.background import background
from tailer.engine.local import LocalEngine
from tailer.engine.port import Engine
from tailer.errors import ConfigError, did_you_mean
from tailer.events import ChangeWord
from tailer.pipeline.limits import Limits
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.row_delivery import row_pipeline
from tailer.progress.recorded import Recorded
from tailer.sink import AtLeastOnceSink, Progress
from tailer.start import EARLIER, Start, StartKind, StartPoint
from tailer.table_log import TableLog

__all__ = ["command"]

# Ctrl-C ends it at once, but after the line that is being written, if possible.
DRAIN_S: Final = 0.5
_LOOK_S: Final = 0.05
# A place that does not answer at all is probably a wrong one.
_LIMITS: Final = Limits(first_answer_s=10.0)
_SILENT_S: Final = 4.0
# How users of `tail` write what a pipeline calls by another name.
_OTHER_NAMES: Final = {"start": "--from", "end": "--to", "types": "--type", "net": "--net-changes"}


class Unrecorded:
    """A `ProgressStore` in memory: each run begins at its start."""

    def __init__(self) -> None:
        self._progress: dict[str, Progress] = {}

    async def progress(self, app_id: str) -> Progress | None:
        """See `ProgressStore.progress`."""
        return self._progress.get(app_id)

    async def has_delivered(self, pipeline: str) -> bool:
        """See `ProgressStore.has_delivered`."""
        return bool(self._progress)

    async def record(self, progress: Progress) -> None:
        """See `ProgressStore.record`; there is no other instance."""
        self._progress[progress.app_id] = progress

    async def aclose(self) -> None:
        """See `ProgressStore.aclose`."""


@click.command("tail")
@click.argument("table", shell_complete=folders)
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="PLACE",
    shell_complete=places(StartKind.EARLIEST, StartKind.LATEST, StartKind.SNAPSHOT),
    help="Start: earliest, latest (new changes only), snapshot (all rows, then changes), a version, a timestamp, or "
    "tag:NAME (the changes after a tag, if the format has tags).",
)
@click.option(
    "--to",
    "end",
    metavar="PLACE",
    shell_complete=places(StartKind.LATEST),
    help="End: latest, a timestamp, tag:NAME, or a version, which is awaited if it does not exist yet. A timestamp in "
    "the future ends with the latest version. Without it, tail follows the table.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "jsonl", "csv"]),
    help="Output format. Default: table on a terminal, otherwise JSON Lines.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N rows; an update has two.")
@click.option("--type", "types", metavar="A,B", help="Show only changes of these types: insert, update, delete.")
@click.option(
    "--exit-on-idle",
    "idle_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="End when nothing new has come for S seconds.",
)
@click.option("--explain", is_flag=True, help="Add _explain: the file that a row is from, and the rule that made it.")
@click.option("--stats", is_flag=True, help="At the end, count the rows on standard error.")
@click.option("--columns", metavar="A,B", help="Show only these columns of the table, in this order.")
@click.option("--where", metavar="SQL", help="Show only the rows that fulfil a condition, such as \"country = 'DE'\".")
@click.option("--select", metavar="SQL", help='Show these columns, such as "id, upper(country) AS country".')
@click.option("--row-ids", is_flag=True, help="Add _row_id and _row_commit_version, if the table tracks rows.")
@click.option(
    "--carryovers",
    type=click.Choice([choice.value for choice in Carryovers]),
    default=Carryovers.DROP.value,
    show_default=True,
    help="Drop or keep the rows that a rewritten file holds unchanged.",
)
@click.option("--compute-updates", is_flag=True, help="Turn a delete and an insert of one row into an update.")
@click.option(
    "--key", metavar="A,B", help="The columns that identify a row. Default: row ids, if the table tracks rows."
)
@click.option("--skip-unchanged", is_flag=True, help="Leave out updates that change nothing.")
@click.option("--net-changes", "net", is_flag=True, help="Show the net change of each row from --from to --to.")
@choose_format
@choose_branch
@allow_root
def command(
    table: str,
    start: str,
    end: str | None,
    form: str | None,
    limit: int | None,
    types: str | None,
    idle_s: float | None,
    explain: bool,
    stats: bool,
    columns: str | None,
    where: str | None,
    select: str | None,
    row_ids: bool,
    carryovers: str,
    compute_updates: bool,
    key: str | None,
    skip_unchanged: bool,
    net: bool,
    table_format: str | None,
    branch: str | None,
    allowed_roots: tuple[str, ...],
) -> None:
    """Show a table's changes as they are committed.

    TABLE is the folder of a table, its URI, or its name in AWS Glue. Without --to the table is followed,
    like `tail -f`, until Ctrl-C. A timestamp such as 2026-03-01T12:00:00Z is UTC if it has no zone. Standard
    error names the first version and, on a terminal, the current step.
    """
    read = RangeOptions(
        table_format=table_format,
        branch=branch,
        columns=_names("--columns", columns),
        where=where,
        select=select,
        row_ids=row_ids,
        carryovers=Carryovers(carryovers),
        compute_updates=compute_updates,
        key=_names("--key", key),
        skip_unchanged=skip_unchanged,
        types=_types(types),
        net=net,
    )
    for fault in read.faults(_spell):
        raise ConfigError(_spell(fault.where), fault.reason, fault.remedy)
    begin, until = Start.parse(start, "--from"), None if end is None else Start.parse(end, "--to")
    read.check_range(begin, until, _spell)
    ref = table_ref(table, table_format, branch, allowed_roots)
    look = _Look(ref, begin, until, _Shown(form, limit, idle_s, explain, stats), read)
    log_to_stderr(logging.WARNING)
    # Here a warning that new commits are found by polling alone is of no use.
    logging.getLogger("tailer.stores.wakeup").setLevel(logging.ERROR)
    anyio.run(_follow_net if net else _follow, look)


@dataclass(frozen=True, slots=True)
class _Shown:
    """The options of `tail` that say what is shown, and for how long."""

    form: str | None
    limit: int | None
    idle_s: float | None
    explain: bool
    stats: bool

    def open(self, explainer: Explainer) -> ChosenRows:
        """Open standard output."""
        stdout = configure_sink("stdout", "stdout", {"format": self.form or "auto"})
        assert isinstance(stdout, AtLeastOnceSink)
        return ChosenRows(stdout, self.limit, explainer if self.explain else None)


@dataclass(frozen=True, slots=True)
class _Look:
    """The arguments of `tail`, checked."""

    table: TableRef
    begin: Start
    until: Start | None
    shown: _Shown
    read: RangeOptions

    async def located(self) -> "_Look":
        """Return the arguments with the location of a table that is named. Raises as `TableRef.located`."""
        return replace(self, table=await self.table.located())

    def open_table(self) -> TableLog:
        """Open the log of the table, which is `located`; no I/O."""
        return self.table.open(statistics=self.read.where is not None)


def _spell(option: str) -> str:
    """Return an option of a pipeline as users of `tail` write it: `compute_updates = true` is `--compute-updates`."""
    name = option.removesuffix(" = true")
    return _OTHER_NAMES.get(name, f"--{name.replace('_', '-')}")


# The options that errors of a run name.
_SPELLED: Final = {name: _spell(name) for name in (*RangeOptions.__struct_fields__, *_OTHER_NAMES)}


def _types(text: str | None) -> list[ChangeWord]:
    known, names = [word.value for word in ChangeWord], _names("--type", text)
    for name in names:
        if name not in known:
            remedy = did_you_mean(name, known) or "Give some of insert, update and delete, with commas between them."
            raise ConfigError("--type", f"{name!r} is no type of change", remedy)
    return [ChangeWord(name) for name in names]


def _names(option: str, text: str | None) -> list[str]:
    if text is None:
        return []
    names = [name.strip() for name in text.split(",")]
    if "" in names or len(set(names)) < len(names):
        raise ConfigError(
            option, f"{text!r} contains an empty or a repeated name", "Separate different names by commas."
        )
    return names


async def _follow(look: _Look) -> None:
    look = await look.located()
    display, files = Display(), open_files()
    rules = look.read.rules()
    engine = ChangelogEngine(LocalEngine(files=files), rules, ChangelogReport("tail").note, files)
    compares = partial(concerns, rules=rules)
    explainer = Explainer(compares)
    hidden = HiddenUpdates(look.read.policy().types, look.read.compute_updates, display.say)
    shown = ShownEngine(engine, display, compares, (explainer.note, hidden.note))
    log, rows = FollowedLog(look.open_table(), display), look.shown.open(explainer)
    await _run(_pipeline(look, log, look.begin, look.until, shown, rows), display, look.shown, rows)


async def _follow_net(look: _Look) -> None:
    display, explainer = Display(), Explainer(lambda _plan: True)
    rows = look.shown.open(explainer)
    await _run(_NetChanges(await look.located(), display, rows, explainer), display, look.shown, rows)


class _NetChanges:
    """Net changes: compares a range of versions, then shows the result. `stop` interrupts both."""

    def __init__(self, look: _Look, display: Display, rows: ChosenRows, explainer: Explainer) -> None:
        self._look = look
        self._explainer = explainer
        self._rows = rows
        self._display = display
        self._scope = anyio.CancelScope()

    async def run(self) -> None:
        look, display, log = self._look, self._display, self._look.open_table()
        assert look.until is not None, "checked before"
        with self._scope:
            display.busy("reading the log")
            first, last = (await log.resolve(look.begin)).version, await log.resolve_end(look.until)
            latest, display.has_answer = await log.latest(), True
            if last > latest:
                raise ConfigError("--to", f"version {last} does not exist yet", f"The latest version is {latest}.")
            nothing = first > last and look.until.kind is StartKind.LATEST
            if first > last and not nothing:
                raise ConfigError("--from", f"version {first} comes after the end, version {last}", EARLIER)
            said = announcement(log.uri, StartPoint(first), last) + ("" if nothing else ", as net changes")
            display.say(said + early_end(look.until))
            if nothing:
                return
            display.busy(f"comparing versions {first} to {last}")
            wanted, report = look.read.policy().shape, ChangelogReport("tail").note
            versions, files = range(first, last + 1), open_files()
            local = LocalEngine(files=files)
            async with net_changes(log, versions, local, look.read.rules(), wanted, report, files) as engine:
                begin, until = (Start(StartKind.VERSION, version) for version in (first, last))
                hidden = HiddenUpdates(look.read.policy().types, look.read.compute_updates, display.say)
                notes = self._explainer.note, hidden.note
                shown = ShownEngine(engine, display, lambda _plan: False, notes)
                await _pipeline(look, look.open_table(), begin, until, shown, self._rows).run()

    def stop(self) -> None:
        self._scope.cancel()


def _pipeline(
    look: _Look, log: TableLog, begin: Start, until: Start | None, engine: Engine, rows: ChosenRows
) -> Pipeline:
    sink = Recorded(rows, Unrecorded())
    return row_pipeline("tail", log, sink, engine, log.make_wake(), begin, until, look.read.policy(), _LIMITS)


async def _run(work: Drainable, display: Display, shown: _Shown, rows: ChosenRows) -> None:
    begun_s = time.monotonic()
    try:
        async with display.shown(), background() as group:
            group.start_soon(_say_if_silent, display)
            if shown.idle_s is not None:
                group.start_soon(_stop_when_idle, work, display, shown.idle_s)
            failures = await run_all({"tail": work}, DRAIN_S)
    finally:
        if shown.stats:
            display.say(rows.summary(time.monotonic() - begun_s))
    for error in failures.values():
        if isinstance(error.__cause__, EnoughShownError):
            continue
        if isinstance(error, ConfigError):
            error.where = _SPELLED.get(error.where, error.where)
        # The reader of the pipe has gone, which is a normal end for `tail | head`.
        raise error.__cause__ if isinstance(error.__cause__, BrokenPipeError) else error


async def _say_if_silent(display: Display) -> None:
    await anyio.sleep(_SILENT_S)
    if not display.has_answer:
        display.say("the table has not answered yet; trying again for a while (Ctrl-C to stop)")


async def _stop_when_idle(work: Drainable, display: Display, idle_s: float) -> None:
    while True:
        left_s = idle_s - display.idle_s
        if left_s <= 0 and display.is_waiting:
            work.stop()
            return
        await anyio.sleep(max(left_s, _LOOK_S))
