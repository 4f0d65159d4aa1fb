"""The rules of the `delta` sink for its target: the tables and folders it may write to, and permanent errors.

A table is ours if it has our progress or our columns. Any other table is foreign, and change rows would damage it. The
source table is never a target, by any path; its id identifies it.
"""

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from tailer.events import METADATA_FIELDS
from tailer.formats.delta.folders import table_around
from tailer.sink import table_of
from tailer.stores.folders import foreign_entry, is_lasting

__all__ = ["MIRROR", "delivered_name", "first_line", "folder_refusal", "is_permanent", "table_refusal"]

# The property of a table that names the pipeline whose mirror it is.
MIRROR: Final = "lakeTailer.mirror"

_ADOPT: Final = "Choose another path; or set adopt = true to write change rows there all the same."
# delta-rs has few exception classes: these parts of its messages mean that a retry cannot help.
_REFUSALS: Final = (
    *("Unsupported", "not yet supported", "Invalid data found", "Schema error", "File name too long"),
    *("AccessDenied", "AuthorizationPermissionMismatch", "MethodNotAllowed", "NotImplemented"),
)
_OUR_COLUMNS: Final = frozenset(field.name for field in METADATA_FIELDS)
_RETENTION: Final = "delta.setTransactionRetentionDuration"
_CHANGE_FEED: Final = "delta.enableChangeDataFeed"
_ANSWER: Final = re.compile(r"<(?:\?xml|Error)\b.*", re.DOTALL)
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9.]+)</Code>")
_SYSTEM_ERROR: Final = re.compile(r"os error (\d+)|Os \{ code: (\d+)")


def folder_refusal(path: str, adopt: bool) -> tuple[str, str] | None:
    """Explain why no table may be created at `path`, which holds none, and the next step. None: it may.

    Raises `OSError` if the folder cannot be read.
    """
    folder = Path(path)
    try:
        folder.stat()
    except FileNotFoundError:
        if folder.is_symlink():
            return f"{path} is a link that leads nowhere", "Create the folder it leads to, or choose another path."
    if table := table_around(folder):
        reason = f"{path} is inside the Delta table {table}, whose VACUUM would delete it"
        return reason, "Choose a path outside of that folder."
    entry = None if adopt else foreign_entry(folder)
    if entry is not None:
        return f"{path} is not empty (it holds {entry!r}), and not a table of lake-tailer", _ADOPT
    return None


def table_refusal(
    path: str,
    app_id: str,
    table_id: str,
    names: Collection[str],
    configuration: Mapping[str, str | None],
    *,
    ours: bool,
    mirror: str | None = None,
) -> tuple[str, str] | None:
    """Explain why the table with this id, these columns and properties is no target for `app_id`, and the next step.

    `ours`: it has our progress, or is to be adopted. `mirror`: the pipeline whose mirror it is to be; None: it is to be
    a log. Returns None if it is a valid target.
    """
    if table_id == table_of(app_id):
        reason = f"{path} is the source table, or a copy of it: both have the id {table_id}"
        return reason, "Choose another path."
    owner = configuration.get(MIRROR)
    if mirror is not None and owner != mirror:
        is_log = owner is None and set(names) >= _OUR_COLUMNS
        what = 'was made with mode = "append"' if is_log else "is a Delta table that lake-tailer has not made"
        return f"{path} {what}" if owner is None else f"pipeline {owner} fills {path}", "Choose another path."
    if owner is not None and mirror is None:
        return f'{path} was made with mode = "mirror"', "Choose another path."
    if not (mirror is not None or ours or set(names) >= _OUR_COLUMNS):
        return f"{path} is a Delta table that lake-tailer has not written to", _ADOPT
    if _RETENTION in configuration:
        # Any duration does harm: a source that is idle for longer would be delivered again from the start.
        key, why = _RETENTION, "the table could forget our progress"
    elif mirror is None and str(configuration.get(_CHANGE_FEED)).lower() == "true":
        # Delta treats a column _change_type as its own: a DELETE on such a table loses rows.
        key, why = _CHANGE_FEED, "the change feed reserves the columns we write"
    else:
        return None
    reason = f"{path} has {key} = {configuration[key]}: {why}"
    return reason, f"ALTER TABLE delta.`{path}` UNSET TBLPROPERTIES ('{key}')"


def is_permanent(error: Exception) -> bool:
    """Return whether an error of delta-rs, or of the system, would occur again."""
    return is_lasting(_system_error(error)) or any(text in str(error) for text in _REFUSALS)


def delivered_name(pipeline: str) -> str:
    """Return the app id of the txn that marks a pipeline as delivering. No table id begins with `#`."""
    return f"{pipeline}/#delivered"


def first_line(error: Exception) -> str:
    """Return the first line of an error, and the reason of the system or the server if that stands in a later one.

    The other lines of delta-rs are stack traces and violating rows, which we must not print. Of a server's answer only
    the code is kept: the rest may repeat keys.
    """
    text = str(error)
    match = _CODE.search(text)
    code = match[1] if match else ""
    line = _ANSWER.sub(code, text).partition("\n")[0].strip() or type(error).__name__
    number = _system_error(error)
    cause = code if number is None else os.strerror(number)
    return line if cause in line else f"{line}: {cause}"


def _system_error(error: Exception) -> int | None:
    """Return the number of the system's error that caused `error`; None if it had another cause."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    match = _SYSTEM_ERROR.search(str(error))
    return None if match is None else int(match[1] or match[2])
