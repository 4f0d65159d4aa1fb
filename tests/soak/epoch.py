"""An epoch of a soak: servers, a table, the daemon with all sinks, faults, and the judge of every destination.

An epoch has folders, servers and targets of its own, so that neither the judge's memory nor the disk fills up however
long a soak is. Columns are added to the table. The seed decides the history, the faults and the kind:

- `local`: one daemon, and a table in a folder.
- `s3`: the same with the table in S3, behind a link that fails at random.
- `standby`: two daemons with `--standby`, of which the active one is struck.
"""

import os
import random
import subprocess
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final
from unittest.mock import patch

from kafka.errors import KafkaError

from tailer.errors import TailerError
from tests.soak.faults import LONGEST_S, Faults
from tests.soak.memory import Memory
from tests.soak.report import Outcome
from tests.support.daemon.every_sink import DatabaseLog, DatabaseMirror, DeltaLog, DeltaMirror, FilesLog, Lane
from tests.support.daemon.pipelines import Pipelines
from tests.support.daemon.standbys import Standbys
from tests.support.daemon.tcp_link import TcpLink
from tests.support.histories.s3_history import StoredTable
from tests.support.kafka.cluster import KafkaCluster, KafkaDownError, Listener
from tests.support.kafka.history import History
from tests.support.kafka.lanes import Lane as KafkaLane
from tests.support.kafka.lanes import Lanes
from tests.support.kafka.proxy import Proxy
from tests.support.mirrors.databases import PostgresDatabase, SqliteDatabase
from tests.support.s3.faults import FaultKind, FaultyS3Link
from tests.support.s3.server import serving_versitygw
from tests.support.servers.postgres import Postgres
from tests.support.servers.server_process import ServerDownError

__all__ = ["KINDS", "Epoch", "Plan"]

KINDS: Final = ("local", "s3", "standby")
STRIKES: Final = ("kill", "freeze", "cut", "hold")
_WITHOUT: Final = frozenset({FaultKind.STALL, FaultKind.STALL_IN_BODY})  # they take as long as clients wait
_EVERY: Final = 50  # requests of the store one fails
_ADDED_EVERY: Final = 13  # commits


@dataclass(frozen=True)
class Plan:
    """An epoch. Each of `rounds` has about `commits` commits in about `round_s` seconds, and one fault at its end.

    A fault takes at most about `longest_s` seconds. `without`: the faults of one daemon that do not happen.
    """

    seed: int
    rounds: int = 17
    commits: int = 8
    round_s: float = 10.0
    longest_s: float = LONGEST_S
    without: frozenset[str] = frozenset()

    @property
    def kind(self) -> str:
        """Return the kind."""
        return KINDS[self.seed % len(KINDS)]


