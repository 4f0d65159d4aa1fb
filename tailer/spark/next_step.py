"""The next step after an error in a query, in the error's text: Spark shows nothing else."""

from typing import Final

from tailer.errors import (
    ChangesUnavailable,
    ConfigError,
    FileVacuumed,
    LogCorrupt,
    LogRewritten,
    TableReplaced,
    TailerError,
    VersionAhead,
    VersionGone,
    brief_errors,
)

__all__ = ["with_next_step"]

_BEHIND: Final = (
    "a query with a new checkpoint folder and startingVersion = {} continues after it, without those changes."
)
_RESTORE: Final = "Restore what is missing; or "


def _next_step(error: TailerError) -> str:
    """Return the next step after an error in a query; `hint` is written for pipelines, and the two may differ."""
    match error:
        case TableReplaced():
            return "Start a query with a new checkpoint folder, and give its start in the new table."
        case FileVacuumed(version=version) | ChangesUnavailable(version=version):
            return _RESTORE + _BEHIND.format(version + 1)
        case VersionGone(resume=int(version)):
            return _RESTORE + _BEHIND.format(version)
        case VersionGone(starts=()):
            return error.hint
        case VersionGone() | LogCorrupt():
            return _RESTORE + _BEHIND.format("a version after the gap")
        case ConfigError(where="key"):
            between = "If a version renames it, let the query end before that version, then give it the other name."
            return f"{error.hint} {between}"
        case VersionAhead(latest=latest):
            return f"Give a version up to {latest}; a query that was further than that needs a new checkpoint folder."
        case LogRewritten():
            return "A query that read the log as it was before needs a new checkpoint folder."
    return error.hint


class with_next_step(brief_errors):  # noqa: N801 - used like a function
    """Add the next step of a query to the text of an error, and drop its frames: Spark shows only the traceback."""

    def __init__(self) -> None:
        super().__init__(_next_step)
