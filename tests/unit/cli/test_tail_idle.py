"""`tail --exit-on-idle`: it ends only while the pipeline waits for a version, never before rows that are known."""

import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake

from tailer.cli import tailer
from tailer.engine import look_ahead
from tailer.engine.local import LocalEngine
from tailer.errors import StorageUnavailable
from tailer.events import ChangeBatch
from tailer.formats.delta.table import DeltaTableLog
from tailer.plan import ChangePlan, Position

IDLE_S = 0.3
LONG_IDLE_S = 2.0  # longer than the pipeline waits between two looks


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Take back how the command, which runs in this process, sets up the log."""
    loggers = [logging.getLogger(name) for name in ("", "tailer", "tailer_sinks", "tailer.stores.wakeup")]
    before = [(logger, logger.level, logger.handlers.copy()) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of four small versions, a row in each."""
    for number in range(4):
        write_deltalake(tmp_path / "t", pa.table({"id": [number]}), mode="append")
    return tmp_path / "t"


def shown(table: Path, idle_s: float = IDLE_S) -> list[int]:
    """Follow the table until it is idle; return the ids that were shown."""
    arguments = ["tail", str(table), "--from", "0", "--exit-on-idle", str(idle_s)]
    done = CliRunner().invoke(tailer, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line)["id"] for line in done.stdout.splitlines()]


def test_versions_that_are_read_together_slowly_are_not_idle(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = LocalEngine.run
    groups: list[int] = []

    @asynccontextmanager
    async def run_slowly(
        self: LocalEngine, plans: Sequence[ChangePlan], after: Position | None = None
    ) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        groups.append(len(plans))
        await anyio.sleep(IDLE_S * 3)
        async with run(self, plans, after) as batches:
            yield batches

    monkeypatch.setattr(look_ahead, "_MOST_S", 60.0)
    monkeypatch.setattr(LocalEngine, "run", run_slowly)
    assert shown(table) == [0, 1, 2, 3]
    assert groups == [1, 3]


def test_an_outage_is_not_idle(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that comes during an outage is shown, however long the looks at the table fail."""
    look = DeltaTableLog.next_plans
    looks: list[int] = []

    async def look_at_outage(self: DeltaTableLog, most: int) -> Sequence[ChangePlan]:
        plans = await look(self, most) if len(looks) != 1 else ()
        if plans:
            return plans
        looks.append(1)
        if len(looks) == 2:
            await anyio.sleep(LONG_IDLE_S * 1.5)
            write_deltalake(table, pa.table({"id": [9]}), mode="append")
            raise StorageUnavailable(self.uri, "down")
        return ()

    monkeypatch.setattr(DeltaTableLog, "next_plans", look_at_outage)
    monkeypatch.setattr(look_ahead, "_MOST_S", 0.0)  # the end is looked at once
    assert shown(table, LONG_IDLE_S) == [0, 1, 2, 3, 9]
