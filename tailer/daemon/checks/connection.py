"""Reach the tables and sinks of a configuration: `tailer check --connect`.

Whatever a pipeline needs to read is asked for once: the log is listed, its newest commit is read, the first file that
the commit names is opened, and the sink tells its progress and whether it would take the first rows. A store tells
whether it can be written to only when it is: in a target or a state table there, an empty hidden object is created and
deleted. So what is wrong shows before anything is delivered. A table that can tell says which of its newest versions
contradict its state.

What the loop does with the first rows one step after the other, up to its first error, is done here as far as each step
goes, by the same functions: so the words are those with which `tailer run` stops. Nothing is delivered or changed.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from tailer.changelog.rules import is_tracked, key_faults
from tailer.config.pipelines import PipelineSettings, Settings
from tailer.config.tables import open_files
from tailer.daemon.fleet.awaited import find_existing
from tailer.daemon.sinks import close_sinks
from tailer.daemon.standing import Standing, standing_in
from tailer.errors import FileVacuumed, SinkFenced, TailerError
from tailer.events import ROW_COMMIT_VERSION, ROW_ID
from tailer.formats.inspection import Contradiction
from tailer.formats.rows import row_groups
from tailer.pipeline.data_loss import is_lost
from tailer.pipeline.delivery import ResumePoint, check_known_columns, first_point, tell_key
from tailer.pipeline.policy import OnDataLoss, OnSchemaChange
from tailer.plan import ChangePlan, Regime, output_schema
from tailer.progress.lookup import check_new
from tailer.read.data_files import DataFiles
from tailer.sink import Sink, app_id_of
from tailer.stores.location import is_local
from tailer.stores.port import in_thread
from tailer.table_log import TableLog

__all__ = ["Connection", "connect"]


class Errors:
    """The errors that were `found`, each text once."""

    def __init__(self) -> None:
        self.found: list[TailerError] = []

    def add(self, *errors: TailerError) -> None:
        """Add errors. A pipeline that has moved on meanwhile is none: another instance delivers."""
        for error in errors:
            if not isinstance(error, SinkFenced) and str(error) not in map(str, self.found):
                self.found.append(error)

    @contextmanager
    def gathered(self, *, unless: Callable[[TailerError], bool] = lambda _: False) -> Iterator[None]:
        """Add the error that ends the block, `unless` it is none here."""
        try:
            yield
        except TailerError as error:
            if not unless(error):
                self.add(error)


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The rows of `pipeline` that come first, from `table` to `sink`.

    `standing`: the pipeline's progress in the sink, which was asked for it; None: the sink had an error.
    """

    pipeline: PipelineSettings
    table: TableLog
    sink: Sink
    standing: Standing | None

    async def examine(self, errors: Errors) -> None:
        if self.standing is not None and self.standing.position is None:
            with errors.gathered():
                await check_new(self.pipeline.name, self.table, await self.table.table_id(), self.sink)
        count = len(errors.found)
        on_data_loss = self.pipeline.policy.on_data_loss
        with errors.gathered(unless=lambda error: is_lost(error) and on_data_loss is not OnDataLoss.FAIL):
            # Where the pipeline goes on or begins.
            if self.standing is not None and self.standing.position is not None:
                point = ResumePoint.following(self.standing.position)
            else:
                point = await first_point(self.table, await self.table.resolve(self.pipeline.start), self.sink)
            plan = await self._examine_at(point, errors)
            if plan is not None and len(errors.found) == count:
                await self._examine_newest(point, plan.schema, errors)

    async def _examine_at(self, point: ResumePoint, errors: Errors) -> ChangePlan | None:
        """Add the errors of the first version, and return its plan; None: it has no columns yet."""
        before = None
        if point.snapshot:
            async with aclosing(self.table.snapshot_plans(point.version)) as pages:
                plan = await anext(pages)
        else:
            before = await self.table.seek(point.version)
            check_known_columns(self.table, point, before)
            plan = await self.table.next_plan() or await self._nothing_at(point.version, before)
        await tell_key(self.sink, self.table, point.version - (not point.snapshot))
        if plan.is_bare:
            return None
        plans, policy = self._examine_plan(plan, errors), self.pipeline.policy
        columns = policy.shape_schema(before, self.table.uri, point.version) if plans and point.knows_columns else None
        is_new = self.standing is None or self.standing.position is None
        app_id = None if self.standing is None or is_new else self.standing.app_id
        app_id = app_id or app_id_of(self.pipeline.name, plan.table_id)
        schemas = [output_schema(columns or plan.schema) for plan in plans]
        if is_new and plan.tasks and not is_tracked(plan) and self.sink.open_mirror(self.pipeline.name) is not None:
            # Row ids that are all null identify no row of a mirror.
            schemas = [
                pa.schema([field for field in schema if field.name not in (ROW_ID, ROW_COMMIT_VERSION)])
                for schema in schemas
            ]
        errors.add(*_shared([await self.sink.refusals(app_id, schema) for schema in schemas]))
        return plan

    async def _examine_newest(self, point: ResumePoint, schema: pa.Schema, errors: Errors) -> None:
        """Add what does not fit the columns of the newest version, where the pipeline would stop, too."""
        latest = await self.table.latest()
        if latest <= point.version or self.pipeline.policy.on_schema_change is OnSchemaChange.FAIL:
            return
        await self.table.seek(latest)
        plan = await self.table.next_plan()
        if plan is not None and not plan.schema.equals(schema, check_metadata=True):
            self._examine_plan(plan, errors)

    def _examine_plan(self, plan: ChangePlan, errors: Errors) -> list[ChangePlan]:
        """Add the errors of what is configured over the columns of a version; return its plans as `Policy.examine`."""
        plans, faults = self.pipeline.policy.examine(plan)
        errors.add(*faults)
        if self.pipeline.pairing.compute_updates:
            errors.add(*_shared([list(key_faults(plan, self.pipeline.pairing)) for plan in plans]))
        return plans

    async def _nothing_at(self, version: int, columns: pa.Schema | None) -> ChangePlan:
        """Return the plan of a version that is not there yet."""
        table_id, columns = await self.table.table_id(), columns or pa.schema([])
        return ChangePlan(self.table.uri, table_id, version, 0, None, Regime.NONE, columns, tasks=())


