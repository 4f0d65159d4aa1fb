"""Errors of the changes of a table: of the rows of one version, and of the log."""

from dataclasses import dataclass
from typing import ClassVar

from tailer.errors.general import AFTER_LOSS, TailerError, override

__all__ = [
    "ChangeError",
    "ChangesUnavailable",
    "DataCorrupt",
    "FileOutsideTable",
    "FileVacuumed",
    "LogCorrupt",
    "LogError",
    "LogRewritten",
    "NotATable",
    "SchemaChanged",
    "StateUnknown",
    "TableReplaced",
    "UnsupportedFeature",
    "VersionAhead",
    "VersionGone",
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


@dataclass(eq=False)
class LogError(TailerError):
    """The log of the table at `table` cannot be followed."""

    table: str


@dataclass(eq=False)
class NotATable(LogError):
    """The location has no log. `expected`: the format looked for. `remedy`: a hint in place of the usual one."""

    reason: str = "no commit in _delta_log"
    expected: str = "a Delta table"
    remedy: str = ""
    sentence: ClassVar[str] = "{table}: not {expected}: {reason}"
    next_step: ClassVar[str] = (
        "Check the path, and table_format (--table-format): the folder of a table contains its log, such as "
        "_delta_log, and in a store the format must be given, unless it is delta or the folder's name tells it."
    )

    @property
    @override
    def hint(self) -> str:
        return self.remedy or super().hint


@dataclass(eq=False)
class VersionGone(LogError):
    """The version to read next is not in the log, although other versions are.

    `resume`: the first later version whose changes can be read; None: there is none. `starts`: other values of `--from`
    that work; None: neither was looked for.
    """

    version: int
    earliest: int | None = None
    latest: int | None = None
    resume: int | None = None
    starts: tuple[str, ...] | None = None
    sentence: ClassVar[str] = "{table}: version {version} is missing from the log ({held})"
    next_step: ClassVar[str] = (
        "Restore the commit file of version {version}, and run `tailer resume PIPELINE`. If that is impossible, its "
        f"changes are lost: {AFTER_LOSS} (`tail`: begin after the loss with --from)."
    )

    @property
    @override
    def message(self) -> str:
        if self.earliest is None:
            held = "it holds no commit" if self.latest is None else f"it holds no commit up to {self.latest}"
        else:
            others = "others from " * (self.earliest < self.version)
            held = f"it holds {others}{self.earliest} to {self.latest}"
        return self.sentence.format(**self.fields, held=held)

    @property
    def hint(self) -> str:
        """See `TailerError.hint`, with the starts that work."""
        if self.starts is None:
            return super().hint
        if self.resume is None:
            return (
                f"Restore the commit file of version {self.version}, and run `tailer resume PIPELINE`. Without it the "
                "state of the table is unknown from there on, so no later version can be read, and neither `latest` "
                "nor `snapshot` is a way on. A writer that still has the state may write a checkpoint of version "
                f"{self.version} or of a later one: then start after it. A pipeline whose on_data_loss is "
                '"resnapshot" or "skip-with-gap-event" waits for that.'
            )
        names = [*([str(self.resume)] if self.resume <= (self.latest or 0) else []), *self.starts]
        listed = ", ".join(f"`--from {name}`" for name in names)
        return f"{super().hint} Changes can be read from version {self.resume} on (`tail`: {listed})."


@dataclass(eq=False)
class VersionAhead(LogError):
    """The log ends before the requested version. `is_start`: whether it was requested as the start."""

    version: int
    latest: int
    is_start: bool = False
    sentence: ClassVar[str] = "{table}: version {version} does not exist yet (latest is {latest})"
    next_step: ClassVar[str] = (
        "Request a version up to {latest}. If this is a pipeline's progress, the log went backwards: was it restored "
        "from a copy? Remove the changes after version {latest} from the destination, set the pipeline's progress with "
        "`tailer progress reset PIPELINE --to {latest}`, and run `tailer resume PIPELINE`. Of a mirror no rows can be "
        "removed: once the table has version {version} again, `tailer resnapshot PIPELINE` fills it again."
    )

    @property
    def hint(self) -> str:
        """See `TailerError.hint`. The hint about progress does not apply to a start."""
        if not self.is_start:
            return super().hint
        return f"Start at a version up to {self.latest}, or at latest for the versions after {self.latest}."


@dataclass(eq=False)
class LogCorrupt(LogError):
    """A file of the log violates the protocol."""

    path: str
    reason: str
    version: int | None = None
    line: int | None = None
    next_step: ClassVar[str] = (
        "Inspect the file with the writer's own tools, or restore it from a copy, and run `tailer resume PIPELINE`. If "
        f"that is impossible, {AFTER_LOSS}; it continues at the next version whose state is known."
    )

    @property
    @override
    def message(self) -> str:
        place = f" line {self.line}" if self.line is not None else ""
        commit = f" (version {self.version})" if self.version is not None else ""
        return f"{self.table}: {self.path}{place}{commit}: {self.reason}"


@dataclass(eq=False)
class LogRewritten(LogError):
    """The commit of `version`, which was delivered, has been replaced."""

    version: int
    path: str
    sentence: ClassVar[str] = (
        "{table}: {path}: the commit differs from the delivered one: was the log restored from a copy, or was the "
        "commit not written atomically?"
    )
    next_step: ClassVar[str] = (
        "Find the first version that differs. Remove the changes from that version on from the destination, set the "
        "pipeline's progress to the version before it with `tailer progress reset PIPELINE --to VERSION`, and run "
        "`tailer resume PIPELINE`. Of a mirror no rows can be removed: `tailer resnapshot PIPELINE` fills it again."
    )


@dataclass(eq=False)
class StateUnknown(LogError):
    """Changes are lost from `version` on, for the given `reason`, and no later state is known."""

    version: int
    reason: str
    sentence: ClassVar[str] = "{reason}; the state of no later version is known"
    next_step: ClassVar[str] = (
        "Restore the commit file of version {version}, or let a writer that still has the table's state write a "
        "checkpoint of that version or a later one. A running pipeline waits for either, then continues by itself."
    )


@dataclass(eq=False)
class UnsupportedFeature(LogError):
    """The table needs a reader feature, or uses a type, that lake-tailer does not have."""

    feature: str
    version: int
    reason: str = "lake-tailer does not know it, and a reader must"
    remedy: str = "Upgrade lake-tailer, or drop the feature from the table; no row of this version was delivered."
    sentence: ClassVar[str] = "{table}: version {version} needs {feature}: {reason}"
    next_step: ClassVar[str] = "{remedy}"
