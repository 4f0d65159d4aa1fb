"""Errors about the rows of one version."""

from dataclasses import dataclass
from typing import ClassVar

from tailer.errors.general import AFTER_LOSS, TailerError, override

__all__ = [
    "ChangeError",
    "ChangesUnavailable",
    "DataCorrupt",
    "FileOutsideTable",
    "FileVacuumed",
    "SchemaChanged",
    "TableReplaced",
]


@dataclass(eq=False)
class ChangeError(TailerError):
    """The changes of `version` cannot be read as rows."""

    table: str
    version: int


@dataclass(eq=False)
class ChangesUnavailable(ChangeError):
    """The log does not define which rows changed."""

    reason: str
    sentence: ClassVar[str] = "{table}: version {version}: {reason}"
    next_step: ClassVar[str] = f"{AFTER_LOSS} (`tail`: begin with a later --from)."


@dataclass(eq=False)
class FileVacuumed(ChangeError):
    """A file that the log names is missing. `logged`: its path as the log has it, where that is another text."""

    path: str
    logged: str = ""
    sentence: ClassVar[str] = "{table}: version {version} needs {path}, which is missing (VACUUM deletes such files)"
    next_step: ClassVar[str] = (
        "The rows of this version can no longer be read. Restore the file, and run `tailer resume PIPELINE`. If that "
        f"is impossible, {AFTER_LOSS} (`tail`: begin with a later --from). If a snapshot needs the file, restore it, "
        "or drop it from the table. Increase delta.deletedFileRetentionDuration to prevent this in future."
    )

    @property
    @override
    def message(self) -> str:
        path = f"{self.path} ({self.logged} in the log)" if self.logged else self.path
        return self.sentence.format(**{**self.fields, "path": path})

    @property
    def hint(self) -> str:
        """See `TailerError.hint`. A copy may have kept the names of the log."""
        if not self.logged:
            return super().hint
        copied = "Paths in the log are percent-encoded: if the file has the name that it has in the log, decode that."
        return f"{copied} {super().hint}"


@dataclass(eq=False)
class FileOutsideTable(ChangeError):
    """A file that the log names lies outside of the table's folder, in none of the folders that are allowed.

    `is_readable`: whether such a location can be allowed at all.
    """

    path: str
    is_readable: bool = True
    sentence: ClassVar[str] = "{table}: version {version} refers to {path}, which is outside of the table"
    next_step: ClassVar[str] = (
        "If the table may use that location, as a shallow clone does, add its folder to allowed_roots of the pipeline "
        "(`--allow-root` of `tailer tail` and `tailer plan`); the pipeline goes on by itself."
    )

    @property
    def hint(self) -> str:
        """See `TailerError.hint`. A location that nothing here can read cannot be allowed either."""
        if self.is_readable:
            return super().hint
        scheme = self.path.partition(":")[0]
        return (
            f"lake-tailer cannot read {scheme} locations, so allowed_roots cannot help. Copy the file into the table "
            "with its own tools (a deep clone instead of a shallow one), and follow that table."
        )


@dataclass(eq=False)
class SchemaChanged(ChangeError):
    """The schema of the rows changes, and the pipeline does not allow that."""

    reason: str
    sentence: ClassVar[str] = "{table}: version {version} changes the schema: {reason}"
    next_step: ClassVar[str] = (
        'All earlier versions are delivered. Set on_schema_change = "evolve" for this pipeline to continue with the '
        'new columns. Set it back to "fail" afterwards to stop at the next change.'
    )


@dataclass(eq=False)
class TableReplaced(ChangeError):
    """The table has another id than the followed table."""

    expected_id: str
    found_id: str
    sentence: ClassVar[str] = (
        "{table}: another table has replaced it at version {version} (its id is {found_id}, the followed table's is "
        "{expected_id})"
    )
    next_step: ClassVar[str] = (
        "`tailer resnapshot PIPELINE` delivers all rows of the new table, as on_data_loss of the pipeline does by "
        "itself. For a target that is no mirror, choose a start in the new table instead: `tailer progress reset "
        "PIPELINE --to -1` for all its versions, `--to VERSION` for those after VERSION; then run `tailer resume "
        "PIPELINE`."
    )


@dataclass(eq=False)
class DataCorrupt(ChangeError):
    """A data, change or deletion-vector file contradicts itself or the log."""

    path: str
    reason: str
    sentence: ClassVar[str] = "{table}: version {version}: {path}: {reason}"
    next_step: ClassVar[str] = (
        "Restore the file from a copy, and run `tailer resume PIPELINE`; lake-tailer does not guess its rows."
    )
