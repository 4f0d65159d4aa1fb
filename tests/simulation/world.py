"""A run: a table that is written, processes that follow it, and a destination that is judged.

A process is what `tailer run` puts together, with one pipeline: the settings, the loop, the planner, the engines, the
sink and the lifecycle are the product's own. What is simulated is outside of it: the bucket, the broker, the clock, the
threads, and what an operator does.
"""

import json
import math
import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import anyio

import tailer.stores.stores
from tailer.changelog.rules import PairingRules
from tailer.config.pipelines import PipelineSettings
from tailer.config.tables import TableRef
from tailer.daemon import control
from tailer.pipeline.policy import Limits, OnDataLoss, Policy
from tailer.pipeline.status import PipelineState, PipelineStatus
from tailer.plan import Position
from tailer.sink import AtLeastOnceSink, Sink
from tailer.start import Start
from tailer.table_log import TableLog
from tailer_sinks.kafka import link
from tailer_sinks.kafka.clients.port import Connection, ProducerSettings
from tests.simulation.broker import Broker, SimulatedCluster, SimulatedProducer, read_transaction
from tests.simulation.bucket import Objects, SimulatedBucket
from tests.simulation.mirror import Mirror
from tests.simulation.network import Fault, Network, Trace
from tests.simulation.oracle import Judge, Transaction, Violation, Witness, check_error, read_file, read_progress
from tests.simulation.physics import PROCESS, Physics, Process, Stuck, settle
from tests.simulation.processes import LAKE, PIPELINE, Daemon, Endpoint, LinesSink, Status, WatchedSink
from tests.simulation.scenario import Element, Scenario
from tests.simulation.table import SimulatedTable

__all__ = ["Outcome", "World", "run"]

_TOPIC: Final = "rows"
_MOST_S: Final = 4 * 3600.0  # after faults have ended, until the newest version must be delivered
_LOOK_S: Final = 5.0
_PATIENCE_S: Final = 2400.0  # longer than a pipeline pauses before it begins again


class Outcome:
    """The end of a run. `violation`: None if every invariant held."""

    def __init__(self, world: "World", violation: Violation | None) -> None:
        self.scenario = world.scenario
        self.violation = violation
        self.trace = world.trace.lines
        self.seen = world.network.seen
        self.versions = world.judge.versions
        self.errors = world.errors
        self.virtual_s = world.physics.now_s


