"""The daemon's server over TCP: a token for readers."""

from base64 import b64encode
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

import httpx2
import pytest
from starlette.responses import PlainTextResponse

from tailer.daemon.http_server import HttpServer, Listener, WithToken, listen

TOKEN: Final = "open: sesame"


class TestToken:
    @pytest.fixture
    def client(self) -> Iterator[httpx2.Client]:
        """A client of a server that answers every path that is allowed with its name."""

        async def answer(scope: dict[str, str], receive: object, send: object) -> None:
            await PlainTextResponse(scope["path"])(scope, receive, send)  # type: ignore[arg-type]

        opened = listen("127.0.0.1", 0)
        server = HttpServer([Listener(WithToken(answer, TOKEN), opened)])  # type: ignore[arg-type]
        server.start()
        with httpx2.Client(base_url=f"http://127.0.0.1:{opened.getsockname()[1]}") as client:
            yield client
        server.stop()

    @pytest.mark.parametrize(
        "given", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Basic {b64encode(f'x:{TOKEN}'.encode()).decode()}"]
    )
    def test_who_has_it_may_read(self, client: httpx2.Client, given: str) -> None:
        assert client.get("/metrics", headers={"Authorization": given}).text == "/metrics"

    @pytest.mark.parametrize(
        "given",
        ["", TOKEN, "Bearer", f"Bearer {TOKEN}.", f"Digest {TOKEN}", "Basic ???", "Basic eDp5", "Bearer \N{SNOWMAN}"],
    )
    def test_who_has_it_not_is_asked(self, client: httpx2.Client, given: str) -> None:
        for path in ("/", "/metrics", "/status", "/history", "/livezz/../status", "//livez"):
            answer = client.get(path, headers={b"Authorization": given.encode()})
            assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (
                HTTPStatus.UNAUTHORIZED,
                'Basic realm="lake-tailer"',
            )
            assert TOKEN not in answer.text

    @pytest.mark.parametrize("path", ["/livez", "/readyz", "/pipelines/orders/pause"])
    def test_probes_need_none_and_orders_have_their_own(self, client: httpx2.Client, path: str) -> None:
        assert client.get(path).text == path
