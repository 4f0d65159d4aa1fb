"""Version ranges: consecutive versions that are delivered together, by one job of executors.

A range has whole versions. It ends before a version that changes the columns, so that the versions before it are
delivered even if the target refuses the change. It also ends before a version that cannot be planned, or is of another
table. Any other end is arbitrary: the next range begins at the target's progress.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from tailer.changelog.rules import PairingRules, concerns
from tailer.errors import ChangeError, ConfigError, LogError, SchemaChanged, SinkRejected, TailerError
from tailer.pipeline.delivery import VersionRange
from tailer.pipeline.policy import OnSchemaChange, Policy
from tailer.plan import ChangePlan, Position
from tailer.read.data_files import DataFiles
from tailer.schema.changes import describe_changes
from tailer.spark.splits import FileSlice, Split, diff_splits, file_slices, file_splits
from tailer.table_log import TableLog

__all__ = ["RANGE_VERSIONS", "VersionRanges", "fewer_versions", "splits_of"]

RANGE_BYTES: Final = 4 * 2**30  # of files: the work that is repeated after a failure
RANGE_VERSIONS: Final = 1000


class VersionRanges:
    """A divider of the versions of `table`, from its current one on, into ranges; `until`: the last version, if any.

    `schema`: the wanted columns before the first version; None: unknown, or of no matter. `range_bytes`: of files, at
    which a range ends.
    """

    def __init__(
        self,
        table: TableLog,
        policy: Policy,
        schema: pa.Schema | None,
        until: int | None = None,
        range_bytes: int = RANGE_BYTES,
    ) -> None:
        self._table = table
        self._policy = policy
        self._schema = schema
        self._until = until
        self._range_bytes = range_bytes
        self._ahead: ChangePlan | None = None
        self._failed: TailerError | None = None
        self._last: int | None = None  # version that was planned

    async def next(self, most_versions: int = RANGE_VERSIONS) -> VersionRange | None:
        """Return the next range, of at most `most_versions`; None if there is nothing new.

        It may come after the last version, where there is none with its number.

        Raises if the first version cannot be planned, `SchemaChanged` if its columns must not change.
        """
        plans: list[ChangePlan] = []
        size = 0
        while len(plans) < most_versions and size < self._range_bytes:
            plan = await self._plan(is_first=not plans)
            if plan is None:
                break
            self._ahead = plan
            if self._until is not None and plan.version > self._until:
                is_gap = self._last is None or self._last < self._until
                return VersionRange.of(plans or [plan]) if plans or is_gap else None
            changes = () if self._schema is None else changes_of(self._schema, plan)
            if plans and (changes or plan.table_id != plans[0].table_id):
                break
            if changes and self._policy.on_schema_change is OnSchemaChange.FAIL:
                raise SchemaChanged(plan.table, plan.version, "; ".join(changes))
            self._ahead, self._schema, self._last = None, plan.schema, plan.version
            plans.append(plan)
            size += plan.size_bytes
        return VersionRange.of(plans) if plans else None

    async def _plan(self, *, is_first: bool) -> ChangePlan | None:
        """Plan the next version. An error is kept until no version is before it."""
        if self._ahead is not None:
            return self._ahead
        if self._failed is None:
            try:
                plan = await self._table.next_plan()
                return None if plan is None else self._policy.shape(plan)
            except TailerError as error:
                self._failed = error
        if is_first:
            raise self._failed
        return None


def changes_of(before: pa.Schema, plan: ChangePlan) -> Sequence[str]:
    """Describe the changes that the version of `plan` makes to the columns `before` it."""
    schemas = (*(task.schema for task in plan.tasks), plan.schema)
    for schema in {id(schema): schema for schema in schemas}.values():
        if schema is not before and (changes := describe_changes(before, schema)):
            return changes
        before = schema
    return ()


def fewer_versions(version_range: VersionRange | None, error: TailerError) -> int:
    """Return how many versions of a range that failed come before the one that cannot be delivered, as far as known.

    0: none, or fewer versions would fail, too.
    """
    if version_range is None or not isinstance(error, SinkRejected | LogError | ChangeError | ConfigError):
        return 0
    versions, failed = [plan.version for plan in version_range.plans], getattr(error, "version", None)
    if failed is None:
        return len(versions) // 2
    return sum(version < failed for version in versions) if failed <= version_range.last else 0


def splits_of(
    version_range: VersionRange, rules: PairingRules, files: DataFiles, after: Position | None = None
) -> list[Split]:
    """Return the splits of the rows after `after`, read with `files`; those that are compared have all their rows.

    Raises `ConfigError` if rows lack the key of `rules`.
    """
    splits: list[Split] = []
    rows: list[FileSlice] = []
    for plan in version_range.plans:
        if concerns(plan, rules):
            work, alone = diff_splits(plan, rules, files)
            splits += work
            rows += alone
        else:
            rows += file_slices(plan, after)
    return [*splits, *file_splits(rows, files=files)]
