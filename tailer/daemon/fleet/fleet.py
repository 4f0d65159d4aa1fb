"""Keep the pipelines of a process as its configuration and its tables are.

A template has a pipeline for each table that is found. The configuration is loaded again at SIGHUP, and when its file
changes. Only pipelines whose settings have changed are drained and begin again; each new run begins with the sink's
progress (invariant 2), so that nothing is lost or doubled. A listing that fails retires no pipeline, and a
configuration with a fault changes nothing.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, overload

from tailer.changelog import engine
from tailer.config.overlaps import conflict
from tailer.config.pipelines import PipelineSettings, Settings
from tailer.config.shapes import EngineKind, Writers
from tailer.config.tables import CurrentStores
from tailer.daemon.fleet.awaited import follow_name
from tailer.daemon.fleet.backfills import BackfillFile, check_backfill, check_verb
from tailer.daemon.fleet.discovery import Names, find_tables
from tailer.daemon.fleet.reload import ReloadWatch
from tailer.daemon.runs import Run, Runs, Stop, Work
from tailer.errors import ConfigError, TailerError
from tailer.formats.registry import names_of
from tailer.metrics import BAD_VALUES
from tailer.pipeline.status import METRICS, PipelineStatus

__all__ = ["Difference", "Fleet", "Statuses", "difference", "fixed_changes", "make_run"]


class Statuses(Sequence[PipelineStatus]):
    """A sequence that is replaced as a whole, so that a reader in another thread sees all of one moment."""

    def __init__(self, statuses: Iterable[PipelineStatus] = ()) -> None:
        self._all = tuple(statuses)

    def replace(self, statuses: Iterable[PipelineStatus]) -> None:
        """Take these in place of all."""
        self._all = tuple(statuses)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[PipelineStatus]:
        return iter(self._all)

    @overload
    def __getitem__(self, index: int) -> PipelineStatus: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[PipelineStatus]: ...

    def __getitem__(self, index: int | slice) -> PipelineStatus | Sequence[PipelineStatus]:
        return self._all[index]


_log = logging.getLogger(__name__)

# Of the whole process: they take effect when it starts.
_FIXED: Final = (
    "state_table",
    "metrics",
    "control",
    "hung_s",
    "standby_after_s",
    "read_ahead_bytes",
    "engine",
    "spark",
)
_METRICS: Final = (*METRICS, *engine.METRICS, BAD_VALUES)
_SHOWN: Final = 10
_KEYS: Final = {
    "metrics": "metrics, its token or one of its files",
    "control": "control, its token or backfills_file",
}

Make = Callable[[PipelineSettings, PipelineStatus, bool], Work]
"""Makes the work of a pipeline; the last: whether its table has come while the process ran."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The names of the pipelines that come, change and go, each in order."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


def difference(running: Mapping[str, PipelineSettings], wanted: Mapping[str, PipelineSettings]) -> Difference:
    """Return how the pipelines that run, given by name, become those that are wanted."""
    return Difference(
        tuple(name for name in wanted if name not in running),
        tuple(name for name in wanted if name in running and wanted[name].differs(running[name])),
        tuple(name for name in running if name not in wanted),
    )


def fixed_changes(before: Settings, after: Settings) -> list[str]:
    """Return the keys that differ and take effect only when the process starts."""
    return [_KEYS.get(key, key) for key in _FIXED if getattr(before, key) != getattr(after, key)]


