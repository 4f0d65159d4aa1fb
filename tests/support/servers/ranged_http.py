"""A web server that sends parts of the files below a folder, each answer late, as an object store does.

`python ranged_http.py FOLDER DELAY_S` prints its port. It answers HEAD and GET of `/bucket/NAME`, as far as clients of
S3 need that, and checks no signature.
"""

import http.client
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from tailer.stores.ranges import ObjectEnd, ObjectRanges

__all__ = ["HttpObjects", "serving"]

ROOT: Final = Path(__file__).resolve().parents[3]
_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True)
class HttpObjects:
    """Objects of such a server, below `http://`; each thread has a connection of its own."""

    port: int

    def __call__(self, uri: str) -> ObjectRanges:
        """Return what reads one object."""
        return _HttpObject(self.port, uri)


_CONNECTIONS: dict[tuple[int, int], http.client.HTTPConnection] = {}  # by port and thread


@dataclass(frozen=True)
class _HttpObject:
    port: int
    uri: str

    def end(self, length: int) -> ObjectEnd:
        return self._get(f"bytes=-{length}")

    def read(self, offset: int, length: int) -> bytes:
        return self._get(f"bytes={offset}-{offset + length - 1}").data

    def _get(self, wanted: str) -> ObjectEnd:
        key = self.port, threading.get_ident()
        connection = _CONNECTIONS.setdefault(key, http.client.HTTPConnection("127.0.0.1", self.port))
        connection.request("GET", self.uri.removeprefix("http:/"), headers={"Range": wanted})
        response = connection.getresponse()
        data = response.read()
        assert response.status == 206
        return ObjectEnd(int(response.headers["Content-Range"].rpartition("/")[2]), data)


@contextmanager
def serving(folder: Path, delay_s: float) -> Iterator[int]:
    """Serve the files below a folder from another process; yield the port."""
    command = [sys.executable, __file__, str(folder), str(delay_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.terminate()
            for key in list(_CONNECTIONS):
                _CONNECTIONS.pop(key).close()


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder: Path
    delay_s: float

    def do_HEAD(self) -> None:
        self._answer(False)

    def do_GET(self) -> None:
        self._answer(True)

    def _answer(self, body: bool) -> None:
        time.sleep(self.delay_s)
        path = self.folder / self.path.partition("?")[0].removeprefix("/bucket/")
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = path.stat().st_size
        first, end = 0, size
        if found := _RANGE.match(self.headers.get("Range", "")):
            begin, last = found.groups()
            first = int(begin) if begin else max(size - int(last), 0)
            end = min(int(last) + 1, size) if begin and last else size
        self.send_response(206 if found else 200)
        if found:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - first))
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
        self.end_headers()
        if body:
            with path.open("rb") as file:
                self.wfile.flush()
                self.connection.sendfile(file, first, end - first)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    _Answers.folder, _Answers.delay_s = Path(sys.argv[1]), float(sys.argv[2])
    served = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    served.daemon_threads = True
    print(served.server_port, flush=True)
    served.serve_forever()
