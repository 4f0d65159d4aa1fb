"""The settings of pipelines, checked: what the daemon runs and what executors are sent.

Apart from `tailer.config.settings`, which reads them, because an executor has no configuration to read, nor the
libraries for it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tailer.changelog.rules import PairingRules
from tailer.config.options import as_one, faults_by, read_options
from tailer.config.shapes import AHEAD_BYTES, DEFAULT_SHARDS, EngineKind, SparkSettings, Writers
from tailer.config.tables import TableRef, configure_sink
from tailer.errors import ConfigError, how_to_install
from tailer.formats.delta.catalog.options import UnityOptions, unity_faults
from tailer.formats.delta.catalog.port import CommitCatalog
from tailer.formats.inspection import TableInspector
from tailer.formats.registry import names_of
from tailer.pipeline.policy import Limits, Policy
from tailer.pipeline.status import PipelineStatus
from tailer.sink import AtLeastOnceSink, Sink
from tailer.start import Start
from tailer.stores.location import is_local
from tailer.stores.secrets import Secret
from tailer.stores.stores import Stores
from tailer.table_log import TableLog

__all__ = [
    "ControlSettings",
    "MetricsSettings",
    "PipelineSettings",
    "Settings",
    "TablePattern",
    "Template",
    "configure_catalog",
    "fill",
    "target_faults",
]

PLACEHOLDER: Final = "{table}"
_WILDCARD: Final = "*"
_HIDDEN: Final = (".", "_")
_LIKE_A_SHARD: Final = re.compile(r"\d+-of-\d+")

# The longest wait between two looks: so many times the shortest, at most so many seconds.
_IDLE: Final = (10, 10.0)
_NOTIFIED: Final = (30, 30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """One table followed into one sink. The options of sink and catalog may hold secrets and are never shown.

    `shards`: into how many streams the rows are divided where executors write them to a sink that `distributes`.
    `idle_poll_interval_s`: None: as it follows from `poll_interval_s`.
    """

    name: str
    source: TableRef
    start: Start
    policy: Policy
    pairing: PairingRules
    poll_interval_s: float
    sink_kind: str
    sink_options: Mapping[str, Any] = field(repr=False)
    catalog_options: Mapping[str, Any] | None = field(default=None, repr=False)
    write: Writers = Writers.DRIVER
    shards: int = DEFAULT_SHARDS
    stores: Stores = field(default_factory=Stores)
    idle_poll_interval_s: float | None = None
    max_polls_per_hour: int | None = None

    @property
    def table(self) -> str:
        """The location of the table, or its name in a catalog."""
        return self.source.location

    def at(self, location: str) -> "PipelineSettings":
        """Return the settings for the table at `location`."""
        return replace(self, source=self.source.at(location))

    @property
    def has_catalog(self) -> bool:
        """Return whether a catalog knows that there is a table."""
        return self.catalog_options is not None or self.source.has_catalog

    @property
    def target(self) -> str | None:
        """The location of the folder that the sink writes, where it has one."""
        path = self.sink_options.get("path")
        return path if isinstance(path, str) else None

    def make_status(self) -> PipelineStatus:
        """The status, before the first run."""
        return PipelineStatus(self.name, table=self.table, sink_kind=self.sink_kind)

    @property
    def limits(self) -> Limits:
        """The size of its transactions, and how long it waits."""
        shortest_s, given_s = self.poll_interval_s, self.idle_poll_interval_s
        idle_s, notified_s = (
            given_s or max(shortest_s, min(times * shortest_s, most_s)) for times, most_s in (_IDLE, _NOTIFIED)
        )
        return Limits(
            poll_interval_s=shortest_s,
            idle_poll_interval_s=idle_s,
            max_polls_per_hour=self.max_polls_per_hour,
            notified_poll_interval_s=notified_s,
        )

    def differs(self, other: "PipelineSettings") -> bool:
        """Return whether the two are not the same. Of the stores only those count that the pipeline uses."""
        ours, theirs = ((replace(settings, stores=Stores()), settings.used_stores) for settings in (self, other))
        return ours != theirs

    @property
    def used_stores(self) -> list[object]:
        """The options of the stores of its table, its target and the other folders it may read.

        Of a table that is named, the store is not known, so all count.
        """
        if (names := names_of(self.table)) is not None:
            stores: list[object] = [options for _, options in self.stores.by_prefix]
            return [*stores, self.stores.catalogs] if names.is_log else stores
        locations = filter(None, (self.table, self.target, *self.source.allowed_roots))
        return [self.stores.options(location) for location in locations if not is_local(location)]

    async def located(self) -> "PipelineSettings":
        """The settings with the location of a table that is named. Raises as `TableRef.located`."""
        return replace(self, source=await self.source.located(self.stores))

    def make_sink(self) -> Sink | AtLeastOnceSink:
        """The sink; no I/O. Raises `ConfigError`."""
        return configure_sink(self.name, self.sink_kind, self.sink_options, self.stores)

    def open_table(self) -> TableLog:
        """The log of the table, which is `located`, with its catalog if it has one; no I/O. Raises `ConfigError`."""
        return self.source.open(self.stores, self._make_catalog(), self.policy)

    def inspect_table(self) -> TableInspector:
        """The inspector of the table, which is `located`; see `open_table`."""
        return self.source.inspect(self.stores, self._make_catalog())

    def _make_catalog(self) -> CommitCatalog | None:
        return None if self.catalog_options is None else configure_catalog(self.catalog_options)


@dataclass(frozen=True, slots=True)
class TablePattern:
    """Locations of tables: a folder without `*`, and the names below it, of which some have one.

    `*` stands for any characters of one name. A name that begins with `.` or `_` only fits a pattern that does, too.
    """

    folder: str
    names: tuple[str, ...]

    @classmethod
    def parse(cls, location: str) -> "TablePattern | None":
        """Return the pattern; None for the location of one table."""
        names = location.split("/")
        first = next((index for index, name in enumerate(names) if _WILDCARD in name), None)
        return None if first is None else cls("/".join(names[:first]), tuple(names[first:]))

    def is_literal(self, depth: int) -> bool:
        """Return whether the name at this depth below the folder has no `*`."""
        return _WILDCARD not in self.names[depth]

    def fits(self, depth: int, name: str) -> bool:
        """Return whether `name` fits at this depth."""
        wanted = self.names[depth]
        if name.startswith(_HIDDEN) and wanted[0] != name[0]:
            return False
        return re.fullmatch(".*".join(map(re.escape, wanted.split(_WILDCARD))), name, re.DOTALL) is not None

    @property
    def sample(self) -> tuple[str, ...]:
        """Names that fit, below the folder."""
        return tuple(name.replace(_WILDCARD, "table") for name in self.names)

    def match(self, location: str) -> tuple[str, ...] | None:
        """Return the names of a location below the folder; None if it does not fit."""
        if not location.startswith(f"{self.folder}/"):
            return None
        names = tuple(location.removeprefix(f"{self.folder}/").split("/"))
        fits = len(names) == len(self.names) and all(self.fits(depth, name) for depth, name in enumerate(names))
        return names if fits else None


@dataclass(frozen=True, slots=True)
class Template:
    """A pipeline for each table whose location fits `pattern`.

    `pipeline`: the settings of each, with the pattern in place of the table, and `PLACEHOLDER` in options of the sink.
    `interval_s`: seconds between two looks for tables.
    """

    pattern: TablePattern
    pipeline: PipelineSettings
    interval_s: float

    @property
    def sample(self) -> PipelineSettings:
        """The settings for a table that stands for all, under the name of the template."""
        return replace(self.expand(self.pattern.sample), name=self.pipeline.name)

    def expand(self, names: tuple[str, ...]) -> PipelineSettings:
        """Return the settings for the table with these names below the folder of the pattern.

        The name of the pipeline is part of the sink's progress, so what it is made of must never change.
        """
        last = names[-1]
        # The name of a shard ends like this, and must not be the name of another pipeline.
        shown = f"%{ord(last[0]):02X}{_escape(last[1:])}" if _LIKE_A_SHARD.fullmatch(last) else _escape(last)
        name = "/".join((self.pipeline.name, *map(_escape, names[:-1]), shown))
        location = "/".join((self.pattern.folder, *names))
        options = fill(self.pipeline.sink_options, names)
        return replace(self.pipeline.at(location), name=name, sink_options=options)


def fill(options: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the options of a sink with the names of a table in its path, its table, its topics and their pattern."""
    filled = dict(options)
    for option, value in options.items():
        if isinstance(value, str) and option == "path":
            filled[option] = value.replace(PLACEHOLDER, "/".join(names))
        elif isinstance(value, str) and option == "table":
            filled[option] = value.replace(PLACEHOLDER, "_".join(names))
        elif isinstance(value, str) and option.endswith("topic"):
            filled[option] = value.replace(PLACEHOLDER, ".".join(names))
        elif option == "topics":
            filled[option] = (
                value.replace(PLACEHOLDER, re.escape(".".join(names)))
                if isinstance(value, str)
                else [str(item).replace(PLACEHOLDER, ".".join(names)) for item in value]
            )
    return filled


