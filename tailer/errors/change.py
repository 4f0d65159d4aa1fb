"""Errors of the rows of one version."""

from dataclasses import dataclass
from typing import ClassVar

from tailer.errors.general import TailerError

__all__ = ["ChangeError", "ChangesUnavailable", "DataCorrupt", "FileVacuumed", "SchemaChanged", "TableReplaced"]


@dataclass(eq=False)
class ChangeError(TailerError):
    """The changes of `version` cannot be given as rows."""

    table: str
    version: int


@dataclass(eq=False)
class ChangesUnavailable(ChangeError):
    """The log does not say enough to tell which rows changed."""

    reason: str
    sentence: ClassVar[str] = "{table}: version {version}: {reason}"
    next_step: ClassVar[str] = (
        'Set on_data_loss of the pipeline to "resnapshot" or "skip-with-gap-event", or go on behind it with '
        "`tailer progress reset CONFIG --to {version}`."
    )


@dataclass(eq=False)
class FileVacuumed(ChangeError):
    """A file the log still names is gone."""

    path: str
    sentence: ClassVar[str] = "{table}: version {version} needs {path}, which is gone (VACUUM removes such files)"
    next_step: ClassVar[str] = (
        "The rows of this version cannot be read any more. Restore the file; or set on_data_loss of the pipeline to "
        '"resnapshot" or "skip-with-gap-event"; or go on behind it with `tailer progress reset CONFIG --to {version}`. '
        "If that is set already, a snapshot needs the file: restore it, or take it out of the table. "
        "Raise delta.deletedFileRetentionDuration, so that it does not happen again."
    )


@dataclass(eq=False)
class SchemaChanged(ChangeError):
    """The columns of the rows change, and the pipeline was told that they must not."""

    reason: str
    sentence: ClassVar[str] = "{table}: version {version} changes the schema: {reason}"
    next_step: ClassVar[str] = (
        'Everything before it is delivered. Set on_schema_change = "evolve" for this pipeline to go on with the new '
        'columns, and back to "fail" afterwards to be asked again.'
    )


@dataclass(eq=False)
class TableReplaced(ChangeError):
    """The table has another id than the one that was followed."""

    expected_id: str
    found_id: str
    sentence: ClassVar[str] = (
        "{table}: another table was put in its place (its id is {found_id}, at version {version}; followed was "
        "{expected_id})"
    )
    next_step: ClassVar[str] = (
        "Say where to begin in the new table: `tailer progress reset CONFIG --to -1` for all its versions, `--to "
        'VERSION` for those behind it; or set on_data_loss of the pipeline to "resnapshot" for all its rows.'
    )


@dataclass(eq=False)
class DataCorrupt(ChangeError):
    """A data, change or deletion-vector file contradicts itself or the log."""

    path: str
    reason: str
    sentence: ClassVar[str] = "{table}: version {version}: {path}: {reason}"
    next_step: ClassVar[str] = "Restore the file from a copy; lake-tailer does not guess which rows are meant."
