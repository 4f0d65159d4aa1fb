"""`tailer verify`: prove that a mirror equals its source, or list the differences, and repair them."""

import json
import shlex
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import anyio
import click

from tailer.changelog.equal_rows.keyed_difference import Difference, DifferenceKind
from tailer.cli.configuration import ConfiguredCommand, choose_config, choose_pipeline
from tailer.cli.display.steps import Steps
from tailer.config.pipelines import PipelineSettings, Settings
from tailer.config.placement import EngineKind
from tailer.config.settings import load
from tailer.config.tables import TableRef, open_files
from tailer.daemon.engines import open_engines
from tailer.daemon.fleet import with_found_tables
from tailer.daemon.sinks import close_sinks
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError, how_to_install
from tailer.pipeline.delivery import tell_key
from tailer.pipeline.verification.comparison import Rewritten, Verification, VerificationStep, verify
from tailer.pipeline.verification.repair import repair
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
    repairs: bool,
    metrics_file: Path | None,
    as_json: bool,
    config: Path,
) -> int:
    """Prove that a mirror equals its source.

    Compares the table that PIPELINE keeps equal to its source with the source at the version where the table
    is; of a log of changes, the rows that it inserted and did not delete. The daemon may run meanwhile. Nothing is
    changed without --repair. The exit code is 5 if they differ, also after a repair.
    """
    settings = anyio.run(with_found_tables, load(config))
    chosen = choose_pipeline(settings, pipeline)
    if chosen.policy.types:
        raise ConfigError(chosen.name, "leaves out some types of changes: no table can be folded from them", _FOLD)
    if metrics_file is not None and find_spec("prometheus_client") is None:
        raise ConfigError("--metrics-file", "needs prometheus-client", how_to_install("daemon"))
    found = anyio.run(_verify, settings, chosen, limit, repairs)
    if as_json:
        click.echo(json.dumps(_document(chosen, found, values)))
    else:
        for each in found:
            _print(chosen, each, values)
        if repairs and found[-1].has_same_columns and not any(each.is_equal or each.rewritten for each in found):
            who = f"{chosen.name} or another writer, such as OPTIMIZE,"
            pause = shlex.join(["tailer", "pause", chosen.name])
            click.echo(f"nothing was rewritten: {who} went on each time; pause them, {chosen.name} with `{pause}`")
    if metrics_file is not None:
        _write_metrics(metrics_file, chosen, found)
    return 0 if found[-1].is_equal else DIFFERS


async def _verify(settings: Settings, pipeline: PipelineSettings, limit: int, repairs: bool) -> Sequence[Verification]:
    """Return the result, and those before it where repairs were tried."""
    pipeline = await pipeline.located()
    sink = settings.open_sink(pipeline)
    files = open_files(pipeline.stores)
    steps, verifications = Steps(), list[Verification]()
    try:
        open_mirror = partial(_open_mirror, sink, pipeline)
        table, engine = pipeline.open_table(), LocalEngine(files=files)
        if sink.demands.primary_key:
            reached = await sink.progress(app_id_of(pipeline.name, await table.table_id()))
            await tell_key(sink, table, await table.latest() if reached is None else reached.position.version)
        kind = settings.engine if pipeline.is_target_shared(settings.spark) else EngineKind.LOCAL
        async with open_engines(kind, settings.spark, files) as engines, steps.shown():

            def begin(step: VerificationStep) -> None:
                steps.begin(f"{pipeline.name}: {step}")

            share = engines.sides(lambda location: TableRef(location).open(pipeline.stores))
            if not repairs:
                async with open_mirror() as mirror:
                    return [await verify(mirror, table, engine, pipeline.policy, limit, share=share, begin=begin)]
            repairs_made = repair(open_mirror, table, engine, pipeline.policy, limit, share, begin)
            async with aclosing(repairs_made) as results:
                async for each in results:
                    verifications.append(each)
            return verifications
    except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):  # the latter where interrupts are ignored
        if repairs:
            steps.say(f"{pipeline.name}: ended: {_repaired(verifications, steps.current)}")
        raise
    finally:
        await close_sinks([sink])


