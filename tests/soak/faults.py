"""Faults of one daemon and of the servers around it, each of which is over when its method returns."""

import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from tailer.pipeline.states import PipelineState
from tests.support.daemon.pipelines import Pipelines
from tests.support.daemon.process import small_transactions
from tests.support.daemon.tcp_link import TcpLink
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.lanes import TAILER, Daemon
from tests.support.kafka.proxy import END_TXN, PRODUCE, Proxy
from tests.support.s3.faults import FaultyS3Link
from tests.support.s3.link import Fault

__all__ = ["Faults"]

LONGEST_S: Final = 8.0  # longer than the time-out of a transaction
COMMANDS: Final = 3
SMALL_ROWS: Final = 40
FILE_BYTES: Final = (0, 4_096, 20_480)  # how large files can be on a full disk, in whole blocks
FULL: Final = ("File too large", "disk I/O error")  # the latter by SQLite
_INTERVALS: Final = ("poll_interval_s = 0.05\n", "poll_interval_s = 0.06\n")


class Faults:
    """Faults of the daemon over `pipelines`, which is started when this is made; `close` kills it.

    They are dealt like cards: each kind once, in an order by chance, before any comes again. `counted`: how often each
    happened. `publish`: publishes the next commit.
    """

    def __init__(
        self,
        pipelines: Pipelines,
        chance: random.Random,
        publish: Callable[[], None],
        kafka: KafkaCluster,
        link: Proxy,
        database_link: TcpLink,
        store_link: FaultyS3Link | None,
        longest_s: float = LONGEST_S,
    ) -> None:
        self.counted: Counter[str] = Counter()
        self._pipelines = pipelines
        self._chance = chance
        self._publish = publish
        self._kafka = kafka
        self._link = link
        self._database_link = database_link
        self._longest_s = longest_s
        self._deck: list[str] = []
        self.kinds: Final[dict[str, Callable[[], None]]] = {
            "daemon killed": self.kill,
            "daemon killed while it starts": self.kill_at_the_start,
            "daemon frozen": self.freeze,
            "daemon terminated": self.terminate,
            "disk of the daemon full": self.fill_disk,
            "broker killed": lambda: self.stop_broker(hard=True),
            "broker shut down": lambda: self.stop_broker(hard=False),
            "broker frozen": self.freeze_broker,
            "link to Kafka cut": lambda: self.break_link(link.cut, link.mend),
            "link to Kafka held": lambda: self.break_link(link.hold, link.mend),
            "answers of Kafka lost": self.lose_answers,
            "link to PostgreSQL cut": lambda: self.break_link(database_link.cut, database_link.mend),
            "link to PostgreSQL held": lambda: self.break_link(database_link.hold, database_link.mend),
            "command: pause and resume": self.pause,
            "command: backfills and snapshots": self.command,
            "configuration reloaded": self.reload,
        }
        if store_link is not None:
            self.kinds["store away"] = lambda: self.lose_store(store_link)
        self.daemon = self._start()

    def strike(self) -> None:
        """Let the next fault happen, while commits go on."""
        if not self._deck:
            self._deck = self._chance.sample(list(self.kinds), len(self.kinds))
        kind = self._deck.pop()
        self._publish()
        self._wait(0.5)
        self.kinds[kind]()
        self.counted[kind] += 1
        assert self.daemon.process.poll() is None, f"the daemon ended after the fault '{kind}':\n{self.daemon.said}"

    def close(self) -> None:
        """Kill the daemon."""
        self.daemon.kill()

    def _start(self) -> Daemon:
        """Start a daemon, with transactions of the usual size or with small ones."""
        daemon = Daemon(self._pipelines.config, self._chance.choice([TAILER, small_transactions(SMALL_ROWS)]))
        try:
            daemon.await_running()
        except BaseException:
            daemon.kill()
            raise
        return daemon

    def _wait(self, longest_s: float | None = None) -> None:
        time.sleep(self._chance.uniform(0, longest_s or self._longest_s))

    def kill(self) -> None:
        """Kill the daemon, and start the next one."""
        self.daemon.kill()
        self._pipelines.look()
        self._publish()
        self.daemon = self._start()

    def kill_at_the_start(self) -> None:
        """Kill the daemon and, before it has done much, the next one."""
        self.daemon.kill()
        self.daemon = Daemon(self._pipelines.config)
        time.sleep(self._chance.uniform(0.3, 3.0))
        self.kill()

    def freeze(self) -> None:
        """Freeze the daemon, in the middle of whatever it does."""
        self.daemon.freeze()
        self._publish()
        self._wait()
        self.daemon.thaw()

    def terminate(self) -> None:
        """End the daemon as a service manager does, and start it again."""
        code = self.daemon.terminate()
        assert code == 0, f"exit code {code} after SIGTERM:\n{self.daemon.said}"
        self.daemon = self._start()

    def fill_disk(self) -> None:
        """Let the disk be full for a while; then everything local is delivered without a new start.

        No file of the daemon can grow beyond a limit: those of its targets, temporary ones and its log. So writes fail,
        also in the middle of a file, but with EFBIG, and new files can be empty.
        """
        pid, lanes = self.daemon.process.pid, self._pipelines.lanes
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (self._chance.choice(FILE_BYTES), most))
        self._publish()
        self.daemon.wait_for(lambda: any(text in why for why in self._whys_retried() for text in FULL))
        self._wait()
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))
        last = self._pipelines.history.published - 1
        self.daemon.wait_for(lambda: self._whys_retried() is not None and all(each.reached() >= last for each in lanes))

    def _whys_retried(self) -> list[str]:
        """Return why pipelines retry; none may have stopped."""
        pipelines = self._pipelines.client.status().pipelines
        stopped = [each.why for each in pipelines if each.state is PipelineState.STOPPED]
        assert not stopped, f"pipelines stopped on a full disk: {stopped}"
        return [each.why for each in pipelines if each.state is PipelineState.RETRYING]

    def stop_broker(self, *, hard: bool) -> None:
        """Kill the broker, or shut it down, and start it again."""
        self._kafka.stop(hard=hard)
        self._publish()
        self._wait()
        self._kafka.start()

    def freeze_broker(self) -> None:
        """Freeze the broker."""
        self._kafka.freeze()
        self._publish()
        self._wait()
        self._kafka.thaw()

    def break_link(self, trouble: Callable[[], None], mend: Callable[[], None]) -> None:
        """Break a link for a while."""
        trouble()
        self._publish()
        self._wait()
        mend()

    def lose_answers(self) -> None:
        """Lose answers to the ends of transactions, to records, or to everything."""
        self._link.drop_responses(*self._chance.choice([(END_TXN,), (PRODUCE,), ()]))
        self._publish()
        self._wait()
        self._link.mend()

    def lose_store(self, link: FaultyS3Link) -> None:
        """Let the store refuse all requests for a while."""
        refusal = Fault(times=1_000_000, status=503, code="SlowDown")
        link.faults.append(refusal)
        self._publish()
        self._wait()
        link.faults.remove(refusal)

    def pause(self) -> None:
        """Pause a pipeline over some commits."""
        name = self._chance.choice(self._pipelines.destinations).name
        self._pipelines.client.send(name, "pause")
        self._publish()
        self._wait(2.0)
        self._pipelines.client.send(name, "resume")

    def command(self) -> None:
        """Give commands for backfills and snapshots."""
        self._pipelines.give_commands(self._chance, COMMANDS)
        self._publish()

    def reload(self) -> None:
        """Change a setting of all pipelines while the daemon runs."""
        text = self._pipelines.config.read_text()
        before, after = _INTERVALS if _INTERVALS[0] in text else reversed(_INTERVALS)
        self._pipelines.config.write_text(text.replace(before, after))
        self.daemon.process.send_signal(signal.SIGHUP)
        self._publish()
        self._wait(1.0)
