"""Policies of a pipeline: what to deliver, how to react to schema changes and data loss, and how much at once."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import pyarrow as pa

from tailer.errors import ConfigError, TailerError
from tailer.events import ROW_COMMIT_VERSION, ROW_ID
from tailer.metrics import Counter
from tailer.plan import ChangePlan, Regime, add_row_ids, select_columns
from tailer.read.shaping import selected_schema, text_faults, with_condition, with_select
from tailer.schema.columns import refuse_names
from tailer.schema.variant_paths import check_paths, with_paths
from tailer.sink import Demands

__all__ = ["ChangeSource", "Limits", "OnDataLoss", "OnSchemaChange", "PlanReport", "Policy"]

_UNTRACKED: Final = "the table does not track rows there (a Delta table does with delta.enableRowTracking = true)"

_log = logging.getLogger(__name__)


class ChangeSource(StrEnum):
    """The place to look for the changes of a version that has a change feed."""

    FEED = "feed"  # in its change files
    COMPARE = "compare"  # in the data files that it adds and removes


class OnSchemaChange(StrEnum):
    """The reaction to a change of the columns."""

    EVOLVE = "evolve"  # announce it to the sink and continue
    FAIL = "fail"  # stop before the version that changes them


class OnDataLoss(StrEnum):
    """The reaction to changes that are due and can never be read again."""

    FAIL = "fail"  # stop
    RESNAPSHOT = "resnapshot"  # announce the gap, deliver all rows of the latest version, continue after it
    SKIP = "skip-with-gap-event"  # announce the gap and continue after it


@dataclass(frozen=True, slots=True)
class Policy:
    """The choices of a pipeline.

    `columns`: the columns to deliver, and paths into them (`tailer.schema.variant_paths`); empty: all. `row_ids`:
    whether to add the columns of row tracking. `where`: the condition that rows must fulfil, in SQL; None: all rows.
    `select`: the columns to deliver, as a list of SQL expressions, in place of `columns`. `types`: the change types of
    the rows to deliver; empty: all. `changes`: where they are.
    """

    columns: tuple[str, ...] = ()
    row_ids: bool = False
    on_schema_change: OnSchemaChange = OnSchemaChange.EVOLVE
    on_data_loss: OnDataLoss = OnDataLoss.FAIL
    where: str | None = None
    select: str | None = None
    types: frozenset[str] = frozenset()
    changes: ChangeSource = ChangeSource.FEED

    def faults(self) -> Iterator[ConfigError]:
        """Yield what is wrong with these options, whatever the columns of the table are."""
        if len(set(self.columns)) < len(self.columns):
            yield ConfigError("columns", "names a column twice", "Name each column once.")
        if self.columns and self.select is not None:
            yield ConfigError("columns", "goes without select, which names columns, too", "Leave one of them out.")
        try:
            check_paths("columns", self.columns)
        except ConfigError as error:
            yield error
        if self.where is not None:
            from tailer.shape.parse.texts import condition_faults  # noqa: PLC0415 - most pipelines have no condition

            yield from condition_faults(self.where)
        if self.select is not None:
            from tailer.shape.parse.texts import select_faults  # noqa: PLC0415 - as above

            yield from select_faults(self.select)

    def shape(self, plan: ChangePlan) -> ChangePlan:
        """Return the plan restricted to the chosen rows and columns. Raises `ConfigError`, `UnsupportedFeature`."""
        plan.check_change_files()
        plan = plan if self.where is None else with_condition(plan, self.where)
        plan = plan if self.select is None else with_select(plan, self.select)
        plan = plan.select(self.columns) if self.columns else plan
        plan.check_reserved()
        return plan.with_row_ids() if self.row_ids else plan

    def examine(self, plan: ChangePlan) -> tuple[list[ChangePlan], list[TailerError]]:
        """Return all errors with which `shape` could stop, and the plan as it makes it; none if nothing is known of it.

        A fault of the condition leaves the columns known. With one of `select` or `columns` there are two plans without
        tasks: what is wrong with both is wrong whatever the parts with faults are to be.
        """
        errors: list[TailerError] = [*text_faults(plan, self.where, None)]
        sound = self if not errors else replace(self, where=None)
        other: list[TailerError] = [*text_faults(plan, None, self.select), *plan.column_faults(self.columns)]
        errors += other
        if other:
            return [replace(plan, schema=guess, tasks=()) for guess in self._guesses(plan.schema)], errors
        try:
            return [sound.shape(plan)], errors
        except TailerError as error:
            return [], [*errors, error]

    def _guesses(self, schema: pa.Schema) -> Iterator[pa.Schema]:
        """Yield the columns of rows with stand-ins where they are not known: of one type, and of another.

        A name that is a fault itself may be meant for any column of `schema`: the second ones have them all.
        """
        if self.select is not None:
            from tailer.shape.parse.texts import guessed_outputs  # noqa: PLC0415 - as above

            outputs = guessed_outputs(self.select, schema)
        else:
            own = {column.name: column.type for column in schema}
            outputs = [(name, own.get(name), name in own) for name in self.columns]
        is_sure = all(sure for _, _, sure in outputs)
        others = {} if is_sure else {column.name: column.type for column in schema}
        for unknown, more in ((pa.string(), {}), (pa.int64(), others)) if outputs else ():
            columns = pa.schema({**more, **{name: kind or unknown for name, kind, _ in outputs}}.items())
            yield add_row_ids(columns) if self.row_ids else columns

    def shape_schema(self, schema: pa.Schema | None, table: str, version: int) -> pa.Schema | None:
        """Return the schema that `shape` gives to a plan of `table` with `schema`. Raises `UnsupportedFeature`."""
        if schema is None:
            return None
        if self.select is not None and (schema := selected_schema(schema, self.select)) is None:
            return None
        schema = select_columns(with_paths(schema, self.columns), self.columns) if self.columns else schema
        refuse_names(schema, table, version)
        return add_row_ids(schema) if self.row_ids else schema


_SKIPPED: Final = (
    Counter("lake_tailer_files_skipped", "Files not read because none of their rows can fulfil the condition."),
    Counter("lake_tailer_bytes_skipped", "Bytes of the files that were not read for that."),
)


class PlanReport:
    """Counts and warnings about the plans that the pipeline `name` delivers.

    Files that they skip are counted. With `row_ids`, versions without these cause warnings, one for each reason: nulls
    are announced.
    """

    def __init__(self, name: str, row_ids: bool) -> None:
        self._name = name
        self._row_ids = row_ids
        self._given: set[str] = set()

    def note(self, plan: ChangePlan) -> None:
        """Note `plan`, which is about to be delivered."""
        if plan.skipped is not None:
            for counter, number in zip(_SKIPPED, (plan.skipped.files, plan.skipped.size_bytes), strict=True):
                counter.add(self._name, number)
        if self._row_ids and not all(task.tracking is not None for task in plan.tasks):
            reason = "the rows of change files have none" if plan.regime is Regime.CDC else _UNTRACKED
            if reason not in self._given:
                self._given.add(reason)
                message = "%s: from version %d on rows may have null as %s and %s: %s"
                _log.warning(message, self._name, plan.version, ROW_ID, ROW_COMMIT_VERSION, reason)


@dataclass(frozen=True, slots=True)
class Limits:
    """The size of one sink transaction, and how long to wait.

    A transaction is closed when it reaches `max_versions`, `max_rows`, `max_bytes` (of Arrow memory) or `max_seconds`.
    `poll_interval_s`: how often to look for a new version without a notification; on a store that cannot notify, the
    shortest wait, with `idle_poll_interval_s` as the longest (None: the same), and with at most `max_polls_per_hour`
    (None: no limit). `notified_poll_interval_s`: the longest wait on a store that notifies (None: as on others).
    `commit_deadline_s`: after how long the outcome of a commit counts as unknown. `retry_for_s`: how long to retry
    without success before giving up. `first_answer_s`: the same as long as the table has not been read at all, counted
    from the start (None: no other limit), for commands whose user may have named a wrong place.
    `max_quiet_s`: how long to wait for rows before the open transaction is committed; None: no limit.
    """

    max_versions: int = 1000
    max_rows: int = 1_000_000
    max_bytes: int = 256 * 2**20
    max_seconds: float = 5.0
    poll_interval_s: float = 1.0
    idle_poll_interval_s: float | None = None
    max_polls_per_hour: int | None = None
    notified_poll_interval_s: float | None = None
    commit_deadline_s: float = 120.0
    retry_for_s: float = 600.0
    first_answer_s: float | None = None
    max_quiet_s: float | None = None

    def within(self, demands: Demands) -> "Limits":
        """Return these limits, or lower ones if the sink demands them."""
        rows, size = demands.max_rows or self.max_rows, demands.max_bytes or self.max_bytes
        max_rows, max_bytes = min(rows, self.max_rows), min(size, self.max_bytes)
        return replace(self, max_rows=max_rows, max_bytes=max_bytes, max_quiet_s=demands.max_quiet_s)
