"""Consecutive versions that are delivered together, in one commit of somebody else's writer.

A span has whole versions. It ends before a version that changes the columns, so that whatever the target has to say to
the change, the versions before it are delivered; and before one that cannot be planned, or is of another table. Where
it ends otherwise does not matter: the next one begins at what the target says.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tailer.changelog.carryovers import concerns
from tailer.changelog.rules import PairingRules
from tailer.errors import SchemaChanged, TailerError
from tailer.pipeline.policy import OnSchemaChange, Policy
from tailer.plan import ChangePlan, output_schema
from tailer.schema.changes import describe_changes
from tailer.spark.splits import Piece, Slice, compared, slices, split
from tailer.table_log import TableLog

__all__ = ["SPAN_VERSIONS", "Span", "Spans", "pieces_of"]

SPAN_BYTES: Final = 4 * 2**30  # of files: what is done again when it fails
SPAN_VERSIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class Span:
    """The plans of consecutive versions of one table, at least one; or those of a snapshot, all of one version."""

    plans: tuple[ChangePlan, ...]

    @property
    def table_id(self) -> str:
        """The table's identity."""
        return self.plans[0].table_id

    @property
    def first(self) -> int:
        """The first version."""
        return self.plans[0].version

    @property
    def last(self) -> int:
        """The last version."""
        return self.plans[-1].version

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to read."""
        return any(plan.tasks for plan in self.plans)

    @property
    def schemas(self) -> list[pa.Schema]:
        """What its rows look like (`tailer.plan.output_schema`), each once: the last version's is the last."""
        found: dict[int, pa.Schema] = {}
        for plan in self.plans:
            found.update((id(schema), schema) for schema in _schemas(plan))
        distinct: list[pa.Schema] = []
        for schema in map(output_schema, found.values()):
            if schema not in distinct:
                distinct.append(schema)
        return distinct


class Spans:
    """Cuts what `table`, which stands before some version, has from there on; `until` is the last version, if any.

    `shape`: makes a plan into one for the columns that are wanted. `schema`: what these were before the first version;
    None where that is not known or does not matter.
    """

    def __init__(
        self,
        table: TableLog,
        policy: Policy,
        shape: Callable[[ChangePlan], ChangePlan],
        schema: pa.Schema | None,
        until: int | None = None,
    ) -> None:
        self._table = table
        self._policy = policy
        self._shape = shape
        self._schema = schema
        self._until = until
        self._ahead: ChangePlan | None = None
        self._failed: TailerError | None = None

    async def next(self, most_versions: int = SPAN_VERSIONS) -> Span | None:
        """The next span, None where there is nothing new; of at most so many versions.

        Raises what stands in the way of the first version, `SchemaChanged` where its columns must not change.
        """
        plans: list[ChangePlan] = []
        size = 0
        while len(plans) < most_versions and size < SPAN_BYTES:
            plan = await self._plan(is_first=not plans)
            if plan is None or (self._until is not None and plan.version > self._until):
                break
            self._ahead = plan
            changes = self._changes(plan)
            if plans and (changes or plan.table_id != plans[0].table_id):
                break
            if changes and self._policy.on_schema_change is OnSchemaChange.FAIL:
                raise SchemaChanged(plan.table, plan.version, "; ".join(changes))
            self._ahead, self._schema = None, plan.schema
            plans.append(plan)
            size += plan.size_bytes
        return Span(tuple(plans)) if plans else None

    async def _plan(self, *, is_first: bool) -> ChangePlan | None:
        """The plan of the next version; what prevents that is kept until nothing is before it."""
        if self._ahead is not None:
            return self._ahead
        if self._failed is None:
            try:
                plan = await self._table.next_plan()
                return None if plan is None else self._shape(plan)
            except TailerError as error:
                self._failed = error
        if is_first:
            raise self._failed
        return None

    def _changes(self, plan: ChangePlan) -> Sequence[str]:
        """What the version does to the columns, in words."""
        before = self._schema
        for schema in _schemas(plan):
            if before is not None and schema is not before and (changes := describe_changes(before, schema)):
                return changes
            before = schema
        return ()


def pieces_of(span: Span, rules: PairingRules) -> list[Piece]:
    """The span's work for executors. Raises `ConfigError` where rows lack the key of `rules`."""
    found: list[Piece] = []
    rows: list[Slice] = []
    for plan in span.plans:
        if concerns(plan, rules):
            work, alone = compared(plan, rules)
            found += work
            rows += alone
        else:
            rows += slices(plan)
    return [*found, *split(rows)]


def _schemas(plan: ChangePlan) -> Iterator[pa.Schema]:
    """Those of the tasks in their order, then the version's; one object once."""
    yield from {id(schema): schema for schema in (*(task.schema for task in plan.tasks), plan.schema)}.values()
