"""Every way lake-tailer can stop, as one tree.

An error carries fields, not a formatted string: what failed is read from the fields, the sentence is made from them,
and `hint` is the operator's next step. `retry` tells the pipeline, which is the only place that retries, what to do::

    TailerError
    ├── ConfigError                 the configuration or the command line is wrong            exit 2
    ├── StorageError                                                                          exit 4
    │   ├── StorageUnavailable      the store did not answer; it may later           TIMED
    │   │   └── ScratchUnavailable  temporary files do not fit on the disk; they may later
    │   ├── StorageRefused          the store answers, and will not; a person must look
    │   ├── ObjectNotFound          the object is not there
    │   └── ObjectAlreadyExists     put-if-absent lost to another writer
    ├── LogError                    the table's log cannot be followed                        exit 3
    │   ├── NotATable               there is no log
    │   ├── VersionGone             a version we need was cleaned up, or is missing in the middle
    │   ├── VersionAhead            the log ends before the version asked for
    │   ├── LogCorrupt              a log file is not what the protocol says
    │   ├── LogRewritten            a commit that was delivered is another one now
    │   ├── StateUnknown            after a gap in the log, nothing tells the table's state
    │   └── UnsupportedFeature      the table needs a reader feature we do not have
    ├── ChangeError                 the rows of a version cannot be given                     exit 3
    │   ├── ChangesUnavailable      the log does not say enough to tell the rows
    │   ├── FileVacuumed            a data, change or deletion-vector file is gone
    │   ├── SchemaChanged           the table's schema moved where it must not
    │   ├── TableReplaced           the table at this location is another one now
    │   └── DataCorrupt             a file contradicts itself or the log
    ├── EngineUnavailable           Spark did not answer, or gave up; it may later   TIMED   exit 4
    └── SinkError                                                                             exit 4
        ├── SinkUnavailable         the destination did not answer; ask it what it has ASK
        ├── CommitUnknown           the commit's answer was lost; ask it what it has   ASK
        ├── SinkRejected            the destination refuses this; a person must look
        └── SinkFenced              another instance writes for this app_id            NEVER

Errors survive pickling, because tasks run in other processes.
"""

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar

__all__ = [
    "ChangeError",
    "ChangesUnavailable",
    "CommitUnknown",
    "ConfigError",
    "DataCorrupt",
    "EngineUnavailable",
    "FileVacuumed",
    "LogCorrupt",
    "LogError",
    "LogRewritten",
    "NotATable",
    "ObjectAlreadyExists",
    "ObjectNotFound",
    "Retry",
    "SchemaChanged",
    "ScratchUnavailable",
    "SinkError",
    "SinkFenced",
    "SinkRejected",
    "SinkUnavailable",
    "StateUnknown",
    "StorageError",
    "StorageRefused",
    "StorageUnavailable",
    "TableReplaced",
    "TailerError",
    "UnsupportedFeature",
    "VersionAhead",
    "VersionGone",
]


class Retry(Enum):
    """What the pipeline does after an error."""

    NEVER = "never"  # trying again can only do harm
    MANUAL = "manual"  # a person must act first
    TIMED = "timed"  # wait, then try again
    ASK = "ask"  # wait, read progress back from the sink, then try again


def _rebuild(cls: type["TailerError"], values: dict[str, Any]) -> "TailerError":
    return cls(**values)


@dataclass(eq=False)
class TailerError(Exception):
    """Root of the tree. `exit_code` is what a command ends with when nobody handles the error."""

    retry: ClassVar[Retry] = Retry.MANUAL
    exit_code: ClassVar[int] = 3
    sentence: ClassVar[str] = "lake-tailer stopped"
    next_step: ClassVar[str] = ""

    def __str__(self) -> str:
        return self.sentence.format(**self.fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.fields)

    @property
    def fields(self) -> dict[str, Any]:
        """The error's facts by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def hint(self) -> str:
        """The operator's next step; empty where there is none."""
        return self.next_step.format(**self.fields)