def _shared(faults: Sequence[Sequence[TailerError]]) -> Iterator[TailerError]:
    """Yield the errors that are in all sequences, each as the first one has it."""
    texts = [set(map(str, errors)) for errors in faults]
    yield from (error for error in chain(*faults[:1]) if all(str(error) in others for others in texts))


@dataclass(frozen=True, slots=True)
class Connection:
    """The table and the sink of one pipeline, as far as they could be reached.

    `standing`: None where there is no table yet, and the pipeline would wait for it. `file`: the data file that was
    opened; None where the newest version names none. `contradictions`: as in `TableInspector`. `errors`: all that is
    wrong; the rest may be missing then.
    """

    standing: Standing | None
    file: str | None
    contradictions: Sequence[Contradiction]
    errors: Sequence[TailerError]


async def connect(settings: Settings) -> dict[str, Connection]:
    """Reach the table and the sink of each pipeline of `settings`; return the results by name."""
    return {pipeline.name: await _connect(settings, pipeline) for pipeline in settings.pipelines}


async def _connect(settings: Settings, pipeline: PipelineSettings) -> Connection:
    errors, located, table, standing, file = Errors(), None, None, None, None
    contradictions: Sequence[Contradiction] = ()
    with errors.gathered():
        located = await find_existing(pipeline)
        table = None if located is None else located.open_table()
    if located is not None and table is not None:
        with errors.gathered():
            file = await _open_newest_file(table, open_files(pipeline.stores))
            contradictions = await located.inspect_table().contradictions()
    with errors.gathered():
        sink = settings.open_sink(pipeline)
        try:
            sink.only_look()
            if located is None or table is None:
                await sink.has_delivered(pipeline.name)
            else:
                with errors.gathered():
                    standing = await standing_in(located, table, sink)
                await FirstRows(located, table, sink, standing).examine(errors)
        finally:
            await close_sinks([sink])
    keeps_progress = isinstance(pipeline.make_sink(), Sink)
    written = (pipeline.target, None if keeps_progress else settings.state_table)
    for location in (location for location in written if location is not None and not is_local(location)):
        with errors.gathered():
            # Readers of tables and folders ignore the object by its name.
            store = pipeline.stores.open_uploads(location)
            name = f".lake-tailer-check-{secrets.token_hex(8)}"
            await store.put_if_absent(name, b"")
            await store.delete(name)
    return Connection(standing, file, contradictions, errors.found)


async def _open_newest_file(table: TableLog, files: DataFiles) -> str | None:
    """Open the first file of the newest version, and return its location. A file that is gone counts as reached."""
    await table.seek(await table.latest())
    plan = await table.next_plan()
    if plan is None or not plan.tasks:
        return None
    task = plan.tasks[0]
    try:
        await in_thread(row_groups, task, files)
    except FileVacuumed:
        return None
    return task.uri