def _repaired(verifications: Sequence[Verification], step: str) -> str:
    """Say what a repair has changed that was ended at a step: all rows in one commit, or nothing."""
    rewritten = next((each.rewritten for each in verifications if each.rewritten is not None), None)
    if rewritten is not None:
        return f"{_rewritten(rewritten)}; the comparison after that did not end"
    if step.endswith(VerificationStep.COMMITTING):
        return "the repair was being committed: run it again to see whether anything differs"
    return "nothing was rewritten"


def _rewritten(rewritten: Rewritten) -> str:
    return f"rewritten: {rewritten.keys} keys, which have {rewritten.rows} rows now"


def _open_mirror(sink: Sink, pipeline: PipelineSettings) -> AbstractAsyncContextManager[MirrorRows]:
    """Open the mirror. Raises `ConfigError` if the sink keeps none."""
    opened = sink.open_mirror(pipeline.name)
    if opened is None:
        reason = f"its sink, of kind {pipeline.sink_kind}, keeps no mirror of the table"
        raise ConfigError(pipeline.name, reason, _REMEDY)
    return opened


def _write_metrics(path: Path, pipeline: PipelineSettings, found: Sequence[Verification]) -> None:
    from tailer.daemon.observe.verified import VerifiedMetrics, write_metrics  # noqa: PLC0415 - its library is an extra

    try:
        write_metrics(path, VerifiedMetrics(pipeline.name, found, time.time()))
    except OSError as error:
        reason = f"cannot write {path}: {error.strerror or error}"
        raise ConfigError("--metrics-file", reason, "Name a file in a folder that this user may write.") from error


def _print(pipeline: PipelineSettings, found: Verification, values: bool) -> None:
    where = f"{pipeline.table} at version {found.version}"
    if found.is_equal:
        click.echo(f"{pipeline.name}: equals {where}: {found.source_rows} rows")
        return
    counts = ", ".join(f"{count} {kind.value}" for kind, count in found.counts.items())
    if not found.has_same_columns:
        counts = "it has other columns, so no rows were compared"
    click.echo(f"{pipeline.name}: differs from {where}: {counts}")
    for kind, names in (("missing", found.missing_columns), ("unexpected", found.unexpected_columns)):
        if names:
            click.echo(f"{kind} columns: {', '.join(names)}")
    if any(found.counts.values()):
        click.echo(f"rows: {found.source_rows} in the source, {found.mirror_rows} in the mirror")
    if found.columns:
        click.echo(f"columns that differ: {', '.join(f'{name} ({count})' for name, count in found.columns.items())}")
    shown = found.differences if found.key or values else ()
    for each in shown:
        click.echo(_line(each, found.key, values))
    if left := sum(found.counts.values()) - len(shown):
        click.echo(f"and {left} more: see --limit" if shown or found.key else "the rows are listed with --values")
    if found.rewritten is not None:
        click.echo(_rewritten(found.rewritten))


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


def _document(pipeline: PipelineSettings, found: Sequence[Verification], values: bool) -> dict[str, Any]:
    repaired = [
        {"keys": each.rewritten.keys, "rows": each.rewritten.rows, **_fields(each, values)}
        for each in found
        if each.rewritten is not None
    ]
    return {
        "format": FORMAT,
        "pipeline": pipeline.name,
        "table": pipeline.table,
        **_fields(found[-1], values),
        "repaired": repaired[0] if repaired else None,
    }


def _fields(found: Verification, values: bool) -> dict[str, Any]:
    differences: list[dict[str, Any]] = []
    for each in found.differences:
        shown: dict[str, Any] = {
            "kind": each.kind.value,
            "key": _as_json(_key(each, found.key)),
            "columns": each.columns,
        }
        differences.append(
            shown | ({"source": _as_json(each.source), "mirror": _as_json(each.mirror)} if values else {})
        )
    return {
        "version": found.version,
        "equal": found.is_equal,
        "source_rows": found.source_rows,
        "mirror_rows": found.mirror_rows,
        **{kind.value: found.counts[kind] for kind in DifferenceKind},
        "columns": found.columns,
        "missing_columns": found.missing_columns,
        "unexpected_columns": found.unexpected_columns,
        "differences": differences,
    }
