"""`tailer history`: a table's commits as a person reads them."""

import json
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import click

from tailer.cli.configuration import ConfiguredCommand, is_given
from tailer.cli.control import connection, daemon_options
from tailer.cli.history.paper import print_lines, print_paper
from tailer.cli.history.periods import By, periods_of
from tailer.cli.table_options import allow_root, choose_branch, choose_format, folders, places, table_ref
from tailer.config.tables import TableRef
from tailer.errors import ConfigError
from tailer.formats.inspection import CommitSummary
from tailer.start import Start, StartKind, check_order

if TYPE_CHECKING:
    from tailer.daemon.client import DaemonClient
    from tailer.daemon.page.history import JourneyReport

__all__ = ["command", "delivery_seconds"]

# Times of commit files are made to increase, by milliseconds, from wherever a reader begins.
_TOLERANCE: Final = timedelta(seconds=1)


def delivery_seconds(commits: Sequence[CommitSummary], journeys: Sequence["JourneyReport"]) -> dict[int, float]:
    """Return the seconds from a commit until the sink had its version, of each version that `journeys` have."""
    times = {commit.version: datetime.fromtimestamp(commit.timestamp_ms / 1000, UTC) for commit in commits}
    seconds = {}
    for journey in journeys:
        appeared = journey.appeared
        if appeared is not None and abs(times.get(journey.first, appeared) - appeared) > _TOLERANCE:
            continue  # a version of another branch, or of a table that was here before
        for version in times.keys() & range(journey.first, journey.last + 1):
            seconds[version] = max((journey.delivered - times[version]).total_seconds(), 0.0)
    return seconds


FORMAT: Final = 1  # of the JSON; it grows when a field gets another meaning or goes away
_NEWEST: Final = 20  # commits, where nothing says how many
_NEWEST_ADDED_UP: Final = 1000  # likewise, by hour or day
_MOST_SHOWN: Final = 5


def _refuse_page(_context: click.Context, _parameter: click.Parameter, given: str | None) -> None:
    if given is not None:
        raise click.UsageError("--html is no option any more: use --json, and draw what it prints.")


