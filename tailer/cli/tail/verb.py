"""`tailer tail`: print the changes of one table, without any stored progress."""

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import anyio
import click
from typing_extensions import override

from tailer.changelog.engine import ChangelogEngine, ChangelogReport
from tailer.changelog.rules import Carryovers, concerns
from tailer.cli.table_options import allow_root, choose_branch, choose_format, folders, places, table_ref
from tailer.cli.tail.output import Output, Shown
from tailer.config.shapes import RangeOptions
from tailer.config.tables import TableRef, open_files
from tailer.daemon.logs import log_to_stderr
from tailer.daemon.runs import Drainable
from tailer.engine import Engine
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError, did_you_mean
from tailer.events import ChangeWord
from tailer.pipeline.loop import Pipeline
from tailer.pipeline.policy import ChangeSource, Limits
from tailer.pipeline.row_delivery import row_pipeline
from tailer.progress.recorded import Recorded
from tailer.sink import Progress, ProgressStore
from tailer.start import EARLIER, Start, StartKind, StartPoint
from tailer.table_log import TableLog

__all__ = ["command"]

# A place that does not answer at all is probably a wrong one.
_LIMITS: Final = Limits(first_answer_s=10.0)
# How users of `tail` write what a pipeline calls by another name.
_OTHER_NAMES: Final = {"start": "--from", "end": "--to", "types": "--type", "net": "--net-changes"}


class Unrecorded(ProgressStore):
    """A `ProgressStore` in memory: each run begins at its start."""

    def __init__(self) -> None:
        self._progress: dict[str, Progress] = {}

    @override
    async def progress(self, app_id: str) -> Progress | None:
        return self._progress.get(app_id)

    @override
    async def has_delivered(self, pipeline: str) -> bool:
        return bool(self._progress)

    @override
    async def record(self, progress: Progress) -> None:
        self._progress[progress.app_id] = progress

    @override
    async def aclose(self) -> None:
        pass


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
    "--changes",
    type=click.Choice([choice.value for choice in ChangeSource]),
    default=ChangeSource.FEED.value,
    show_default=True,
    help="Read recorded changes, or compare the data files of each version, whatever is recorded.",
)
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
    changes: str,
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

    TABLE is the folder of a table, its URI, or its name in a catalog. Without --to the table is followed, like
    `tail -f`, until Ctrl-C. A timestamp such as 2026-03-01T12:00:00Z is UTC if it has no zone. Standard error names the
    first version and, on a terminal, the current step.
    """
    read = RangeOptions(
        table_format=table_format,
        branch=branch,
        columns=_names("--columns", columns),
        where=where,
        select=select,
        row_ids=row_ids,
        changes=ChangeSource(changes),
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
    shown = Shown(form=form, limit=limit, idle_s=idle_s, explain=explain, stats=stats)
    look = _Look(table=ref, begin=begin, until=until, shown=shown, read=read)
    log_to_stderr(logging.WARNING)
    # Here a warning that new commits are found by polling alone is of no use.
    logging.getLogger("tailer.stores.wakeup").setLevel(logging.ERROR)
    anyio.run(_follow, look)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The arguments of `tail`, checked."""

    table: TableRef
    begin: Start
    until: Start | None
    shown: Shown
    read: RangeOptions

    async def located(self) -> "_Look":
        """Return the arguments with the location of a table that is named. Raises as `TableRef.located`."""
        return replace(self, table=await self.table.located())

    def open_table(self) -> TableLog:
        """Open the log of the table, which is `located`; no I/O."""
        return self.table.open(policy=self.read.policy())


def _spell(option: str) -> str:
    """Return an option of a pipeline as users of `tail` write it: `compute_updates = true` is `--compute-updates`."""
    name = option.removesuffix(" = true")
    return _OTHER_NAMES.get(name, f"--{name.replace('_', '-')}")


# The options that errors of a run name.
_SPELLED: Final = {name: _spell(name) for name in (*RangeOptions.__struct_fields__, *_OTHER_NAMES)}


def _types(text: str | None) -> list[ChangeWord]:
    kinds, names = [word.value for word in ChangeWord], _names("--type", text)
    for name in names:
        if name not in kinds:
            remedy = did_you_mean(name, kinds) or "Give some of insert, update and delete, with commas between them."
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
    if look.read.net and look.until is not None:
        output = Output(look.shown, look.read, lambda _plan: True)
        await _show(output, _NetChanges(look, look.until, output))
        return
    files, rules, log = open_files(), look.read.rules(), look.open_table()
    engine = ChangelogEngine(LocalEngine(files=files), rules, ChangelogReport("tail").note, files)
    output = Output(look.shown, look.read, partial(concerns, rules=rules))
    output.status.on_start = lambda start, last: output.announce(log.uri, start, last, look.until)
    await _show(output, _pipeline(look, log, look.begin, look.until, engine, output))


async def _show(output: Output, work: Drainable) -> None:
    try:
        await output.show(work)
    except ConfigError as error:
        error.where = _SPELLED.get(error.where, error.where)
        raise


class _NetChanges(Drainable):
    """Net changes: compares a range of versions, then shows the result. `stop` interrupts both."""

    def __init__(self, look: _Look, end: Start, output: Output) -> None:
        self._look = look
        self._end = end
        self._output = output
        self._scope = anyio.CancelScope()

    @override
    async def run(self) -> None:
        from tailer.changelog.net_changes import net_changes  # noqa: PLC0415 - only with --net-changes

        look, output, log = self._look, self._output, self._look.open_table()
        with self._scope:
            first, last = (await log.resolve(look.begin)).version, await log.resolve_end(self._end)
            latest, output.status.has_answer = await log.latest(), True
            if last > latest:
                raise ConfigError("--to", f"version {last} does not exist yet", f"The latest version is {latest}.")
            nothing = first > last and self._end.kind is StartKind.LATEST
            if first > last and not nothing:
                raise ConfigError("--from", f"version {first} comes after the end, version {last}", EARLIER)
            more = "" if nothing else ", as net changes"
            output.announce(log.uri, StartPoint(first), last, self._end, more)
            if nothing:
                return
            output.display.busy(f"comparing versions {first} to {last}")
            wanted, report = look.read.policy().shape, ChangelogReport("tail").note
            versions, files = range(first, last + 1), open_files()
            local = LocalEngine(files=files)
            async with net_changes(log, versions, local, look.read.rules(), wanted, report, files) as engine:
                begin, until = (Start(StartKind.VERSION, version) for version in (first, last))
                await _pipeline(look, look.open_table(), begin, until, engine, output).run()

    @override
    def stop(self) -> None:
        self._scope.cancel()


def _pipeline(
    look: _Look, log: TableLog, begin: Start, until: Start | None, engine: Engine, output: Output
) -> Pipeline:
    sink, policy, status = Recorded(output.rows, Unrecorded()), look.read.policy(), output.status
    return row_pipeline("tail", log, sink, engine, log.make_wake(), begin, until, policy, _LIMITS, status=status)
