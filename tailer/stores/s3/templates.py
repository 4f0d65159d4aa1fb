"""GET and HEAD after the template of a request that the client of the same bucket has sent.

For each request, botocore finds the address, checks the arguments, calls dozens of hooks and parses the answer. That
takes most of the processor's time for a small object, and to follow a quiet table is nothing but such requests. All
GETs of a bucket differ in the key and the signature alone. So the first one is the client's. Others have its address
and its headers, with their own key; the client's signer signs them, with its credentials as they are renewed, and its
HTTP session sends them.

Only the answers about an object that exists, or does not, are read here. Any other answer and any error is handed to
the client, as the result of the first attempt at a request of its own, so its retries, redirects and errors are the
same. The next requests are again the client's, for a new template, and because each one that succeeds gives back a part
of what its retries have taken from the client's budget of retries.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Self

from aiobotocore.response import AioStreamingBody
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError
from botocore.response import StreamingBody
from botocore.utils import percent_encode

from tailer.stores.s3.errors import NOT_FOUND, error_code, status_of
from tailer.stores.s3.sessions import parse_time
from tailer.stores.s3.traffic import REQUEST
from tailer.stores.traffic import REQUESTS

__all__ = ["LoopTemplates", "ThreadTemplates"]

_Found = dict[str, Any]

_METHODS: Final = {"GetObject": "get_object", "HeadObject": "head_object"}
_ARGUMENTS: Final = {"Range": "Range", "IfMatch": "If-Match"}
# Headers of one attempt, of its signature, and of its own arguments.
_OWN: Final = frozenset(
    {"amz-sdk-invocation-id", "amz-sdk-request", "authorization", "date", "x-amz-content-sha256", "x-amz-date"}
    | {"x-amz-s3session-token", "x-amz-security-token"}
    | {name.lower() for name in _ARGUMENTS.values()}
)
# As many answers give back what the retries of one request may take from the budget of a client, and all of it.
_ANSWERS: Final = 20
_MOST_ANSWERS: Final = 500
_TRIED_AGAIN: Final = frozenset({429, 500, 502, 503, 504})
_SIGNATURE: Final = "AWS4-HMAC-SHA256 "
_NO_SUCH_KEY: Final = b"<Code>NoSuchKey</Code>"
_META: Final = "x-amz-meta-"


@dataclass(frozen=True, slots=True)
class _Template:
    """All requests of one operation in one bucket. `above`: their address up to the key."""

    method: str
    above: str
    headers: Mapping[str, str]
    context: Mapping[str, Any] = field(repr=False)
    streams: bool

    @classmethod
    def of(cls, sent: Any, key: str) -> Self | None:
        """Return the template of a request for `key` that was sent; None where others cannot be made after it."""
        name = _encode(key)
        # Botocore holds values in either type.
        items = sent.headers.items()
        headers = {name: value.decode() if isinstance(value, bytes) else value for name, value in items}
        is_known = headers.get("Authorization", _SIGNATURE).startswith(_SIGNATURE)
        if not sent.url.endswith(f"/{name}") or not is_known:
            return None
        shared = {name: value for name, value in headers.items() if name.lower() not in _OWN}
        return cls(sent.method, sent.url.removesuffix(name), shared, sent.context, sent.stream_output)

    def fill(self, arguments: Mapping[str, str]) -> AWSRequest:
        """Make a request, which is not signed yet."""
        own = {header: arguments[name] for name, header in _ARGUMENTS.items() if name in arguments}
        url = f"{self.above}{_encode(arguments['Key'])}"
        request = AWSRequest(self.method, url, {**self.headers, **own}, b"", stream_output=self.streams)
        request.context = dict(self.context)
        return request


@dataclass(slots=True)
class _Request:
    """A request of the client itself. `first`: the answer or the error of its first attempt, which was made before.

    `sent`: its last attempt.
    """

    first: Any = None
    sent: Any = None

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Give the hook of the client the request of this task or thread."""
        token = _REQUEST.set(self)
        try:
            yield
        finally:
            _REQUEST.reset(token)
            if hasattr(self.first, "raw"):  # the client could not even make a request
                self.first.raw.close()


_REQUEST: Final[ContextVar[_Request | None]] = ContextVar("request of a client of S3", default=None)


def _before_send(request: Any, **_: object) -> Any:
    """Return the answer to a request that is not to be sent, raise its error, or return None."""
    of_client = _REQUEST.get()
    if of_client is None:
        return None
    of_client.sent = request
    first, of_client.first = of_client.first, None
    if isinstance(first, Exception):
        raise first
    return first


