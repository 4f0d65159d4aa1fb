"""The HTTP session of asynchronous clients, which counts what aiohttp repeats by itself.

aiohttp sends a request again, once, if the connection breaks before the answer. Botocore does not see that.
"""

from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Final

from aiobotocore.httpsession import AIOHTTPSession
from aiohttp import ClientSession, TraceConfig

from tailer.stores.s3.traffic import REQUEST
from tailer.stores.traffic import FAULTS, REQUESTS, Fault

__all__ = ["CountingSession"]

# Store and verb of the request that this task sends.
_SENT: Final[ContextVar[tuple[str, str] | None]] = ContextVar("request to S3", default=None)


class CountingSession(AIOHTTPSession):  # type: ignore[misc]
    """aiobotocore's session over aiohttp."""

    async def send(self, request: Any) -> Any:
        """Send a request and return its answer."""
        token = _SENT.set(request.context.get(REQUEST))
        try:
            return await super().send(request)
        finally:
            _SENT.reset(token)

    async def _get_session(self, proxy_url: str | None) -> ClientSession:
        session: ClientSession = await super()._get_session(proxy_url)
        if not session.trace_configs:
            tracing = TraceConfig()
            tracing.on_request_headers_sent.append(_count_repeat)
            tracing.on_request_redirect.append(_expect_another)
            tracing.freeze()
            session.trace_configs.append(tracing)
        return session


async def _count_repeat(_session: ClientSession, context: SimpleNamespace, _sent: object) -> None:
    is_repeat, context.is_sent = getattr(context, "is_sent", False), True
    request = _SENT.get()
    if is_repeat and request is not None:
        REQUESTS.add(request, 1)
        FAULTS.add((*request, Fault.CONNECTION), 1)


async def _expect_another(_session: ClientSession, context: SimpleNamespace, _answer: object) -> None:
    context.is_sent = False
