"""The configuration: TOML and the environment become checked settings, without I/O on tables.

`docs/configuration.md` has all keys, from the comments in `tailer.config.shapes`. Paths are relative to the file's
folder; `~` is the home folder, and `$HOME` is refused. `TAILER_DRAIN_S=5` or
`TAILER_PIPELINES__ORDERS__SINK__PATH=/tmp/x` in the environment overrides the file: names without regard to case, `-`
and `.` in a pipeline's name as `_`. That is the place for secrets. A value that reads as JSON is taken as JSON, so a
sink option that is text but looks like a number needs quotes (`'"12345"'`). Spark's settings have dots and capitals and
come as one object: `TAILER_SPARK__CONF='{"spark.hadoop.fs.s3a.secret.key": "..."}'`, each of them over the file's.

`examine` reports all faults at once, as `tailer check` prints them; `load` returns settings or raises.
"""

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from tailer.changelog.rules import PairingRules
from tailer.config.file import Key, PipelineTable, Problem, Reading, digest_of, read_file
from tailer.config.options import each_fault
from tailer.config.overlaps import folder_faults
from tailer.config.pipelines import (
    PipelineSettings,
    Settings,
    TablePattern,
    Template,
    configure_catalog,
    fill,
    target_faults,
)
from tailer.config.process import (
    check_writers,
    control_settings,
    metrics_settings,
    missing_library,
    spark_settings,
    writers_of,
)
from tailer.config.shapes import MISSING, EngineKind, FileShape, KindTable, SparkSettings, SparkShape, Writers
from tailer.config.stores import configured_catalogs, configured_stores
from tailer.config.tables import TableRef, check_reader, check_table_client, configure_sink
from tailer.errors import ConfigError
from tailer.formats.registry import known_format, parse_table
from tailer.sink import AtLeastOnceSink, Demands, Sink
from tailer.start import Start, StartKind
from tailer.stores.folders import local_folder
from tailer.stores.location import parse_location
from tailer.stores.stores import Stores

__all__ = ["Findings", "examine", "load"]

T = TypeVar("T")