class Fleet:
    """The pipelines of a process. `run` lets them come and go, in the task group of `runs`.

    `statuses`: of the pipelines of `settings`, in their order; it is kept up to date. `stores`: where files are opened.
    `make`: makes the work of a pipeline. Raises `ConfigError` if the commands to backfill cannot be read.
    """

    def __init__(self, settings: Settings, statuses: Statuses, stores: CurrentStores, make: Make) -> None:
        self._commands = BackfillFile(settings.control.backfills_file)
        self._settings = self._first = settings
        self._statuses = statuses
        self._stores = stores
        self._make = make
        self._running = {pipeline.name: pipeline for pipeline in settings.pipelines}
        self._claims = dict(self._running)
        self._found: dict[str, set[Names]] = {}
        self._came: set[str] = set()  # pipelines of templates whose tables the first look did not find
        self._due_s: dict[str, float] = {}
        self._faults: dict[str, set[str]] = {}
        self._reloads = ReloadWatch(settings)
        runs = [
            make_run(pipeline, status, partial(self._make_work, pipeline, status, False))
            for pipeline, status in zip(settings.pipelines, statuses, strict=True)
        ]
        for status in statuses:
            self._commands.restore(status)
        self.runs: Final = Runs(runs, settings.drain_s, self.run, self._reloads.ask)
        self.runs.stays = bool(settings.templates)

    async def run(self) -> None:
        """Look for tables and for changes of the configuration, until cancelled."""
        async with self._reloads.wake:
            is_new = True
            while True:
                if await self._look_for_tables() or is_new:
                    await self._reconcile()
                due_s = min(self._due_s.values(), default=math.inf)
                settings = await self._reloads.wait(due_s - time.monotonic(), self._settings)
                is_new = settings is not None
                if settings is not None:
                    self._apply(settings)

    async def _look_for_tables(self) -> bool:
        """Look for the tables of the templates that are due; return whether others were found than before."""
        is_new = False
        for template in self._settings.templates:
            name = template.pipeline.name
            if self._due_s.get(name, 0.0) > time.monotonic():
                continue
            followed = self._found.get(name, set())
            # Those whose pipelines work need no look: their logs exist.
            runs = {names: self.runs.by_name.get(template.expand(names).name) for names in followed}
            healthy = {names for names, run in runs.items() if run is not None and run.works}
            wanted = template.pipeline.source.table_format
            listing = await find_tables(template.pattern, self._settings.stores, healthy, wanted)
            if name in self._found:
                self._came |= {template.expand(names).name for names in listing.tables - followed}
            self._found[name] = listing.over(followed)
            is_new = is_new or self._found[name] != followed
            self._due_s[name] = time.monotonic() + template.interval_s
            self._report(name, listing.faults)
        return is_new

    def _report(self, name: str, faults: list[TailerError]) -> None:
        """Log the faults of a listing that the one before did not have."""
        before, now = self._faults.get(name, set()), {str(fault): fault for fault in faults}
        self._faults[name] = set(now)
        for text in sorted(now.keys() - before):
            _log.warning("%s: cannot list all tables: %s; the known ones go on", name, now[text])
        if before and not now:
            _log.info("%s: tables can be listed again", name)

    def _apply(self, settings: Settings) -> None:
        """Put a configuration in force, but for what cannot change while the process runs."""
        if fixed := fixed_changes(self._first, settings):
            _log.warning("%s: restart the daemon for the change of %s", settings.path, ", ".join(fixed))
        before = {template.pipeline.name: template.pattern for template in self._settings.templates}
        tables: dict[str, set[Names]] = {}
        for template in settings.templates:
            name = template.pipeline.name
            if name in before:
                folder = before[name].folder
                locations = ("/".join((folder, *names)) for names in self._found.get(name, set()))
                matches = map(template.pattern.match, locations)
                tables[name] = {names for names in matches if names is not None}
            if before.get(name) == template.pattern and name in self._due_s:
                self._due_s[name] = min(self._due_s[name], time.monotonic() + template.interval_s)
            else:
                self._due_s.pop(name, None)
        self._due_s = {name: due_s for name, due_s in self._due_s.items() if name in tables}
        self._found = tables
        kept = {key: getattr(self._first, key) for key in _FIXED}
        self._settings = replace(settings, **kept)
        self.runs.drain_s = settings.drain_s
        self.runs.stays = bool(settings.templates)

    async def _reconcile(self) -> None:
        """Retire, begin again and begin pipelines, so that those that are wanted run."""
        wanted = {pipeline.name: pipeline for pipeline in self._settings.pipelines}
        for template in self._settings.templates:
            expanded = map(template.expand, sorted(self._found.get(template.pipeline.name, ())))
            wanted |= {pipeline.name: pipeline for pipeline in expanded}
        change = difference(self._running, wanted)
        if not change:
            self._stores.stores = self._settings.stores
            return
        words = {"new": change.added, "changed": change.changed, "retired": change.removed}
        parts = [f"{word}: {_listed(names)}" for word, names in words.items() if names]
        others = len(wanted) - len(change.added) - len(change.changed)
        _log.info("%s", f"pipelines {'; '.join(parts)}; {others} go on as they are")
        templates = {template.pipeline.name for template in self._settings.templates}
        leaving = dict.fromkeys(change.changed, "its settings have changed")
        for name in change.removed:
            is_found = name.partition("/")[0] in templates and "/" in name
            leaving[name] = "its table is gone" if is_found else "it is no longer in the configuration"
        before = {name: self.runs.by_name[name] for name in change.changed}
        await self.runs.replace(leaving, lambda: self._begin(change, wanted, before))

    def _begin(
        self, change: Difference, wanted: Mapping[str, PipelineSettings], before: Mapping[str, Run]
    ) -> list[Run]:
        """Forget the pipelines that have ended, and return those that begin."""
        for name in (*change.changed, *change.removed):
            self._claims.pop(name, None)
        for name in change.removed:
            for metric in _METRICS:
                metric.remove(name)
        self._stores.stores = self._settings.stores
        runs = [self._later_run(wanted[name], before.get(name)) for name in (*change.changed, *change.added)]
        statuses = {status.name: status for status in (*self._statuses, *(run.status for run in runs))}
        self._statuses.replace(statuses[name] for name in wanted)
        self._running = dict(wanted)
        return runs

    def _later_run(self, pipeline: PipelineSettings, before: Run | None) -> Run:
        """Make a pipeline that begins while others run: a fault of its settings stops it alone.

        `before`: the one with other settings that has ended.
        """
        status, is_new = pipeline.make_status(), pipeline.name in self._came
        self._commands.restore(status)
        if before is not None:
            status.command = before.status.command

        async def work(stop: Stop) -> None:
            self._claim(pipeline)
            await self._make_work(pipeline, status, is_new)(stop)

        return make_run(pipeline, status, lambda: work, is_paused=before is not None and before.is_paused)

    def _make_work(self, pipeline: PipelineSettings, status: PipelineStatus, is_new: bool) -> Work:
        if names_of(pipeline.table) is None:
            return self._make(pipeline, status, is_new)

        def make(located: PipelineSettings, has_come: bool) -> Work:
            self._claim(located)
            return self._make(located, status, is_new or has_come)

        return partial(follow_name, pipeline, status, make)

    def _claim(self, pipeline: PipelineSettings) -> None:
        """Take the target for the pipeline. Raises `ConfigError` where it cannot run in this process."""
        if pipeline.write is Writers.EXECUTORS and self._first.engine is not EngineKind.SPARK:
            reason = "needs executors, for which the daemon was not started"
            raise ConfigError(pipeline.name, reason, "Restart the daemon.")
        others = (other for name, other in self._claims.items() if name != pipeline.name)
        if (error := conflict(pipeline, others)) is not None:
            raise error
        self._claims[pipeline.name] = pipeline


def make_run(
    pipeline: PipelineSettings, status: PipelineStatus, make: Callable[[], Work], *, is_paused: bool = False
) -> Run:
    verb, backfill = partial(check_verb, pipeline), partial(check_backfill, pipeline, status)
    return Run(status, make, revives=True, is_paused=is_paused, check_verb=verb, check_backfill=backfill)


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
