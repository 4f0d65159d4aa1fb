"""The `http` sink over a real server that is busy, slow, picky, gone or not who it should be."""

import email.utils
import hmac
import json
import logging
import socket
import ssl
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from tailer.errors import ConfigError, SinkAccessRefused, SinkError, SinkRejected, SinkUnavailable
from tailer_sinks.http import endpoint as client
from tailer_sinks.http.sink import HttpSink
from tailer_sinks.testing.announcements import gap
from tailer_sinks.testing.rows import numbered
from tests.support.certificate import make_certificate
from tests.support.servers.endpoint import Answer, Endpoint, serving
from tests.support.servers.ports import free_ports

pytestmark = pytest.mark.anyio

VALUE: Final = "row 1000001"  # of a row
KEY: Final = b"k" * 32


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """An endpoint that takes everything."""
    with serving() as served:
        yield served


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[HttpSink]:
    """Open a sink, closed at the end."""
    sink = HttpSink.configure("orders", {"url": url, **options})
    try:
        yield sink
    finally:
        await sink.aclose()


async def send(url: str, rows: int = 10, **options: Any) -> None:
    """Deliver rows."""
    async with opened(url, **options) as sink:
        await sink.write(numbered(1, rows))
        await sink.flush()


@pytest.fixture
def failure(caplog: pytest.LogCaptureFixture) -> Callable[..., Any]:
    """A function that returns the error with which a delivery must end: it shows neither rows nor what is secret."""

    caplog.set_level(logging.DEBUG, "tailer_sinks")

    async def fail(url: str, kind: type[SinkError], **options: Any) -> str:
        with pytest.raises(kind) as raised:
            await send(f"{url}?token=hush", headers={"Authorization": "hush"}, **options)
        assert raised.value.hint
        said = f"{raised.value} {raised.value.hint}"
        shown = f"{said} {raised.value.__cause__} {caplog.text}"
        assert VALUE not in shown
        assert "hush" not in shown
        return said

    return fail


async def test_requests_come_one_after_the_other_on_one_connection(endpoint: Endpoint) -> None:
    await send(endpoint.url, rows=95, batch_rows=10)
    assert [len(post.events) for post in endpoint.posts] == [*[10] * 9, 5]
    assert [event["id"] for event in endpoint.events()] == list(range(1_000_000, 1_000_095))
    assert len({post.connection for post in endpoint.posts}) == 1
    assert {post.headers["content-type"] for post in endpoint.posts} == {"application/json"}