@dataclass(eq=False)
class ConfigError(TailerError):
    """The configuration or the command line is wrong; nothing was read or written."""

    where: str
    reason: str
    remedy: str = ""
    exit_code: ClassVar[int] = 2
    sentence: ClassVar[str] = "{where}: {reason}"
    next_step: ClassVar[str] = "{remedy}"


@dataclass(eq=False)
class StorageError(TailerError):
    """A store could not do what was asked of `path`."""

    path: str
    reason: str = ""
    exit_code: ClassVar[int] = 4
    sentence: ClassVar[str] = "{path}: {reason}"


@dataclass(eq=False)
class StorageUnavailable(StorageError):
    """The store did not answer, or refused for now."""

    retry: ClassVar[Retry] = Retry.TIMED
    sentence: ClassVar[str] = "{path}: the store does not answer: {reason}"
    next_step: ClassVar[str] = "Check that the location can be reached and read from this machine."


@dataclass(eq=False)
class ScratchUnavailable(StorageUnavailable):
    """The folder for temporary files, `path`, does not hold them: its disk is full, or it cannot be used."""

    sentence: ClassVar[str] = "{path}: temporary files cannot be kept there: {reason}"
    next_step: ClassVar[str] = "Free space there, or let TMPDIR name a folder of a disk that has some."


@dataclass(eq=False)
class StorageRefused(StorageError):
    """The store answered that it will not: a right is missing, or a path cannot be what it is used for."""

    next_step: ClassVar[str] = (
        "Check the path and the symbolic links in it, and that this user may read it, or write to it where lake-tailer "
        "keeps something."
    )


@dataclass(eq=False)
class ObjectNotFound(StorageError):
    """There is no such object."""

    sentence: ClassVar[str] = "{path}: not found"
    next_step: ClassVar[str] = "Check the path."


@dataclass(eq=False)
class ObjectAlreadyExists(StorageError):
    """Put-if-absent found the object there: another writer was first."""

    retry: ClassVar[Retry] = Retry.ASK
    sentence: ClassVar[str] = "{path}: exists already"


@dataclass(eq=False)
class LogError(TailerError):
    """The log of the table at `table` cannot be followed."""

    table: str


@dataclass(eq=False)
class NotATable(LogError):
    """The location holds no log."""

    reason: str = "no commit in _delta_log"
    sentence: ClassVar[str] = "{table}: not a Delta table: {reason}"
    next_step: ClassVar[str] = "Check the path: it must be the folder that contains _delta_log."


@dataclass(eq=False)
class VersionGone(LogError):
    """A version that must be read next is not in the log, though later or other ones are."""

    version: int
    earliest: int | None = None
    latest: int | None = None
    sentence: ClassVar[str] = "{table}: version {version} is missing from the log ({held})"
    next_step: ClassVar[str] = (
        "Restore the commit file of version {version}. Where that cannot be, its changes are lost: set on_data_loss of "
        'the pipeline to "resnapshot" or "skip-with-gap-event", or begin behind the gap with `tailer progress reset '
        "CONFIG --to VERSION` (`tail`: with a later --from)."
    )

    def __str__(self) -> str:
        if self.earliest is None:
            held = "it holds no commit" if self.latest is None else f"it holds no commit up to {self.latest}"
        else:
            held = f"it holds {self.earliest} to {self.latest}"
        return self.sentence.format(**self.fields, held=held)


@dataclass(eq=False)
class VersionAhead(LogError):
    """The log ends before the version that was asked for. `is_start`: as the place to begin at."""

    version: int
    latest: int
    is_start: bool = False
    sentence: ClassVar[str] = "{table}: version {version} does not exist yet (latest is {latest})"
    next_step: ClassVar[str] = (
        "Ask for a version up to {latest}. If this is a pipeline's progress, the log went backwards: was it restored "
        "from a copy? What was delivered beyond {latest} has to be taken back at the destination; then set the "
        "pipeline there with `tailer progress reset CONFIG --to {latest}`."
    )

    @property
    def hint(self) -> str:
        """See `TailerError.hint`. A place to begin at is nobody's progress."""
        if not self.is_start:
            return super().hint
        return f"Begin with a version up to {self.latest}, or with latest: what comes after version {self.latest}."


