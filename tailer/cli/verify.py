"""`tailer verify`: prove that a mirror equals its source, or list the differences, and repair them."""

import json
import shlex
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import anyio
import click

from tailer.changelog.equal_rows.keyed_difference import Difference, DifferenceKind
from tailer.cli.configuration import ConfiguredCommand, choose_config, choose_pipeline
from tailer.cli.display.display import Steps, versions
from tailer.config.pipelines import PipelineSettings, Settings
from tailer.config.settings import load
from tailer.config.tables import open_files
from tailer.daemon.fleet.discovery import with_found_tables
from tailer.daemon.sinks import close_sinks
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError, how_to_install
from tailer.pipeline.delivery import tell_key
from tailer.pipeline.verification.comparison import (
    GoneVersions,
    Rewritten,
    Verification,
    VerificationStep,
    repair,
    verify,
    verify_all,
)
from tailer.sink import OTHER_CLASS, MirrorRows, Sink, app_id_of

__all__ = ["command"]

DIFFERS: Final = 5  # the exit code
FORMAT: Final = 1  # of the JSON; it grows when a field gets another meaning or goes away
_FOLD: Final = "Verify a pipeline without types."
_REMEDY: Final = 'A sink of kind "sql" can be verified, and one of kind "delta" with mode = "mirror".'


@click.command("verify", cls=ConfiguredCommand)
@click.argument("pipeline")
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Differences to list.")
@click.option("--values", is_flag=True, help="Show the values that differ, not only the key and the columns.")
@click.option("--version", type=click.IntRange(min=0), help="Of a history: compare it as of this version.")
@click.option("--all", "takes_all", is_flag=True, help="Of a history: compare it as of all versions, at most 20.")
@click.option("--repair", "repairs", is_flag=True, help="Rewrite the rows that differ, and compare again.")
@click.option(
    "--metrics-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write metrics for Prometheus to this file, such as /var/lib/node_exporter/orders.prom.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document (verify.md).")
