"""Servers of Google Cloud Storage and of Azure on loopback ports: fake-gcs-server (Go) and Azurite (Node.js).

Both keep objects in memory, and clients reach them through a link, which records requests and makes them fail. Both
ignore where a listing begins, which the link adds (`tests.support.cloud.links`).

fake-gcs-server 1.56.1 has the JSON interface, of which obstore uses nothing to write: its PUTs are refused. The link
translates them, with the condition that the object must not exist and the metadata. So the condition is that of the
server, but that Google understands the headers of obstore's PUT is not tested. The server also ignores `If-Match`,
answers 500 to a listing of a missing bucket, and accepts every login. Azurite 3.35.0 has the rest; it checks
signatures.
"""

import base64
import hashlib
import hmac
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

import pytest

from tailer.stores.cloud import AzureOptions, CloudOptions, GcsOptions, clients
from tailer.stores.location import split_location
from tests.jars.where import MissingJarsError, azurite, fake_gcs
from tests.support.cloud.links import AzureLink, GcsLink
from tests.support.s3.link import ObjectLink
from tests.support.servers.ports import free_ports
from tests.support.servers.server_process import serving
from tests.tiers import using

__all__ = ["CloudServer", "forget_clients", "serving_azurite", "serving_fake_gcs"]

_ACCOUNT: Final = "lakeaccount"
_KEY: Final = base64.b64encode(b"hush, a key of the account for tests only").decode()
_HOST: Final = f"{_ACCOUNT}.dfs.core.windows.net"
_VERSION: Final = "2021-12-02"
# Every variable that obstore takes a login or an address from begins with one of these.
_VARIABLES: Final = ("AZURE_", "GOOGLE_")


@dataclass(frozen=True)
class CloudServer:
    """A running server. `options`: through its link; `environment`: its login; `secret`: what no text may show."""

    endpoint: str
    link: ObjectLink
    options: CloudOptions
    environment: Mapping[str, str]
    secret: str

    @property
    def is_azure(self) -> bool:
        """Return whether it is Azurite."""
        return isinstance(self.options, AzureOptions)

    @property
    def settings(self) -> Mapping[str, str]:
        """The options as `[stores.NAME]` has them."""
        found = {each.name: getattr(self.options, each.name) for each in fields(self.options)}
        return {name: value for name, value in found.items() if isinstance(value, str)}

    @contextmanager
    def logged_in(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Set the environment to its login alone. Clients do not outlive it, nor do faults."""
        for name in os.environ:
            if name.startswith(_VARIABLES):
                monkeypatch.delenv(name)
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        forget_clients()
        self.link.requests.clear()
        yield
        self.link.faults.clear()
        forget_clients()

    def location(self, bucket: str) -> str:
        """Return the location of a bucket or a container of this name."""
        return f"abfss://{bucket}@{_HOST}" if self.is_azure else f"gs://{bucket}"

    def new_bucket(self) -> str:
        """Create a bucket and return its location."""
        name = f"tests-{uuid.uuid4().hex[:12]}"
        if self.is_azure:
            self._azure("PUT", f"/{name}", {"restype": "container"}, b"")
        else:
            body = json.dumps({"name": name}).encode()
            self._send("POST", "/storage/v1/b?project=tests", {"Content-Type": "application/json"}, body)
        return self.location(name)

    def put(self, location: str, body: bytes) -> None:
        """Create or replace an object."""
        found = split_location(location)
        assert found is not None
        if self.is_azure:
            path = f"/{found.bucket.partition('@')[0]}/{quote(found.key)}"
            self._azure("PUT", path, {}, body, {"x-ms-blob-type": "BlockBlob"})
        else:
            query = urlencode({"uploadType": "media", "name": found.key})
            self._send("POST", f"/upload/storage/v1/b/{found.bucket}/o?{query}", {}, body)

    def _azure(
        self, verb: str, path: str, query: Mapping[str, str], body: bytes, more: Mapping[str, str] | None = None
    ) -> None:
        """Send a request signed with the account's key."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION, **(more or {})}
        length = str(len(body)) if body else ""
        signed = [verb, "", "", length, *[""] * 8]
        signed += [f"{name}:{value}" for name, value in sorted(headers.items())]
        signed.append(f"/{_ACCOUNT}/{_ACCOUNT}{path}")
        signed += [f"{name}:{value}" for name, value in sorted(query.items())]
        signature = hmac.new(base64.b64decode(_KEY), "\n".join(signed).encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(signature).decode()}"
        target = f"/{_ACCOUNT}{path}" + (f"?{urlencode(query)}" if query else "")
        self._send(verb, target, headers, body)

    def _send(self, verb: str, target: str, headers: Mapping[str, str], body: bytes) -> None:
        connection = HTTPConnection(urlsplit(self.endpoint).netloc, timeout=30)
        try:
            connection.request(verb, target, body, {"Content-Length": str(len(body)), **headers})
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise AssertionError(f"{verb} {target}: {answer.status} {text[:500]!r}")


def forget_clients() -> None:
    """Forget obstore's clients, which otherwise live as long as the process, with the login that they found."""
    for client in list(clients._CLIENTS.values()):
        client.retire()


@dataclass(frozen=True)
class _Address:
    endpoint: str


@contextmanager
def serving_fake_gcs(directory: Path) -> Iterator[CloudServer]:
    """Run fake-gcs-server; stopped when left. Raises `ServerDownError`, `MissingJarsError`."""
    using("stores")
    program = fake_gcs()
    if not program.exists():
        message = f"{program} is missing: `make setup` builds it with Go"
        raise MissingJarsError(message)
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    with GcsLink(_Address(endpoint)) as link:
        # Requests are told apart by their host, which is that of the link.
        host = urlsplit(link.endpoint).netloc
        command = [str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
        login = directory / "service-account.json"
        login.write_text(
            json.dumps({"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""})
        )
        with serving([*command, "-public-host", host, "-log-level", "error"], directory, endpoint):
            options = GcsOptions(endpoint=link.endpoint, service_account=str(login))
            yield CloudServer(endpoint, link, options, {}, "a secret of nobody")


@contextmanager
def serving_azurite(directory: Path) -> Iterator[CloudServer]:
    """Run Azurite's blob service; stopped when left. Raises `ServerDownError`, `MissingJarsError`."""
    using("stores")
    program = azurite() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not program.exists():
        message = f"{program} is missing: `make setup` installs it with npm"
        raise MissingJarsError(message)
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    command = ["env", f"AZURITE_ACCOUNTS={_ACCOUNT}:{_KEY}", "node", str(program), "--blobHost", "127.0.0.1"]
    command += ["--blobPort", str(port), "--inMemoryPersistence", "--silent", "--disableTelemetry"]
    with (
        AzureLink(_Address(endpoint)) as link,
        serving([*command, "--skipApiVersionCheck"], directory, endpoint),
    ):
        options = AzureOptions(endpoint=f"{link.endpoint}/{_ACCOUNT}")
        yield CloudServer(endpoint, link, options, {"AZURE_STORAGE_ACCOUNT_KEY": _KEY}, _KEY)
