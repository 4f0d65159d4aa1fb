"""The settings of pipelines, checked: what the daemon runs and what executors are sent.

Apart from `tailer.config.settings`, which reads them, because an executor has no configuration to read, nor the
libraries for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tailer.changelog.rules import PairingRules
from tailer.config.control import ControlSettings
from tailer.config.placement import DEFAULT_SHARDS, EngineKind, SparkSettings, Writers
from tailer.config.sink_kinds import configure_sink
from tailer.config.tables import open_table
from tailer.delta.catalog.port import CommitCatalog
from tailer.errors import ConfigError, how_to_install
from tailer.pipeline.policy import Policy
from tailer.pipeline.sink_writer import Limits
from tailer.sink import AtLeastOnceSink, Sink
from tailer.start import Start
from tailer.stores.stores import Stores
from tailer.table_log import TableLog

__all__ = ["PipelineSettings", "Settings", "configure_catalog"]

# The longest wait for a new version where none is configured.
_IDLE_TIMES: Final = 10
_IDLE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """One table followed into one sink. The options of sink and catalog may hold secrets and are never shown.

    `table`: its location. `shards`: into how many streams the rows are divided where executors write them to a sink
    that `distributes`. `idle_poll_interval_s`: None: as it follows from `poll_interval_s`.
    """

    name: str
    table: str
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
    allowed_roots: tuple[str, ...] = ()
    idle_poll_interval_s: float | None = None
    max_polls_per_hour: int | None = None

    @property
    def target(self) -> str | None:
        """The location of the folder that the sink writes, where it has one."""
        path = self.sink_options.get("path")
        return path if isinstance(path, str) else None

    @property
    def limits(self) -> Limits:
        """The size of its transactions, and how long it waits."""
        shortest_s = self.poll_interval_s
        longest_s = self.idle_poll_interval_s or max(shortest_s, min(_IDLE_TIMES * shortest_s, _IDLE_S))
        return Limits(
            poll_interval_s=shortest_s, idle_poll_interval_s=longest_s, max_polls_per_hour=self.max_polls_per_hour
        )

    def make_sink(self) -> Sink | AtLeastOnceSink:
        """The sink; no I/O. Raises `ConfigError`."""
        return configure_sink(self.name, self.sink_kind, self.sink_options, self.stores)

    def open_table(self) -> TableLog:
        """The log of the table, with its catalog if it has one; no I/O. Raises `ConfigError`."""
        catalog = None if self.catalog_options is None else configure_catalog(self.catalog_options)
        return open_table(self.table, self.stores, catalog, self.allowed_roots)


@dataclass(frozen=True, slots=True)
class Settings:
    """A configuration without a fault.

    Paths are absolute, `state_table` is a location, `drain_s` and `hung_s` are in seconds, `metrics` is host and port.
    """

    path: Path
    state_table: str | None
    drain_s: float
    pipelines: tuple[PipelineSettings, ...]
    metrics: tuple[str, int] | None = None
    engine: EngineKind = EngineKind.LOCAL
    spark: SparkSettings = field(default_factory=SparkSettings)
    stores: Stores = field(default_factory=Stores)
    hung_s: float = 1800.0
    control: ControlSettings = field(default_factory=ControlSettings)


def configure_catalog(options: Mapping[str, Any]) -> CommitCatalog:
    """The catalog with these options, of which there is one kind; no I/O. Raises `ConfigError`."""
    try:
        from tailer.delta.catalog.unity import UnityCatalog  # noqa: PLC0415 - its client is an extra
    except ImportError as error:
        raise ConfigError("", f"Unity Catalog cannot be asked: {error}", how_to_install("unity")) from error
    return UnityCatalog.configure(options)
