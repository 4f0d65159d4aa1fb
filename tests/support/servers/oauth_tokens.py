"""A token endpoint for OAUTHBEARER: the client credentials grant (RFC 6749, section 4.4) on a loopback port.

Its tokens are unsecured (RFC 7519, section 6), as Kafka's own test validator accepts.
"""

import base64
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, unquote_plus

__all__ = ["CLIENT_ID", "CLIENT_SECRET", "TokenServer", "serving_tokens"]

CLIENT_ID: Final = "lake tailer"
CLIENT_SECRET: Final = "hush:hush/1+2"


class TokenServer:
    """A token endpoint. `lifetime_s`: of new tokens. `broken`: the answer to every request instead.

    `granted`: the scopes of all issued tokens.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.lifetime_s = 3600
        self.broken: tuple[int, str] | None = None
        self.granted: list[str] = []

    def answer(self, authorization: str, form: Mapping[str, str]) -> tuple[int, str]:
        """Return status and body for a request; the client's credentials are in the header or in the form."""
        if self.broken is not None:
            return self.broken
        if form.get("grant_type") != "client_credentials":
            return 400, json.dumps({"error": "unsupported_grant_type"})
        if (CLIENT_ID, CLIENT_SECRET) not in (
            _basic(authorization),
            (form.get("client_id"), form.get("client_secret")),
        ):
            return 401, json.dumps({"error": "invalid_client"})
        scope = form.get("scope", "")
        self.granted.append(scope)
        token = {"access_token": self.token(scope), "token_type": "Bearer", "expires_in": self.lifetime_s}
        return 200, json.dumps(token)

    def token(self, scope: str = "") -> str:
        """Make a token for `CLIENT_ID`."""
        now = int(time.time())
        claims = {"sub": CLIENT_ID, "iat": now, "exp": now + self.lifetime_s, "scope": scope}
        return f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."


def _encoded(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _basic(authorization: str) -> tuple[str, str]:
    kind, _, value = authorization.partition(" ")
    name, _, secret = (base64.b64decode(value).decode() if kind == "Basic" else "").partition(":")
    return unquote_plus(name), unquote_plus(secret)


class _Requests(BaseHTTPRequestHandler):
    """HTTP around `TokenServer.answer`."""

    tokens: TokenServer

    def do_POST(self) -> None:
        """Reply."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        form = {name: values[0] for name, values in parse_qs(body, keep_blank_values=True).items()}
        status, answer = self.tokens.answer(self.headers.get("Authorization") or "", form)
        content = answer.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Do nothing: `granted` is the log."""


@contextmanager
def serving_tokens() -> Iterator[TokenServer]:
    """Run the endpoint on a free loopback port, stopped when left."""
    requests = type("Requests", (_Requests,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), requests) as http:
        tokens = requests.tokens = TokenServer(f"http://127.0.0.1:{http.server_port}/token")  # type: ignore[attr-defined]
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield tokens
        finally:
            http.shutdown()
            thread.join()