def target_faults(options: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield the option (empty: none), the reason and the next step where tables of a template would share a target."""
    targets = [option for option in ("path", "topic", "table") if isinstance(options.get(option), str)]
    remedy = f'Add it, for example path = "/data/{PLACEHOLDER}_changes" or topic = "sales.{PLACEHOLDER}".'
    if not targets:
        yield (), f"has no path, topic or table with {PLACEHOLDER}: all tables would share one target", remedy
    for option in targets:
        if PLACEHOLDER not in options[option]:
            yield (option,), f"has no {PLACEHOLDER}: all tables would share it", remedy


def _escape(name: str) -> str:
    """Return a name in the characters that the name of a pipeline may have, and percent signs."""
    return quote(name.encode("utf-8", "surrogateescape"), safe="").replace("~", "%7E")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The address that metrics, health and status are served at.

    `token`: what readers need; without one anybody may read.
    """

    host: str
    port: int
    token: Secret = field(default_factory=Secret)


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The Unix socket for commands (None: none), the token for commands over TCP, and the file of kept backfills.

    `is_required`: whether the daemon does not begin without the socket, because the file names it.
    """

    socket: Path | None = None
    is_required: bool = False
    token: Secret = field(default_factory=Secret)
    backfills_file: Path = Path("tailer.backfills.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A configuration without a fault.

    `pipelines`: those of one table; `templates`: those of all tables that fit a pattern. Paths are absolute,
    `state_table` is a location, `drain_s`, `hung_s` and `standby_after_s` are in seconds.
    `digest`: of the file's content.
    """

    path: Path
    state_table: str | None
    drain_s: float
    pipelines: tuple[PipelineSettings, ...]
    metrics: MetricsSettings | None = None
    engine: EngineKind = EngineKind.LOCAL
    spark: SparkSettings = field(default_factory=SparkSettings)
    stores: Stores = field(default_factory=Stores)
    hung_s: float = 1800.0
    control: ControlSettings = field(default_factory=ControlSettings)
    templates: tuple[Template, ...] = ()
    reload_on_change: bool = True
    read_ahead_bytes: int = AHEAD_BYTES
    standby_after_s: float = 5.0
    digest: bytes = field(default=b"", repr=False, compare=False)

    def open_sink(self, pipeline: PipelineSettings) -> Sink:
        """Make the sink of a pipeline, with progress in the state table if it cannot keep its own; no I/O."""
        sink = pipeline.make_sink()
        if isinstance(sink, Sink):
            return sink
        from tailer.progress.recorded import Recorded  # noqa: PLC0415 - most sinks keep their progress
        from tailer.progress.state_table import StateTable  # noqa: PLC0415

        if self.state_table is None:
            raise ConfigError(pipeline.name, "its sink cannot keep its progress", "Add state_table to the file.")
        return Recorded(sink, StateTable(self.stores.open(self.state_table)))


def configure_catalog(options: Mapping[str, Any]) -> CommitCatalog:
    """The catalog with these options, of which there is one kind; no I/O.

    Raises `ConfigError` naming `catalog` or `catalog.<option>`; several as an `ExceptionGroup`.
    """
    read = partial(read_options, "catalog", options, UnityOptions, unity_faults)
    try:
        from tailer.formats.delta.catalog.unity import UnityCatalog  # noqa: PLC0415 - its client is an extra
    except ImportError as error:
        missing = ConfigError("catalog", f"Unity Catalog cannot be asked: {error}", how_to_install("unity"))
        raise as_one("catalog", [missing, *faults_by(read)]) from error
    return UnityCatalog(read())
