"""Ask the running daemon, by its Unix socket or over TCP, for `tailer status`, `history` and the verbs of control."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from tailer.daemon.status_report import FORMAT as STATUS_FORMAT
from tailer.daemon.status_report import StatusReport
from tailer.errors import ConfigError

if TYPE_CHECKING:
    from tailer.daemon.page.history import HistoryReport

__all__ = ["DaemonClient"]

TIMEOUT_S: Final = 30.0
_Report = TypeVar("_Report", StatusReport, "HistoryReport")


@dataclass(frozen=True, slots=True)
class DaemonClient:
    """A daemon at `socket`, or at `url` with `token`."""

    socket: Path | None = None
    url: str | None = None
    token: str | None = None

    @property
    def _where(self) -> str:
        return self.url or str(self.socket)

    def status(self) -> StatusReport:
        """Return the status of all pipelines. Raises `ConfigError`."""
        return self._report(self._ask("GET", "/status"), "status", StatusReport, STATUS_FORMAT)

    def history(self, pipeline: str) -> "HistoryReport":
        """Return the recent past of a pipeline. Raises `ConfigError`."""
        from tailer.daemon.page.history import FORMAT, HistoryReport  # noqa: PLC0415 - not for `tailer status`

        answer = self._ask("GET", f"/history?pipeline={quote(pipeline, safe='')}")
        if answer.status_code == httpx2.codes.NOT_FOUND:
            raise ConfigError(self._where, _said(answer), "`tailer status` shows the pipelines of the daemon.")
        return self._report(answer, "history", HistoryReport, FORMAT)

    def _report(self, answer: httpx2.Response, what: str, kind: type[_Report], form: int) -> _Report:
        """Return the report in an answer. `form`: the format that this command knows."""
        if answer.status_code != httpx2.codes.OK:
            remedy = "Give the token with --token-file."
            raise ConfigError(self._where, f"does not report its {what}: {_said(answer)}", remedy)
        remedy = "Use the command of the daemon's version."
        try:
            report = msgspec.json.decode(answer.content, type=kind)
        except msgspec.MsgspecError as error:
            reason = f"the daemon's report about its {what} cannot be read: {error}"
            raise ConfigError(self._where, reason, remedy) from error
        if report.format != form:
            reason = f"the daemon reports its {what} in format {report.format}, and this command knows {form}"
            raise ConfigError(self._where, reason, remedy)
        return report

    def send(self, pipeline: str, verb: str, **asked: str | int | None) -> str:
        """Give the command `verb`, with what is `asked`; return the daemon's answer.

        Raises `ConfigError` if it refuses.
        """
        answer = self._ask("POST", f"/pipelines/{quote(pipeline)}/{verb}", asked)
        said = _said(answer)
        if answer.status_code != httpx2.codes.OK:
            raise ConfigError(f"{verb} {pipeline}", said, "`tailer status` shows what each pipeline is doing.")
        return said

    def _ask(self, method: str, path: str, body: Mapping[str, str | int | None] | None = None) -> httpx2.Response:
        transport = None if self.socket is None else httpx2.HTTPTransport(uds=str(self.socket))
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        base = self.url or "http://daemon"
        try:
            with httpx2.Client(transport=transport, base_url=base, headers=headers, timeout=TIMEOUT_S) as client:
                return client.request(method, path, json=body or None)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            remedy = "Check that `tailer run` is running with this configuration, as the same user."
            raise ConfigError(self._where, f"no daemon answers: {error}", remedy) from error


def _said(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"answered {answer.status_code}"
