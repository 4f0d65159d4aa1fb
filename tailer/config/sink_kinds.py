"""Sinks by kind, found through the entry-point group `tailer.sinks`: ours and those of third parties."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from tailer.errors import ConfigError, did_you_mean, how_to_install
from tailer.sink import AtLeastOnceSink, Sink

__all__ = ["configure_sink", "sink_kinds"]

ENTRY_POINTS: Final = "tailer.sinks"


def sink_kinds() -> list[str]:
    """Return the installed kinds of sinks."""
    return sorted(entry_points(group=ENTRY_POINTS).names)


def configure_sink(name: str, kind: str, options: Mapping[str, Any]) -> Sink | AtLeastOnceSink:
    """Make the sink of `kind`, configured as `name`; no I/O.

    Raises `ConfigError` for an unknown kind, a missing client library or a bad option; an `ExceptionGroup` of them for
    several bad options.
    """
    found = entry_points(group=ENTRY_POINTS, name=kind)
    if not found:
        remedy = f"{did_you_mean(kind, sink_kinds())} Installed kinds: {', '.join(sink_kinds())}."
        raise ConfigError(name, f"no sink of kind {kind!r}", remedy.lstrip())
    entry = next(iter(found))
    try:
        factory = entry.load()
    except ImportError as error:
        raise ConfigError(name, f"the {kind} sink cannot be loaded: {error}", _remedy(entry)) from error
    sink: Sink | AtLeastOnceSink = factory.configure(name, options)
    return sink


def _remedy(entry: EntryPoint) -> str:
    """The next step where a sink lacks a library: the extra named after its kind, if its package has one."""
    package = entry.dist
    if package is not None and entry.name in (package.metadata.get_all("Provides-Extra") or ()):
        return how_to_install(entry.name, package=package.name)
    return "Install the library that is missing."
