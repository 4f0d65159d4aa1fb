"""The real daemon with a table that grows meanwhile, and concurrent readers of its topics.

A lane is one pipeline: its client, the form of its messages, and their topics. All lanes of a test follow one table in
one process, so that each fault of the process or the brokers happens to both clients.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError
from kafka.protocol.consumer import IsolationLevel, OffsetSpec

from tests.support.kafka.figures import Figures, Part, Read, ends_of, keyed_figures, total, unkeyed_figures
from tests.support.kafka.history import TABLE_ID, History, Row
from tests.support.kafka.topics import Follower, Record, admin, create_topic, read_topic, unique_name
from tests.support.variant.avro_records import AvroReader
from tests.support.waiting import until

__all__ = ["CLIENTS", "FORMS", "TAILER", "Daemon", "Form", "Lane", "Lanes"]

CLIENTS: Final = ("kafka-python", "confluent-kafka")
Form = Literal["keyed", "flat"]
FORMS: Final[tuple[Form, ...]] = ("keyed", "flat")

TAILER: Final = (str(Path(sys.executable).with_name("tailer")),)
_PATIENCE_S: Final = 300.0
_COMMITTED: Final = IsolationLevel.READ_COMMITTED
_EVERYTHING: Final = IsolationLevel.READ_UNCOMMITTED


class Daemon:
    """A process of `tailer run`, started as by a user; killed when left, if it still runs.

    `program`: the command in place of `tailer`. `options`: of `run`.
    """

    def __init__(self, config: Path, program: Sequence[str] = TAILER, options: Sequence[str] = ()) -> None:
        self._log = config.with_name(f"daemon-{unique_name('x')}.log")
        with self._log.open("wb") as said:
            # A session of its own: an interrupt from the keyboard goes to the tests only, which then end it.
            self.process = subprocess.Popen(
                [*program, "run", *options, "--config", config], stdout=said, stderr=said, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.kill()

    @property
    def said(self) -> str:
        """Return everything it printed."""
        return self._log.read_text()

    def await_running(self) -> None:
        """Return when the pipelines have been started."""
        self.wait_for(lambda: "running" in self.said)

    def wait_for(self, reached: Callable[[], bool]) -> None:
        """Return when a condition holds; the daemon must live until then."""

        def living() -> bool:
            assert self.process.poll() is None, self.said
            return reached()

        # Often, because a condition may hold for a moment only, as long as a transaction is open.
        until(living, lambda: len(self.said), lambda: self.said, look_s=0.02)

    def freeze(self) -> None:
        """Freeze it with all its connections open (SIGSTOP)."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Resume it."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Send SIGTERM; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_PATIENCE_S)

    @property
    def has_stopped(self) -> bool:
        """Return whether no pipeline runs any more: it has ended, or waits for commands."""
        return self.process.poll() is not None or "it waits for a command" in self.said

    def await_stop(self) -> int:
        """Return its exit code, with a SIGTERM once no pipeline runs any more."""
        until(lambda: self.has_stopped, lambda: len(self.said), lambda: self.said)
        return self.terminate()


