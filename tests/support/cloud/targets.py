"""Targets of sinks in stores, reached through a link that can fail, and read without it."""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from anyio import to_thread
from deltalake import DeltaTable

from tailer.errors import CommitUnknown, SinkUnavailable
from tailer.stores.cloud import CloudOptions
from tailer.stores.s3 import S3Options
from tailer.stores.stores import Stores
from tailer_sinks.delta.sink import DeltaSink
from tailer_sinks.files.sink import FilesSink
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.suite import APP, deliver
from tests.support.cloud.servers import CloudServer
from tests.support.cloud.tables import download as download_from_cloud
from tests.support.s3.link import ObjectLink, Request, S3Link
from tests.support.s3.server import download as download_from_s3

__all__ = ["Target", "delivered_until", "in_cloud", "in_s3", "whole"]

_BELOW: Final = "out/target"
_KINDS: Final[Mapping[str, Callable[[str, str], DeltaSink | FilesSink]]] = {"delta": DeltaSink, "files": FilesSink}


class Target:
    """A target of a kind of sink in a new `bucket`. `download`: copies it into a folder, past the link."""

    def __init__(
        self,
        kind: str,
        link: ObjectLink,
        bucket: str,
        options: CloudOptions | S3Options,
        download: Callable[[Path], None],
        copies: Path,
    ) -> None:
        self.link = link
        self.bucket = bucket
        self.location = f"{bucket}/{_BELOW}"
        self.options = options
        self._kind = kind
        self._download = download
        self._copies = copies

    def sink(self) -> DeltaSink | FilesSink:
        """Make a sink."""
        sink = _KINDS[self._kind]("sink", self.location)
        sink.use_stores(Stores(((self.bucket, self.options),)))
        return sink

    async def versions(self) -> Counter[int]:
        """Return how many rows of each version there are, read from a copy and without faults."""
        self.link.faults.clear()
        return await to_thread.run_sync(self._versions)

    def _versions(self) -> Counter[int]:
        copy = self._copies / uuid.uuid4().hex
        self._download(copy)
        if self._kind == "delta":
            return Counter(DeltaTable(copy).to_pyarrow_table()["_commit_version"].to_pylist())
        rows: list[dict[str, Any]] = []
        for file in sorted(copy.rglob("*.jsonl")):
            rows += [json.loads(line) for line in file.read_text().splitlines()]
        return Counter(row["_commit_version"] for row in rows)

    def commits(self, request: Request) -> bool:
        """Return whether a request is a commit."""
        is_log = "/_delta_log/" in request.path
        return (request.is_conditional_put or request.is_completion) and is_log == (self._kind == "delta")


def in_s3(kind: str, link: S3Link, copies: Path) -> Target:
    """Make a target in S3."""
    bucket = link.server.new_bucket()

    def download(folder: Path) -> None:
        download_from_s3(link.server, bucket, _BELOW, folder)

    return Target(kind, link, f"s3://{bucket}", S3Options(endpoint=link.endpoint), download, copies)


def in_cloud(server: CloudServer, copies: Path) -> Target:
    """Make a target of the delta sink in Google Cloud Storage or Azure."""
    bucket = server.new_bucket()

    def download(folder: Path) -> None:
        download_from_cloud(server, f"{bucket}/{_BELOW}", folder)

    return Target("delta", server.link, bucket, server.options, download, copies)


async def delivered_until(target: Target, last: int) -> None:
    """Deliver a version after the other as a pipeline does: after an error progress is read, and decides."""
    sink = target.sink()
    progress = await sink.progress(APP)
    while (version := 1 if progress is None else progress.position.version + 1) <= last:
        with suppress(CommitUnknown, SinkUnavailable):
            await deliver(sink, numbered(version))
        progress = await sink.progress(APP)
    await sink.aclose()


def whole(last: int) -> Counter[int]:
    """Return the rows of each version once."""
    return Counter({version: len(numbered(version).rows) for version in range(1, last + 1)})