class _Templates:
    """The templates of one client, by operation and bucket."""

    def __init__(self, client: Any) -> None:
        self._client = client
        # Neither has a public name.
        self._signer, self._session = client._request_signer, client._endpoint.http_session  # noqa: SLF001
        self._known: dict[tuple[str, str], _Template] = {}
        self._owed = 0  # answers to requests of the client
        # Of these alone: to send one, the client may ask for a session, or for the region of the bucket.
        for operation in _METHODS:
            client.meta.events.register(f"before-send.s3.{operation}", _before_send)

    def _template(self, operation: str, bucket: str) -> _Template | None:
        """Return the template to use; None where the client makes the request."""
        return None if self._owed > 0 else self._known.get((operation, bucket))

    @contextmanager
    def _learning(self, operation: str, arguments: Mapping[str, str], first: Any) -> Iterator[None]:
        """Take the template of the request of the client that is sent meanwhile."""
        request, is_answered = _Request(first), False
        is_fault = isinstance(first, Exception) or (first is not None and first.status_code in _TRIED_AGAIN)
        try:
            with request.under_way():
                yield
            is_answered = True
        except Exception as error:
            is_answered = isinstance(error, ClientError) and error_code(error) in NOT_FOUND
            is_fault = is_fault or not isinstance(error, ClientError) or status_of(error) in _TRIED_AGAIN
            raise
        finally:
            if is_fault:
                self._owed = min(self._owed + _ANSWERS, _MOST_ANSWERS)
            elif is_answered:
                self._owed = max(0, self._owed - 1)
            place = operation, arguments["Bucket"]
            template = _Template.of(request.sent, arguments["Key"]) if is_answered and request.sent else None
            if template is None:
                self._known.pop(place, None)
            else:
                self._known[place] = template


class LoopTemplates(_Templates):
    """The templates of a client of aiobotocore."""

    async def send(self, operation: str, **arguments: str) -> _Found:
        """Send `GetObject` or `HeadObject`; return a part of what the client's method returns. Raises its errors."""
        first: Any = None
        if (template := self._template(operation, arguments["Bucket"])) is not None:
            request = template.fill(arguments)
            await self._signer.sign(operation, request)
            try:
                first = await self._session.send(request.prepare())
                error_body = await first.content if first.status_code == 404 else b""
            except Exception as error:  # noqa: BLE001 - the client decides what it means
                first = error
            else:
                if (direct := _read(operation, template, first, error_body, AioStreamingBody)) is not None:
                    return direct
        with self._learning(operation, arguments, first):
            answer: _Found = await getattr(self._client, _METHODS[operation])(**arguments)
        return answer


class ThreadTemplates(_Templates):
    """The templates of a client of botocore. It may be used by all threads at once."""

    def send(self, operation: str, **arguments: str) -> _Found:
        """See `LoopTemplates.send`."""
        first: Any = None
        if (template := self._template(operation, arguments["Bucket"])) is not None:
            request = template.fill(arguments)
            self._signer.sign(operation, request)
            try:
                first = self._session.send(request.prepare())
                error_body = first.content if first.status_code == 404 else b""
            except Exception as error:  # noqa: BLE001 - the client decides what it means
                first = error
            else:
                if (direct := _read(operation, template, first, error_body, StreamingBody)) is not None:
                    return direct
        with self._learning(operation, arguments, first):
            answer: _Found = getattr(self._client, _METHODS[operation])(**arguments)
        return answer


def _read(operation: str, template: _Template, answer: Any, error_body: bytes, make_body: Any) -> _Found | None:
    """Read the answer about an object; None where it is to be read by the client. Raises `ClientError`."""
    headers, status = answer.headers, answer.status_code
    if status == 404 and (_NO_SUCH_KEY in error_body or template.method == "HEAD"):
        REQUESTS.add(template.context[REQUEST], 1)
        code = "404" if template.method == "HEAD" else "NoSuchKey"
        raise ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, operation)
    length, time = headers.get("content-length"), headers.get("last-modified")
    if status not in (200, 206) or length is None or time is None:
        return None
    REQUESTS.add(template.context[REQUEST], 1)
    return {
        "ContentLength": int(length),
        "LastModified": parse_time(time),
        "ETag": headers.get("etag", ""),
        "ContentRange": headers.get("content-range", ""),
        "Metadata": {
            name[len(_META) :]: value for name, value in headers.items() if name[: len(_META)].lower() == _META
        },
        "Body": make_body(answer.raw, length) if template.streams else None,
    }


def _encode(key: str) -> str:
    """Encode a key for a URL, as botocore does."""
    return str(percent_encode(key, safe="/~"))
