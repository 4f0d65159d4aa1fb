"""Connection security shared by both clients: TLS and the tokens of OAUTHBEARER."""

import ssl
import time
from base64 import b64encode
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote_plus, urlencode
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

import msgspec

from tailer.errors import SinkAccessRefused, SinkRejected, SinkUnavailable
from tailer_sinks.kafka.clients.port import Connection, OAuth, Tls

__all__ = ["Tokens", "protocol_of", "tls_context"]

_TOKEN_TIMEOUT_S: Final = 10.0
_LARGEST_ANSWER: Final = 2**20
_NO_ACCESS: Final = frozenset({400, 401, 403})  # RFC 6749, section 5.2
_DEFAULT_LIFE_S: Final = 300.0


class _NoRedirects(HTTPRedirectHandler):
    """Refuses to follow a redirect, which would take the client's secret to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Token(msgspec.Struct):
    access_token: str
    expires_in: float = _DEFAULT_LIFE_S


def protocol_of(connection: Connection) -> str:
    """Return Kafka's `security.protocol` of a connection."""
    transport = "PLAINTEXT" if connection.tls is None else "SSL"
    return transport if connection.sasl is None else f"SASL_{transport}"


def tls_context(sink: str, tls: Tls) -> ssl.SSLContext:
    """Make the TLS context. Raises `SinkRejected` for unusable files; `sink`: the sink's name in errors."""
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except OSError as error:
        raise _unusable(sink, f"the certificates of {tls.ca_file}", error) from None
    context.check_hostname = tls.checks_names
    if tls.certificate_file is not None:
        # A function, because without one OpenSSL would ask at the terminal.
        password = tls.key_password or ""
        try:
            context.load_cert_chain(tls.certificate_file, tls.key_file, lambda: password)
        except OSError as error:
            what = f"the certificate of {tls.certificate_file} with the key of {tls.key_file or tls.certificate_file}"
            raise _unusable(sink, what, error) from None
    return context


def _unusable(sink: str, what: str, error: OSError) -> SinkRejected:
    reason = f"{what} cannot be used: {error.strerror or error}"
    return SinkRejected(sink, reason, "Give files in PEM form that this process may read, and the key's password.")


class Tokens:
    """Tokens by the client credentials grant, each kept until most of its life is over.

    The endpoint is trusted by the system's certificates, and also by `tls.ca_file` of the connection. `sink`: the
    sink's name in errors. Any thread may call it.
    """

    def __init__(self, sink: str, oauth: OAuth, tls: Tls | None) -> None:
        self._sink = sink
        self._oauth = oauth
        self._context = ssl.create_default_context()
        if tls is not None and tls.ca_file is not None:
            try:
                self._context.load_verify_locations(tls.ca_file)
            except OSError as error:
                raise _unusable(sink, f"the certificates of {tls.ca_file}", error) from None
        self._held = ("", 0.0)
        self._renewed_at = 0.0

    def token(self) -> tuple[str, float]:
        """Return a token and its expiry in seconds since 1970. Raises `SinkUnavailable` or `SinkRejected`."""
        now = time.time()
        if now >= self._renewed_at:
            got = self._ask()
            self._held = (got.access_token, now + got.expires_in)
            self._renewed_at = now + got.expires_in * 0.8
        return self._held

    def _ask(self) -> _Token:
        oauth = self._oauth
        form = {"grant_type": "client_credentials"} | ({} if oauth.scope is None else {"scope": oauth.scope})
        # RFC 6749, section 2.3.1: both are form-encoded before they are put together.
        login = f"{quote_plus(oauth.client_id)}:{quote_plus(oauth.client_secret)}".encode()
        headers = {"Authorization": f"Basic {b64encode(login).decode()}", "Accept": "application/json"}
        request = Request(oauth.token_endpoint, urlencode(form).encode(), headers)
        try:
            opener = build_opener(_NoRedirects, HTTPSHandler(context=self._context))
            with opener.open(request, timeout=_TOKEN_TIMEOUT_S) as answer:
                return msgspec.json.decode(answer.read(_LARGEST_ANSWER), type=_Token)
        except HTTPError as error:
            error.close()
            reason = f"{oauth.token_endpoint} gives no token: it answers {error.code}"
            if error.code == 429 or error.code >= 500:
                raise SinkUnavailable(self._sink, reason) from None
            remedy = 'Check "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret" and the scope.'
            kind = SinkAccessRefused if error.code in _NO_ACCESS else SinkRejected
            raise kind(self._sink, reason, remedy) from None
        except (URLError, HTTPException, OSError) as error:
            reason = f"{oauth.token_endpoint} does not answer: {getattr(error, 'reason', error)}"
            raise SinkUnavailable(self._sink, reason) from None
        except (msgspec.DecodeError, ValueError):
            reason = f"{oauth.token_endpoint} answers without a token"
            raise SinkRejected(self._sink, reason, 'Check "sasl.oauthbearer.token.endpoint.url".') from None
