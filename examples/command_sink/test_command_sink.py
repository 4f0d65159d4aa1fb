"""The contract of a sink, kept by `CommandSink`: the suite that lake-tailer's own sinks pass."""

import json
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from command_sink import CommandSink

from tailer.errors import SinkRejected, SinkUnavailable
from tailer.progress.recorded import Recorded
from tailer.sink import Progress
from tailer_sinks.memory import MemoryProgressStore
from tailer_sinks.testing import SinkTests
from tailer_sinks.testing.rows import numbered

# The lines of a batch are in one file, which is complete or absent.
LOAD = 'cat > "$0/.$$" && mv "$0/.$$" "$0/$$"'


class TestCommandSink(SinkTests):
    exactly_once = False  # rows may be early or repeated; everything else holds

    @pytest.fixture(autouse=True)
    def destination(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.records: dict[str, Progress] = {}

    def make_sink(self) -> Recorded:
        """Return a new instance for the folder of this test. `Recorded` keeps the progress, as lake-tailer does."""
        sink = CommandSink("command", ["sh", "-c", LOAD, str(self.folder)])
        return Recorded(sink, MemoryProgressStore("progress", self.records))

    async def delivered(self, app_id: str) -> list[dict[str, Any]]:
        """Return the rows and events that the programs have stored."""
        return await to_thread.run_sync(self._read)

    def _read(self) -> list[dict[str, Any]]:
        files = [file for file in self.folder.iterdir() if not file.name.startswith(".")]
        files.sort(key=lambda file: file.stat().st_mtime_ns)
        return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


@pytest.mark.anyio
async def test_a_program_that_fails() -> None:
    with pytest.raises(SinkUnavailable, match="ended with 3"):
        await CommandSink("command", ["sh", "-c", "cat > /dev/null; exit 3"]).write(numbered(1))


@pytest.mark.anyio
async def test_a_program_that_does_not_exist() -> None:
    with pytest.raises(SinkRejected, match="cannot be started"):
        await CommandSink("command", ["no-such-program"]).write(numbered(1))
