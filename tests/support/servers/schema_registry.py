"""Schema registries on loopback ports: one in this process, and a real one.

`RegistryServer` implements the part of Confluent's API that a producer and a consumer use, with all rules of
compatibility. By BACKWARD the new schema must read messages of the latest one, by Avro's own rules of schema
resolution; by FORWARD the latest one must read those of the new schema.

`serving_apicurio` runs Apicurio Registry, which has that API under a path, in memory.
"""

import json
import ssl
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from tests.support.kafka.secure import Certificates
from tests.support.servers.ports import free_ports

__all__ = ["RegistryServer", "serving_apicurio", "serving_registry"]

PATIENCE_S: Final = 300
Json = dict[str, Any]

_PROMOTIONS: Final = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "string": {"bytes"},
    "bytes": {"string"},
}


class Refused(Exception):
    """An answer that is not 200."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.status = code // 100 if code >= 10_000 else code
        self.body: Json = {"error_code": code, "message": message}


class RegistryServer:
    """A registry in this process. `uris`: its addresses, one per port.

    `authorization`: the required header; `broken`: answers to send instead, by path or `:port`; `asked`: method and
    path of each request, without the port; `verbose` False: compatibility is answered without reasons; `rule`: of
    subjects that are not in `rules`.
    """

    def __init__(self) -> None:
        self.uris: list[str] = []
        self.authorization = ""
        self.broken: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.verbose = True
        self.rule = "BACKWARD"
        self.rules: dict[str, str] = {}
        self.schemas: list[str] = []
        self.subjects: dict[str, list[int]] = {}

    def check(self, authorization: str) -> None:
        """Raise `Refused` for a request without the right authorization."""
        if self.authorization and authorization != self.authorization:
            raise Refused(401, "Unauthorized")

    def answer(self, method: str, path: str, body: Json) -> Any:
        """Return the answer to a request. Raises `Refused`."""
        match method, [unquote(part) for part in path.strip("/").split("/")]:
            case "GET", ["schemas", "ids", number]:
                return {"schema": self.schemas[int(number) - 1]}
            case "POST", ["subjects", subject]:
                return self._find(subject, body["schema"])
            case "POST", ["subjects", subject, "versions"]:
                return self._register(subject, body["schema"])
            case "GET", ["config", subject]:
                return {"compatibilityLevel": self.rules.get(subject, self.rule)}
            case "GET", ["subjects", subject, "versions"]:
                return [version for version, _ in enumerate(self._versions(subject), 1)]
            case "GET", ["subjects", subject, "versions", version]:
                return {"schema": self._versions(subject)[int(version) - 1], "version": int(version)}
            case "POST", ["compatibility", "subjects", subject, "versions", version]:
                problems = self._problems(subject, body["schema"], self._versions(subject)[int(version) - 1])
                messages = {"messages": [*problems, "{oldSchema: '...'}"] if problems else []} if self.verbose else {}
                return {"is_compatible": not problems, **messages}
        raise Refused(404, "HTTP 404 Not Found")

    def _versions(self, subject: str) -> list[str]:
        if subject not in self.subjects:
            raise Refused(40401, f"Subject '{subject}' not found.")
        return [self.schemas[number - 1] for number in self.subjects[subject]]

    def _find(self, subject: str, schema: str) -> Json:
        for version, known in enumerate(self._versions(subject), 1):
            if known == schema:
                number = self.subjects[subject][version - 1]
                return {"subject": subject, "version": version, "id": number, "schema": schema}
        raise Refused(40403, "Schema not found")

    def _register(self, subject: str, schema: str) -> Json:
        former = self._versions(subject) if subject in self.subjects else []
        is_transitive = self.rules.get(subject, self.rule).endswith("_TRANSITIVE")
        for version in former if is_transitive else former[-1:]:
            if problems := self._problems(subject, schema, version):
                raise Refused(409, f"Schema being registered is incompatible: {problems}")
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return {"id": number}

    def _problems(self, subject: str, schema: str, former: str) -> list[str]:
        new, old, rule = json.loads(schema), json.loads(former), self.rules.get(subject, self.rule)
        problems = _problems(new, old, {}, {}, "") if rule.startswith(("BACKWARD", "FULL")) else []
        return problems + (_problems(old, new, {}, {}, "") if rule.startswith(("FORWARD", "FULL")) else [])


def _problems(reader: Any, writer: Any, read: Json, written: Json, path: str) -> list[str]:
    """Explain why a reader's schema cannot read a writer's. `read`, `written`: the records met so far, by name."""
    reader, writer = read.get(_text(reader), reader), written.get(_text(writer), writer)
    if isinstance(writer, list):
        return [problem for branch in writer for problem in _problems(reader, branch, read, written, path)]
    if isinstance(reader, list):
        candidates = [_problems(branch, writer, read, written, path) for branch in reader]
        return min(candidates, key=len)
    kind, other = _kind(reader), _kind(writer)
    if kind != other:
        fits = other in _PROMOTIONS.get(kind, ())
        return [] if fits else [f"{{path '{path}': reader type: {kind} not compatible with writer type: {other}}}"]
    if kind in {"array", "map"}:
        inner = "items" if kind == "array" else "values"
        return _problems(reader[inner], writer[inner], read, written, f"{path}/{inner}")
    if kind != "record":
        same = all(_fact(reader, name) == _fact(writer, name) for name in ("precision", "scale"))
        return [] if same else [f"{{path '{path}': decimals of another precision or scale}}"]
    return _record_problems(reader, writer, read, written, path)


def _record_problems(reader: Json, writer: Json, read: Json, written: Json, path: str) -> list[str]:
    for schema, known in ((reader, read), (writer, written)):
        known[f"{schema['namespace']}.{schema['name']}"] = schema
    there = {field["name"]: field["type"] for field in writer["fields"]}
    found = []
    for place, field in enumerate(reader["fields"]):
        if field["name"] in there:
            below = f"{path}/fields/{place}/type"
            found += _problems(field["type"], there[field["name"]], read, written, below)
        elif "default" not in field:
            found.append(f"{{path '{path}/fields/{place}': the field {field['name']} has no default value}}")
    return found


def _kind(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema["type"])


def _text(schema: Any) -> str:
    return schema if isinstance(schema, str) else ""


def _fact(schema: Any, name: str) -> Any:
    return schema.get(name) if isinstance(schema, Mapping) else None


class _Requests(BaseHTTPRequestHandler):
    """HTTP around `RegistryServer.answer`."""

    registry: RegistryServer
    lock: threading.Lock

    def _reply(self) -> None:
        registry = self.registry
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        path = urlsplit(self.path).path
        with self.lock:
            registry.asked.append(f"{self.command} {self.path}")
            port = self.connection.getsockname()[1]
            broken = registry.broken.get(f":{port}") or registry.broken.get(path)
            status, content = broken or self._answer(path, body)
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _answer(self, path: str, body: Json) -> tuple[int, bytes]:
        registry = self.registry
        try:
            registry.check(self.headers.get("Authorization") or "")
            return 200, json.dumps(registry.answer(self.command, path, body)).encode()
        except Refused as refused:
            return refused.status, json.dumps(refused.body).encode()

    def do_GET(self) -> None:
        """Reply."""
        self._reply()

    def do_POST(self) -> None:
        """Reply."""
        self._reply()

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Do nothing: `asked` is the log."""


