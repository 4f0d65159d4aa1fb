"""The options of a `delta` sink, checked before any I/O and without its client."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from tailer.errors import ConfigError
from tailer_sinks import read_options
from tailer_sinks.options import path_faults

__all__ = ["Options", "read"]


class Options(msgspec.Struct, frozen=True):
    """The options in the configuration."""

    path: str  # folder or URI of the target
    mode: Literal["append", "mirror", "history"] = "append"  # a log, a table equal to the source, or all its states
    key: list[str] = []  # of a mirror or a history: columns that identify a row; default: row ids, or the source's key
    deletes: Literal["remove", "mark"] = "remove"  # of a mirror: whether deleted rows go, or stay with a mark
    partition_by: list[str] | None = None  # columns to partition a new table by
    adopt: bool = False  # allow a target that is not ours


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
    if options.mode != "mirror" and options.deletes != "remove":
        reason = "is for a mirror" if options.mode == "append" else "is not for a history, which keeps deleted rows"
        yield ConfigError(f"{name}.deletes", reason, 'Leave it out, or set mode = "mirror".')
    if options.mode != "append" and options.adopt:
        reason = f"is not for a {options.mode}, which would replace all rows of another table"
        yield ConfigError(f"{name}.adopt", reason, "Leave it out, and choose a new path.")