_FILE_URLS: Final = ("sqlite:///", "duckdb:///")
# The length of the key of a sink's table: pipelines, the name, sink.
_SINK_DEPTH: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of `examine`: the names of the pipelines, and either `settings` or all faults.

    `sound`: the pipelines without a fault.
    """

    path: Path
    names: tuple[str, ...]
    settings: Settings | None
    problems: tuple[Problem, ...]
    sound: tuple[PipelineSettings, ...] = ()


def load(path: Path) -> Settings:
    """Return the checked settings of the file at `path`.

    Raises an `ExceptionGroup` with a `ConfigError` for every problem.
    """
    findings = examine(path)
    if findings.settings is None:
        raise ExceptionGroup(f"{path} cannot be used", [problem.error for problem in findings.problems])
    return findings.settings


def examine(path: Path) -> Findings:
    """Read the file at `path` and check all of it. No table is read and nothing is written; links are followed."""
    digest = digest_of(path)  # before it is read: a change meanwhile is found later
    reading = read_file(path)
    checks = _Checks(path, reading)
    settings = replace(checks.settings(reading), digest=digest)
    faulty = {problem.pipeline for problem in checks.problems}
    candidates = (*settings.pipelines, *(candidate.pipeline for candidate in settings.templates))
    sound = tuple(candidate for candidate in candidates if candidate.name not in faulty)
    return Findings(
        path=path,
        names=reading.names,
        settings=None if checks.problems else settings,
        problems=tuple(checks.problems),
        sound=sound,
    )


class _Checks:
    """The checks that turn shapes into settings. They collect faults, so that one does not hide the next."""

    def __init__(self, path: Path, reading: Reading) -> None:
        self.path = path
        self.problems = reading.problems
        self._reading = reading
        self._spark = SparkSettings()

    def settings(self, reading: Reading) -> Settings:
        """Return the settings, without the pipelines that have faults."""
        file, unsound = reading.file or FileShape(), reading.unsound
        state_table = None
        if file.state_table is not None:
            state_table = self._attempt(("state_table",), self._location(file.state_table))
        if reading.file is not None and not file.pipelines and "pipelines" not in unsound:
            self._problem(("pipelines",), "is missing or empty", MISSING["pipelines"])
        stateless = reading.file is not None and file.state_table is None and "state_table" not in unsound
        engine = None if reading.file is None or "engine" in unsound else file.engine
        self._spark = spark_settings(file.engine, reading.spark or SparkShape(), self._problem)
        tables = reading.pipelines.items()
        catalogs = configured_catalogs(self.path.parent, file.catalogs, self._problem)
        stores = replace(configured_stores(reading.stores, self._problem), catalogs=catalogs)
        candidates = [self._pipeline(name, table, stateless, engine, stores) for name, table in tables]
        pipelines = tuple(candidate for candidate in candidates if isinstance(candidate, PipelineSettings))
        templates = tuple(candidate for candidate in candidates if isinstance(candidate, Template))
        if file.metrics is None and "metrics" not in unsound and file.metrics_token.is_given:
            self._problem(("metrics_token",), "has no effect without metrics", "Set metrics, or leave it out.")
        if (missing := missing_library(file)) is not None:
            self._problem((missing[0],), *missing[1:])
        settings = Settings(
            path=self.path,
            state_table=state_table,
            drain_s=file.drain_s,
            pipelines=pipelines,
            metrics=metrics_settings(self.path, file, self._attempt),
            engine=file.engine,
            spark=self._spark,
            stores=stores,
            hung_s=file.hung_s,
            control=control_settings(self.path, file, self._attempt),
            templates=templates,
            reload_on_change=file.reload_on_change,
            read_ahead_bytes=file.read_ahead_bytes,
            standby_after_s=file.standby_after_s,
        )
        for key, reason, remedy in folder_faults(settings):
            self._problem(key, reason, remedy)
        return settings

    def _pipeline(
        self, name: str, read: PipelineTable, stateless: bool, engine: EngineKind | None, stores: Stores
    ) -> PipelineSettings | Template | None:
        """Return the sound settings of a pipeline, or of a template of them; None without a table or a sink."""
        key, shape, unsound = ("pipelines", name), read.shape, read.unsound
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            remedy = "Use letters, digits, '_', '.' and '-': the name is part of the sink's progress."
            self._problem(key, "is not a valid name of a pipeline", remedy)
        self._check_reading(key, read)
        table = None if "table" in unsound else self._attempt((*key, "table"), self._location(shape.table, parse_table))
        roots = [self._attempt((*key, "allowed_roots"), self._location(root)) for root in shape.allowed_roots]
        idle_s = shape.idle_poll_interval_s
        if idle_s is not None and idle_s < shape.poll_interval_s and "poll_interval_s" not in unsound:
            remedy = "It is the longest wait, and poll_interval_s the shortest."
            self._problem((*key, "idle_poll_interval_s"), "is less than poll_interval_s", remedy)
        start = self._attempt((*key, "start"), lambda: Start.parse(shape.start)) or Start.parse("earliest")
        pattern = None if table is None else self._pattern(key, table, read)
        names = () if pattern is None else pattern.sample
        sink, options = (None, None) if "sink" in unsound else self._sink(name, shape.sink, stateless, stores, names)
        demands = sink.demands if isinstance(sink, Sink) else Demands()
        pairing = PairingRules()
        if not {"key", "columns", "compute_updates"} & set(unsound):
            pairing = self._pairing(key, read, demands.key)
        for fault in shape.type_faults(demands, start.kind, shape.on_data_loss):
            self._problem((*key, fault.where), fault.reason, fault.remedy)
        catalog = self._catalog(name, shape.catalog) if shape.catalog is not None else None
        writers = Writers.DRIVER
        if engine is not None and not {"write", "shards", "on_data_loss", "sink"} & set(unsound):
            writers = writers_of(engine, read, sink)
            check_writers(engine, writers, key, read, sink, self._problem)
        inside = tuple(root for root in roots if root is not None)
        source = TableRef(table or "", shape.table_format, shape.branch, inside)
        source = self._checked(key, source, start, engine is not EngineKind.SPARK, catalog is not None)
        if table is None or options is None:
            return None
        settings = PipelineSettings(
            name=name,
            source=source,
            start=start,
            policy=shape.policy(shape.on_schema_change, shape.on_data_loss),
            pairing=pairing,
            poll_interval_s=shape.poll_interval_s,
            sink_kind=shape.sink.kind,
            sink_options=options,
            catalog_options=catalog,
            write=writers,
            shards=shape.shards,
            stores=stores,
            idle_poll_interval_s=shape.idle_poll_interval_s,
            max_polls_per_hour=shape.max_polls_per_hour,
        )
        if pattern is None:
            return settings
        for option, reason, remedy in target_faults(options) if isinstance(sink, Sink) else ():
            self._problem((*key, "sink", *option), reason, remedy)
        return Template(pattern, settings, shape.discover_interval_s)

    def _check_reading(self, key: Key, read: PipelineTable) -> None:
        """Report the faults of the options of reading that do not come from options which count as missing."""
        for option in ("columns", "types"):
            if option in read.given and not getattr(read.shape, option):
                self._problem((*key, option), "is empty", f"Leave it out to deliver all {option}.")
        is_known = not {"key", "columns", "compute_updates"} & set(read.unsound)
        for fault in read.shape.faults():
            if is_known or fault.where != "key":
                self._problem((*key, fault.where), fault.reason, fault.remedy)

    def _checked(self, key: Key, source: TableRef, start: Start, is_read: bool, is_managed: bool) -> TableRef:
        """Return the table with the name of its format. `is_read`: whether this process reads its rows."""
        try:
            checked = source.checked(is_managed=is_managed)
            if source.location and is_read:
                check_reader(checked.location, checked.table_format, is_managed=is_managed)
        except ConfigError as error:
            self._problem((*key, error.where), error.reason, error.remedy)
            return source
        tagged = known_format(checked.table_format, checked.location) if start.kind is StartKind.TAG else None
        if tagged is not None and not tagged.has_branches:
            reason = f"names a tag, but {tagged.title} has no tags"
            self._problem((*key, "start"), reason, "Give a version or a timestamp.")
        return checked

    def _pattern(self, key: Key, table: str, read: PipelineTable) -> TablePattern | None:
        """Return the pattern of a template; None for the location of one table."""
        if (pattern := TablePattern.parse(table)) is None:
            if "discover_interval_s" in read.given:
                self._problem((*key, "discover_interval_s"), "has no effect for one table", "Leave it out.")
            return None
        if any("**" in name for name in pattern.names):
            self._problem((*key, "table"), "has **, but a * stands for one name", "Write a * for each name.")
        if read.shape.catalog_table is not None:
            reason = "names one table, but table is a pattern of many"
            self._problem((*key, "catalog"), reason, "Add a pipeline for each table of a catalog.")
        return pattern

    def _pairing(self, key: Key, read: PipelineTable, demanded: tuple[str, ...]) -> PairingRules:
        """Return the rules. A sink that identifies rows by `demanded` sets the key of the pipeline."""
        shape = read.shape
        for fault in shape.key_faults("key", demanded):
            self._problem((*key, "sink", "key"), fault.reason, fault.remedy)
        for fault in shape.idle_key() if not demanded else ():
            self._problem((*key, fault.where), fault.reason, fault.remedy)
        if demanded and shape.key and tuple(shape.key) != demanded:
            reason = f"differs from the key of the sink: {', '.join(demanded)}"
            self._problem((*key, "key"), reason, "Leave it out here: the key of the sink applies to both.")
        if demanded and "compute_updates" in read.given and not shape.compute_updates:
            reason = "is false, but the sink has a key: its readers need the two images of an update"
            self._problem((*key, "compute_updates"), reason, "Leave it out, or remove the key of the sink.")
        return shape.rules(demanded)

    def _sink(
        self, name: str, shape: KindTable, stateless: bool, stores: Stores, names: tuple[str, ...] = ()
    ) -> tuple[Sink | AtLeastOnceSink | None, dict[str, Any] | None]:
        """Return the sink, or None if its options are wrong, and the options with absolute paths.

        `names`: of a table that stands for all tables of a template.
        """
        key = ("pipelines", name, "sink")
        refused: set[str] = set()
        options = self._with_paths(key, shape.options, refused)
        try:
            sink = configure_sink(name, shape.kind, fill(options, names) if names else options, stores)
        except (ConfigError, ExceptionGroup) as error:
            self._problems(key, name, error, refused)
            return None, None if refused else options
        if refused:
            return None, None
        if isinstance(sink, AtLeastOnceSink) and stateless:
            reason = f"a {shape.kind} sink cannot keep its progress, and there is no state_table"
            self._problem(key, reason, 'Add state_table = "state" at the top of the file.')
        return sink, options

    def _with_paths(self, key: Key, options: Mapping[str, Any], refused: set[str]) -> dict[str, Any]:
        """Return the options of a sink with absolute paths; add those without a usable one to `refused`."""
        placed: dict[str, Any] = {}
        for option, value in options.items():
            placed[option] = value
            if isinstance(value, Mapping):
                placed[option] = self._with_paths((*key, option), value, refused)
            elif option == "url" and isinstance(value, str) and value.startswith(_FILE_URLS):
                scheme, mark, file = value.partition("///")
                placed[option] = f"{scheme}{mark}{self._attempt((*key, option), self._file(file)) or ''}"
            elif isinstance(value, str) and (option == "path" or (value and _is_local_path((*key, option)))):
                # The folder of a sink may be in a store.
                is_target = option == "path" and len(key) == _SINK_DEPTH
                place = self._attempt((*key, option), self._location(value) if is_target else self._file(value))
                if place is None:
                    refused.add(".".join((*key[3:], option)))
                else:
                    placed[option] = place
        return placed

    def _catalog(self, name: str, shape: KindTable) -> dict[str, Any]:
        """Return the options of the catalog with absolute paths."""
        key = ("pipelines", name, "catalog")
        options = self._with_paths(key, shape.options, set())
        if shape.kind != "unity":
            self._problem((*key, "kind"), f"no catalog of kind {shape.kind!r}", 'There is kind = "unity".')
            return options
        try:
            configure_catalog(options)
        except (ConfigError, ExceptionGroup) as error:
            self._problems(key, "catalog", error)
        return options

    def _file(self, text: str) -> Callable[[], str]:
        return lambda: str(local_folder(text, self.path.parent, ""))

    def _location(self, text: str, parse: Callable[[str, Path, str], str] = parse_location) -> Callable[[], str]:
        return lambda: check_table_client(parse(text, self.path.parent, ""))

    def _attempt(self, key: Key, work: Callable[[], T]) -> T | None:
        """Return the result of `work`; its `ConfigError` becomes a problem at `key`."""
        try:
            return work()
        except ConfigError as error:
            self._problem(key, error.reason, error.remedy)
            return None

    def _problems(
        self, key: Key, name: str, error: ConfigError | ExceptionGroup[Exception], reported: Set[str] = frozenset()
    ) -> None:
        """Report the faults of the options at `key`, each named below `name`, without those that are `reported`."""
        for fault in each_fault(error):
            option = fault.where.removeprefix(name).removeprefix(".")
            table, _, inner = option.partition(".")
            if option not in reported:
                self._problem((*key, *filter(None, (table, inner))), fault.reason, fault.remedy)

    def _problem(self, key: Key, reason: str, remedy: str) -> None:
        self.problems.append(Problem(key, Problem.at(self.path, self._reading.origin(key), reason, remedy).error))


def _is_local_path(key: Key) -> bool:
    """Return whether an option of a sink is a path: `dead_letter_folder`, `ssl.ca.location`, or `file` in a table."""
    *tables, option = key
    if option == "file" or option.endswith(".file"):  # of a secret
        return len(tables) > _SINK_DEPTH
    return option.endswith(("_file", "_folder", ".location", "_location")) or option == "location"
