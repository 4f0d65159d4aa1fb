"""Links before the servers of Google Cloud Storage and of Azure that add what these lack.

A listing begins where the request says, as the clouds document it. Google's `start-after` is exclusive
(https://cloud.google.com/storage/docs/xml-api/get-bucket-list), Azure's `startFrom` is inclusive
(https://learn.microsoft.com/rest/api/storageservices/list-blobs); the servers ignore both. It is applied to each page.
"""

import json
import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from typing import ClassVar
from urllib.parse import parse_qs, urlencode

from tests.support.s3.link import Answer, ObjectLink, Request

__all__ = ["AzureLink", "CloudLink", "GcsLink"]


class CloudLink(ObjectLink):
    """A link whose listings begin where they should."""

    parameter: ClassVar[str]
    entry: ClassVar[re.Pattern[bytes]]  # its group is the name

    @staticmethod
    @abstractmethod
    def is_before(name: str, start: str) -> bool:
        """Return whether the listing leaves out `name`."""

    def methods(self) -> list[str]:
        """See `ObjectLink.methods`."""
        return ["LIST" if self._is_listing(each) else each.method for each in self.requests]

    def send(self, request: Request, target: str, body: bytes) -> Answer:
        """See `ObjectLink.send`."""
        status, headers, answer = super().send(request, target, body)
        start = parse_qs(request.query).get(self.parameter)
        if status != 200 or not start or not self._is_listing(request):
            return status, headers, answer
        kept = self.entry.sub(self._filter(start[0]), answer)
        return status, [each for each in headers if each[0].lower() != "content-length"], kept

    def _is_listing(self, request: Request) -> bool:
        return request.method == "GET" and ("list-type=" in request.query or "comp=list" in request.query)

    def _filter(self, start: str) -> Callable[[re.Match[bytes]], bytes]:
        return lambda found: b"" if self.is_before(unescape(found[1].decode()), start) else found[0]


class AzureLink(CloudLink):
    """A link before Azurite."""

    parameter = "startFrom"
    entry = re.compile(rb"<Blob><Name>(.*?)</Name>.*?</Blob>", re.DOTALL)

    @staticmethod
    def is_before(name: str, start: str) -> bool:
        """See `CloudLink.is_before`."""
        return name < start


class GcsLink(CloudLink):
    """A link before fake-gcs-server, which also translates PUTs into those that the server has."""

    parameter = "start-after"
    entry = re.compile(rb"<Contents><Key>(.*?)</Key>.*?</Contents>", re.DOTALL)

    @staticmethod
    def is_before(name: str, start: str) -> bool:
        """See `CloudLink.is_before`."""
        return name <= start

    def send(self, request: Request, target: str, body: bytes) -> Answer:
        """See `ObjectLink.send`."""
        if request.method != "PUT":
            return super().send(request, target, body)
        bucket, _, name = request.path.removeprefix("/").partition("/")
        query = {"uploadType": "media", "name": name}
        if (generation := request.headers.get("x-goog-if-generation-match")) is not None:
            query["ifGenerationMatch"] = generation
        upload = f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}"
        status, headers, answer = super().send(replace(request, method="POST"), upload, body)
        if status != 200:
            return status, headers, answer
        stored = json.loads(answer)
        return 200, [("ETag", f'"{stored["etag"]}"'), ("x-goog-generation", stored["generation"])], b""