@click.command("history", cls=ConfiguredCommand)
@click.argument("table", shell_complete=folders)
@click.option(
    "--pipeline",
    metavar="NAME",
    help="Add how long the delivery of each version by this pipeline took; not by hour or day.",
)
@click.option(
    "--by", type=click.Choice([by.value for by in By]), default=By.COMMIT.value, help="A line for each of it."
)
@click.option(
    "--from",
    "start",
    metavar="PLACE",
    shell_complete=places(StartKind.EARLIEST),
    help="Begin at earliest, a version, a timestamp or tag:NAME. Default: as --limit says.",
)
@click.option(
    "--to",
    "end",
    default="latest",
    metavar="PLACE",
    shell_complete=places(StartKind.LATEST),
    help="End at latest (the default), a version, a timestamp or tag:NAME.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Look at the newest N commits. Default: {_NEWEST}, by hour or day {_NEWEST_ADDED_UP}; with --from all.",
)
@click.option("--html", callback=_refuse_page, expose_value=False, hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document (history.md).")
@choose_format
@choose_branch
@allow_root
@daemon_options
def command(
    table: str,
    pipeline: str | None,
    by: str,
    start: str | None,
    end: str,
    limit: int | None,
    as_json: bool,
    table_format: str | None,
    branch: str | None,
    allowed_roots: tuple[str, ...],
    config: Path,
    url: str | None,
    token_file: Path | None,
) -> None:
    """Show what each commit of a table did.

    TABLE is the folder of a table, its URI, or its name in a catalog. Only the log is read. Numbers of rows are those
    that writers noted there; a commit that rewrote files without saying how many rows changed is unknown. Bytes are
    those of the files that a commit added. The output is a table with bars on a terminal, otherwise lines with tabs
    between the columns.

    With --pipeline, the column `delivery` is the time from a commit until the sink of that pipeline had its version.
    The running daemon remembers its last 100 deliveries. Its configuration leads to its Unix socket;
    --url is the address of its `metrics`.
    """
    ref, until = table_ref(table, table_format, branch, allowed_roots), Start.parse(end, "--to")
    begin = None if start is None else Start.parse(start, "--from")
    for place, option in ((begin, "--from"), (until, "--to")):
        if place is not None and place.kind is StartKind.SNAPSHOT:
            raise ConfigError(option, "'snapshot' is no commit", "Give earliest, latest, a version or a timestamp.")
    if begin is not None:
        check_order(begin, until, "--from")
    per = By(by)
    default = _NEWEST if per is By.COMMIT else _NEWEST_ADDED_UP
    most = limit if limit is not None else sys.maxsize if begin is not None else default
    daemon = _daemon_of(pipeline, per, config, url, token_file)
    location, commits = anyio.run(_read, ref, begin, until, most)
    periods = periods_of(commits, per)
    deliveries = None
    if pipeline is not None and daemon is not None:
        deliveries = delivery_seconds(commits, _journeys(daemon, pipeline, (ref.location, location)))
    if as_json:
        lines = [period.values() for period in periods]
        if deliveries is not None:
            for line, period in zip(lines, periods, strict=True):
                line["delivery_s"] = deliveries.get(period.commits[0].version)
        click.echo(json.dumps({"format": FORMAT, "table": location, "by": per.value, "lines": lines}))
    elif sys.stdout.isatty():
        print_paper(location, periods, deliveries)
    else:
        print_lines(periods, deliveries)


def _daemon_of(
    pipeline: str | None, by: By, config: Path, url: str | None, token_file: Path | None
) -> "DaemonClient | None":
    """Return the client of the daemon, if a pipeline is named. Raises as `connection` does."""
    if pipeline is None:
        if (url, token_file) != (None, None) or is_given(click.get_current_context()):
            raise click.UsageError("Name the pipeline of the daemon with --pipeline.")
        return None
    if by is not By.COMMIT:
        raise click.UsageError(f"--pipeline shows the delivery of each version: leave out --by {by.value}.")
    return connection(config, url, token_file)


def _journeys(daemon: "DaemonClient", pipeline: str, tables: Sequence[str]) -> Sequence["JourneyReport"]:
    """Return the journeys of a pipeline that follows one of `tables`, which are names of one. Raises `ConfigError`."""
    report = daemon.history(pipeline)
    if report.table not in tables:
        remedy = "Name a pipeline of this table, or the table as the pipeline does."
        raise ConfigError("--pipeline", f"{pipeline} follows {report.table}, not {tables[0]}", remedy)
    return report.journeys


async def _read(table: TableRef, begin: Start | None, until: Start, limit: int) -> tuple[str, Sequence[CommitSummary]]:
    """Return the location of the table, and its commits; `begin` None: the newest `limit` ones."""
    table = await table.located()
    log, inspector = table.open(), table.inspect()
    last = await log.resolve_end(until)
    last = min(last, await log.latest())
    first = 0 if begin is None else (await log.resolve(begin)).version
    first = max(first, 0 if inspector.has_gaps else last - limit + 1)
    if begin is not None and first > last:
        raise ConfigError("--from", f"version {first} comes after the end, version {last}", "Give an earlier one.")
    newest: deque[CommitSummary] = deque(maxlen=min(limit, sys.maxsize))
    async with aclosing(inspector.summaries(first, last)) as summaries:
        async for summary in summaries:
            newest.append(summary)
    if begin is None and newest:
        first = newest[0].version
    if not inspector.has_gaps:
        _say_missing(first, last, newest)
    return table.location, list(newest)


def _say_missing(first: int, last: int, commits: Iterable[CommitSummary]) -> None:
    """Say on standard error which versions of a range the log does not have."""
    missing, expected = [], first
    for version in (*(commit.version for commit in commits), last + 1):
        if version > expected:
            missing.append(str(expected) if version == expected + 1 else f"{expected} to {version - 1}")
        expected = version + 1
    if missing:
        shown = ", ".join(missing[:_MOST_SHOWN]) + ", and more" * (len(missing) > _MOST_SHOWN)
        click.echo(f"versions left out, because the log does not have them: {shown}", err=True)
