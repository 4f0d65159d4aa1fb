"""The options of a `delta` sink, checked before any I/O and without its client."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from tailer.errors import ConfigError
from tailer_sinks import read_options
from tailer_sinks.fixed_path import path_faults

__all__ = ["Options", "read"]


class Options(msgspec.Struct, frozen=True):
    """The options in the configuration."""

    path: str  # the folder of the target table, also in a store
    mode: Literal["append", "mirror"] = "append"  # keep a log of the changes, or a table equal to the source
    key: list[str] = []  # of a mirror: the columns that identify a row; by default row ids, or the source's key
    partition_by: list[str] | None = None  # the columns that a new table is partitioned by
    adopt: bool = False  # write to a table, or into a folder, that is not ours


def read(name: str, options: Mapping[str, Any]) -> Options:
    """Read the options of the sink called `name`; no I/O.

    Raises `ConfigError` naming the option; several as an `ExceptionGroup`.
    """
    return read_options(name, options, Options, _check)


def _check(name: str, options: Options) -> Iterator[ConfigError]:
    if not options.path:
        yield ConfigError(f"{name}.path", "is empty", "Set path to the target table's folder.")
    yield from path_faults(name, options.path, 'Give partition_by = ["country"], for one table with partitions.')
    if options.partition_by == []:
        yield ConfigError(f"{name}.partition_by", "is empty", "Leave it out, or name columns of the table.")
    if len(set(options.key)) < len(options.key):
        yield ConfigError(f"{name}.key", "names a column twice", "Name each column once.")
    if options.mode == "append" and options.key:
        yield ConfigError(f"{name}.key", "is for a mirror", 'Leave it out, or set mode = "mirror".')
    if options.mode == "mirror" and options.adopt:
        reason = "is not for a mirror, which would replace all rows of another table"
        yield ConfigError(f"{name}.adopt", reason, "Leave it out, and choose a new path.")
