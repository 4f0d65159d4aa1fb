"""The pipelines of one daemon into Kafka and every other sink: their configuration, commands to them, and their judge.

Destinations are read without the sinks. The version that each has reached is compared with the one seen before.
"""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from tailer.daemon.client import DaemonClient
from tailer.errors import ConfigError
from tests.support.daemon.commands import tailer
from tests.support.daemon.every_sink import Backfills, Faults, Lane
from tests.support.kafka.history import History
from tests.support.kafka.lanes import Daemon, Lanes
from tests.support.kafka.lanes import Lane as KafkaLane

__all__ = ["Destination", "Pipelines", "Topic"]


class Destination(Protocol):
    """The destination of a pipeline: its name, and the last version that it has completely."""

    name: str

    def reached(self) -> int:
        """Return the last complete version; -1 for none."""
        ...


class Topic:
    """A pipeline into Kafka as a destination."""

    def __init__(self, lanes: Lanes, lane: KafkaLane) -> None:
        self._lanes, self._lane = lanes, lane
        self.name = lane.name

    def reached(self) -> int:
        """See `Destination.reached`."""
        return self._lanes.reached(self._lane)


class Pipelines:
    """The pipelines `lanes` and those of `kafka`, in the configuration of `kafka`.

    `lost`: the versions by which the progress of a pipeline was ever seen to go back. `backfills`: the versions that
    were asked for of each.
    """

    def __init__(self, lanes: Sequence[Lane], kafka: Lanes) -> None:
        self.lanes: Final = lanes
        self.kafka: Final = kafka
        self.history: Final[History] = kafka.history
        self.config: Final[Path] = kafka.config
        self.client: Final = DaemonClient(socket=kafka.config.with_suffix(".sock"))
        self.destinations: Final[list[Destination]] = [*(Topic(kafka, each) for each in kafka.lanes), *lanes]
        self.reached = {each.name: -1 for each in self.destinations}
        self.lost: dict[str, list[int]] = {each.name: [] for each in self.destinations}
        self.backfills: dict[str, list[int]] = {each.name: [] for each in lanes}
        self.commands: Counter[str] = Counter()
        texts = (
            f'[pipelines.{each.name}]\ntable = "{kafka.table}"\npoll_interval_s = 0.05\n'
            f"[pipelines.{each.name}.sink]\n{each.sink}"
            for each in lanes
        )
        self.config.write_text('state_table = "state"\n' + self.config.read_text() + "".join(texts))

    def give_commands(self, chance: random.Random, number: int) -> None:
        """Give commands for backfills and snapshots to so many of the pipelines, or fewer."""
        for lane in chance.sample(list(self.lanes), number):
            version = lane.reached()
            if not lane.commands or version < 1:
                continue
            asked = {"version": chance.randint(1, version)} if lane.commands == "backfill" else {}
            try:
                self.client.send(lane.name, lane.commands, **asked)
            except ConfigError:
                continue  # the one before has not ended
            self.commands[lane.name] += 1
            self.backfills[lane.name] += asked.values()

    def look(self) -> None:
        """Note the versions that the destinations have reached."""
        for each in self.destinations:
            version = each.reached()
            self.lost[each.name] += range(version, self.reached[each.name])
            self.reached[each.name] = version

    def await_delivered(self, daemon: Daemon) -> None:
        """Return when everything that is published and asked for was delivered."""
        last = self.history.published - 1
        daemon.wait_for(lambda: all(each.reached() == last for each in self.destinations))
        daemon.wait_for(lambda: not self._phases() & {"waiting", "running"})
        assert self._phases() <= {"done"}, daemon.said

    def _phases(self) -> set[str]:
        found = (each.backfill for each in self.client.status().pipelines)
        return {each.phase.value for each in found if each is not None}

    def judge(self, *, ended: bool) -> dict[str, Faults]:
        """Return the faults of each destination but Kafka's. `ended`: all that was asked for was delivered."""
        self.look()
        found = {}
        for lane in self.lanes:
            found[lane.name] = lane.faults(self.history, Backfills(self.backfills[lane.name], ended))
            found[lane.name].lost = self.lost[lane.name]
        return found

    def difference(self, lane: Lane) -> str:
        """Let `tailer verify` compare a mirror; return what it says if it finds a difference, or another version."""
        done = tailer("verify", lane.name, "--config", self.config)
        is_equal = done.returncode == 0 and f"at version {self.reached[lane.name]}:" in done.stdout
        return "" if is_equal else f"exit code {done.returncode}: {done.stdout}{done.stderr}"
