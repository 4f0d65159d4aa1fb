"""Two instances of one configuration with `--standby`, what happens to the active one, and how long the other takes.

Each pipeline has a destination that is read without the sinks. The first instance reaches servers through links that
can be cut. No instance is frozen inside a transaction of SQLite: it would keep the file locked until it is thawed.

Of each fault, `seconds` has the time from it to the first delivery of each pipeline that was active there. `lost` has
the versions by which the progress of a pipeline was ever seen to go back.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from tailer.daemon.client import DaemonClient
from tailer.errors import ConfigError
from tests.support.daemon.every_sink import DatabaseLog, DatabaseMirror
from tests.support.daemon.pipelines import Destination
from tests.support.kafka.history import History
from tests.support.kafka.lanes import TAILER, Daemon
from tests.support.mirrors.databases import SqliteDatabase
from tests.support.waiting import until

__all__ = ["Link", "Standbys"]

_MOMENT_S: Final = 0.01


class Link(Protocol):
    """The way of the first instance to a server."""

    def cut(self) -> None:
        """Cut it."""
        ...

    def hold(self) -> None:
        """Hold what passes it, until it is mended."""
        ...

    def mend(self) -> None:
        """Mend it."""
        ...


class Standbys:
    """Two instances that run `text`; in that of the first, `linked` replaces addresses of servers.

    `links`: those of the first instance, to the destinations of the pipelines `cuttable`.
    """

    def __init__(
        self,
        folder: Path,
        history: History,
        text: str,
        destinations: Sequence[Destination],
        linked: Mapping[str, str],
        links: Sequence[Link],
        cuttable: frozenset[str],
    ) -> None:
        self.history = history
        self.destinations = destinations
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.takeovers = 0
        self.lost: dict[str, list[int]] = {each.name: [] for each in destinations}
        self._seen = {each.name: -1 for each in destinations}
        lanes = [each for each in destinations if isinstance(each, DatabaseLog | DatabaseMirror)]
        self._files = [each.database for each in lanes if isinstance(each.database, SqliteDatabase)]
        self._links = links
        self._cuttable = cuttable
        self._configs = [folder / "first" / "tailer.toml", folder / "second" / "tailer.toml"]
        first = text
        for address, through in linked.items():
            first = first.replace(address, through)
        for config, content in zip(self._configs, (first, text), strict=True):
            config.parent.mkdir()
            config.write_text(content)
        self.daemons: list[Daemon] = []

    def __enter__(self) -> Self:
        return self

    def start(self) -> None:
        """Start the first instance, which becomes active, and then the second."""
        self.daemons.append(self._started(0))
        self.wait_for(lambda: len(self.active(0)) == len(self.destinations))
        self.daemons.append(self._started(1))
        self.await_settled()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each in self.daemons:
            each.kill()
        for link in self._links:
            link.mend()

    @property
    def said(self) -> str:
        """Return what both printed."""
        return "\n---\n".join(each.said for each in self.daemons)

    def wait_for(self, reached: Callable[[], bool]) -> None:
        """Return when a condition holds; both live until then, unless they are killed."""
        until(reached, lambda: len(self.said), lambda: self.said, look_s=0.05)

    def active(self, number: int) -> set[str]:
        """Return the pipelines that are active at an instance by its own status."""
        with suppress(ConfigError, OSError):
            report = DaemonClient(socket=self._configs[number].with_suffix(".sock")).status()
            return {each.name for each in report.pipelines if each.active is not None and each.active.here}
        return set()

    def await_settled(self) -> None:
        """Return when each pipeline is active at one instance, and delivered."""

        def is_settled() -> bool:
            first, second = self.active(0), self.active(1)
            return not first & second and len(first | second) == len(self.destinations) and self.is_level()

        self.wait_for(is_settled)

    def is_level(self) -> bool:
        """Return whether everything that is published was delivered."""
        return all(self._reached(each) == self.history.published - 1 for each in self.destinations)

    def _reached(self, destination: Destination) -> int:
        name, version = destination.name, destination.reached()
        self.lost[name] += range(version, self._seen[name])
        self._seen[name] = version
        return version

    def strike(self, fault: str) -> None:
        """Let a fault happen to the instance that is active, and measure when the other one has delivered."""
        by_link = fault in ("cut", "hold")
        if by_link:
            self._move_to_first()
        counts = [len(self.active(0)), len(self.active(1))]
        victim = 0 if by_link or counts[0] >= counts[1] else 1
        struck = self.active(victim) & (self._cuttable if by_link else self.active(victim))
        daemon = self.daemons[victim]
        began_s = time.monotonic()
        if fault == "kill":
            daemon.kill()
        elif fault == "freeze":
            self._freeze(daemon)
        else:
            for link in self._links:
                (link.cut if fault == "cut" else link.hold)()
        self.history.publish()
        self._measure(struck, began_s)
        self.takeovers += bool(struck)
        if fault == "kill":
            self.daemons[victim] = self._started(victim)
        elif fault == "freeze":
            self.history.publish()
            daemon.thaw()
        else:
            for link in self._links:
                link.mend()
        self.history.publish()
        self.await_settled()
        assert all(each.process.poll() is None for each in self.daemons), self.said

    def _freeze(self, daemon: Daemon) -> None:
        """Freeze an instance outside of transactions of SQLite, whose file would be locked as long as it is frozen."""
        daemon.freeze()
        while any(each.is_locked() for each in self._files):
            daemon.thaw()
            time.sleep(_MOMENT_S)
            daemon.freeze()

    def _move_to_first(self) -> None:
        """Let the first instance be the active one of the pipelines whose links can be cut, by a pause of the other."""
        client = DaemonClient(socket=self._configs[1].with_suffix(".sock"))
        moved = self.active(1) & self._cuttable
        for name in moved:
            client.send(name, "pause")
        self.wait_for(lambda: moved <= self.active(0))
        for name in moved:
            client.send(name, "resume")
        self.await_settled()

    def _measure(self, struck: set[str], began_s: float) -> None:
        before = self.history.published - 2
        waited = {each.name: each for each in self.destinations if each.name in struck}

        def deliver() -> bool:
            for name, each in list(waited.items()):
                if self._reached(each) > before:
                    self.seconds[name].append(time.monotonic() - began_s)
                    del waited[name]
            return not waited

        self.wait_for(deliver)

    def _started(self, number: int) -> Daemon:
        return Daemon(self._configs[number], TAILER, ("--standby",))
