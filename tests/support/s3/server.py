"""S3 servers on loopback ports: S3Proxy (Java) and versitygw (Go), each over a folder.

S3Proxy 3.2.0 is not atomic: of 8 concurrent PUTs with `If-None-Match` for one key, up to 6 succeeded, more than one for
half of the keys; and a listing during a write may show a temporary name. Tests with several writers reach it through a
serial `S3Link`. With versitygw 1.8.0 exactly one succeeded for each of 150 keys.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import botocore.session
from botocore.config import Config

from tailer.stores.s3 import thread_clients
from tests.jars.where import MissingJarsError, jars, versitygw
from tests.support.servers.ports import free_ports
from tests.support.servers.server_process import serving
from tests.tiers import using

__all__ = ["S3Server", "close_thread_clients", "download", "serving_s3proxy", "serving_versitygw"]

_KEY: Final = "AKIDFORTESTS"
_SECRET: Final = "hush+hush/AlsoForTests"


@dataclass(frozen=True)
class S3Server:
    """A running server and its only login."""

    endpoint: str
    key: str = _KEY
    secret: str = _SECRET

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables through which AWS's tools find the server."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @cached_property
    def client(self) -> Any:
        """A client without anything of ours, for all threads."""
        return botocore.session.Session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            config=Config(s3={"addressing_style": "path"}),
        )

    def new_bucket(self) -> str:
        """Create a bucket and return its name."""
        name = f"tests-{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name)
        return name


def download(server: S3Server, bucket: str, prefix: str, folder: Path) -> None:
    """Copy all objects below a prefix into a folder."""
    pages = server.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
    for key in (entry["Key"] for page in pages for entry in page.get("Contents", ())):
        file = folder / key.removeprefix(f"{prefix}/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(server.client.get_object(Bucket=bucket, Key=key)["Body"].read())


def close_thread_clients() -> None:
    """Close the clients of worker threads, which otherwise live as long as the process."""
    for client in list(thread_clients._CLIENTS.values()):
        client.retire()
        client.client.close()


@contextmanager
def serving_s3proxy(directory: Path) -> Iterator[S3Server]:
    """Run S3Proxy with its files in `directory`; stopped when left. Raises `ServerDownError`, `MissingJarsError`."""
    using("stores")
    (jar,) = jars("s3")
    (port,) = free_ports(1)
    server = S3Server(f"http://127.0.0.1:{port}")
    data = directory / "data"
    data.mkdir()
    settings = {
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.endpoint": server.endpoint,
        "s3proxy.identity": server.key,
        "s3proxy.credential": server.secret,
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(data),
    }
    properties = directory / "s3proxy.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    with serving(["java", *options, "-jar", str(jar), "--properties", str(properties)], directory, server.endpoint):
        yield server
        server.client.close()


@contextmanager
def serving_versitygw(directory: Path) -> Iterator[S3Server]:
    """Run versitygw with its files in `directory`; stopped when left. Raises `ServerDownError`, `MissingJarsError`."""
    using("stores")
    program = versitygw()
    if not program.exists():
        message = f"{program} is missing: `make setup` builds it with Go"
        raise MissingJarsError(message)
    (port,) = free_ports(1)
    server = S3Server(f"http://127.0.0.1:{port}")
    # Metadata of objects has a folder of its own: not every file system has extended attributes.
    data, metadata = directory / "data", directory / "metadata"
    data.mkdir()
    metadata.mkdir()
    command = [str(program), "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive"]
    command += ["--access", server.key, "--secret", server.secret, "posix", "--sidecar", str(metadata), str(data)]
    with serving(command, directory, server.endpoint):
        yield server
        server.client.close()
