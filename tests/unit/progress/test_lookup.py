"""The check of a first start while another instance begins, too."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tailer.errors import SinkFenced, SinkRejected, TableReplaced, TailerError
from tailer.formats.delta.table import DeltaTableLog
from tailer.plan import Position
from tailer.progress.lookup import check_new
from tailer.sink import Progress
from tailer.stores.local import LocalStore
from tailer_sinks.memory import MemorySink
from tests.support.streams import APP, Growing

pytestmark = pytest.mark.anyio


class Filled(MemorySink):
    """A sink whose destination has rows when it is checked, which `rival` has delivered, if any, just before."""

    rival: str | None = None

    async def check_first_start(self, pipeline: str, table_ids: Sequence[str]) -> None:
        if self.rival is not None:
            await MemorySink("rival", self.destination).reset(Progress(self.rival, Position.end(0)))
        raise SinkRejected(self.name, "there are rows without progress")


@pytest.mark.parametrize(
    ("rival", "error"),
    [(None, SinkRejected), ("other/5f0c", SinkRejected), (APP, SinkFenced), ("p/5f0c", TableReplaced)],
)
async def test_rows_of_an_instance_that_begins_meanwhile_are_no_lost_progress(
    tmp_path: Path, rival: str | None, error: type[TailerError]
) -> None:
    table, sink = DeltaTableLog(LocalStore(Growing(tmp_path / "table").path)), Filled("memory")
    sink.rival = rival
    with pytest.raises(error):
        await check_new("p", table, await table.table_id(), sink)
