"""The engines of a process, as configured.

With `engine = "auto"` only large versions go to executors, and Spark starts with the first one. The threshold was
measured on a busy machine (`tests/bench/test_spark.py`): a job takes 0.4 s before its first row, and the driver spends
3.8 ms of processor time on each MB from executors, while one thread reads a MB of local files in 5.5 ms. Below 256 MB
threads were always faster. Above it executors should be faster if the daemon has one core, or if reading is slower than
from a local disk. With `write = "executors"` no rows come to the driver.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final

from anyio import CancelScope, to_thread
from typing_extensions import override

from tailer.changelog.rules import PairingRules
from tailer.config.shapes import AHEAD_BYTES, EngineKind, SparkSettings
from tailer.engine import Engine
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError, how_to_install
from tailer.events import ChangeBatch
from tailer.plan import ChangePlan, Position
from tailer.read.data_files import DataFiles

if TYPE_CHECKING:
    from tailer.changelog.carryovers import ChangelogCounts
    from tailer.spark.engine.executors import SharedSpark

__all__ = ["Engines", "SizedEngine", "open_engines"]

SPARK_BYTES: Final = 256 * 2**20  # of files: a version from which on executors are worth their while

Report = Callable[[ChangePlan, "ChangelogCounts"], None]


class SizedEngine(Engine):
    """An engine that runs plans of fewer than `from_bytes` bytes on `small`, and all others on `large`."""

    def __init__(self, small: Engine, large: Engine, from_bytes: int = SPARK_BYTES) -> None:
        self._small = small
        self._large = large
        self._from_bytes = from_bytes

    @property
    def key(self) -> tuple[str, ...]:
        """See `Engine.key`; both have one."""
        return self._small.key

    @override
    def run(
        self, plans: Sequence[ChangePlan], after: Position | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[ChangeBatch]]:
        return self._for(plans).run(plans, after)

    @override
    def expect(self, plan: ChangePlan) -> bool:
        return self._for([plan]).expect(plan)

    @override
    def forget(self) -> None:
        self._small.forget()
        self._large.forget()

    def _for(self, plans: Sequence[ChangePlan]) -> Engine:
        return self._small if sum(plan.size_bytes for plan in plans) < self._from_bytes else self._large


class Engines:
    """The engines that the pipelines of a process share.

    `local`: reads in this process. `files`: opens tables' files. `spark`: None if not needed.
    """

    def __init__(self, kind: EngineKind, local: LocalEngine, files: DataFiles, spark: "SharedSpark | None") -> None:
        self._kind = kind
        self._files = files
        self._local = local
        self.spark: Final = spark

    def for_pipeline(self, rules: PairingRules, report: Report) -> Engine:
        """Return the engine of one pipeline."""
        from tailer.changelog.engine import ChangelogEngine  # noqa: PLC0415 - a verb that compares tables needs none

        local = ChangelogEngine(self._local, rules, report, self._files)
        if self.spark is None:
            return local
        from tailer.spark.engine.engine import SparkEngine  # noqa: PLC0415
        from tailer.spark.native.comparing import SparkComparisons  # noqa: PLC0415 - PySpark is an extra

        spark = SparkEngine(self.spark.executors, self._files)
        shared = SparkComparisons(self.spark.session, self._files)
        remote = ChangelogEngine(spark, rules, report, self._files, shared)
        return remote if self._kind is EngineKind.SPARK else SizedEngine(local, remote)


@asynccontextmanager
async def open_engines(
    kind: EngineKind, settings: SparkSettings, files: DataFiles, *, ahead_bytes: int = AHEAD_BYTES
) -> AsyncIterator[Engines]:
    """Open the engines, and close them when the block is left.

    `files`: opens the files of tables. `ahead_bytes`: see `LocalEngine`.

    Raises `ConfigError` where PySpark is needed and not installed.
    """
    spark = None
    if kind is not EngineKind.LOCAL:
        try:
            from tailer.spark.engine.executors import SharedSpark  # noqa: PLC0415 - PySpark is an extra
        except ImportError as error:
            raise ConfigError("engine", f"PySpark cannot be loaded: {error}", how_to_install("spark")) from error
        spark = SharedSpark(settings)
    try:
        yield Engines(kind, LocalEngine(files=files, ahead_bytes=ahead_bytes), files, spark)
    finally:
        if spark is not None:
            with CancelScope(shield=True):
                await to_thread.run_sync(spark.close)
