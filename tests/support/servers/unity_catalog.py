"""A catalog with Unity Catalog's Delta API on a loopback port, for tables on local disk.

It replaces Unity Catalog's own server, which could not be fetched for these tests. It follows the published interface
(unitycatalog/unitycatalog, api/delta.yaml): staging tables, create, load, update with commits. Delta's own client
verifies this: in `test_unity_catalog.py` Delta Kernel creates a table here, commits to it and publishes.
"""

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

__all__ = ["API", "UnityServer", "serving"]

API: Final = "/api/2.1/unity-catalog"
Json = dict[str, Any]

_FEATURES: Final = ["catalogManaged", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"]
_PROPERTIES: Final = {
    "delta.checkpointPolicy": "v2",
    "delta.enableDeletionVectors": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.checkpoint.writeStatsAsStruct": "true",
    "delta.checkpoint.writeStatsAsJson": "true",
}


class Refused(Exception):
    """An answer that is not 2xx, in the API's own format."""

    def __init__(self, status: int, kind: str, message: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body: Json = {"error": {"message": message or kind, "type": kind, "code": status}}


@dataclass
class _Table:
    table_id: str
    location: str
    table_type: str = "MANAGED"
    latest: int | None = 0
    commits: dict[int, Json] = field(default_factory=dict)
    described: Json = field(default_factory=dict)

    def as_json(self) -> Json:
        metadata: Json = {
            "etag": "1",
            "table-type": self.table_type,
            "table-uuid": self.table_id,
            "location": self.location,
            "created-time": 1,
            "updated-time": 1,
            "columns": self.described.get("columns", {"type": "struct", "fields": []}),
            "partition-columns": self.described.get("partition-columns", []),
            "properties": self.described.get("properties", {}),
        }
        answer: Json = {"metadata": metadata}
        if self.latest is not None:
            # The newest first, as the interface requires.
            answer |= {
                "latest-table-version": self.latest,
                "commits": [self.commits[v] for v in sorted(self.commits)[::-1]],
            }
        return answer


class UnityServer:
    """The catalog's tables. `token`: the required one; `broken`: the answer to every request instead."""

    def __init__(self, root: Path, uri: str) -> None:
        self.root = root
        self.uri = uri
        self.token = ""
        self.broken: tuple[int, bytes] | None = None
        self.asked: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self._staged: dict[str, _Table] = {}
        self._tables: dict[str, _Table] = {}

    def add(self, name: str, location: Path, latest: int | None = 0, table_type: str = "MANAGED") -> None:
        """Register the table at `location` as `catalog.schema.name`, at a version."""
        self._tables[name] = _Table(str(uuid.uuid4()), location.as_uri(), table_type, latest)

    def ratify(self, name: str, version: int, file: str, timestamp_ms: int = 1, size_bytes: int = 1) -> None:
        """Commit as the API's `add-commit` does."""
        table = self._tables[name]
        if table.latest is None or version != table.latest + 1:
            raise Refused(409, "CommitVersionConflictException")
        table.latest = version
        table.commits[version] = {
            "version": version,
            "timestamp": timestamp_ms,
            "file-name": file,
            "file-size": size_bytes,
            "file-modification-timestamp": timestamp_ms,
        }

    def backfilled(self, name: str, version: int) -> None:
        """Forget commits that are published, as the API's `set-latest-backfilled-version` does."""
        table = self._tables[name]
        table.commits = {at: commit for at, commit in table.commits.items() if at > version}

    def commits(self, name: str) -> dict[int, Json]:
        """Return the commits that the catalog keeps, by version."""
        return self._tables[name].commits

    @contextmanager
    def held(self) -> Iterator[None]:
        """Block every request for the length of the block."""
        self.open.clear()
        try:
            yield
        finally:
            self.open.set()

    def answer(self, method: str, path: str, body: Json, token: str) -> tuple[int, Json]:
        """Return status and body for a request. Raises `Refused`."""
        if self.token and token != f"Bearer {self.token}":
            raise Refused(401, "NotAuthorizedException")
        match method, urlsplit(path).path.removeprefix(f"{API}/").split("/"):
            case "GET", ["metastore_summary"]:
                return 200, {"metastore_id": "tests", "name": "tests"}
            case "POST", ["delta", "v1", "catalogs", catalog, "schemas", schema, "staging-tables"]:
                return 200, self._stage(f"{catalog}.{schema}.{body['name']}")
            case "POST", ["delta", "v1", "catalogs", catalog, "schemas", schema, "tables"]:
                return 200, self._create(f"{catalog}.{schema}.{body['name']}", body)
            case _, ["delta", "v1", "catalogs", catalog, "schemas", schema, "tables", table, *rest]:
                return self._on_table(method, f"{catalog}.{schema}.{table}", rest, body)
        raise Refused(404, "NotFoundException")

    def _on_table(self, method: str, name: str, rest: list[str], body: Json) -> tuple[int, Json]:
        if name not in self._tables:
            raise Refused(404, "NoSuchTableException", f"no {name}")
        match method, rest:
            case "GET", []:
                return 200, self._tables[name].as_json()
            case "POST", []:
                self._update(name, body)
                return 200, self._tables[name].as_json()
            case "POST", ["metrics"]:
                return 204, {}
        raise Refused(404, "NotFoundException")

    def _stage(self, name: str) -> Json:
        table_id = str(uuid.uuid4())
        location = self.root / "tables" / table_id
        location.mkdir(parents=True)
        self._staged[name] = _Table(table_id, location.as_uri())
        protocol = {"min-reader-version": 3, "min-writer-version": 7, "reader-features": _FEATURES}
        return {
            "table-id": table_id,
            "table-type": "MANAGED",
            "location": location.as_uri(),
            "storage-credentials": [],
            "required-protocol": protocol | {"writer-features": [*_FEATURES, "inCommitTimestamp"]},
            "required-properties": _PROPERTIES | {"io.unitycatalog.tableId": table_id},
        }

    def _create(self, name: str, body: Json) -> Json:
        table = self._staged.pop(name, None)
        if table is None or _folder(table.location) != _folder(body["location"]):
            raise Refused(404, "NoSuchTableException", f"{name} was not staged at {body['location']}")
        table.described = body
        self._tables[name] = table
        return table.as_json()

    def _update(self, name: str, body: Json) -> None:
        table = self._tables[name]
        if {"type": "assert-table-uuid", "uuid": table.table_id} not in body["requirements"]:
            raise Refused(409, "UpdateRequirementConflictException")
        for update in body["updates"]:
            if update["action"] == "add-commit":
                commit = update["commit"]
                self.ratify(name, commit["version"], commit["file-name"], commit["timestamp"], commit["file-size"])
            elif update["action"] == "set-latest-backfilled-version":
                self.backfilled(name, update["latest-published-version"])


def _folder(uri: str) -> str:
    return urlsplit(uri).path.rstrip("/")  # Java writes `file:/` where Python writes `file:///`


class _Requests(BaseHTTPRequestHandler):
    """HTTP around `UnityServer.answer`."""

    catalog: UnityServer
    lock: threading.Lock

    def _reply(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        self.catalog.open.wait()
        with self.lock:
            self.catalog.asked.append(f"{self.command} {self.path}")
            if self.catalog.broken is not None:
                status, content = self.catalog.broken
            else:
                try:
                    status, answer = self.catalog.answer(
                        self.command, self.path, body, self.headers.get("Authorization") or ""
                    )
                except Refused as refused:
                    status, answer = refused.status, refused.body
                content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        """Reply."""
        self._reply()

    def do_POST(self) -> None:
        """Reply."""
        self._reply()

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Do nothing: `asked` is the log."""


@contextmanager
def serving(root: Path) -> Iterator[UnityServer]:
    """Run the catalog on a free loopback port; it keeps its tables below `root`. Stopped when left."""
    requests = type("Requests", (_Requests,), {"lock": threading.Lock()})
    with ThreadingHTTPServer(("127.0.0.1", 0), requests) as http:
        catalog = requests.catalog = UnityServer(root, f"http://127.0.0.1:{http.server_port}")  # type: ignore[attr-defined]
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield catalog
        finally:
            http.shutdown()
            thread.join()