@dataclass(eq=False)
class LogCorrupt(LogError):
    """A file of the log is not what the protocol says."""

    path: str
    reason: str
    version: int | None = None
    line: int | None = None
    next_step: ClassVar[str] = (
        "Look at the file with the writer's own tools, or restore it from a copy. A pipeline goes past it, to the next "
        'version whose state is known, with on_data_loss = "resnapshot" or "skip-with-gap-event".'
    )

    def __str__(self) -> str:
        at = f" line {self.line}" if self.line is not None else ""
        of = f" (version {self.version})" if self.version is not None else ""
        return f"{self.table}: {self.path}{at}{of}: {self.reason}"


@dataclass(eq=False)
class LogRewritten(LogError):
    """The commit of `version`, which was delivered, is another one now."""

    version: int
    path: str
    sentence: ClassVar[str] = (
        "{table}: {path}: it is not the commit that was delivered any more: was the log restored from a copy, or the "
        "commit written in pieces?"
    )
    next_step: ClassVar[str] = (
        "Find out from which version on the log is another one. What was delivered from there has to be taken back at "
        "the destination; then set the pipeline to the version before it with `tailer progress reset CONFIG --to "
        "VERSION`."
    )


@dataclass(eq=False)
class StateUnknown(LogError):
    """Changes are lost from `version` on, for the `reason` given, and where to go on cannot be told."""

    version: int
    reason: str
    sentence: ClassVar[str] = "{reason}; nothing later in the log is enough to go on from"
    next_step: ClassVar[str] = (
        "Restore the commit file of version {version}, or have a writer that still knows the table write a checkpoint "
        "of that version or a later one. A running pipeline waits for either, then goes on by itself."
    )


@dataclass(eq=False)
class UnsupportedFeature(LogError):
    """The table needs a reader feature, or uses a type, that lake-tailer does not have."""

    feature: str
    version: int
    reason: str = "a reader must know it, and lake-tailer does not"
    remedy: str = "Upgrade lake-tailer, or drop the feature from the table; no row was emitted for it."
    sentence: ClassVar[str] = "{table}: version {version} needs {feature}: {reason}"
    next_step: ClassVar[str] = "{remedy}"


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


@dataclass(eq=False)
class EngineUnavailable(TailerError):
    """Spark, called `engine`, could not be had or gave work up; nothing is wrong with the work itself."""

    engine: str
    reason: str
    remedy: str = "Check that its cluster is up, can be reached from this machine and has free cores."
    retry: ClassVar[Retry] = Retry.TIMED
    exit_code: ClassVar[int] = 4
    sentence: ClassVar[str] = "{engine}: {reason}"
    next_step: ClassVar[str] = "{remedy}"


@dataclass(eq=False)
class SinkError(TailerError):
    """The sink named `sink` failed."""

    sink: str
    reason: str
    exit_code: ClassVar[int] = 4
    sentence: ClassVar[str] = "sink {sink}: {reason}"


@dataclass(eq=False)
class SinkUnavailable(SinkError):
    """The destination did not answer."""

    retry: ClassVar[Retry] = Retry.ASK
    next_step: ClassVar[str] = "Check that the destination is up and reachable, and that its disk is not full."


@dataclass(eq=False)
class CommitUnknown(SinkError):
    """A commit was sent and its answer was lost."""

    retry: ClassVar[Retry] = Retry.ASK
    sentence: ClassVar[str] = "sink {sink}: whether the commit took place is unknown: {reason}"


@dataclass(eq=False)
class SinkRejected(SinkError):
    """The destination refuses what it was given, and will again."""

    remedy: str = ""
    next_step: ClassVar[str] = "{remedy}"


@dataclass(eq=False)
class SinkFenced(SinkError):
    """Another instance writes for the same app_id."""

    retry: ClassVar[Retry] = Retry.NEVER
    sentence: ClassVar[str] = "sink {sink}: another instance took over: {reason}"
    next_step: ClassVar[str] = "Run one instance per pipeline."
