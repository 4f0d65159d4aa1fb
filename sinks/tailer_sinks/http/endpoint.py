"""The client of an endpoint: sends one request until it is taken or refused, or has failed.

    2xx                     taken
    413, 400, 422           refused because of its events: the sink decides about them
    429, 503                sent again after the time that `Retry-After` gives, or after a pause that grows
    408, 425, other 5xx,    `SinkUnavailable`: the pipeline retries, from its progress on
    no answer in time,
    errors of connections
    401, 403, 407           sent again, once, if the secrets are others when they are read again; else
                            `SinkAccessRefused`
    3xx, other 4xx          `SinkRejected`: a person must act

A redirect is not followed, because it may lead rows to another place.

Of an answer only the status and `Retry-After` are used. Its body and its reason phrase are in no message, because they
may quote rows, and neither are texts of errors that may quote what was sent or received.
"""

import email.utils
import logging
import random
import time
from functools import partial
from http import HTTPStatus
from importlib.metadata import version as version_of
from typing import Final
from urllib.request import getproxies

import anyio
import httpx2
from anyio import to_thread

from tailer.errors import ConfigError, SinkAccessRefused, SinkError, SinkRejected, SinkUnavailable
from tailer.sink import refused
from tailer_sinks.http.events import Request, signature
from tailer_sinks.http.options import Options, RequestSecrets, Secrets, origin

__all__ = ["Endpoint", "status_text"]

_log = logging.getLogger(__name__)

REFUSED_EVENTS: Final = frozenset({400, 413, 422})
BUSY: Final = frozenset({429, 503})
TEMPORARY: Final = frozenset({408, 425})
NO_ACCESS: Final = frozenset({401, 403, 407})
MOST_WAIT_S: Final = 300.0  # in all, for one request
LONGEST_PAUSE_S: Final = 30.0
KEPT_BYTES: Final = 2**16  # of an answer, so that its connection can be used again
KEEP_ALIVE_S: Final = 4.0  # many servers close a connection that was idle for 5 s


class Endpoint:
    """The endpoint of the sink called `name`. Raises `ConfigError` for an address that the client refuses."""

    def __init__(self, name: str, options: Options, content_type: str) -> None:
        self._name = name
        self._options = options
        self._headers: Final = {"user-agent": f"lake-tailer/{version_of('lake-tailer')}", "content-type": content_type}
        self._source = RequestSecrets(name, options)
        self._secrets: Secrets | None = None  # of the last request
        self._client: httpx2.AsyncClient | None = None
        try:
            self._url = httpx2.URL(options.url)
        except httpx2.InvalidURL:
            remedy = "Give one such as https://api.example.com/changes."
            raise ConfigError(f"{name}.url", "is not an address of HTTP", remedy) from None
        self.origin = origin(options.url)

    async def post(self, request: Request) -> int | None:
        """Send a request. Return None if it is taken, else the status that refuses its events.

        Raises `SinkUnavailable` and `SinkRejected`.
        """
        waited_s, pause_s, renewed = 0.0, 1.0, False
        while True:
            status, told_s = await self._send(request)
            if 200 <= status < 300:
                return None
            if status in REFUSED_EVENTS:
                return status
            if status in NO_ACCESS and not renewed and self._source.may_change:
                self._source.forget()
                if await to_thread.run_sync(self._source.read) != self._secrets:
                    renewed = True
                    continue
            if status not in BUSY or waited_s >= MOST_WAIT_S:
                raise self._failure(status)
            wait_s = min(pause_s * random.uniform(0.5, 1) if told_s is None else told_s, MOST_WAIT_S - waited_s)
            _log.warning("%s: %s answers %s; going on in %.0f s", self._name, self.origin, status_text(status), wait_s)
            await anyio.sleep(wait_s)
            # Answers that ask for no wait at all must end, too.
            waited_s, pause_s = waited_s + max(wait_s, 1.0), min(pause_s * 2, LONGEST_PAUSE_S)

    async def refusals(self) -> list[SinkError]:
        """Return why no request could be sent: a secret cannot be read, or nothing listens. Nothing is sent."""
        errors = await to_thread.run_sync(refused, self._source.read)
        if getproxies():  # it may listen for the proxy alone
            return errors
        port = self._url.port or (443 if self._url.scheme == "https" else 80)
        try:
            with anyio.fail_after(self._options.timeout_s):
                await (await anyio.connect_tcp(self._url.host, port)).aclose()
        except TimeoutError:
            errors.append(self._unavailable(f"no answer within {self._options.timeout_s:g} s"))
        except OSError as error:
            errors.append(self._unavailable(f"cannot be reached: {error}"))
        return errors

    async def aclose(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _send(self, request: Request) -> tuple[int, float | None]:
        """Send a request once. Return the status of the answer, and after how many seconds to send the next."""
        if self._client is None:
            # Without time limits: a request has one as a whole. The system's certificates, which take 0.1 s, are loaded
            # only for HTTPS.
            is_secure = self._url.scheme == "https"
            alone = httpx2.Limits(max_connections=1, keepalive_expiry=KEEP_ALIVE_S)
            self._client = await to_thread.run_sync(
                partial(httpx2.AsyncClient, verify=is_secure, timeout=None, limits=alone, follow_redirects=False)
            )
        if self._secrets is None or self._source.may_change:
            self._secrets = await to_thread.run_sync(self._source.read)
        now_s = int(time.time())
        headers = self._headers | self._secrets.headers
        headers |= {"webhook-id": request.id, "webhook-timestamp": str(now_s)}
        if keys := self._secrets.keys:
            headers["webhook-signature"] = signature(keys, request, now_s)
        try:
            with anyio.fail_after(self._options.timeout_s):
                async with self._client.stream("POST", self._url, content=request.body, headers=headers) as answer:
                    read = 0
                    async for piece in answer.aiter_raw():
                        read += len(piece)
                        if read > KEPT_BYTES:  # the connection is closed then
                            break
        except TimeoutError:
            raise self._unavailable(f"no answer within {self._options.timeout_s:g} s") from None
        except httpx2.ConnectError as error:
            raise self._unavailable(f"cannot be reached: {error}") from None
        except httpx2.HTTPError as error:
            reason = f"the connection failed before the answer was complete ({type(error).__name__})"
            raise self._unavailable(reason) from None
        return answer.status_code, _retry_after_s(answer.headers.get("retry-after"))

    def _failure(self, status: int) -> SinkError:
        reason = f"{self.origin} answers {status_text(status)}"
        if status >= 500 or status in BUSY | TEMPORARY:
            return SinkUnavailable(self._name, reason)
        if 300 <= status < 400:
            return SinkRejected(self._name, reason, "Redirects are not followed: give the address that takes rows.")
        if status in NO_ACCESS:
            return SinkAccessRefused(self._name, reason, self._source.remedy)
        return SinkRejected(self._name, reason, "Check url, and the log of the service.")

    def _unavailable(self, reason: str) -> SinkUnavailable:
        return SinkUnavailable(self._name, f"{self.origin}: {reason}")


def status_text(status: int) -> str:
    """Return the status of an answer with its standard phrase, not the server's own."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _retry_after_s(value: str | None) -> float | None:
    """Return the seconds in a header `Retry-After`, which has a number or a date (RFC 9110, section 10.2.3)."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
