"""Kafka Connect with Debezium's JDBC sink connector, which reads our topics as it reads Debezium's own.

One worker (standalone), controlled by its REST interface. It reads committed records.
"""

import http.client
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.jars.where import jars
from tests.support.kafka.topics import read_topic
from tests.support.servers.ports import free_ports
from tests.support.servers.server_process import ServerProcess

__all__ = ["ConnectWorker"]

_JAVA: Final = (
    "-Xmx384m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Dorg.slf4j.simpleLogger.logFile=System.out",
)
_CONVERTER: Final = "org.apache.kafka.connect.json.JsonConverter"
_WORKER: Final = {
    "key.converter": _CONVERTER,
    "key.converter.schemas.enable": "true",
    "value.converter": _CONVERTER,
    "value.converter.schemas.enable": "true",
    "consumer.isolation.level": "read_committed",
    # Interval at which a sink commits its offsets.
    "offset.flush.interval.ms": "200",
    # Plugins are found by their service files, not by scanning the class path.
    "plugin.discovery": "service_load",
}


class ConnectWorker:
    """A worker: started when made, or entered and left as a context. `directory`: for its files; it exists.

    Raises `ServerDownError` with the end of the log, and `MissingJarsError`.
    """

    def __init__(self, directory: Path, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        (self._port,) = free_ports(1)
        settings = _WORKER | {
            "bootstrap.servers": bootstrap_servers,
            "listeners": f"http://127.0.0.1:{self._port}",
            "offset.storage.file.filename": str(directory / "offsets"),
        }
        properties = directory / "worker.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        path = os.pathsep.join(str(jar) for jar in jars("connect"))
        program = "org.apache.kafka.connect.cli.ConnectStandalone"
        self._server = ServerProcess(["java", *_JAVA, "-cp", path, program, str(properties)], directory)
        try:
            self._server.await_(lambda: self._ask("GET", "/connectors") == [], "Kafka Connect does not answer")
        except BaseException:
            self.close()
            raise

    def sink(self, topic: str, options: Mapping[str, str]) -> None:
        """Start a connector named like the topic that it reads."""
        self._ask("PUT", f"/connectors/{topic}/config", {"name": topic, "topics": topic, "tasks.max": "1", **options})

    def await_read(self, topic: str) -> None:
        """Wait until the topic's connector has processed all records. Raises `ServerDownError` if it failed."""
        ends = {record.partition: record.offset + 1 for record in read_topic(self._bootstrap_servers, topic)}
        self._server.await_(lambda: bool(self._failed(topic)) or self._offsets(topic) == ends, f"{topic} was not read")
        if failed := self._failed(topic):
            raise self._server.down(failed)

    def close(self) -> None:
        """Stop it at once."""
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _offsets(self, topic: str) -> dict[int, int]:
        """Return the next offset of the connector, by partition."""
        offsets = self._ask("GET", f"/connectors/{topic}/offsets")["offsets"]
        return {each["partition"]["kafka_partition"]: each["offset"]["kafka_offset"] for each in offsets}

    def _failed(self, topic: str) -> str:
        """Return the error that stopped the connector; empty if it runs."""
        status = self._ask("GET", f"/connectors/{topic}/status")
        return "".join(part.get("trace", "") for part in [status["connector"], *status["tasks"]])

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the REST interface. Raises `OSError` as long as it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(repr(error)) from error
        finally:
            connection.close()
        if response.status >= 400:
            raise ConnectionError(f"{method} {path}: {response.status} {answer.decode(errors='replace')}")
        return json.loads(answer)