class Epoch:
    """An epoch in an empty folder. It ends before its time, but judges, when `stopping` is set.

    `before_judging`: called when everything was delivered, and the daemon has ended.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        stopping: Event,
        before_judging: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._stopping = stopping
        self._memory = Memory()
        self._before_judging = before_judging
        self._chance = random.Random(plan.seed)
        self._outcome = Outcome(plan.seed, plan.kind)
        self._stored: StoredTable | None = None
        self._history = History(
            folder / "table",
            plan.seed,
            length=(plan.rounds + 1) * plan.commits,
            large=300,
            large_every=10,
            added_every=_ADDED_EVERY,
        )

    def run(self) -> Outcome:
        """Run it; return what was found."""
        try:
            with self._memory, ExitStack() as stack:
                self._live(stack)
        except (AssertionError, KafkaError, KafkaDownError, OSError, ServerDownError, TailerError) as error:
            notes = "\n".join([repr(error), *getattr(error, "__notes__", ())])
            self._violate(f"{type(error).__name__}: {notes}", "".join(traceback.format_exception(error)))
        except subprocess.TimeoutExpired as error:
            self._violate(f"a process does not end: {error}")
        finally:
            self._outcome.peak_mb = self._memory.peak_mb
        return self._outcome

    def _violate(self, text: str, trace: str = "") -> None:
        """Note a violation: its beginning for the table, all of it in a file."""
        with (self._folder / "violations.txt").open("a") as file:
            file.write(f"{text}\n{trace}\n")
        self._outcome.violations.append(" ".join(text.replace("|", "/").split())[:300])

    def _live(self, stack: ExitStack) -> None:
        link = stack.enter_context(Proxy())
        kafka = stack.enter_context(
            KafkaCluster(self._folder / "kafka", listeners=[Listener("PROXIED", advertised_ports=[link.port])])
        )
        link.target = kafka.port("PROXIED")
        database = PostgresDatabase(stack.enter_context(Postgres()))
        # Where a killed daemon leaves its temporary files.
        stack.enter_context(patch.dict(os.environ, TMPDIR=str(self._folder)))
        port = database.options["url"].rpartition(":")[2].partition("/")[0]
        database_link = stack.enter_context(TcpLink(int(port)))
        linked = {kafka.bootstrap_servers: link.address, f":{port}/": f":{database_link.port}/"}
        store_link = self._put_into_s3(stack) if self._plan.kind == "s3" else None
        lanes = [KafkaLane("kafka-python"), KafkaLane("confluent-kafka"), KafkaLane("confluent-kafka", "flat")]
        topics = stack.enter_context(
            Lanes(
                self._folder,
                self._history,
                kafka.bootstrap_servers,
                lanes,
                table=None if store_link is None else self._location,
                transaction_timeout_s=5.0,
            )
        )
        pipelines = Pipelines(list(self._destinations(database)), topics)
        text = pipelines.config.read_text()
        if self._plan.kind == "standby":
            cuttable = frozenset(each.name for each in lanes) | {"postgresql-mirror"}
            pair = Standbys(
                self._folder, self._history, text, pipelines.destinations, linked, [link, database_link], cuttable
            )
            self._strike_pair(pair)
            for name, versions in pair.lost.items():
                pipelines.lost[name] += versions
        else:
            for address, through in linked.items():
                text = text.replace(address, through)
            if store_link is not None:
                text += f'[stores.lake]\nprefix = "{self._bucket}"\nendpoint = "{store_link.endpoint}"\n'
            pipelines.config.write_text(text)
            faults = Faults(
                pipelines, self._chance, self._publish, kafka, link, database_link, store_link, self._plan.longest_s
            )
            for name in self._plan.without:
                del faults.kinds[name]
            self._strike_one(pipelines, faults, store_link)
        self._before_judging()
        self._judge(pipelines)

    def _destinations(self, database: PostgresDatabase) -> Iterator[Lane]:
        yield DatabaseMirror(database, "postgresql-mirror")
        yield DatabaseMirror(SqliteDatabase(self._folder / "sqlite.mirror"), "sqlite-mirror")
        yield DatabaseLog(SqliteDatabase(self._folder / "sqlite.log"), "sqlite-log")
        yield DeltaLog(self._folder / "delta", "delta-log")
        yield DeltaMirror(self._folder / "delta-mirror", "delta-mirror")
        if self._plan.kind != "standby":  # which refuses files in folders
            yield FilesLog(self._folder / "files", "files")

    def _put_into_s3(self, stack: ExitStack) -> FaultyS3Link:
        """Put the table into a bucket, and return a link to it."""
        folder = self._folder / "s3"
        folder.mkdir()
        server = stack.enter_context(serving_versitygw(folder))
        stack.enter_context(patch.dict(os.environ, server.environment))
        bucket = server.new_bucket()
        self._bucket, self._location = f"s3://{bucket}", f"s3://{bucket}/lake/orders"

        def put(name: str, body: bytes) -> None:
            server.client.put_object(Bucket=bucket, Key=f"lake/orders/{name}", Body=body)

        self._stored = StoredTable(self._history.path, put)
        return stack.enter_context(FaultyS3Link(server, self._plan.seed, _EVERY, 0, _WITHOUT))

    def _publish(self) -> None:
        """Publish the next commit, if any is left."""
        before = self._history.published
        self._history.publish()
        if self._stored is not None and self._history.published > before:
            self._stored.put_version(before)

    def _load(self, number: int) -> None:
        """Publish commits, one or some at a time, until those of a round are there."""
        plan = self._plan
        while self._history.published < (number + 1) * plan.commits and not self._stopping.is_set():
            commits = self._chance.choice((1, 1, 1, 2, 3))
            for _ in range(commits):
                self._publish()
            self._stopping.wait(self._chance.uniform(0, 2 * commits * plan.round_s / plan.commits))

    def _strike_one(self, pipelines: Pipelines, faults: Faults, store_link: FaultyS3Link | None) -> None:
        """Let faults happen to one daemon and the servers around it."""
        self._memory.pids = lambda: [faults.daemon.process.pid]
        try:
            for number in range(self._plan.rounds):
                self._load(number)
                if self._stopping.is_set():
                    break
                faults.strike()
                pipelines.look()
                if store_link is not None:
                    store_link.requests.clear()
            self._load(self._plan.rounds)
            if store_link is not None:
                store_link.is_faulty = False
            self._publish()
            pipelines.await_delivered(faults.daemon)
            faults.terminate()
        finally:
            self._outcome.faults += faults.counted
            if store_link is not None:
                self._outcome.faults += Counter({f"store: {kind}": n for kind, n in store_link.injected.items()})
            faults.close()

    def _strike_pair(self, pair: Standbys) -> None:
        """Let faults happen to the active one of two daemons."""
        self._memory.pids = lambda: [each.process.pid for each in pair.daemons]
        deck: list[str] = []
        with pair:
            pair.start()
            for number in range(self._plan.rounds):
                self._load(number)
                if self._stopping.is_set():
                    break
                deck = deck or self._chance.sample(STRIKES, len(STRIKES))
                fault = deck.pop()
                pair.strike(fault)
                self._outcome.faults[f"active instance: {fault}"] += 1
            self._load(self._plan.rounds)
            pair.await_settled()
            self._outcome.takeovers = pair.takeovers

    def _judge(self, pipelines: Pipelines) -> None:
        """Count the five figures of every destination, and let `tailer verify` compare the mirrors."""
        outcome, history = self._outcome, self._history
        outcome.commits = history.published
        outcome.faults["source: column added"] = history.announcements().total()
        changes, net_changes = history.changes().total(), history.net_changes().total()
        for name, faults in pipelines.judge(ended=True).items():
            outcome.figures[name] = Counter(faults.figures)
            if any(faults.figures.values()):
                self._violate(f"{name}: {faults}")
            if pipelines.reached[name] != history.published - 1:
                self._violate(f"{name}: at version {pipelines.reached[name]}, not {history.published - 1}")
        for lane in pipelines.lanes:
            outcome.events[lane.name] = net_changes if lane.commands == "resnapshot" else changes
            if lane.is_verified:
                difference = pipelines.difference(lane)
                outcome.verified[lane.name] += not difference
                if difference:
                    self._violate(f"{lane.name} by `tailer verify`: {difference}")
        for name, found in pipelines.kafka.judge().items():
            outcome.events[name] = changes if "flat" in name else net_changes
            own = {"missing": found.missing, "doubled": found.doubled, "disordered": found.disordered}
            lost = len(pipelines.lost[name])
            outcome.figures[name] = Counter(own | {"changed": found.unfolded + found.miscounted, "lost": lost})
            if not found.all_zero or lost:
                self._violate(f"{name}: {found}; versions lost: {lost}")