async def test_headers_and_the_signature(endpoint: Endpoint, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("Bearer one")
    options = {
        "format": "cloudevents",
        "headers": {"X-Team": "lake", "Authorization": {"file": str(tmp_path / "token")}},
        "signature_secret": b64encode(KEY).decode(),
    }
    async with opened(endpoint.url, **options) as sink:
        await sink.write(numbered(1))
        (tmp_path / "token").write_text("Bearer two")
        await sink.write(numbered(2))
    first, second = endpoint.posts
    assert (first.headers["authorization"], second.headers["authorization"]) == ("Bearer one", "Bearer two")
    assert first.headers["x-team"] == "lake"
    assert first.headers["user-agent"].startswith("lake-tailer/")
    assert first.headers["content-type"].startswith("application/cloudevents-batch+json")
    signed = f"{first.headers['webhook-id']}.{first.headers['webhook-timestamp']}.".encode() + first.body
    assert b64decode(first.headers["webhook-signature"].removeprefix("v1,")) == hmac.digest(KEY, signed, "sha256")
    assert abs(int(first.headers["webhook-timestamp"]) - time.time()) < 60


@pytest.mark.parametrize("status", [401, 403])
async def test_a_command_runs_again_after_a_refusal(endpoint: Endpoint, tmp_path: Path, status: int) -> None:
    """It is not run for each request, and a request is sent again only with other secrets, once."""
    runs, held = tmp_path / "runs", tmp_path / "held"
    held.write_text("Bearer one")
    command = ["sh", "-c", 'echo >> "$0"; cat "$1"', str(runs), str(held)]
    hint = "Correct what the command of headers.Authorization prints (sh); it runs again for each attempt."
    async with opened(endpoint.url, headers={"Authorization": {"command": command}}) as sink:
        await sink.write(numbered(1))
        await sink.write(numbered(2))
        assert len(runs.read_text()) == 1
        held.write_text("Bearer two")
        endpoint.answer_in_turn([Answer(status)])
        await sink.write(numbered(3))
        assert len(runs.read_text()) == 2
        endpoint.answer_in_turn([Answer(status)])
        with pytest.raises(SinkAccessRefused, match=f"answers {status}") as refused:
            await sink.write(numbered(4))
        assert refused.value.hint == hint
        assert len(runs.read_text()) == 3
        held.write_text("Bearer three")
        endpoint.answer_in_turn([Answer(status), Answer(status)])
        with pytest.raises(SinkAccessRefused, match=f"answers {status}") as refused:
            await sink.write(numbered(4))
        assert refused.value.hint == hint
    sent = [post.headers["authorization"].removeprefix("Bearer ") for post in endpoint.posts]
    assert sent == ["one", "one", "one", "two", "two", "two", "three"]
    assert endpoint.posts[2].headers["webhook-id"] == endpoint.posts[3].headers["webhook-id"]


async def test_a_batch_that_is_sent_again_has_its_id(endpoint: Endpoint) -> None:
    await send(endpoint.url)
    await send(endpoint.url)
    await send(endpoint.url, rows=9)
    first, again, other = (post.headers["webhook-id"] for post in endpoint.posts)
    assert first == again != other


FAR = f"Mon, 01 Jan {'9' * 20} 00:00:00 GMT"


class TestBusy:
    @pytest.mark.parametrize("status", [429, 503])
    async def test_it_waits_as_it_is_told(self, endpoint: Endpoint, status: int) -> None:
        later = datetime.now(UTC) + timedelta(seconds=3)
        told = ["1", email.utils.format_datetime(later, usegmt=True)]
        endpoint.answer_in_turn([Answer(status, {"Retry-After": each}, VALUE.encode()) for each in told])
        began = time.monotonic()
        await send(endpoint.url)
        assert time.monotonic() - began > 1.5
        assert [post.status for post in endpoint.posts] == [status, status, 204]
        assert len({post.headers["webhook-id"] for post in endpoint.posts}) == 1
        assert int(endpoint.posts[-1].headers["webhook-timestamp"]) > int(
            endpoint.posts[0].headers["webhook-timestamp"]
        )

    @pytest.mark.parametrize("told", ["0", "3600", "soon", "-1", "9" * 400, FAR, None])
    async def test_it_does_not_wait_for_ever(
        self, endpoint: Endpoint, told: str | None, monkeypatch: pytest.MonkeyPatch, failure: Callable[..., Any]
    ) -> None:
        monkeypatch.setattr(client, "MOST_WAIT_S", 0.1)
        endpoint.answer = lambda _: Answer(429, {} if told is None else {"Retry-After": told}, VALUE.encode())
        assert "answers 429 Too Many Requests" in await failure(endpoint.url, SinkUnavailable)
        assert len(endpoint.posts) == 2


class TestFailures:
    @pytest.mark.parametrize("status", [408, 425, 500, 502, 504, 599])
    async def test_of_the_service_may_pass(self, endpoint: Endpoint, status: int, failure: Callable[..., Any]) -> None:
        endpoint.answer = lambda body: Answer(status, body=body)
        assert f"{endpoint.url.removesuffix('/changes')} answers {status}" in await failure(
            endpoint.url, SinkUnavailable
        )
        assert len(endpoint.posts) == 1

    @pytest.mark.parametrize("status", [400, 404, 405, 410, 415, 422, 499])
    async def test_of_ours_need_a_person(self, endpoint: Endpoint, status: int, failure: Callable[..., Any]) -> None:
        endpoint.answer = lambda body: Answer(status, body=body)
        assert f"answers {status}" in await failure(endpoint.url, SinkRejected)
        assert len(endpoint.posts) == 1

    @pytest.mark.parametrize("status", [401, 403, 407])
    async def test_of_access_name_the_options(
        self, endpoint: Endpoint, status: int, failure: Callable[..., Any]
    ) -> None:
        endpoint.answer = lambda body: Answer(status, body=body)
        key = b64encode(KEY).decode()
        said = await failure(endpoint.url, SinkAccessRefused, signature_secret=key)
        assert f"answers {status}" in said
        assert "Correct headers; where" in said
        assert "Correct signature_secret; where" in said
        assert key not in said
        assert len(endpoint.posts) == 1

    @pytest.mark.parametrize("status", [301, 302, 307, 308])
    async def test_a_redirect_is_not_followed(
        self, endpoint: Endpoint, status: int, failure: Callable[..., Any]
    ) -> None:
        with serving() as other:
            endpoint.answer = lambda _: Answer(status, {"Location": f"{other.url}?to=hush"})
            assert "Redirects are not followed" in await failure(endpoint.url, SinkRejected)
            assert not other.posts

    async def test_nobody_is_there(self, failure: Callable[..., Any]) -> None:
        url = f"http://127.0.0.1:{free_ports(1)[0]}/changes"
        assert "cannot be reached" in await failure(url, SinkUnavailable)

    async def test_a_name_that_does_not_exist(self, failure: Callable[..., Any]) -> None:
        assert "cannot be reached" in await failure("http://changes.invalid/", SinkUnavailable)

    async def test_an_answer_that_does_not_come(self, endpoint: Endpoint, failure: Callable[..., Any]) -> None:
        answers = threading.Event()
        endpoint.answer = lambda _: Answer(before=answers.wait)
        assert "no answer within 0.2 s" in await failure(endpoint.url, SinkUnavailable, timeout_s=0.2)
        answers.set()

    async def test_a_slow_service_can_be_left_at_once(self, endpoint: Endpoint) -> None:
        answers = threading.Event()
        endpoint.answer = lambda _: Answer(before=answers.wait)
        with anyio.fail_after(10):
            with anyio.move_on_after(0.2) as scope:
                await send(endpoint.url)
        assert scope.cancelled_caught
        answers.set()

    async def test_a_connection_that_is_half_closed(self, endpoint: Endpoint, failure: Callable[..., Any]) -> None:
        endpoint.answer = lambda _: Answer(closes=True)
        assert "the connection failed" in await failure(endpoint.url, SinkUnavailable)

    @pytest.mark.parametrize(
        "line", [b"%b\r\n\r\n", b"HTTP/1.1 200 %b\r\nA: \x00\r\n\r\n", b"HTTP/1.1 999999 %b\r\n\r\n"]
    )
    async def test_an_answer_that_is_not_http(self, line: bytes, failure: Callable[..., Any]) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as listener:

            def answer() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(line % VALUE.encode())

            thread = threading.Thread(target=answer)
            thread.start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            assert "the connection failed" in await failure(url, SinkUnavailable)
            thread.join()

    async def test_an_answer_of_any_length_ends(self, endpoint: Endpoint) -> None:
        endpoint.answer = lambda _: Answer(200, body=b"a" * 10_000_000)
        async with opened(endpoint.url) as sink:
            for version in range(3):
                await sink.write(numbered(version))
        assert len(endpoint.taken()) == 3

    def test_an_address_that_only_the_client_refuses(self) -> None:
        with pytest.raises(ConfigError, match=r"orders\.url"):
            HttpSink.configure("orders", {"url": f"http://{'a' * 70}\N{LATIN SMALL LETTER E WITH ACUTE}/"})


class TestCertificates:
    @pytest.fixture
    def secured(self, tmp_path: Path) -> Iterator[Endpoint]:
        """An endpoint whose certificate is in `certificate.pem`."""
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(*make_certificate(tmp_path))
        with serving(tls) as served:
            yield served

    async def test_one_that_the_system_does_not_trust(self, secured: Endpoint, failure: Callable[..., Any]) -> None:
        assert "certificate verify failed" in await failure(secured.url, SinkUnavailable)
        assert not secured.posts

    async def test_one_that_the_system_trusts(
        self, secured: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        await send(secured.url)
        assert len(secured.taken()) == 1


class TestRefusedEvents:
    """Events 3 and 7 of ten are refused."""

    def refuse(self, endpoint: Endpoint, status: int, *ids: int) -> None:
        def answer(body: bytes) -> Answer:
            refused = any(event.get("id", 0) - 1_000_000 in ids for event in json.loads(body))
            return Answer(status, body=body) if refused else Answer()

        endpoint.answer = answer

    def letters(self, folder: Path) -> list[dict[str, Any]]:
        files = sorted(folder.rglob("*"))
        assert all(file.suffix == ".jsonl" for file in files if file.is_file())
        return [json.loads(line) for file in files if file.is_file() for line in file.read_bytes().splitlines()]

    @pytest.mark.parametrize("status", [400, 413, 422])
    async def test_they_are_stored_and_the_others_delivered(
        self, endpoint: Endpoint, status: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.refuse(endpoint, status, 3, 7)
        for _ in range(2):  # the second time, the same file is written again
            await send(endpoint.url, dead_letter_folder=str(tmp_path))
        assert [event["id"] - 1_000_000 for event in endpoint.events()] == [0, 1, 2, 4, 5, 6, 8, 9] * 2
        letters = self.letters(tmp_path)
        assert [letter["event"]["id"] - 1_000_000 for letter in letters] == [3, 7]
        assert letters[0]["event"]["_event_id"] == "orders;table;1;0;3;insert"
        assert letters[0]["event"]["name"] == "row 1000003"
        assert f"answers {status}" in letters[0]["reason"]
        (file,) = (tmp_path / "orders" / "table").iterdir()
        assert file.stem == letters[0]["request"] == endpoint.posts[0].headers["webhook-id"]
        assert f"refuses 2 events; see {file}" in caplog.text
        assert "row 1000003" not in caplog.text

    @pytest.mark.parametrize("status", [401, 404, 500])
    async def test_other_failures_are_no_reason(self, endpoint: Endpoint, status: int, tmp_path: Path) -> None:
        self.refuse(endpoint, status, 3, 7)
        with pytest.raises(SinkError):
            await send(endpoint.url, dead_letter_folder=str(tmp_path))
        assert not self.letters(tmp_path)

    async def test_without_a_folder_they_are_named_by_their_place(
        self, endpoint: Endpoint, failure: Callable[..., Any]
    ) -> None:
        self.refuse(endpoint, 422, 3, 7)
        said = await failure(endpoint.url, SinkRejected)
        assert "answers 422" in said
        assert "to the events from 1, 0, 0 to 1, 0, 9 (version, task, row)" in said
        assert "dead_letter_folder" in said

    async def test_a_request_that_is_too_large_is_halved(self, endpoint: Endpoint, failure: Callable[..., Any]) -> None:
        endpoint.answer = lambda body: Answer(413 if len(body) > 500 else 204)
        await send(endpoint.url, rows=50)
        assert [event["id"] for event in endpoint.events()] == list(range(1_000_000, 1_000_050))
        endpoint.answer = lambda _: Answer(413)
        assert "to the event at 1, 0, 0 (version, task, row)" in await failure(endpoint.url, SinkRejected)

    async def test_a_gap_that_is_refused(self, endpoint: Endpoint, tmp_path: Path) -> None:
        endpoint.answer = lambda _: Answer(422)
        async with opened(endpoint.url, dead_letter_folder=str(tmp_path)) as sink:
            await sink.announce(gap(3, 5))
        (letter,) = self.letters(tmp_path)
        assert letter["event"]["_change_type"] == "gap"

    async def test_a_folder_that_cannot_be_written(self, endpoint: Endpoint, tmp_path: Path) -> None:
        (tmp_path / "orders").write_text("a file")
        self.refuse(endpoint, 422, 3)
        with pytest.raises(SinkUnavailable, match="dead letters in"):
            await send(endpoint.url, dead_letter_folder=str(tmp_path))

    async def test_versions_that_come_together_are_delivered_in_order(self, endpoint: Endpoint, tmp_path: Path) -> None:
        async with opened(endpoint.url, dead_letter_folder=str(tmp_path), batch_rows=7) as sink:
            await sink.write_all([numbered(version, rows=3) for version in range(5)])
        assert [len(post.events) for post in endpoint.posts] == [7, 7, 1]
        assert endpoint.posts[0].headers["webhook-id"].startswith("0-0-0_2-0-0_")
