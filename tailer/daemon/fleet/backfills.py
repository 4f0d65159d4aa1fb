"""The backfills that a daemon keeps over its restarts, and the check of a new one.

They are in a file (`ControlSettings.backfills_file`):

    {"format": 1, "backfills": {"orders": {"id": "20260301T120005-1f3a5c7e", "version": 7, "where": "region = 'eu'"}}}

The file is replaced as a whole. A command is in it from before its first row until its end. How far a backfill is, only
the sink knows (invariant 2).
"""

import os
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec

from tailer.config.pipelines import PipelineSettings
from tailer.config.shapes import Writers
from tailer.errors import ConfigError
from tailer.events import ChangeType
from tailer.pipeline.backfill.command import BackfillCommand
from tailer.pipeline.backfill.delivery import BY_DRIVER, COMPLETE, RESNAPSHOT, backfill_plan
from tailer.pipeline.status import PipelineStatus
from tailer.sink import Demands, Sink

__all__ = ["BackfillFile", "check_backfill", "check_verb"]

_FORMAT: Final = 1
_LACKS: Final = "delivers to a mirror, which would lack the changes"
_ADD_INSERT: Final = 'Add "insert" to its types. After a loss, `tailer skip PIPELINE` goes on without the lost changes.'
_NO_GAPS: Final = "has no topic that would tell readers of a gap"


class _Commands(msgspec.Struct, frozen=True):
    format: int
    backfills: dict[str, BackfillCommand]


class BackfillFile:
    """The file of backfills at `path`. Blocking; any thread may use it. Reads the file.

    Raises `ConfigError` if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._commands = self._read()

    def restore(self, status: PipelineStatus) -> None:
        """Let the pipeline go on with its command, and keep its commands from now on."""
        name = status.name
        status.backfills.restore(self._commands.get(name), lambda order: self._keep(name, order))

    def _read(self) -> dict[str, BackfillCommand]:
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Commands)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            reason = f"the kept backfills cannot be read: {error}"
            raise ConfigError(str(self._path), reason, "Delete the file, and ask for backfills again.") from error
        if kept.format != _FORMAT:
            reason = f"is in format {kept.format}, and this release knows {_FORMAT}"
            raise ConfigError(str(self._path), reason, "Use the release that wrote it, or a newer one.")
        return kept.backfills

    def _keep(self, pipeline: str, command: BackfillCommand | None) -> None:
        """Keep the command of a pipeline; None: it has none. Raises `ConfigError` if the file cannot be written."""
        with self._lock:
            commands = {name: other for name, other in self._commands.items() if name != pipeline}
            commands |= {} if command is None else {pipeline: command}
            try:
                _replace(self._path, msgspec.json.encode(_Commands(_FORMAT, commands)) if commands else None)
            except OSError as error:
                reason = f"the kept backfills cannot be written: {error.strerror or error}"
                remedy = "Make the folder writable, or set backfills_file to a path in one that is."
                raise ConfigError(str(self._path), reason, remedy) from error
            self._commands = commands


def _replace(path: Path, data: bytes | None) -> None:
    """Put `data` in place of the file, durably; None: remove it."""
    if data is None:
        path.unlink(missing_ok=True)
        return
    written = path.with_name(f".{path.name}.tmp")
    with written.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)


def check_verb(pipeline: PipelineSettings, verb: str) -> None:
    """Raise `ConfigError` for a command to deliver or leave out rows that a pipeline of this kind never takes."""
    if pipeline.write is Writers.EXECUTORS:
        raise ConfigError(pipeline.name, "is written by executors, and only the driver can announce a gap", BY_DRIVER)
    sink = pipeline.make_sink()
    demands = sink.demands if isinstance(sink, Sink) else Demands()
    if demands.whole and verb != "resnapshot":
        raise ConfigError(pipeline.name, COMPLETE if verb == "backfill" else _LACKS, RESNAPSHOT)
    if pipeline.policy.types and ChangeType.INSERT not in pipeline.policy.types and verb != "skip":
        raise ConfigError(pipeline.name, "delivers no inserts, and the rows of a snapshot are inserts", _ADD_INSERT)
    if demands.gap_remedy and verb != "backfill":
        raise ConfigError(pipeline.name, _NO_GAPS, demands.gap_remedy)


async def check_backfill(pipeline: PipelineSettings, status: PipelineStatus, command: BackfillCommand) -> None:
    """Raise the `TailerError` for which the log of the table says that the backfill cannot be done."""
    table, position = (await pipeline.located()).open_table(), status.backlog.position
    delivered = None
    if position is not None:  # after the snapshot that it may be in
        delivered = position.version - (not (position.closes_version or position.in_snapshot))
    if command.version is not None and delivered is not None and command.version > delivered:
        reason = f"version {command.version} comes after version {delivered}, up to which the pipeline has delivered"
        raise ConfigError("version", reason, "Give an earlier version, or none.")
    version = delivered if command.version is None else command.version
    async with aclosing(table.snapshot_plans(await table.latest() if version is None else version)) as pages:
        backfill_plan(await anext(pages), command, pipeline.policy)
