"""Options that several sinks have: the form of integers in JSON, and a `path` that no column names.

A folder has the rows and the progress of a stream in one step: one file of a `files` sink, one commit of a Delta table.
Several folders, or several tables, could not appear together.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from tailer.errors import ConfigError
from tailer_sinks.encoding.values import Int64Form

__all__ = ["Int64Option", "int64_faults", "path_faults"]

_TABLE: Final = "{table}"  # the name of the table, where one pipeline stands for many
_COLUMN: Final = re.compile(r"\{[^{}/]+\}")


class Int64Option(msgspec.Struct, frozen=True, kw_only=True):
    """The option of all sinks that write JSON; `tailer_sinks.encoding.values` explains the forms."""

    int64: Int64Form = "number"  # 64-bit integers in JSON; string: for JavaScript (json.md)


def int64_faults(name: str, options: Int64Option, *, is_typed: bool) -> Iterator[ConfigError]:
    """Yield the fault of the sink called `name` if its encoding has types of its own (`is_typed`)."""
    if options.int64 == "string" and is_typed:
        yield ConfigError(f"{name}.int64", "as string is for JSON without schemas", "Leave it out.")


def path_faults(name: str, path: str, remedy: str) -> Iterator[ConfigError]:
    """Yield the error about a column in the path of the sink called `name`, if there is one."""
    placeholder = next((column for column in _COLUMN.findall(path) if column != _TABLE), None)
    if placeholder is not None:
        reason = f"has {placeholder}, and rows with their progress can appear at once in one folder only"
        yield ConfigError(f"{name}.path", reason, f"{remedy} Or make a pipeline for each value, with where.")
