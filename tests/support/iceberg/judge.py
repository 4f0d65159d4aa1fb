"""The judge of Iceberg histories that Spark writes: our changes, folded, are the rows that Spark reads.

Where PyIceberg can read a snapshot, it reads the same rows; where Spark has a changelog view, it has the same changes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.tables import TableRef
from tailer.engine.local import LocalEngine
from tailer.errors import ChangesUnavailable, TailerError, UnsupportedFeature, VersionGone
from tailer.formats.rows import execute
from tailer.pipeline.policy import Policy
from tailer.plan import ChangePlan, TaskKind
from tailer.table_log import TableLog
from tests.support.iceberg.oracles import Oracles
from tests.support.iceberg.rows import DELETED, Value, restated, row_of
from tests.support.iceberg.spark.client import Answer, SparkHistory, Step

__all__ = ["Follower"]

Row = tuple[tuple[str, Value], ...]
Rows = Counter[tuple[Row, Any]]
_IDS: Final = ("_row_id", "_row_commit_version")


def rows_of(plan: ChangePlan) -> Iterator[tuple[bool, Value, Any, Any]]:
    """Yield the rows of a plan: whether it is deleted, its values, its row id and its sequence number."""
    for own, task in zip(plan.tasks, plan.with_row_ids().tasks, strict=True):
        for batch in execute(task):
            for values in batch.rows.to_pylist():
                ids = [values[name] for name in _IDS]
                yield values["_change_type"] in DELETED, row_of(values, own.schema), *ids


def rows_of_spark(answer: Answer, schema: pa.Schema) -> Counter[tuple[Value, Any, Any]]:
    """Return the rows that Spark reads. `schema`: ours of that snapshot."""
    assert list(answer.columns) == schema.names, f"{schema.names} are {list(answer.columns)} in Spark"
    found = Counter[tuple[Value, Any, Any]]()
    for values in answer.rows:
        row = row_of(dict(zip(answer.columns, values, strict=False)), schema)
        found[row, *(values[-2:] if answer.ids else (None, None))] += 1
    return found


@dataclass
class Follower:
    """Follows a branch of a history, and compares what it reads with Spark's rows.

    `rows`: the fold, with row ids. `seen`: the id of the last snapshot that was read.
    """

    history: SparkHistory
    branch: str = "main"
    rows: Rows = field(default_factory=Counter)
    has_ids: bool = False
    seen: Mapping[str, Any] | None = None
    stops: Counter[str] = field(default_factory=Counter)
    log: TableLog | None = None
    oracles: Oracles = field(init=False)

    def __post_init__(self) -> None:
        self.oracles = Oracles(self.history.location)

    async def follow(self) -> None:
        """Read what is new, and check it."""
        step = self.history.steps[-1]
        if step.format == 1 or not step.line(self.branch):
            await self._check_first_format(step)
            return
        if self.log is None:
            self.log = TableRef(str(self.history.location), branch=self.branch).open(policy=Policy(where="true"))
            await self._begin(step)
        while True:
            try:
                plan = await self.log.next_plan()
            except (ChangesUnavailable, VersionGone) as error:
                self._check_stop(step, error)
                await self._begin(step)
                continue
            if plan is None:
                break
            await self._check(step, plan)
        assert self.seen == self._last(step), "not all snapshots were read"

    def _last(self, step: Step) -> Mapping[str, Any]:
        return _told(step.line(self.branch)[-1])

    async def _check_first_format(self, step: Step) -> None:
        """Check that a table without numbers is right at its last snapshot."""
        if not step.line(self.branch):
            return
        log = TableRef(str(self.history.location), branch=self.branch).open()
        found, schema = await self._snapshot(log, await log.latest())
        assert found == rows_of_spark(self.history.answers[step.line(self.branch)[-1]["id"]], schema)
        try:
            await log.seek(1)
        except UnsupportedFeature:
            return
        raise AssertionError("a table without numbers is followed")

    async def _begin(self, step: Step) -> None:
        """Begin with the rows of the newest snapshot, or before the first one of a table that has all."""
        assert self.log is not None
        line = step.line(self.branch)
        if self.seen is None and line[0]["parent"] is None and line[0]["number"] > 0:
            await self.log.seek(line[0]["number"])
            self.seen = {}
            return
        last = line[-1]
        found, _ = await self._snapshot(self.log, last["number"])
        answer = self.history.answers[last["id"]]
        self._rebase(found, answer)
        await self.log.seek(last["number"] + 1)
        self.seen = _told(last)

    async def _snapshot(self, log: TableLog, version: int) -> tuple[Counter[tuple[Value, Any, Any]], pa.Schema]:
        found, schema = Counter[tuple[Value, Any, Any]](), pa.schema([])
        async for page in log.snapshot_plans(version):
            schema = page.schema
            for is_deleted, *row in rows_of(page):
                assert not is_deleted
                found[tuple(row)] += 1
        return found, schema

    def _rebase(self, rows: Counter[tuple[Value, Any, Any]], answer: Answer) -> None:
        self.rows = Counter()
        for (row, number, _), count in rows.items():
            self.rows[row, number] += count
        self.has_ids = answer.ids

    def _check_stop(self, step: Step, error: TailerError) -> None:
        """Check that an error is right."""
        line = step.line(self.branch)
        numbers = [each["number"] for each in line]
        text = str(error)
        if "its default is the value of all rows of before" in text:
            self.stops["default"] += 1
        elif "is no part of the branch" in text:
            assert self.seen not in list(map(_told, line)), text
            self.stops["rolled back"] += 1
        else:
            assert self.seen
            assert self.seen not in list(map(_told, line)), f"{text}: {numbers}"
            self.stops["expired"] += 1

    async def _check(self, step: Step, plan: ChangePlan) -> None:
        """Check the changes of one version."""
        assert self.log is not None
        (snapshot,) = [each for each in step.line(self.branch) if each["number"] == plan.version]
        answer, title = self.history.answers[snapshot["id"]], f"version {plan.version} ({plan.operation})"
        parent = snapshot["parent"]
        assert parent == (self.seen or {}).get("id"), f"{title}: {parent} was not read"
        assert plan.timestamp_ms == snapshot["time"]
        wanted = rows_of_spark(answer, plan.schema)
        found, schema = await self._snapshot(self.log, plan.version)
        assert schema.equals(plan.schema, check_metadata=True)
        assert found == wanted, _difference(f"snapshot of {title}", found, wanted)
        raw = [(is_deleted, row, number) for is_deleted, row, number, _ in rows_of(plan)]
        delivered = await self._delivered(plan)
        is_renumbered = answer.ids and not self.has_ids
        told = [(kind in DELETED, row, number) for kind, row, number in delivered]
        for changes, name in ((raw, "tasks"), (told, "changes")):
            after = self._fold(plan, changes, title)
            if is_renumbered or not answer.ids:
                wanted_rows = _counted((row, None) for row, *_ in wanted.elements())
                after = _counted((row, None) for row, _ in after.elements())
            else:
                wanted_rows = _counted((row, number) for row, number, _ in wanted.elements())
            assert after == wanted_rows, _difference(f"{name} of {title}", after, wanted_rows)
        gone, come = [
            {(row, number) for kind, row, number in delivered if kind == name} for name in ("delete", "insert")
        ]
        assert not gone & come or _drops(plan), f"{title} deletes and inserts {gone & come}"
        assert plan.operation != "replace" or not delivered, f"{title} is quiet"
        self.oracles.check_scan(snapshot["id"], schema, _counted(row for row, *_ in found.elements()))
        kinds = [(kind, row) for kind, row, _ in delivered]
        self.oracles.check_view(answer, schema, kinds, compares_less=answer.ids or _drops(plan))
        self._rebase(wanted, answer)
        self.seen = _told(snapshot)

    def _fold(self, plan: ChangePlan, changes: Sequence[tuple[bool, Value, Any]], title: str) -> Rows:
        schema = plan.schema
        folded = _counted((restated(row, schema), number) for row, number in self.rows.elements())
        for is_deleted, row, number in changes:
            key = restated(row, schema), number if self.has_ids or not is_deleted else None
            folded[key] += -1 if is_deleted else 1
        least = min(folded.values(), default=0)
        assert least >= 0, f"{title} deletes rows that are not there: {[key for key, n in folded.items() if n < 0][:3]}"
        return +folded

    async def _delivered(self, plan: ChangePlan) -> list[tuple[str, Value, Any]]:
        """Return the rows of a plan as a pipeline delivers them."""
        async with ChangelogEngine(LocalEngine(), PairingRules()).run([plan.with_row_ids()]) as batches:
            found = [batch.rows async for batch in batches]
        before = next((task.schema for task in plan.tasks if task.kind is TaskKind.DELETE), plan.schema)
        changes: list[tuple[str, Value, Any]] = []
        for rows in found:
            for values in rows.to_pylist():
                schema = before if values["_change_type"] == "delete" else plan.schema
                changes.append((values["_change_type"], row_of(values, schema), values["_row_id"]))
        return changes


def _drops(plan: ChangePlan) -> bool:
    """Return whether deleted rows have other columns than inserted ones, with which they may be equal."""
    return any(not task.schema.equals(plan.schema) for task in plan.tasks)


def _counted(rows: Iterable[tuple[Row, Any]]) -> Rows:
    return Counter(rows)


def _told(snapshot: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: snapshot[name] for name in ("id", "number", "parent")}


def _difference(title: str, found: Counter[Any], wanted: Counter[Any]) -> str:
    ours, other = ([*one.items()][:5] for one in (found - wanted, wanted - found))
    return f"{title}\n  ours alone: {ours}\n  Spark's alone: {other}"
