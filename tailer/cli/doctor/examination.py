"""The examination of one table: what is read, and it is little however large the table is.

The profile of the newest version, the plans of the last `MOST_COMMITS` commits, a sample of rows, one comparison of at
most `MOST_COMPARED_BYTES`, and, unless the table has too many files, the newest versions that contradict its state.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules, concerns
from tailer.cli.doctor.feed import FeedCheck, after_lost, begins_later
from tailer.cli.doctor.sample import MOST_ROWS, Sample, take_sample
from tailer.engine.local import LocalEngine
from tailer.errors import FileVacuumed, TailerError
from tailer.formats.inspection import Contradiction, TableInspector, TableProfile
from tailer.plan import ChangePlan, ChangeTask, TaskKind
from tailer.read.data_files import DataFiles
from tailer.stores.port import in_thread
from tailer.table_log import TableLog

__all__ = ["MOST_COMMITS", "Examination", "LostVersion", "Measured", "SeenCommit", "examine"]

MOST_COMMITS: Final = 50
MOST_COMPARED_BYTES: Final = 64 * 2**20
_RULES: Final = PairingRules()
_MOST_TRIES: Final = 3
_MOST_FILES: Final = 100_000  # of the table, to look for commits that contradict it
_HOUR_MS: Final = 3_600_000
_TELLING_MS: Final = 60_000  # a copied table has commits that are milliseconds apart


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCommit:
    """A commit whose plan was made. `size_bytes`: of the files to read; `is_compared`: whether they are compared."""

    version: int
    timestamp_ms: int
    operation: str | None
    size_bytes: int
    is_compared: bool


@dataclass(frozen=True, slots=True)
class LostVersion:
    """The versions from `version` to `last`, whose changes cannot be read."""

    version: int
    last: int
    error: TailerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The changes of one version, read here: how large its files are, how long it took, and how many rows changed."""

    version: int
    size_bytes: int
    seconds: float
    rows: int
    is_compared: bool


@dataclass(slots=True, kw_only=True)
class Examination:
    """Results. `stop`: the error that keeps the table from being followed; then later fields may be empty.

    `feed`: None where the feed was not to be checked.
    """

    table: str
    profile: TableProfile | None = None
    commits: list[SeenCommit] = field(default_factory=list)
    lost: list[LostVersion] = field(default_factory=list)
    begins: int | None = None
    sample: Sample = field(default_factory=Sample)
    measured: Measured | None = None
    contradictions: tuple[Contradiction, ...] = ()
    gone: list[FileVacuumed] = field(default_factory=list)
    feed: FeedCheck | None = None
    stop: TailerError | None = None

    @property
    def changing(self) -> list[SeenCommit]:
        """The commits that changed rows."""
        return [commit for commit in self.commits if commit.size_bytes]

    @property
    def typical_bytes(self) -> int:
        """The median of the bytes to read of a commit that changed rows."""
        return round(median([commit.size_bytes for commit in self.changing] or [0]))

    @property
    def commits_per_hour(self) -> float | None:
        """Commits in an hour, by the ones looked at; None where their times do not tell."""
        if len(self.commits) < 2:
            return None
        span_ms = self.commits[-1].timestamp_ms - self.commits[0].timestamp_ms
        return (len(self.commits) - 1) * _HOUR_MS / span_ms if span_ms >= _TELLING_MS else None

    def seconds(self, size_bytes: int) -> float | None:
        """Return how long so many bytes may take here; None where nothing was measured."""
        measured = self.measured
        return None if measured is None else measured.seconds * size_bytes / measured.size_bytes


async def examine(
    inspector: TableInspector, log: TableLog, files: DataFiles, say: Callable[[str], None] = lambda _: None
) -> Examination:
    """Examine a table. `say` is told each step. Errors of the table are results, in `Examination.stop`."""
    examination = Examination(table=log.uri)
    try:
        say("reading the log")
        examination.profile = await inspector.profile()
        plans = await _read_commits(examination, log, examination.profile.version)
        say("reading a sample of rows")
        for plan in [plan for plan in reversed(plans) if any(map(_has_rows, plan.tasks))][:_MOST_TRIES]:
            with _noting_gone_files(examination):
                examination.sample = await in_thread(take_sample, list(filter(_has_rows, plan.tasks)), files)
                if examination.sample.rows:
                    break
        if examination.sample.rows < MOST_ROWS:  # the whole table may give more rows than the newest commit does
            with suppress(TailerError):  # a table whose state cannot be read can still be followed
                async with aclosing(log.snapshot_plans(examination.profile.version)) as pages:
                    snapshot = await anext(pages)
                sample = await in_thread(take_sample, snapshot.tasks, files)
                if sample.rows > examination.sample.rows:
                    examination.sample = sample
        fitting = [plan for plan in plans if 0 < plan.size_bytes <= MOST_COMPARED_BYTES]
        fitting.sort(key=lambda plan: (concerns(plan, _RULES), plan.size_bytes), reverse=True)
        for plan in fitting[:_MOST_TRIES]:
            say(f"reading the changes of version {plan.version}")
            with _noting_gone_files(examination):
                examination.measured = await _measure(plan, files)
                break
        say("adding up the newest commits")
        examination.contradictions = await inspector.contradictions(_MOST_FILES)
    except TailerError as error:
        examination.stop = error
    return examination


def _has_rows(task: ChangeTask) -> bool:
    """Return whether a task has rows that are in the table after its version."""
    return task.kind in (TaskKind.INSERT, TaskKind.CDC_OTHERS)


@contextmanager
def _noting_gone_files(examination: Examination) -> Iterator[None]:
    """Note a file that is gone: of an older version, that is what VACUUM does."""
    try:
        yield
    except FileVacuumed as error:
        examination.gone.append(error)


async def _read_commits(examination: Examination, log: TableLog, latest: int) -> list[ChangePlan]:
    """Note the last commits, and return plans for a sample: of these, the ones that are small enough."""
    plans: list[ChangePlan] = []
    version = max(latest - MOST_COMMITS + 1, 0)
    while version <= latest:
        try:
            await log.seek(version)
            while version <= latest and (plan := await log.next_plan()) is not None:
                version = plan.version + 1
                commit = SeenCommit(
                    version=plan.version,
                    timestamp_ms=plan.timestamp_ms,
                    operation=plan.operation,
                    size_bytes=plan.size_bytes,
                    is_compared=concerns(plan, _RULES),
                )
                examination.commits.append(commit)
                if plan.size_bytes <= MOST_COMPARED_BYTES or version > latest:
                    plans.append(plan)
            break
        except TailerError as error:
            after = await after_lost(log, error, version)
            if begins_later(error) and not examination.commits:
                examination.begins = after
            else:
                examination.lost.append(LostVersion(version, after - 1, error))
            version = after
    return plans


async def _measure(plan: ChangePlan, files: DataFiles) -> Measured:
    """Read the changes of a version as a pipeline does. The first read may also load libraries, so two are made."""
    rows, seconds = 0, 0.0
    engine = ChangelogEngine(LocalEngine(files=files), _RULES, lambda _plan, _counts: None, files)
    for _ in range(2):
        begun, rows = time.perf_counter(), 0
        async with engine.run([plan]) as batches, aclosing(batches) as rest:  # type: ignore[type-var]
            async for batch in rest:
                rows += len(batch)
        seconds = time.perf_counter() - begun
    return Measured(
        version=plan.version, size_bytes=plan.size_bytes, seconds=seconds, rows=rows, is_compared=concerns(plan, _RULES)
    )
