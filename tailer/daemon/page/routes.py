"""Answer `/` with the status page, and `/history` with what it shows of the past and `tailer history` asks for.

The page is put together from its files once. Its policy allows nothing from elsewhere, and no script or style but
those of the page, by their hashes: a table's name or an error's text can never run. Commands of the page are the
requests of `tailer.daemon.control`, with a token that the operator types. It is only ever in the page's memory and in
a header that no other site can send.
"""

import base64
import hashlib
from importlib.resources import files
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tailer.daemon.page.history import History

__all__ = ["history_route", "page_routes"]

_PACKAGE: Final = "tailer.daemon.page"


def page_routes(history: History, takes_commands: bool = False) -> list[Route]:
    """Return the routes of the page. Reads its files. `takes_commands`: whether it takes commands with a token."""
    style, body = _text("page.css"), _text("page.html")
    script = "".join(map(_text, ("page.js", "details.js", "commands.js", "start.js")))
    if takes_commands:
        body = body.replace("<body>", '<body data-commands="on">', 1)
    page = body.replace("/* page.css */", style, 1).replace("/* page.js */", script, 1).encode()
    headers = {
        "Content-Security-Policy": f"default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors 'none'; style-src {_hash(style)}; script-src {_hash(script)}",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    def answer_page(_request: Request) -> Response:
        return Response(page, media_type="text/html", headers=headers)

    return [Route("/", answer_page), history_route(history)]


def history_route(history: History) -> Route:
    # In the event loop of the server, where the history is kept: its events do not change meanwhile.
    async def answer(request: Request) -> Response:
        pipeline = request.query_params.get("pipeline")
        report = history.report(pipeline)
        if report is None:
            return JSONResponse({"message": f"there is no pipeline {pipeline!r}"}, 404)
        return Response(msgspec.json.encode(report), media_type="application/json")

    return Route("/history", answer)


def _text(name: str) -> str:
    return files(_PACKAGE).joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
