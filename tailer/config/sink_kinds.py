"""Sinks by kind, found through the entry-point group `tailer.sinks`: ours and those of third parties."""

from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Final

from tailer.config.options import as_one, faults_by
from tailer.errors import ConfigError, did_you_mean, how_to_install
from tailer.sink import AtLeastOnceSink, Sink
from tailer.stores.location import is_local
from tailer.stores.stores import Stores

__all__ = ["configure_sink", "sink_kinds"]

ENTRY_POINTS: Final = "tailer.sinks"


@cache
def _installed() -> EntryPoints:
    """Return the entry points of sinks. Once: this reads the metadata of all packages, and may be for 500 pipelines."""
    return entry_points(group=ENTRY_POINTS)


def sink_kinds() -> list[str]:
    """Return the installed kinds of sinks."""
    return sorted(_installed().names)


def configure_sink(
    name: str, kind: str, options: Mapping[str, Any], stores: Stores | None = None
) -> Sink | AtLeastOnceSink:
    """Make the sink of `kind`, configured as `name`; no I/O. `stores`: those that its `path` may be in.

    Raises `ConfigError` for an unknown kind, a missing client library or a bad option; an `ExceptionGroup` of several.
    """
    entries = _installed().select(name=kind)
    if not entries:
        remedy = f"{did_you_mean(kind, sink_kinds())} Installed kinds: {', '.join(sink_kinds())}."
        raise ConfigError(name, f"no sink of kind {kind!r}", remedy.lstrip())
    entry = next(iter(entries))
    try:
        factory = entry.load()
    except ImportError as error:
        missing = ConfigError(name, f"the {kind} sink cannot be loaded: {error}", _remedy(entry))
        raise as_one(name, [missing, *_faults_without_library(entry, name, options)]) from error
    path = options.get("path")
    in_store = isinstance(path, str) and "://" in path and not is_local(path)
    if in_store and not getattr(factory, "writes_to_stores", False):
        reason = f"{str(path).partition('://')[0]}:// is not a local path, and a {kind} sink writes to no other"
        raise ConfigError(f"{name}.path", reason, "Give a folder of this machine.")
    sink: Sink | AtLeastOnceSink = factory.configure(name, options)
    if not isinstance(sink, Sink | AtLeastOnceSink):
        reason = f"{type(sink).__name__} inherits neither tailer.sink.Sink nor tailer.sink.AtLeastOnceSink"
        raise ConfigError(name, reason, "Use a version of the sink that is made for this one of lake-tailer.")
    try:
        sink.use_stores(stores or Stores())
    except ConfigError as error:
        raise ConfigError(f"{name}.path", error.reason, error.remedy) from error
    return sink


def _faults_without_library(entry: EntryPoint, name: str, options: Mapping[str, Any]) -> list[ConfigError]:
    """Return the faults of the options, if the module `options` beside the sink can `read` them."""
    package = entry.module.rpartition(".")[0]
    if not package:
        return []
    try:
        read = import_module(f"{package}.options").read
    except (ImportError, AttributeError):
        return []
    return faults_by(partial(read, name, options))


def _remedy(entry: EntryPoint) -> str:
    """The next step where a sink lacks a library: the extra named after its kind, the fast one if there is one."""
    if package := entry.dist:
        extras = package.metadata.get_all("Provides-Extra") or ()
        for extra in (f"{entry.name}-fast", entry.name):
            if extra in extras:
                return how_to_install(extra, package=package.name)
    return "Install the library that is missing."
