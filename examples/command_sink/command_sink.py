"""A sink of your own: hand the changes to a program, as JSON Lines on its standard input.

    pip install . pytest
    pytest                     # test_command_sink.py: the contract of a sink
    tailer run     # after pip install .

The program is run for some rows at a time, and has taken it when it ends with 0. It cannot commit rows and progress
together, so this is an `AtLeastOnceSink`: after a failure the program gets some rows again, and lake-tailer keeps the
progress in the `state_table`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from anyio import run_process

from tailer.errors import ConfigError, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch, ControlEvent, joined_rows
from tailer.sink import AtLeastOnceSink
from tailer_sinks.encoding import event_line
from tailer_sinks.encoding.flat import FlatEncoder, slices


class CommandSink(AtLeastOnceSink):
    """Runs `command`. Rows come with events (a change of the columns, a gap) in their place between them."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._command = command

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> Self:
        """Check the only option, `command`; no I/O."""
        command = options.get("command")
        if set(options) != {"command"} or not isinstance(command, list) or not command:
            remedy = 'Give a program and its arguments: command = ["load", "--append"].'
            raise ConfigError(f"{name}.command", "is not the only option, or no list", remedy)
        return cls(name, [str(each) for each in command])

    async def write(self, batch: ChangeBatch) -> None:
        """Hand rows over, a part of a large batch at a time."""
        await self.write_all([batch])

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        """Hand the rows of small files over together: to run a program takes longer than to encode a row."""
        rows = joined_rows(batches)
        encoder = FlatEncoder(self.name, rows.schema)
        for part in slices(rows):
            await self._run(bytes(encoder.lines(part)))

    async def announce(self, event: ControlEvent) -> None:
        """Hand an event over."""
        await self._run(event_line(event))

    async def flush(self) -> None:
        """Do nothing: every program ended before the next."""

    async def aclose(self) -> None:
        """Do nothing: no program is left."""

    async def _run(self, lines: bytes) -> None:
        try:
            done = await run_process(self._command, input=lines, stdout=None, stderr=None, check=False)
        except OSError as error:
            reason = f"{self._command[0]} cannot be started: {error.strerror}"
            raise SinkRejected(self.name, reason, "Check the option command.") from error
        if done.returncode:
            raise SinkUnavailable(self.name, f"{self._command[0]} ended with {done.returncode}")
