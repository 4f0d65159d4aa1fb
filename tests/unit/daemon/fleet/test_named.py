"""A pipeline whose table is a name: it waits for the name, follows the location, and goes where the table moves."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from tailer.config.overlaps import conflict
from tailer.config.pipelines import PipelineSettings
from tailer.config.settings import load
from tailer.daemon.fleet import awaited
from tailer.daemon.fleet.awaited import follow_name
from tailer.daemon.fleet.backfills import check_backfill
from tailer.daemon.runs import Stop
from tailer.errors import NotATable, StorageUnavailable, VersionAhead
from tailer.pipeline.backfill.command import BackfillCommand
from tailer.pipeline.policy import OnDataLoss
from tailer.pipeline.status import PipelineState
from tailer.stores import glue as catalog
from tests.support.daemon.commands import Orders
from tests.support.streams import become

pytestmark = pytest.mark.anyio

NAME = "glue://sales/orders"


class Glue:
    """The catalog: what it says of the name."""

    def __init__(self) -> None:
        self.location: str | None = None
        self.error: Exception | None = None
        self.asked = 0

    async def find(self, table: str, stores: object) -> str | None:
        """Answer."""
        assert table == NAME
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.location


class Made:
    """Work that goes on until it is stopped."""

    def __init__(self, pipeline: PipelineSettings, has_come: bool) -> None:
        self.table = pipeline.table
        self.has_come = has_come

    async def __call__(self, stop: Stop) -> None:
        """Wait."""
        await stop.wait(math.inf)


@pytest.fixture
def pipeline(tmp_path: Path) -> PipelineSettings:
    """The settings of a pipeline."""
    more = 'poll_interval_s = 0.01\nidle_poll_interval_s = 0.01\nsink = {kind = "files", path = "out"}\n'
    (tmp_path / "tailer.toml").write_text(f'[pipelines.orders]\ntable = "{NAME}"\n{more}')
    (found,) = load(tmp_path / "tailer.toml").pipelines
    return found


@pytest.fixture
def glue(monkeypatch: pytest.MonkeyPatch) -> Glue:
    """The catalog."""
    made = Glue()
    monkeypatch.setattr(awaited, "find_location", made.find)
    return made


async def test_a_name_is_waited_for(pipeline: PipelineSettings, glue: Glue) -> None:
    made: list[Made] = []
    status = pipeline.make_status()
    status.command = OnDataLoss.RESNAPSHOT

    def make(located: PipelineSettings, has_come: bool) -> Made:
        made.append(Made(located, has_come))
        return made[-1]

    stop = Stop()
    async with anyio.create_task_group() as group:
        group.start_soon(follow_name, pipeline, status, make, stop)
        await become(lambda: status.state is PipelineState.WAITING)
        assert [status.why, status.command] == [f"there is no table at {NAME} yet", None]
        assert not made
        glue.location = "s3://lake/orders"
        await become(lambda: bool(made))
        assert (made[0].table, made[0].has_come) == ("s3://lake/orders", True)
        assert status.state is not PipelineState.WAITING
        stop.set()


async def test_a_wait_can_be_stopped(pipeline: PipelineSettings, glue: Glue) -> None:
    slow, stop = replace(pipeline, poll_interval_s=60.0), Stop()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(follow_name, slow, pipeline.make_status(), Made, stop)
            await anyio.sleep(0.1)
            stop.set()
    assert glue.asked


async def test_a_run_that_is_stopped_while_the_catalog_answers_does_not_begin(
    pipeline: PipelineSettings, glue: Glue, monkeypatch: pytest.MonkeyPatch
) -> None:
    glue.location, answer, stop = "s3://lake/orders", glue.find, Stop()
    made: list[Made] = []

    async def find(*asked: object) -> str | None:
        stop.set()
        return await answer(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(awaited, "find_location", find)

    def make(located: PipelineSettings, has_come: bool) -> Made:
        made.append(Made(located, has_come))
        return made[-1]

    with anyio.fail_after(30):
        await follow_name(pipeline, pipeline.make_status(), make, stop)
    assert not made


async def test_a_backfill_is_checked_at_the_location(
    pipeline: PipelineSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (orders := Orders(tmp_path / "orders")).insert(1, 2)

    async def find(*asked: object) -> str:
        assert asked[0] == NAME
        return str(orders.path)

    monkeypatch.setattr(catalog, "find_location", find)
    status = pipeline.make_status()
    await check_backfill(pipeline, status, BackfillCommand.make())
    with pytest.raises(VersionAhead):
        await check_backfill(pipeline, status, BackfillCommand.make(version=9))


async def test_a_table_that_moves_is_followed(pipeline: PipelineSettings, glue: Glue) -> None:
    made: list[Made] = []

    def make(located: PipelineSettings, has_come: bool) -> Made:
        made.append(Made(located, has_come))
        return made[-1]

    glue.location = "s3://lake/orders"
    stop = Stop()
    work = partial(follow_name, pipeline, pipeline.make_status(), make, stop, ask_again_s=0.01)
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await become(lambda: glue.asked > 3)
        # What the catalog does not tell changes nothing.
        for glue.error in (StorageUnavailable(NAME, "down"), NotATable(NAME, "in Glue it is an Iceberg table")):
            before = glue.asked
            await become(lambda before=before: glue.asked > before + 2)  # type: ignore[misc]
        glue.error = glue.location = None
        before = glue.asked
        await become(lambda: glue.asked > before + 2)
        assert [(each.table, each.has_come) for each in made] == [("s3://lake/orders", False)]
        glue.location = "s3://other/orders"
        await become(lambda: len(made) == 2)
        assert (made[1].table, made[1].has_come) == ("s3://other/orders", True)
        stop.set()


@pytest.mark.parametrize("error", [StorageUnavailable(NAME, "down"), NotATable(NAME, "in Glue it is an Iceberg table")])
async def test_what_the_catalog_refuses_is_raised(pipeline: PipelineSettings, glue: Glue, error: Exception) -> None:
    glue.error = error
    with pytest.raises(type(error)):
        await follow_name(pipeline, pipeline.make_status(), Made, Stop())


async def test_errors_of_the_run_are_raised_as_they_are(pipeline: PipelineSettings, glue: Glue) -> None:
    class Broken(Made):
        async def __call__(self, stop: Stop) -> None:
            raise NotATable(self.table)

    glue.location = "s3://lake/orders"
    with pytest.raises(NotATable, match="s3://lake/orders"):
        await follow_name(pipeline, pipeline.make_status(), Broken, Stop())


def test_a_target_in_the_own_table_is_refused(pipeline: PipelineSettings) -> None:
    located = replace(pipeline.at("s3://lake/orders"), sink_options={"path": "s3://lake/orders/out"})
    assert "nested" in str(conflict(located, ()))
    assert conflict(replace(located, sink_options={"path": "s3://lake/out"}), ()) is None
