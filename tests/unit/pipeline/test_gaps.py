"""Numbers of versions that have gaps, which are no lost versions: ends, losses and progress between them."""

from pathlib import Path

import pytest

import tailer
from tailer.engine.local import LocalEngine
from tailer.errors import ChangesUnavailable, FileVacuumed
from tailer.events import Gap
from tailer.pipeline.policy import OnDataLoss, Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import Position
from tailer.start import Start
from tailer.stores.local import LocalStore
from tailer.stores.port import in_thread
from tailer.stores.wakeup import TimerWake
from tests.support.streams import Destination
from tests.support.toy.format import ToyLog
from tests.support.toy.table import ToyTable, installed

pytestmark = pytest.mark.anyio

STEP = 4  # versions 3, 7, 11, 15


class Checked(ToyLog):
    """A table whose version `gone`, if there is one, was rolled back after its delivery."""

    gone: int | None = None

    async def check_delivered(self, version: int) -> None:
        if version == self.gone:
            raise ChangesUnavailable(self.uri, version, "it was rolled back")


@pytest.fixture
def table(tmp_path: Path) -> ToyTable:
    """A table with four versions of two rows each."""
    table = ToyTable(tmp_path / "table", step=STEP)
    for number in range(4):
        table.commit({f"{number}.parquet": [2 * number, 2 * number + 1]})
    return table


async def run(
    table: ToyTable, there: Destination, start: str, end: str, policy: Policy | None = None, gone: int | None = None
) -> list[tuple[int, int]]:
    """Deliver a part of a table; return the version and the id of each row that is there."""
    log = Checked(LocalStore(table.path))
    log.gone = gone
    places = Start.parse(start), Start.parse(end)
    await row_pipeline("p", log, there.sink(), LocalEngine(), TimerWake(), *places, policy).run()
    return [(row["_commit_version"], row["id"]) for row in there.rows(f"p/{table.table_id}")]


@pytest.mark.parametrize(
    ("start", "end", "versions"),
    [
        ("earliest", "latest", [3, 7, 11, 15]),
        ("0", "15", [3, 7, 11, 15]),
        ("4", "10", [7]),
        ("5", "11", [7, 11]),
        ("3", "3", [3]),
        ("8", "10", []),
    ],
)
async def test_an_end_may_be_in_a_gap(table: ToyTable, start: str, end: str, versions: list[int]) -> None:
    there = Destination()
    rows = await run(table, there, start, end)
    assert [version for version, _ in rows] == [version for version in versions for _ in range(2)]
    assert await run(table, there, start, end) == rows
    assert await run(table, there, start, "latest") == [
        row for row in await run(table, Destination(), start, "latest") if row[0] >= int(start.replace("earliest", "0"))
    ]


async def test_progress_that_was_rolled_back_stops_the_pipeline(table: ToyTable) -> None:
    there = Destination()
    await run(table, there, "earliest", "7")
    assert there.position(f"p/{table.table_id}") == Position.end(7)
    with pytest.raises(ChangesUnavailable, match="version 7: it was rolled back"):
        await run(table, there, "earliest", "latest", gone=7)
    assert len(await run(table, there, "earliest", "latest", gone=3)) == 8


@pytest.mark.parametrize("lost", [3, 7, 15])
async def test_a_version_after_a_gap_is_lost(table: ToyTable, lost: int) -> None:
    number = lost // STEP
    (table.path / f"{number}.parquet").unlink()
    with pytest.raises(FileVacuumed):
        await run(table, Destination(), "earliest", "latest")
    there = Destination()
    rows = await run(table, there, "earliest", "latest", Policy(on_data_loss=OnDataLoss.SKIP))
    assert rows == [(STEP * each + 3, row) for each in range(4) if each != number for row in (2 * each, 2 * each + 1)]
    (gap,) = there.events(f"p/{table.table_id}")
    assert isinstance(gap, Gap)
    assert (gap.first_version <= lost, gap.version) == (True, lost)


async def test_what_fails_before_anything_is_due_keeps_its_number(table: ToyTable) -> None:
    """A rollback is seen where a session begins: the version that it is about is the one to get past."""
    there = Destination()
    await run(table, there, "earliest", "7")
    log = Checked(LocalStore(table.path))
    log.gone = 7
    places, policy = (Start.parse("earliest"), Start.parse("latest")), Policy(on_data_loss=OnDataLoss.SKIP)
    pipeline = row_pipeline("p", log, there.sink(), LocalEngine(), TimerWake(), *places, policy)
    with pytest.raises(ChangesUnavailable):
        await pipeline.run()
    undeliverable = pipeline._loss._undeliverable
    assert undeliverable is not None
    assert undeliverable.version == 7


async def test_net_changes_end_in_a_gap(table: ToyTable, tmp_path: Path) -> None:
    table.commit({}, {"0.parquet": [0]})
    table.commit({}, {"1.parquet": [0]})
    with installed(tmp_path / "packages"):
        found = await in_thread(lambda: list(tailer.changes(table.path, start=0, end=20, net=True, table_format="toy")))
    assert sorted(row["id"] for batch in found for row in batch.to_pylist()) == [1, 2, 3, 4, 5, 6, 7]