@dataclass
class Lane:
    """A pipeline with topics of its own. `options`: of its sink, over those of all lanes.

    `routed`: rows whose note is `plain` have a topic of their own. `chosen`: of a routed lane, only some rows are
    delivered, with other values of `n`.
    """

    client: str
    form: Form = "keyed"
    options: dict[str, Any] = field(default_factory=dict)
    partitions: int = 3
    routed: bool = False
    chosen: bool = False

    def __post_init__(self) -> None:
        self.name = "-".join(
            [self.client, self.form, *(["avro"] if "registry_url" in self.options else []), *["routed"] * self.routed]
        )
        self.topic = unique_name(self.name)

    @property
    def app_id(self) -> str:
        """The app id of the stream."""
        return f"{self.name}/{TABLE_ID}"

    @property
    def topics(self) -> list[str]:
        """The topics for rows, END records and dead letters, without the progress topic."""
        letters = [f"{self.topic}-letters"] if "large_records" in self.options else []
        return [self.topic, f"{self.topic}-ends", *letters, *self.row_topics[1:]]

    @property
    def row_topics(self) -> list[str]:
        """The topics for rows."""
        return [self.topic, f"{self.topic}-plain"] if self.routed else [self.topic]

    def _own(self, topic: str, row: Row) -> Row | None:
        """Return the row as it is delivered to the topic; None if it is not."""
        key, n, note, *added = row
        if topic != (f"{self.topic}-plain" if note == "plain" else self.topic) or (self.chosen and n % 5 == 0):
            return None
        return (key, 10 * n, note, *added) if self.chosen else row

    @property
    def shape(self) -> dict[str, str]:
        """The options of the pipeline that choose rows and columns."""
        return {"where": "n % 5 <> 0", "select": "note, 10 * n AS n, id"} if self.chosen else {}

    def sink_options(self, bootstrap_servers: str, progress_topic: str) -> dict[str, Any]:
        """The sink's options."""
        options: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "library": self.client,
            "topic": self.topic,
            "end_topic": f"{self.topic}-ends",
            "progress_topic": progress_topic,
            "transaction_rows": 400,
        }
        if self.routed:
            plain = {"topic": f"{self.topic}-{{note}}", "topics": [f"{self.topic}-plain"], "other_topic": self.topic}
            options |= plain
        if self.form == "keyed":
            options |= {"envelope": "debezium", "key": ["id"]}
        if "large_records" in self.options:
            options["dead_letter_topic"] = f"{self.topic}-letters"
        return options | self.options

    def create(self, bootstrap_servers: str) -> None:
        """Create its topics."""
        for topic in self.topics:
            create_topic(bootstrap_servers, topic, self.partitions if topic in self.row_topics else 1)

    def figures(self, history: History, records: Sequence[Record]) -> Figures:
        """Return the five figures from the records of a reader of all its topics."""
        if self.routed:
            return self._routed_figures(history, records)
        events, ends, letters = ([r for r in records if r.topic == topic] for topic in [*self.topics, ""][:3])
        if "registry_url" in self.options:
            events = AvroReader(self.options["registry_url"]).as_json(events)
        judge = keyed_figures if self.form == "keyed" else unkeyed_figures
        return judge(history, Read(events, ends, letters))

    def _routed_figures(self, history: History, records: Sequence[Record]) -> Figures:
        """Return the sums of the figures of each topic for rows, over its part of the table."""
        ends = [record for record in records if record.topic == f"{self.topic}-ends"]
        found = []
        for topic in self.row_topics:
            part = Part(history, partial(self._own, topic))
            events = [record for record in records if record.topic == topic]
            found.append(keyed_figures(part, Read(events, ends_of(topic, ends))))
        return total(found)


