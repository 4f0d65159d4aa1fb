"""A sink of your own: hand the changes to a program, as JSON Lines on its standard input.

    pip install . pytest
    pytest                     # test_command_sink.py: the contract of a sink
    tailer run tailer.toml     # after pip install .

A program is started for each transaction. It has the rows when its input ends, and has taken them when it ends with 0.
It cannot commit rows and progress together, so this is an `AtLeastOnceSink`: after a failure a program gets some rows
again, and lake-tailer keeps the progress in the `state_table`.
"""

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from anyio import BrokenResourceError, open_process
from anyio.abc import Process

from tailer.errors import ConfigError, SinkRejected, SinkUnavailable
from tailer.events import ChangeBatch, ControlEvent
from tailer.sink import AtLeastOnceSink
from tailer_sinks.encoding.events import event_line
from tailer_sinks.encoding.flat import FlatEncoder, slices


class CommandSink(AtLeastOnceSink):
    """Runs `command`. Rows come with events (a change of the columns, a gap) in their place between them."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._command = command
        self._process: Process | None = None

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
        encoder = FlatEncoder(self.name, batch.rows.schema)
        for rows in slices(batch.rows):
            await self._send(bytes(encoder.lines(rows)))

    async def announce(self, event: ControlEvent) -> None:
        """Hand an event over."""
        await self._send(event_line(event))

    async def flush(self) -> None:
        """End the input of the program, and wait until it has taken everything."""
        if self._process is not None:
            assert self._process.stdin is not None
            await self._process.stdin.aclose()
            await self._process.wait()
            code = self._process.returncode
            self._process = None
            if code:
                raise SinkUnavailable(self.name, f"{self._command[0]} ended with {code}")

    def forget(self) -> None:
        """Kill a program that has not got all rows of its transaction: they come again."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process = None

    async def aclose(self) -> None:
        """Do nothing: no program outlives its transaction."""

    async def _send(self, lines: bytes) -> None:
        try:
            if self._process is None:
                self._process = await open_process(self._command, stdin=subprocess.PIPE, stdout=None, stderr=None)
            assert self._process.stdin is not None
            await self._process.stdin.send(lines)
        except BrokenResourceError:
            raise SinkUnavailable(self.name, f"{self._command[0]} ended before it had all rows") from None
        except OSError as error:
            reason = f"{self._command[0]} cannot be started: {error.strerror}"
            raise SinkRejected(self.name, reason, "Check the option command.") from error