class _Http(ThreadingHTTPServer):
    """A server that does not print errors of clients that disconnect, as those do that distrust its certificate."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing."""


@contextmanager
def serving_registry(ports: int = 1, certificates: Certificates | None = None) -> Iterator[RegistryServer]:
    """Run a registry at several ports; with `certificates` over mutual TLS. Stopped when left."""
    registry = RegistryServer()
    requests = type("Requests", (_Requests,), {"lock": threading.Lock(), "registry": registry})
    servers = [_Http(("127.0.0.1", 0), requests) for _ in range(ports)]
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.broker_file)
        context.load_verify_locations(certificates.ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
        for server in servers:
            # The handshake happens in the connection's own thread: in `accept` it would block all others.
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    scheme = "http" if certificates is None else "https"
    registry.uris = [f"{scheme}://127.0.0.1:{server.server_port}" for server in servers]
    threads = [threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield registry
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


@contextmanager
def serving_apicurio(archive: Path, directory: Path) -> Iterator[str]:
    """Run Apicurio Registry with the rule BACKWARD, stopped when left; yield the root of its API.

    `directory`: for its files. Raises `RuntimeError` if it does not start.
    """
    with tarfile.open(archive) as packed:
        packed.extractall(directory / "program", filter="data")
    (program,) = (directory / "program").glob("*-runner.jar")
    (port,) = free_ports(1)
    command = ["java", "-Xmx300m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}", "-jar", str(program)]
    uri = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    log = directory / "registry.log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, cwd=directory) as process:
        try:
            _wait_for(process, f"{uri}/subjects", log)
            rule = json.dumps({"compatibility": "BACKWARD"}).encode()
            headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
            with urlopen(Request(f"{uri}/config", rule, headers, method="PUT"), timeout=PATIENCE_S):
                yield uri
        finally:
            process.kill()


def _wait_for(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urlopen(url, timeout=PATIENCE_S):
                return
        except (URLError, ConnectionError):
            time.sleep(0.05)
    message = f"the schema registry does not come up: {log.read_text(errors='replace')[-2000:]}"
    raise RuntimeError(message)
