"""Sinks by kind, found through the entry-point group `tailer.sinks`, ours and third parties' alike."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from tailer.errors import ConfigError, did_you_mean
from tailer.sink import AtLeastOnceSink, Sink

__all__ = ["configure_sink", "sink_kinds"]

ENTRY_POINTS: Final = "tailer.sinks"


def sink_kinds() -> list[str]:
    """The kinds of sinks that are installed."""
    return sorted(entry_points(group=ENTRY_POINTS).names)


def configure_sink(name: str, kind: str, options: Mapping[str, Any]) -> Sink | AtLeastOnceSink:
    """The sink of `kind`, configured as `name`; no I/O.

    Raises `ConfigError` for an unknown kind, a missing client library or a bad option; an `ExceptionGroup` of them for
    several bad options.
    """
    found = entry_points(group=ENTRY_POINTS, name=kind)
    if not found:
        remedy = f"{did_you_mean(kind, sink_kinds())} Installed kinds: {', '.join(sink_kinds())}."
        raise ConfigError(name, f"no sink of kind {kind!r}", remedy.lstrip())
    try:
        factory = next(iter(found)).load()
    except ImportError as error:
        remedy = f"Install its client: pip install 'lake-tailer[{kind}]'."
        raise ConfigError(name, f"the {kind} sink cannot be loaded: {error}", remedy) from error
    sink: Sink | AtLeastOnceSink = factory.configure(name, options)
    return sink
