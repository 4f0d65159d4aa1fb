"""Real Apache Kafka on loopback ports: one node or several, which can be stopped, killed, frozen and restarted.

    python -m tests.support.kafka.cluster     makes an archive of Kafka's classes, as make does

Each node is broker and controller (KRaft). Each node has a plain listener without anything in front of it: nodes use it
among themselves, and tests use it to check topics. Further listeners serve tests with a proxy, TLS or SASL.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.jars.where import jars
from tests.support.kafka.metadata import Metadata, ask_metadata
from tests.support.servers.guard import Guard
from tests.support.servers.ports import free_ports
from tests.support.shared_classes import archive_classes, share_classes
from tests.support.waiting import until
from tests.tiers import using

__all__ = ["KafkaCluster", "KafkaDownError", "Listener"]

PATIENCE_S: Final = 300
STOP_PATIENCE_S: Final = 300
_INTERNAL: Final = "INTERNAL"
_CLUSTER_ID: Final = "bGFrZS10YWlsZXItdGVzdA"

_ARCHIVE: Final = Path(sys.prefix) / "kafka-classes.jsa"
# The first compiler alone and the simple collector: a broker in a test hardly lives long enough for more. Not for
# measurements.
_SMALL_WORK: Final = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_LOGGING: Final = (
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)

_PROPERTIES: Final = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": _INTERNAL,
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    # 128 MB by default, at once.
    "log.cleaner.dedupe.buffer.size": str(4 * 2**20),
    # Timed out transactions are aborted by a periodic check: every 10 s by default.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # A killed node may come back only after its session: 9 s by default. On a slow machine a shorter one may end while
    # the node is up.
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1000",
    # A node that shuts down moves its partitions away first; without a target it retries, 5 s later.
    "replica.lag.time.max.ms": "5000",
}


class KafkaDownError(RuntimeError):
    """A node failed; the end of its log is in the message."""


@dataclass(frozen=True)
class Listener:
    """A further listener of every node.

    `name`: upper case, no blanks. `protocol`: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. `properties`: Kafka's, for
    this listener only, without the `listener.name.<name>.` before them. `advertised_ports`: one for each node,
    announced
    to clients instead of the real one, such as a proxy's.
    """

    name: str
    protocol: str = "PLAINTEXT"
    properties: Mapping[str, str] = field(default_factory=dict)
    advertised_ports: Sequence[int] = ()


class KafkaCluster:
    """A Kafka cluster: started when made, or entered and left as a context. Nodes are numbered from 1.

    `directory`: the folder for all files of the cluster, new or empty. `properties`: Kafka's, over our own.
    `scram_users`: for SASL SCRAM, in Kafka's form: `SCRAM-SHA-256=[name=ada,password=secret]`. `java_options`: for each
    node. Raises `KafkaDownError` with the end of the log, and `MissingJarsError`.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 1,
        *,
        properties: Mapping[str, str] | None = None,
        listeners: Sequence[Listener] = (),
        scram_users: Sequence[str] = (),
        java_options: Sequence[str] = (*_SMALL_WORK, *share_classes(_ARCHIVE)),
    ) -> None:
        using("kafka")
        self.directory = directory
        self.nodes: Final = tuple(range(1, nodes + 1))
        self._java = ("java", *java_options, *_LOGGING, "-cp", os.pathsep.join(map(str, jars("kafka"))))
        self._listeners = {listener.name: listener for listener in (Listener(_INTERNAL), *listeners)}
        names = [*self._listeners, "CONTROLLER"]
        ports = iter(free_ports(nodes * len(names)))
        self._ports = {node: {name: next(ports) for name in names} for node in self.nodes}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._frozen: set[int] = set()
        directory.mkdir(parents=True, exist_ok=True)
        for node in self.nodes:
            text = "".join(f"{key}={value}\n" for key, value in self._settings(node, properties or {}).items())
            self._path(node, "properties").write_text(text)
        self._guard = Guard()
        try:
            self._format(scram_users)
            for node in self.nodes:
                self._launch(node)
            for node in self.nodes:
                self._await_up(node)
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap_servers(self) -> str:
        """The plain listeners, `host:port` separated by commas, without a proxy."""
        return self.bootstrap(_INTERNAL)

    def bootstrap(self, listener: str) -> str:
        """Return the bootstrap servers of a listener: `host:port` separated by commas."""
        return ",".join(f"127.0.0.1:{self._advertised(listener, node)}" for node in self.nodes)

    def port(self, listener: str, node: int = 1) -> int:
        """Return the port on which a node really listens, for a proxy."""
        return self._ports[node][listener]

    def pid(self, node: int = 1) -> int:
        """Return the process of a node that was not stopped."""
        return self._running[node].pid

    def log(self, node: int = 1) -> str:
        """Return a node's log."""
        return self._path(node, "log").read_text(errors="replace")

    def metadata(self, node: int = 1) -> Metadata:
        """Ask a node for its metadata of the cluster. Raises `OSError` if it does not answer."""
        return ask_metadata(self.port(_INTERNAL, node))

    def start(self, node: int = 1) -> None:
        """Start a node that was stopped; return when it answers and has joined the cluster."""
        self._launch(node)
        self._await_up(node)

    def stop(self, node: int = 1, *, hard: bool) -> None:
        """Let a node shut down; or kill it, `hard`. Return when it is gone."""
        process = self._running.pop(node)
        if not hard:
            process.terminate()
            self._continue(node, process)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_PATIENCE_S)
        if process.poll() is None:
            process.kill()
            process.wait()
        self._frozen.discard(node)
        self._guard.forget(process.pid)

    def bounce(self, node: int = 1, *, hard: bool) -> None:
        """Stop a node and start it again."""
        self.stop(node, hard=hard)
        self.start(node)

    def freeze(self, node: int = 1) -> None:
        """Freeze a node with all its connections open (SIGSTOP); return when it stands still."""
        pid = self.pid(node)
        os.kill(pid, signal.SIGSTOP)
        until(lambda: _stands_still(pid))  # on a busy machine, its threads may go on for a while
        self._frozen.add(node)

    def thaw(self, node: int = 1) -> None:
        """Resume a frozen node; return when it answers and has joined the cluster."""
        self._continue(node, self._running[node])
        self._await_up(node)

    def revive(self) -> None:
        """Thaw frozen nodes and start stopped ones; return when all have joined the cluster."""
        for node in self.nodes:
            if node not in self._running:
                self._launch(node)
            elif node in self._frozen:
                self._continue(node, self._running[node])
        for node in self.nodes:
            self._await_up(node)

    def await_in_sync(self) -> None:
        """Wait until every partition has a leader and all its replicas are in sync."""

        def complete() -> bool:
            partitions = [p for node in self._running for p in self.metadata(node).partitions.values()]
            return all(p.leader > 0 and p.in_sync == p.replicas for p in partitions)

        self._await(complete, "partitions that are not in sync", self.nodes[0])

    def close(self) -> None:
        """Stop all nodes at once, whatever they still had to write."""
        for node in list(self._running):
            self.stop(node, hard=True)
        self._guard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _path(self, node: int, suffix: str) -> Path:
        return self.directory / f"node-{node}.{suffix}"

    def _advertised(self, listener: str, node: int) -> int:
        ports = self._listeners[listener].advertised_ports
        return ports[node - 1] if ports else self._ports[node][listener]

    def _settings(self, node: int, properties: Mapping[str, str]) -> dict[str, str]:
        replicas = str(min(len(self.nodes), 3))
        in_sync = str(min(len(self.nodes), 2))
        protocols = {name: listener.protocol for name, listener in self._listeners.items()} | {
            "CONTROLLER": "PLAINTEXT"
        }
        settings = _PROPERTIES | {
            "node.id": str(node),
            "log.dirs": str(self._path(node, "data")),
            "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{self._ports[n]['CONTROLLER']}" for n in self.nodes),
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in self._ports[node].items()),
            "advertised.listeners": ",".join(
                f"{name}://127.0.0.1:{self._advertised(name, node)}" for name in self._listeners
            ),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            "min.insync.replicas": in_sync,
        }
        for name, listener in self._listeners.items():
            settings |= {f"listener.name.{name.lower()}.{key}": value for key, value in listener.properties.items()}
        return settings | dict(properties)

    def _format(self, scram_users: Sequence[str]) -> None:
        users = [argument for user in scram_users for argument in ("--add-scram", user)]
        formatting = {}
        for node in self.nodes:
            command = [*self._java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, *users]
            with self._path(node, "log").open("wb") as log:
                formatting[node] = subprocess.Popen(
                    [*command, "-c", str(self._path(node, "properties"))], stdout=log, stderr=log
                )
        failed = [node for node, process in formatting.items() if process.wait()]
        if failed:
            raise self._down(failed[0], "no folder was made for")

    def _launch(self, node: int) -> None:
        command = [*self._java, "kafka.Kafka", str(self._path(node, "properties"))]
        with self._path(node, "log").open("ab") as log:
            # A session of its own: an interrupt from the keyboard goes to the tests only, which then stop the nodes in
            # order.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._running[node] = process
        self._guard.watch(process.pid)

    def _await_up(self, node: int) -> None:
        self._await(lambda: node in self.metadata(node).brokers, "no answer from", node)

    def _await(self, reached: Callable[[], bool], otherwise: str, node: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if any(process.poll() is not None for process in self._running.values()):
                break
            with suppress(OSError):
                if reached():
                    return
            time.sleep(0.05)
        dead = [n for n, process in self._running.items() if process.poll() is not None]
        raise self._down(dead[0], "this ended:") if dead else self._down(node, otherwise)

    def _continue(self, node: int, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGCONT)
        self._frozen.discard(node)

    def _down(self, node: int, what: str) -> KafkaDownError:
        tail = "\n".join(self.log(node).splitlines()[-40:])
        return KafkaDownError(f"{what} Kafka's node {node}, the end of its log:\n{tail}")


def _stands_still(pid: int) -> bool:
    states = [each.read_text().rpartition(")")[2].split()[0] for each in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def _make() -> None:
    """Start a node, let it shut down, and write the archive."""
    options = (*_SMALL_WORK, *archive_classes(_ARCHIVE))
    with tempfile.TemporaryDirectory() as folder, KafkaCluster(Path(folder), java_options=options) as cluster:
        cluster.stop(hard=False)


if __name__ == "__main__":
    _make()
