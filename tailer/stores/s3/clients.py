"""Asynchronous clients of AWS: one for each event loop, `S3Options` and service, shared by all stores.

A client is held by an asynchronous generator, which the event loop closes when it ends. A client whose token has
expired is replaced by one that looks for credentials from the start; requests that still run end with the old one.

Their HTTP session counts what aiohttp repeats by itself: it sends a request again, once, if the connection breaks
before the answer. Botocore does not see that.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import anyio
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioAssumeRoleCredentialFetcher, AioDeferredRefreshableCredentials
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from aiohttp import ClientSession, TraceConfig
from anyio.lowlevel import RunVar
from botocore.credentials import CredentialProvider
from botocore.exceptions import NoCredentialsError

from tailer.stores.port import in_thread
from tailer.stores.s3 import S3Options
from tailer.stores.s3.sessions import client_arguments, credentials_name, prepare, role_request
from tailer.stores.s3.templates import LoopTemplates
from tailer.stores.s3.traffic import REQUEST
from tailer.stores.traffic import FAULTS, REQUESTS, Fault

__all__ = ["CountingSession", "LoopClient", "loop_client", "loop_session"]

# Store and verb of the request that this task sends.
_SENT: Final[ContextVar[tuple[str, str] | None]] = ContextVar("request to S3", default=None)


class CountingSession(AIOHTTPSession):  # type: ignore[misc]
    """aiobotocore's session over aiohttp."""

    async def send(self, request: Any) -> Any:
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


@dataclass(eq=False)
class LoopClient:
    """A client of the running event loop, in use by `users` requests. `credentials`: its login, for errors.

    `templates`: its way to send GET and HEAD.
    """

    client: Any
    credentials: str
    templates: LoopTemplates
    users: int = 0
    is_retired: bool = False

    def retire(self) -> None:
        """Let the next request make a new client: this one's credentials are refused."""
        self.is_retired = True


@dataclass(eq=False)
class _Held:
    """A client, and the generator that closes it."""

    client: LoopClient
    generator: AsyncGenerator[LoopClient, None]

    async def close_unused(self) -> None:
        """Close the client if it is retired and no request uses it."""
        if self.client.is_retired and not self.client.users:
            with anyio.CancelScope(shield=True):
                await self.generator.aclose()


@dataclass(eq=False)
class _Clients:
    """The clients of one event loop."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    held: dict[tuple[str, S3Options], _Held] = field(default_factory=dict)


_CLIENTS: Final[RunVar[_Clients]] = RunVar("clients of AWS")


@asynccontextmanager
async def loop_client(options: S3Options, service: str = "s3") -> AsyncIterator[LoopClient]:
    """Lend the client of this event loop for one request and its answer. `service`: as botocore names it.

    Raises botocore's errors, `OSError` and `ValueError` where none can be made.
    """
    held = await _find(service, options)
    held.client.users += 1
    try:
        yield held.client
    finally:
        held.client.users -= 1
        await held.close_unused()


async def _find(service: str, options: S3Options) -> _Held:
    try:
        clients = _CLIENTS.get()
    except LookupError:
        clients = _Clients()
        _CLIENTS.set(clients)
    held = clients.held.get((service, options))
    if held is not None and not held.client.is_retired:
        return held  # without the lock, which costs each request a turn of the event loop
    async with clients.lock:
        held = clients.held.get((service, options))
        if held is None or held.client.is_retired:
            generator = _open(service, options, clients.held)
            held = _Held(await anext(generator), generator)
            clients.held[service, options] = held
        return held


async def _open(
    service: str, options: S3Options, held: dict[tuple[str, S3Options], _Held]
) -> AsyncGenerator[LoopClient, None]:
    """Yield a client, and close it after that; the generator is finished by the event loop, if by nobody else."""
    make_config = partial(AioConfig, http_session_cls=CountingSession)
    arguments = await in_thread(partial(client_arguments, options, make_config, warm_up_loader_caches=True))
    session = loop_session(options, arguments["region_name"])
    async with session.create_client(service, **arguments) as client:
        credentials = None if options.anonymous else await session.get_credentials()
        name = credentials_name(options, credentials and credentials.method)
        opened = LoopClient(client, name, LoopTemplates(client))
        try:
            yield opened
        finally:
            # Otherwise the client would keep its event loop in memory.
            if (key := (service, options)) in held and held[key].client is opened:
                del held[key]


def loop_session(options: S3Options, region: str) -> Any:
    """Make aiobotocore's session, whose requests are counted; `region`: where a role is assumed."""
    session = AioSession(profile=options.profile)
    prepare(session, options)
    if options.role_arn is not None:
        resolver = session.get_component("credential_provider")
        create_client = partial(session.create_client, region_name=region)
        resolver.providers.insert(0, _AssumedRole(create_client, resolver.providers, options))
    return session


class _AssumedRole(CredentialProvider):  # type: ignore[misc]
    """The first source of credentials where a role is configured."""

    METHOD = "assume-role"

    def __init__(self, create_client: Callable[..., Any], others: list[Any], options: S3Options) -> None:
        super().__init__()
        self._create_client = create_client
        self._others = list(others)
        self._options = options

    async def load(self) -> Any:
        """Return credentials that assume the role when they are first used. Raises `NoCredentialsError`."""
        for provider in self._others:
            if (credentials := await provider.load()) is not None:
                break
        else:
            raise NoCredentialsError
        fetcher = AioAssumeRoleCredentialFetcher(
            self._create_client, credentials, self._options.role_arn, extra_args=role_request(self._options)
        )
        return AioDeferredRefreshableCredentials(method=self.METHOD, refresh_using=fetcher.fetch_credentials)
