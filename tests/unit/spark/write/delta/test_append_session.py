"""Snapshots that the driver left unfinished, finished where executors write; without Spark."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.pipelines import PipelineSettings
from tailer.engine.local import LocalEngine
from tailer.formats.delta.table import DeltaTableLog
from tailer.pipeline.limits import Limits
from tailer.pipeline.policy import Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.sink import Progress
from tailer.spark.write.delta import delivery
from tailer.spark.write.delta.pipeline import delta_pipeline
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer.stores.wakeup import TimerWake
from tailer_sinks.delta.sink import DeltaSink
from tests.support.tables.handwritten import HandwrittenTable

pytestmark = pytest.mark.anyio

UNTIL = Start.parse("1")
FILES, ROWS = 6, 3


class KilledError(Exception):
    """The process ends."""


class Killed(DeltaSink):
    """A sink of a process that is killed after `left` transactions."""

    left = 1

    def begin(self, *arguments: Any) -> Any:
        if self.left == 0:
            raise KilledError
        self.left -= 1
        return super().begin(*arguments)


def engine() -> ChangelogEngine:
    return ChangelogEngine(LocalEngine(1), PairingRules())


async def deliver(table: Path, target: Path, transactions: int) -> None:
    """Deliver that many transactions of a snapshot of version 1 with the driver."""
    sink = Killed("d", str(target))
    sink.left = transactions
    log, limits = DeltaTableLog(LocalStore(table)), Limits(max_rows=ROWS, poll_interval_s=0.01)
    start = Start.parse("snapshot")
    with pytest.raises(KilledError):
        await row_pipeline("p", log, sink, engine(), TimerWake(), start, UNTIL, Policy(), limits).run()


async def test_another_instance_continues_the_snapshot_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits after the progress was read, and before the rest is delivered: no row comes twice."""
    monkeypatch.setattr(delivery, "check_delta", lambda _: None)
    source, target = HandwrittenTable(tmp_path / "source"), tmp_path / "target"
    source.commit(*(source.add(source.data(f"{n}.parquet", range(10 * n, 10 * n + ROWS))) for n in range(FILES)))
    await deliver(source.path, target, 1)

    class Late(DeltaSink):
        """The other instance commits after the first answer."""

        is_late = True

        async def progress(self, app_id: str) -> Progress | None:
            found = await super().progress(app_id)
            if self.is_late:
                self.is_late = False
                await deliver(source.path, target, 2)
            return found

    options = {"path": str(target)}
    start, rules = Start.parse("snapshot"), PairingRules()
    settings = PipelineSettings("p", str(source.path), start, Policy(), rules, 0.01, "delta", options)
    log, sink = DeltaTableLog(LocalStore(source.path)), Late("d", str(target))
    session: Any = object
    await delta_pipeline(settings, log, sink, session, engine(), TimerWake(), until=UNTIL).run()
    ids = Counter(DeltaTable(target).to_pyarrow_table()["id"].to_pylist())
    assert ids == Counter(10 * n + row for n in range(FILES) for row in range(ROWS))
