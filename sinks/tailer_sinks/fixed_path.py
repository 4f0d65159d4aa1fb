"""Refuses a `path` that is named by the value of a column.

A folder has the rows and the progress of a stream in one step: one file of a `files` sink, one commit of a Delta table.
Several folders, or several tables, could not appear together.
"""

import re
from collections.abc import Iterator
from typing import Final

from tailer.errors import ConfigError

__all__ = ["path_faults"]

_TABLE: Final = "{table}"  # the name of the table, where one pipeline stands for many
_COLUMN: Final = re.compile(r"\{[^{}/]+\}")


def path_faults(name: str, path: str, remedy: str) -> Iterator[ConfigError]:
    """Yield the error about a column in the path of the sink called `name`, if there is one."""
    placeholder = next((column for column in _COLUMN.findall(path) if column != _TABLE), None)
    if placeholder is not None:
        reason = f"has {placeholder}, and rows with their progress can appear at once in one folder only"
        yield ConfigError(f"{name}.path", reason, f"{remedy} Or make a pipeline for each value, with where.")