@choose_config
def command(
    pipeline: str,
    limit: int,
    values: bool,
    version: int | None,
    takes_all: bool,
    repairs: bool,
    metrics_file: Path | None,
    as_json: bool,
    config: Path,
) -> int:
    """Prove that a mirror equals its source.

    Compares the table that PIPELINE keeps equal to its source with the source at the version where the table is; of a
    log of changes, the rows that it inserted and did not delete. The daemon may run meanwhile. Nothing is changed
    without --repair. The exit code is 5 if they differ, also after a repair.
    """
    asked = _Asked(limit, version, takes_all, repairs)
    asked.check()
    settings = anyio.run(with_found_tables, load(config))
    chosen = choose_pipeline(settings, pipeline)
    if chosen.policy.types:
        raise ConfigError(chosen.name, "leaves out some types of changes: no table can be folded from them", _FOLD)
    if metrics_file is not None and find_spec("prometheus_client") is None:
        raise ConfigError("--metrics-file", "needs prometheus-client", how_to_install("daemon"))
    outcomes = anyio.run(_verify, settings, chosen, asked)
    results = [outcome for outcome in outcomes if isinstance(outcome, Verification)]
    result = next((result for result in results if takes_all and not result.is_equal), results[-1])
    if as_json:
        document = _document(chosen, [*results, result], values)
        if takes_all:
            gone = [outcome for outcome in outcomes if isinstance(outcome, GoneVersions)]
            document["versions"] = [_fields(result, values) for result in results]
            document["gone_versions"] = [[outcome.first, outcome.version] for outcome in gone]
        click.echo(json.dumps(document))
    else:
        for outcome in outcomes:
            _print(chosen, outcome, values)
        if takes_all:
            first = outcomes[0].version if isinstance(outcomes[0], Verification) else outcomes[0].first
            all_versions, equal = outcomes[-1].version - first + 1, sum(result.is_equal for result in results)
            click.echo(f"{chosen.name}: {len(results)} of {all_versions} versions were compared: {equal} are equal")
        was_useless = not any(result.is_equal or result.rewritten for result in results)
        if repairs and results[-1].has_same_columns and was_useless:
            who = f"{chosen.name} or another writer, such as OPTIMIZE,"
            pause = shlex.join(["tailer", "pause", chosen.name])
            click.echo(f"nothing was rewritten: {who} went on each time; pause them, {chosen.name} with `{pause}`")
    if metrics_file is not None:
        _write_metrics(metrics_file, chosen, [*results, result])
    return 0 if result.is_equal else DIFFERS


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options that say what to compare, and whether to repair it."""

    limit: int
    version: int | None
    takes_all: bool
    repairs: bool

    def check(self) -> None:
        if self.takes_all and self.version is not None:
            raise click.UsageError("--all compares several versions, and --version one: leave one of them out.")
        if self.repairs and (self.takes_all or self.version is not None):
            raise click.UsageError(
                "--repair mends the rows of the newest version alone: leave out --version and --all."
            )


async def _verify(
    settings: Settings, pipeline: PipelineSettings, asked: _Asked
) -> Sequence[Verification | GoneVersions]:
    """Return the result, and those before it where repairs were tried; of all versions, one for each."""
    pipeline = await pipeline.located()
    sink = settings.open_sink(pipeline)
    steps, outcomes = Steps(), list[Verification | GoneVersions]()
    try:
        open_mirror = partial(_open_mirror, sink, pipeline)
        table, engine = pipeline.open_table(), LocalEngine(files=open_files(pipeline.stores))
        if sink.demands.primary_key:
            reached = await sink.progress(app_id_of(pipeline.name, await table.table_id()))
            await tell_key(sink, table, await table.latest() if reached is None else reached.position.version)
        async with steps.shown():

            def begin(step: VerificationStep) -> None:
                steps.begin(f"{pipeline.name}: {step}")

            if not asked.repairs and not asked.takes_all:
                async with open_mirror(asked.version) as mirror:
                    return [await verify(mirror, table, engine, pipeline.policy, asked.limit, begin=begin)]
            several = repair if asked.repairs else verify_all
            async with aclosing(several(open_mirror, table, engine, pipeline.policy, asked.limit, begin)) as results:
                async for result in results:
                    outcomes.append(result)
            return outcomes
    except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):  # the latter where interrupts are ignored
        if asked.repairs:
            steps.say(f"{pipeline.name}: ended: {_repaired(outcomes, steps.current)}")
        raise
    finally:
        await close_sinks([sink])


def _repaired(outcomes: Sequence[Verification | GoneVersions], step: str) -> str:
    """Say what a repair has changed that was ended at a step: all rows in one commit, or nothing."""
    rewritten = next(
        (result.rewritten for result in outcomes if isinstance(result, Verification) and result.rewritten), None
    )
    if rewritten is not None:
        return f"{_rewritten(rewritten)}; the comparison after that did not end"
    if step.endswith(VerificationStep.COMMITTING):
        return "the repair was being committed: run it again to see whether anything differs"
    return "nothing was rewritten"


def _rewritten(rewritten: Rewritten) -> str:
    return f"rewritten: {rewritten.keys} keys, which have {rewritten.rows} rows now"


def _open_mirror(
    sink: Sink, pipeline: PipelineSettings, version: int | None = None
) -> AbstractAsyncContextManager[MirrorRows]:
    """Open the mirror, as of a version. Raises `ConfigError` if the sink keeps none."""
    opened = sink.open_mirror(pipeline.name, version)
    if opened is None:
        reason = f"its sink, of kind {pipeline.sink_kind}, keeps no mirror of the table"
        raise ConfigError(pipeline.name, reason, _REMEDY)
    return opened


def _write_metrics(path: Path, pipeline: PipelineSettings, verifications: Sequence[Verification]) -> None:
    from tailer.daemon.observe.verified import VerifiedMetrics, write_metrics  # noqa: PLC0415 - its library is an extra

    try:
        write_metrics(path, VerifiedMetrics(pipeline.name, verifications, time.time()))
    except OSError as error:
        reason = f"cannot write {path}: {error.strerror or error}"
        raise ConfigError("--metrics-file", reason, "Name a file in a folder that this user may write.") from error


def _print(pipeline: PipelineSettings, outcome: Verification | GoneVersions, values: bool) -> None:
    if isinstance(outcome, Verification):
        _print_result(pipeline, f"{pipeline.table} at version {outcome.version}", outcome, values)
        return
    where = f"{pipeline.table} at {versions(outcome.first, outcome.version)}"
    click.echo(f"{pipeline.name}: not compared with {where}, whose rows are not there any more")


def _print_result(pipeline: PipelineSettings, where: str, result: Verification, values: bool) -> None:
    if result.is_equal:
        dead = result.source_rows - result.mirror_rows  # on_bad_value leaves them out
        rows = f"{result.mirror_rows} rows" + (f", without {dead} dead letters" if dead else "")
        click.echo(f"{pipeline.name}: equals {where}: {rows}")
        return
    counts = ", ".join(f"{count} {kind.value}" for kind, count in result.counts.items())
    if not result.has_same_columns:
        counts = "it has other columns, so no rows were compared"
    click.echo(f"{pipeline.name}: differs from {where}: {counts}")
    for kind, names in (("missing", result.missing_columns), ("unexpected", result.unexpected_columns)):
        if names:
            click.echo(f"{kind} columns: {', '.join(names)}")
    if any(result.counts.values()):
        click.echo(f"rows: {result.source_rows} in the source, {result.mirror_rows} in the mirror")
    if result.columns:
        click.echo(f"columns that differ: {', '.join(f'{name} ({count})' for name, count in result.columns.items())}")
    shown = result.differences if result.key or values else ()
    for difference in shown:
        click.echo(_line(difference, result.key, values))
    if left := sum(result.counts.values()) - len(shown):
        click.echo(f"and {left} more: see --limit" if shown or result.key else "the rows are listed with --values")
    if result.rewritten is not None:
        click.echo(_rewritten(result.rewritten))


def _line(difference: Difference, key: tuple[str, ...], values: bool) -> str:
    row = _key(difference, key)
    parts = [difference.kind.value, _listed(row)]
    source, mirror = difference.source, difference.mirror
    if source is not None and mirror is not None:
        shown = [
            f"{name} ({_shown(source[name])} in the source, {_shown(mirror[name])} in the mirror)" if values else name
            for name in difference.columns
        ]
        parts.append(", ".join(shown))
    elif values:
        parts.append(_listed({name: value for name, value in (source or mirror or {}).items() if name not in row}))
    return ": ".join(filter(None, parts))


def _listed(row: dict[str, str | None]) -> str:
    return ", ".join(f"{name} = {_shown(value)}" for name, value in row.items())


def _shown(value: str | None) -> str:
    if value is None:
        return "null"
    text, kind = _plain(value)
    return json.dumps(text, ensure_ascii=False) + (f" of class {kind}" if kind else "")


def _plain(value: str) -> tuple[str, str]:
    """Return the text of a value, and the name of its class if its column has another one."""
    if not value.startswith(OTHER_CLASS):
        return value, ""
    kind, _, text = value.removeprefix(OTHER_CLASS).partition(" ")
    return text, kind


def _as_json(row: dict[str, str | None] | None) -> dict[str, str | None] | None:
    return None if row is None else {name: None if text is None else _plain(text)[0] for name, text in row.items()}


def _key(difference: Difference, key: tuple[str, ...]) -> dict[str, str | None]:
    row = difference.source or difference.mirror or {}
    return {name: row[name] for name in key}


def _document(pipeline: PipelineSettings, results: Sequence[Verification], values: bool) -> dict[str, Any]:
    repaired = [
        {"keys": result.rewritten.keys, "rows": result.rewritten.rows, **_fields(result, values)}
        for result in results
        if result.rewritten is not None
    ]
    return {
        "format": FORMAT,
        "pipeline": pipeline.name,
        "table": pipeline.table,
        **_fields(results[-1], values),
        "repaired": repaired[0] if repaired else None,
    }


def _fields(result: Verification, values: bool) -> dict[str, Any]:
    differences: list[dict[str, Any]] = []
    for difference in result.differences:
        shown: dict[str, Any] = {
            "kind": difference.kind.value,
            "key": _as_json(_key(difference, result.key)),
            "columns": difference.columns,
        }
        differences.append(
            shown | ({"source": _as_json(difference.source), "mirror": _as_json(difference.mirror)} if values else {})
        )
    return {
        "version": result.version,
        "equal": result.is_equal,
        "source_rows": result.source_rows,
        "mirror_rows": result.mirror_rows,
        **{kind.value: result.counts[kind] for kind in DifferenceKind},
        "columns": result.columns,
        "missing_columns": result.missing_columns,
        "unexpected_columns": result.unexpected_columns,
        "differences": differences,
    }
