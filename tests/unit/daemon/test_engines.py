"""The choice of the engine for a version, and the error without PySpark."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pyarrow as pa
import pytest

from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.config.shapes import EngineKind, SparkSettings
from tailer.daemon.engines import SizedEngine, open_engines
from tailer.engine import Engine
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, Position, Regime
from tailer.read.data_files import LOCAL, DataFiles
from tailer.spark.engine.engine import SparkEngine
from tailer.stores.stores import Stores
from tests.support.tables.log_files import task


class Noting(Engine):
    """An engine that records the versions it runs."""

    key: Final = ("id",)

    def __init__(self) -> None:
        self.ran: list[int] = []

    @asynccontextmanager
    async def run(
        self, plans: Sequence[ChangePlan], after: Position | None = None
    ) -> AsyncIterator[AsyncIterator[ChangeBatch]]:
        self.ran += [plan.version for plan in plans]
        yield _nothing()


async def _nothing() -> AsyncIterator[ChangeBatch]:
    for batch in list[ChangeBatch]():
        yield batch


def plan(version: int, files: int) -> ChangePlan:
    """Make a plan that reads so many files of one byte."""
    schema = pa.schema([])
    tasks = (task("file", schema),) * files
    return ChangePlan("t", "id", version, 0, None, Regime.FILES, schema, tasks)


@pytest.mark.anyio
async def test_large_versions_go_to_the_large_engine() -> None:
    small, large = Noting(), Noting()
    engine = SizedEngine(small, large, from_bytes=3)
    for version, files in enumerate([0, 2, 3, 1, 9]):
        async with engine.run([plan(version, files)]):
            pass
    assert (small.ran, large.ran, engine.key) == ([0, 1, 3], [2, 4], ("id",))


@pytest.mark.anyio
async def test_without_spark_there_are_threads() -> None:
    async with open_engines(EngineKind.LOCAL, SparkSettings(), LOCAL) as engines:
        assert engines.spark is None
        engine = engines.for_pipeline(PairingRules(), lambda *_: None)
    assert isinstance(engine, ChangelogEngine)
    assert isinstance(engine._engine, LocalEngine)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [EngineKind.SPARK, EngineKind.AUTO])
async def test_executors_open_files_as_configured(kind: EngineKind) -> None:
    files = DataFiles(Stores().ranges)
    async with open_engines(kind, SparkSettings(), files) as engines:
        engine = engines.for_pipeline(PairingRules(), lambda *_: None)
        remote = engine._large if isinstance(engine, SizedEngine) else engine
        assert isinstance(remote, ChangelogEngine)
        assert isinstance(remote._engine, SparkEngine)
        assert remote._engine._files is files


@pytest.mark.anyio
async def test_pyspark_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tailer.spark.engine.executors", None)
    with pytest.raises(ConfigError, match="PySpark cannot be loaded") as raised:
        async with open_engines(EngineKind.SPARK, SparkSettings(), LOCAL):
            pass
    assert "lake-tailer[spark]" in raised.value.hint
