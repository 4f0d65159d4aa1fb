"""The location alone out of what PyIceberg reads of a table: the rest is ours to read, from our own stores.

PyIceberg reads the metadata of a table as soon as it knows where that is. SQL, Glue and Hive have no more than the
location, and the file of `LocationOnly` ends the reading there. A REST catalog answers with metadata, which would be
parsed whole; `LookAdapter` takes the location out of the answer before that. It asks with the ETag of the last answer,
so that a server which has ETags need not answer again.
"""

import re
from typing import Any, Final, NoReturn

import msgspec
from pyiceberg.io import FileIO, InputFile, OutputFile
from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter
from typing_extensions import override

__all__ = ["LocationFound", "LookAdapter"]

_TABLE: Final = re.compile(r"/namespaces/[^/]+/tables/[^/?]+(?:\?|$)")
_LENT: Final = "X-Iceberg-Access-Delegation"


class LocationFound(Exception):
    """Ends a look: `location` is that of the metadata file."""

    def __init__(self, location: str) -> None:
        super().__init__()
        self.location: Final = location


class LocationOnly(FileIO):  # type: ignore[misc]
    """Opens no file: its location is what is wanted."""

    @override
    def new_input(self, location: str) -> InputFile:
        raise LocationFound(location)

    @override
    def new_output(self, location: str) -> OutputFile:
        raise PermissionError(location)

    @override
    def delete(self, location: str | InputFile | OutputFile) -> NoReturn:
        raise PermissionError(location)


class _Answer(msgspec.Struct, rename="kebab"):
    metadata_location: str | None = None


class LookAdapter(BaseAdapter):  # type: ignore[misc]
    """Sends requests by `adapter`, within `timeout_s` for each step, and takes locations out of answers."""

    def __init__(self, adapter: BaseAdapter, timeout_s: float) -> None:
        super().__init__()
        self._adapter = adapter
        self._timeout_s = timeout_s
        self._last: dict[str, tuple[str, str]] = {}  # ETags and locations, by URL

    @override
    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: dict[str, str] | None = None,
    ) -> Response:
        url = request.url or ""
        is_look = request.method == "GET" and _TABLE.search(url) is not None
        tag, location = self._last.get(url, ("", ""))
        if is_look:
            # Files are read with the login of their store, so a server need not lend one. A compressed answer may have
            # an ETag that the server itself does not know.
            request.headers.pop(_LENT, None)
            request.headers.update({"Accept-Encoding": "identity"} | ({"If-None-Match": tag} if tag else {}))
        response = self._adapter.send(request, stream, self._timeout_s, verify, cert, proxies)
        if is_look and response.status_code == 304:
            raise LocationFound(location)
        if is_look and response.status_code == 200:
            new = msgspec.json.decode(response.content, type=_Answer).metadata_location
            if new is not None:
                self._last[url] = (response.headers.get("ETag", ""), new)
                raise LocationFound(new)
        return response

    @override
    def close(self) -> None:
        self._adapter.close()
