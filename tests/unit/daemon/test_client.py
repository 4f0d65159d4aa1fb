"""Reports of a daemon of another release."""

import httpx2
import msgspec
import pytest

from tailer.daemon.client import DaemonClient
from tailer.errors import ConfigError

OLD = b'{"format": 1, "events": [], "journeys": []}'


@pytest.mark.parametrize(("body", "reason"), [(OLD, "cannot be read: .*table"), (b"<html>", "cannot be read: ")])
def test_a_report_that_lacks_something_is_refused(monkeypatch: pytest.MonkeyPatch, body: bytes, reason: str) -> None:
    monkeypatch.setattr(DaemonClient, "_ask", lambda *_: httpx2.Response(200, content=body))
    with pytest.raises(ConfigError, match=reason) as raised:
        DaemonClient(url="http://127.0.0.1:9464").history("orders")
    assert raised.value.hint == "Use the command of the daemon's version."


def test_a_report_in_a_later_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    body = msgspec.json.encode({**msgspec.json.decode(OLD), "format": 99, "table": "/orders"})
    monkeypatch.setattr(DaemonClient, "_ask", lambda *_: httpx2.Response(200, content=body))
    with pytest.raises(ConfigError, match="history in format 99"):
        DaemonClient(url="http://127.0.0.1:9464").history("orders")
