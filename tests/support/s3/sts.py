"""AWS's token service on a loopback port: it grants the login of an S3 server as a role, also to a web identity.

The session token is empty, because the servers of the tests know none.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qsl

from tests.support.s3.server import S3Server

__all__ = ["TokenService", "serving_sts"]

_ROLE: Final = """<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result>
<AssumedRoleUser><Arn>{arn}</Arn><AssumedRoleId>AROA:tests</AssumedRoleId></AssumedRoleUser>
<Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>
<SessionToken></SessionToken><Expiration>{until}</Expiration></Credentials>
</{action}Result></{action}Response>"""
_REFUSED: Final = """<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>
<Code>AccessDenied</Code><Message>not for this user</Message></Error></ErrorResponse>"""


@dataclass
class TokenService:
    """The service. `asked`: the parameters of each request; `lifetime_s`: of new credentials."""

    server: S3Server
    endpoint: str = ""
    lifetime_s: float = 3600
    is_refusing: bool = False
    asked: list[dict[str, str]] = field(default_factory=list)

    def answer(self, parameters: dict[str, str]) -> tuple[int, str]:
        """Return status and body for a request."""
        self.asked.append(parameters)
        if self.is_refusing:
            return 403, _REFUSED
        until = (datetime.now(UTC) + timedelta(seconds=self.lifetime_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        named = {"action": parameters["Action"], "arn": parameters["RoleArn"], "until": until}
        return 200, _ROLE.format(key=self.server.key, secret=self.server.secret, **named)


@contextmanager
def serving_sts(server: S3Server) -> Iterator[TokenService]:
    """Run the service on a free loopback port; stopped when left."""
    service = TokenService(server)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, text = service.answer(dict(parse_qsl(body.decode())))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Do nothing: `asked` is the log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        service.endpoint = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield service
        finally:
            http.shutdown()
            thread.join()