class Judged:
    """The table, the servers and the judge of one run, and the settings of its pipeline."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.physics = Physics(scenario.seed)
        self.trace = Trace(self.physics)
        chance = random.Random(f"network {scenario.seed}")
        self.network = Network(self.physics, self.trace, chance, scenario.rates, scenario.calm_s)
        self.objects = Objects(self.network, scenario.page)
        self.objects.on_put = self._put
        self.chance = random.Random(f"world {scenario.seed}")
        table = SimulatedTable(self.objects, "t", feed=scenario.feed)
        self.judge = Judge(Witness([table], scenario.start), scenario.sink == "lines", apart=scenario.sink == "files")
        self.endpoint = Endpoint(self.network, self.judge)
        self.broker = Broker(self.network, self._committed)
        self.mirror: Mirror | None = None
        self.kept_order: Any = None
        self.violation: Violation | None = None
        self.errors: list[str] = []
        self._failed = self.physics.loop.create_future()
        self._kinds: set[str] = {each.what for each in scenario.elements}

    @property
    def table(self) -> SimulatedTable:
        """The current table."""
        return self.judge.witness.table

    def make_producer(self, connection: Connection, settings: ProducerSettings, app_id: str) -> SimulatedProducer:
        """See `ProducerFactory`."""
        return SimulatedProducer(self.broker, connection.name, app_id, settings.transaction_timeout_ms / 1000)

    def judged(self, look: Callable[[], None]) -> None:
        """Let the judge look; a violation ends the run."""
        try:
            look()
        except Violation as violation:
            self._fail(violation)

    def keep_order(self, order: Any) -> None:
        """Keep an order to backfill, as a file would."""
        self.kept_order = order

    def pipeline(self) -> PipelineSettings:
        """Return the settings of the pipeline, as a process reads them."""
        given, world = self.scenario.settings, self
        limits = Limits(
            max_rows=given["max_rows"],
            max_versions=given["max_versions"],
            poll_interval_s=given["poll_interval_s"],
            idle_poll_interval_s=10 * given["poll_interval_s"],
            commit_deadline_s=given["commit_deadline_s"],
        )

        class Shaped(PipelineSettings):
            """Settings with small limits, whose table and sink are watched."""

            @property
            def limits(self) -> Limits:
                return limits

            def make_sink(self) -> Sink | AtLeastOnceSink:
                if world.scenario.sink == "lines":
                    return LinesSink(world.endpoint)
                made = super().make_sink()
                assert isinstance(made, Sink)
                return WatchedSink(made, world, limits)

            def open_table(self) -> TableLog:
                table = super().open_table()
                next_plans = table.next_plans

                async def watched(most: int) -> Any:
                    plans = await next_plans(most)
                    for plan in plans:
                        tasks = [(each.index, each.kind, each.uri, each.include, each.exclude) for each in plan.tasks]
                        text, at_ms = str((plan.regime, plan.schema, tasks)), plan.timestamp_ms
                        world.judged(partial(world.judge.check_plan, plan.table_id, plan.version, at_ms, text))
                    return plans

                table.next_plans = watched  # type: ignore[method-assign]
                return table

        policy = Policy(on_data_loss=OnDataLoss(given["on_data_loss"]))
        kind, options = self._sink_options()
        return Shaped(
            name=PIPELINE,
            source=TableRef(f"{LAKE}/t"),
            start=Start.parse(self.scenario.start),
            policy=policy,
            pairing=PairingRules(),
            poll_interval_s=given["poll_interval_s"],
            sink_kind=kind,
            sink_options=options,
        )

    def _sink_options(self) -> tuple[str, dict[str, Any]]:
        if self.scenario.sink == "kafka":
            options = {"bootstrap_servers": "broker:9092", "topic": _TOPIC, "create_topics": True}
            return "kafka", {**options, "boundary": self.scenario.settings["boundary"]}
        if self.mirror is not None:
            return "sql", self.mirror.options
        return "files", {"path": f"{LAKE}/out"}

    def look(self) -> None:
        """Let the judge look at a mirror."""
        if self.mirror is not None:
            self.judged(partial(self._look_at, self.mirror))

    def _look_at(self, mirror: Mirror) -> None:
        if moved := mirror.look(self.physics.now_s):
            self.trace.add(f"VISIBLE {moved}")

    def _put(self, key: str, data: bytes, attributes: Mapping[str, str]) -> None:
        """Judge what an object makes visible."""
        if key.startswith("out/") and (found := read_file(key.removeprefix("out/"), data, attributes)) is not None:
            self.see(found)
        if key.startswith("state/_delta_log/0") and key.endswith(".json"):
            with suppress(json.JSONDecodeError, UnicodeDecodeError):
                for app_id, position in read_progress(data).items():
                    self.judged(partial(self.endpoint.recorded, app_id, position))

    def _committed(self, topics: Mapping[str, Any]) -> None:
        """Judge a transaction of the broker: rows without progress are half of one."""
        for transaction in read_transaction(topics, _TOPIC):
            if transaction.app_id:
                self.see(transaction)
            elif transaction.items:
                self._fail(Violation(1, "a transaction has rows and no progress"))

    def see(self, transaction: Transaction) -> None:
        """Show the judge a transaction that has become visible."""
        self.trace.add(f"VISIBLE {transaction.app_id}: {len(transaction.items)} items up to {transaction.after}")
        self.judged(lambda: self.judge.see(transaction, self.physics.now_s))

    def _fail(self, violation: Violation) -> None:
        if self.violation is None:
            self.violation = violation
            self.trace.add(f"VIOLATION {violation}")
            if not self._failed.done():
                self._failed.set_result(None)


class World(Judged):
    """Everything of one run: processes begin and die, the table is written, an operator acts."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.network.on_send = self._sent
        self.daemons: list[Daemon] = []
        self._tasks: dict[Process, Any] = {}
        self._orders: list[Any] = []  # tasks that obey them
        self._doomed: dict[Process, int] = {}
        self._drowsy: dict[Process, int] = {}
        self._stalls: list[float] = []
        self._settled: list[Exception] = []
        self._is_mended = False
        self._helped_s = scenario.calm_s

    async def run(self) -> Outcome:
        """Run until everything is delivered, or an invariant does not hold."""
        for element in self.scenario.elements:
            self.physics.loop.call_at(element.at_s, self._happen, element)
        self._start("main")
        if self.scenario.standby:
            self._start("second")
        ending = self.physics.loop.create_task(self._to_the_end())
        over = anyio.Event()
        for each in (ending, self._failed):
            each.add_done_callback(lambda _: over.set())
        await over.wait()
        if ending.done() and not ending.cancelled() and ending.exception() is not None:
            error = ending.exception()
            if not isinstance(error, Violation):
                assert error is not None
                raise error
            self._fail(error)
        ending.cancel()
        for daemon in self.daemons:
            self._kill(daemon)
        for order in self._orders:  # it may wait for a server, which a dead process does not
            order.cancel()
        await settle([*self._tasks.values(), *self._orders])
        return Outcome(self, self.violation)

    async def _to_the_end(self) -> None:
        """Tend the processes, until the newest version is delivered once faults have ended."""
        calm_s = max([self.scenario.calm_s, *(each.at_s for each in self.scenario.elements)]) + 1
        while self.physics.now_s < calm_s + _MOST_S:
            await anyio.sleep(_LOOK_S)
            self._tend(calm=self.physics.now_s > calm_s)
            if self.physics.now_s > calm_s and not self._is_mended:
                self._is_mended = True
                self.table.clean_up(1000)  # a checkpoint: behind a damaged commit, nothing else says what the table has
            if self.physics.now_s > calm_s and self._is_done():
                break
            if self._is_mended:
                self._help()
        else:
            states = [(each.process.name, str(each.pipeline and each.pipeline.error)) for each in self.daemons]
            at, newest = self.judge.position, self.table.latest
            raise Violation(0, f"the destination is at {at}, and the table at {newest}; stopped: {states}")
        await anyio.sleep(max(self.network.late_s - self.physics.now_s, 0.0))
        self._tend(calm=True)

    def _help(self) -> None:
        """Order a snapshot where nothing was delivered for long: a pipeline may wait for a log that nobody restores."""
        now_s = self.physics.now_s
        last_s = max([self._helped_s, *(when for when, _ in self.judge.history[-1:])])
        if now_s - last_s > _PATIENCE_S:
            self._helped_s = now_s
            for daemon in self.daemons:
                if not daemon.process.dead and not daemon.ended:
                    self._order(daemon, "resnapshot")

    def _is_done(self) -> bool:
        table, at = self.table, self.judge.position
        if table.broken and any("UnsupportedFeature" in each for each in self.errors):
            return True
        if (
            self.mirror is not None
            and table.has_key_twice(table.latest)
            and any("SinkRejected" in each for each in self.errors)
        ):
            return True
        if self.kept_order is not None and not table.broken:
            return False
        if at is None and table.cleaned and self.scenario.start == "earliest":  # there may be no version to begin with
            return table.latest in table.checkpoints and self.physics.now_s > self.scenario.calm_s + _PATIENCE_S
        return at == Position.end(table.latest) and self.judge.app_id.rpartition("/")[2] == table.table_id

    def _tend(self, *, calm: bool) -> None:
        """Do what an operator does: start processes that are gone, resume pipelines that have stopped."""
        self.look()
        alive = [each for each in self.daemons if not each.process.dead and not each.ended]
        for number in range(len(alive), 2 if self.scenario.standby else 1):
            self._start(f"p{len(self.daemons) + number}")
        for daemon in alive:
            pipeline = daemon.pipeline
            if pipeline is None or pipeline.status.state is not PipelineState.STOPPED or pipeline.error is None:
                continue
            if pipeline.error not in self._settled:
                self._settled.append(pipeline.error)
                self._excuse(pipeline.error, pipeline.status)
            if pipeline.status.retry_at_s is None and not self.table.broken and (calm or self.chance.random() < 0.2):
                self._order(daemon, self.chance.choice(("skip", "resnapshot", "resume")))

    def _excuse(self, error: Exception, status: PipelineStatus) -> None:
        """Fail unless what happened in the run is a reason for the error that has stopped a pipeline."""
        self.errors.append(f"{type(error).__name__}: {error}")
        self.trace.add(f"STOPPED {self.errors[-1]}")
        assert isinstance(status, Status)
        tried_s = math.inf if status.is_draining else self.physics.now_s - status.run_s
        happened = {*map(str, self.network.seen), *self._kinds, *(["unnamed"] if self.judge.is_unnamed else [])}
        happened |= {"key twice"} if self.judge.witness.contradicts(error) else set()
        self.judged(lambda: check_error(error, happened, tried_s))

    def _happen(self, element: Element) -> None:
        """Let an element of the scenario happen."""
        chance = random.Random(f"{self.scenario.seed} {element.name}")
        alive = [each for each in self.daemons if not each.process.dead and not each.ended]
        match element.what:
            case "rival":
                self._start(f"r{len(self.daemons)}")
            case "crash" | "skew" | "freeze" | "swap":
                active = [each for each in alive if each.delivers]
                for daemon in (active or alive)[:1]:
                    self._strike(daemon.process, element.what, chance)
            case "pause" | "reload" | "stop" | "resnapshot" | "backfill" | "skip":
                if alive:
                    self._order(chance.choice(alive), element.what)
            case "stall":
                self._stalls.append(chance.uniform(10, 120))
            case _:
                self._change_table(element.what, chance)

    def _strike(self, process: Process, what: str, chance: random.Random) -> None:
        if what == "crash":
            self._doomed[process] = chance.randrange(40)
        elif what == "swap":
            self._drowsy[process] = chance.randrange(6)
        elif what == "freeze":
            self._freeze(process, chance.choice((1.0, 5.0, 7.0, 30.0, 300.0)))
        else:
            process.skew_s += chance.choice((-3600.0, -5.0, 5.0, 3600.0))

    def _swap(self, process: Process) -> None:
        """Freeze a process for longer than a standby waits, and make another table in place of the one it reads.

        It is not for longer than brokers keep a transaction open: what it goes on with then is a late commit.
        """
        self._freeze(process, random.Random(f"swap {self.scenario.seed}").uniform(15, 50))
        self._change_table("recreate", self.chance)

    def _freeze(self, process: Process, seconds: float) -> None:
        self.trace.add(f"FREEZE of {process.name} for {seconds:g} s")
        self.physics.loop.freeze(process, seconds)

    def _change_table(self, what: str, chance: random.Random) -> None:
        match what:
            case "clean":
                self.table.clean_up(chance.randrange(3))
            case "vacuum":
                self.table.vacuum(chance)
            case "recreate":
                self.table.drop()
                number = len(self.judge.witness.tables)
                made = SimulatedTable(self.objects, "t", feed=self.scenario.feed, number=number)
                self.judge.witness.tables.append(made)
            case kind:
                self.table.commit(kind, chance)

    def _order(self, daemon: Daemon, verb: str) -> None:
        """Give a process an order, as an operator."""
        pipeline = daemon.pipeline
        if pipeline is None:
            return
        self.trace.add(f"ORDER {verb} for {daemon.process.name}")
        later = self.physics.loop.call_later

        async def obey() -> None:
            if verb == "reload":
                await daemon.reload()
                return
            if verb == "stop":
                daemon.ended = True
                pipeline.end("SIGTERM")
                return
            asked: Any = SimpleNamespace(version=None, where=None)
            try:
                await control.VERBS[verb](pipeline, asked)
            except control._RefusedError:
                return
            self.judge.witness.ordered_snapshots += verb == "resnapshot"
            self.judge.witness.ordered_skips += verb == "skip"
            if verb == "pause":
                later(self.chance.uniform(1, 60), pipeline.resume)

        self._orders.append(self._spawn(daemon.process, obey()))

    def _start(self, name: str) -> None:
        daemon = Daemon(self, Process(name))
        self.judge.witness.instances += 1
        self.daemons.append(daemon)
        task = self._tasks[daemon.process] = self._spawn(daemon.process, daemon.run())
        task.add_done_callback(lambda _: self.network.kill(daemon.process))

    def _spawn(self, process: Process, work: Any) -> Any:
        context = copy_context()
        context.run(PROCESS.set, process)
        task = self.physics.loop.create_task(work, context=context)
        task.add_done_callback(partial(self._ended, process))
        return task

    def _ended(self, process: Process, task: Any) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not process.dead:
            self._fail(Violation(5, f"a process ended with {error!r}"))

    def _sent(self, process: Process, what: str) -> None:
        """Count the steps of a process that is about to die, or to be frozen in a transaction on a replaced table.

        A stall of the network begins with rows, so that a transaction is open meanwhile.
        """
        if self._stalls and f" to {_TOPIC} as " in what and not self.network.is_stalled:
            self.network.stall(self._stalls.pop(0))
        if process in self._drowsy and (self.scenario.sink != "kafka" or what.startswith("KAFKA PRODUCE")):
            self._drowsy[process] -= 1
            if self._drowsy[process] < 0:
                del self._drowsy[process]
                self._kinds.add("recreate")
                self.physics.loop.call_soon(self._swap, process)
        if process in self._doomed:
            self._doomed[process] -= 1
            if self._doomed[process] < 0:
                del self._doomed[process]
                daemon = next(each for each in self.daemons if each.process is process)
                self.network.note(Fault.CRASH)
                self.physics.loop.call_soon(self._kill, daemon)

    def _kill(self, daemon: Daemon) -> None:
        if not daemon.process.dead:
            self.trace.add(f"DEATH of {daemon.process.name}")
            self.network.kill(daemon.process)
            self.physics.loop.thaw(daemon.process)
            self._tasks[daemon.process].cancel()


def run(scenario: Scenario) -> Outcome:
    """Run a scenario."""
    world = World(scenario)
    kinds = tailer.stores.stores.KINDS
    bucket = SimulatedBucket(world.objects)
    kind = kinds["s3"]._replace(open_bucket=lambda *_: bucket)
    with ExitStack() as stack:
        if scenario.sink == "mirror":
            world.mirror = Mirror(Path(stack.enter_context(TemporaryDirectory())) / "mirror.db", world.judge)
        stack.enter_context(patch.dict(kinds, {"s3": kind}))
        stack.enter_context(patch.object(link, "Cluster", lambda given: SimulatedCluster(world.broker, given.name)))
        stack.enter_context(patch.object(link, "producer_factory", lambda *_: world.make_producer))
        try:
            return world.physics.run(world.run())
        except Stuck:
            return Outcome(world, Violation(0, "the run does not end"))