class Lanes:
    """Pipelines over `history` in one configuration at `config`, with a concurrent `read_committed` reader for each.

    `bootstrap_servers`: of the cluster, for the tests. `address`: for the daemon, by default the same.
    `progress_topic`: that of other lanes, to be shared; by default a new one. `table`: where the daemon finds the
    table, by default where the history is.
    """

    def __init__(
        self,
        folder: Path,
        history: History,
        bootstrap_servers: str,
        lanes: Sequence[Lane],
        address: str | None = None,
        progress_topic: str | None = None,
        table: str | None = None,
        **options: Any,
    ) -> None:
        self.history: Final = history
        self.table: Final = table or str(history.path)
        self.lanes: Final = lanes
        self.config: Final = folder / "tailer.toml"
        self.progress_topic: Final = progress_topic or unique_name("progress")
        self._shares_progress = progress_topic is not None
        self._bootstrap_servers = bootstrap_servers
        self._stack = ExitStack()
        self._asking = ExitStack()
        self._followers: dict[str, Follower] = {}
        text = ""
        for lane in lanes:
            given = lane.sink_options(address or bootstrap_servers, self.progress_topic) | options
            text += f'[pipelines.{lane.name}]\ntable = "{self.table}"\npoll_interval_s = 0.05\n'
            text += "".join(f"{name} = {_toml(value)}\n" for name, value in lane.shape.items())
            text += f'[pipelines.{lane.name}.sink]\nkind = "kafka"\n'
            text += "".join(f"{name} = {_toml(value)}\n" for name, value in given.items())
        self.config.write_text(text)

    def __enter__(self) -> Self:
        if not self._shares_progress:
            create_topic(self._bootstrap_servers, self.progress_topic, configs={"cleanup.policy": "compact"})
        for lane in self.lanes:
            lane.create(self._bootstrap_servers)
            follower = Follower(self._bootstrap_servers, lane.topics)
            self._followers[lane.name] = self._stack.enter_context(follower)
        self._stack.push(self._asking)
        self._ask()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def seen(self) -> dict[str, int]:
        """Return the number of records that the concurrent readers have seen of each lane."""
        return {name: len(follower.records()) for name, follower in self._followers.items()}

    def reached(self, lane: Lane) -> int:
        """Return the last version with an END record for those readers; -1 for none."""
        ends = [r for r in self._followers[lane.name].records() if r.topic == lane.topics[1]]
        return int((ends[-1].value or b"").split(b'"commit_version":')[1].split(b",")[0]) if ends else -1

    def publish_until(self, daemon: Daemon, reached: Callable[[], bool]) -> None:
        """Publish versions one by one, as fast as they are delivered, until a condition holds."""

        def step() -> bool:
            if reached():
                return True
            if all(self.reached(lane) == self.history.published - 1 for lane in self.lanes):
                assert self.history.published < self.history.length, "no version is left"
                self.history.publish()
            return False

        try:
            daemon.wait_for(step)
        except AssertionError as error:
            error.add_note(f"readers: {self.seen()}; version ends: {[self.reached(lane) for lane in self.lanes]}")
            error.add_note(f"published: {self.history.published}; open transactions: {self.open()}")
            raise

    def freeze_in_transaction(self, daemon: Daemon) -> None:
        """Freeze the daemon while a transaction is open; publish versions until one is met."""

        def is_in_transaction() -> bool:
            if not self.open():
                return False
            daemon.freeze()
            # It may have ended between the look and the freezing.
            if self.open():
                return True
            daemon.thaw()
            return False

        self.publish_until(daemon, is_in_transaction)

    def await_more(self, daemon: Daemon, records: int = 1) -> None:
        """Return when the readers have seen so many more records of every lane; publish versions if none is left."""
        wanted = {name: count + records for name, count in self.seen().items()}
        self.publish_until(daemon, lambda: all(count >= wanted[name] for name, count in self.seen().items()))

    def await_caught_up(self, daemon: Daemon) -> None:
        """Return when the readers have seen the end of the last published version of every lane."""
        daemon.wait_for(lambda: all(self.reached(lane) == self.history.published - 1 for lane in self.lanes))

    def open(self) -> list[Lane]:
        """Return the lanes with an open transaction."""
        try:
            return self._open()
        except KafkaError:
            # The broker was down: a new client waits for it, an older one does not.
            self._ask()
            return self._open()

    def _open(self) -> list[Lane]:
        ask = partial(_ends, self._admin)
        return [lane for lane in self.lanes if ask(lane, _COMMITTED) != ask(lane, _EVERYTHING)]

    def _ask(self) -> None:
        """Make a new client for requests."""
        self._asking.close()
        self._admin = self._asking.enter_context(admin(self._bootstrap_servers))

    def figures(self) -> list[Figures]:
        """Return the figures of each lane, from a new read."""
        return [lane.figures(self.history, self._read(lane)) for lane in self.lanes]

    def judge(self) -> dict[str, Figures]:
        """Return the figures of each lane, from a new read. Assert that concurrent readers saw the same records."""
        found = {}
        for lane in self.lanes:
            met, there = self._followers[lane.name].read_to_end(), self._read(lane)
            found[lane.name] = lane.figures(self.history, there)
            assert sorted(met, key=_place) == sorted(there, key=_place), (
                f"{lane.name}: a reader saw something else; {found[lane.name]}"
            )
        return found

    def check(self) -> None:
        """Assert the figures of a new read."""
        for name, figures in self.judge().items():
            assert figures.all_zero, f"{name}: {figures}"

    def _read(self, lane: Lane) -> list[Record]:
        return [record for topic in lane.topics for record in read_topic(self._bootstrap_servers, topic)]

    def torn(self) -> int:
        """Return the number of records in the topics that `read_committed` readers do not see."""
        found = 0
        for lane in self.lanes:
            everything = read_topic(self._bootstrap_servers, lane.topic, "read_uncommitted")
            found += len(everything) - len(read_topic(self._bootstrap_servers, lane.topic))
        return found


def _ends(client: KafkaAdminClient, lane: Lane, isolation: IsolationLevel) -> list[int]:
    """Return the end of each partition of a lane's rows; for `read_committed`, before open transactions."""
    asked = {TopicPartition(lane.topic, partition): OffsetSpec.LATEST for partition in range(lane.partitions)}
    return [found.offset for _, found in sorted(client.list_partition_offsets(asked, isolation).items())]


def _place(record: Record) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
