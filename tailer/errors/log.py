"""Errors of a table's log."""

from dataclasses import dataclass
from typing import ClassVar

from tailer.errors.general import TailerError

__all__ = [
    "LogCorrupt",
    "LogError",
    "LogRewritten",
    "NotATable",
    "StateUnknown",
    "UnsupportedFeature",
    "VersionAhead",
    "VersionGone",
]


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
