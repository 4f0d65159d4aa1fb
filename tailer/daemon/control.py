"""Commands of an operator to the running daemon: pause, resume, resnapshot, backfill and skip a pipeline.

They come as `POST /pipelines/NAME/VERB`, through a Unix socket that only the daemon's user may connect to, or over TCP
with a token, such as from the status page. That to backfill has the version and the condition in a body, as JSON. None
of them touches progress: a pause ends a run after its transaction, and the next run begins with the sink's progress, as
after any error or restart.
"""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import anyio
import msgspec
from anyio import from_thread, to_thread
from anyio.lowlevel import EventLoopToken, current_token
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tailer.daemon.http_server import has_bearer
from tailer.daemon.runs import Run, Runs
from tailer.errors import TableReplaced, TailerError, did_you_mean
from tailer.pipeline.backfill.command import BackfillCommand, BackfillPhase
from tailer.pipeline.data_loss import is_lost
from tailer.pipeline.policy import OnDataLoss
from tailer.pipeline.status import PipelineState

__all__ = ["VERBS", "Control"]

ANSWER_S: Final = 25.0  # a backfill is checked against the table's log


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a command: `version` and `where` of a backfill."""

    version: int | None = None
    where: str | None = None


class _RefusedError(Exception):
    """A command that cannot be obeyed; the text says why, and what can be done."""


class Control:
    """The commands to the pipelines of `runs`, once it is set. Made in the event loop that the pipelines run in."""

    def __init__(self) -> None:
        self.runs: Runs | None = None
        self.is_reachable = False  # whether anybody may give commands
        self._loop: EventLoopToken = current_token()

    def route(self, token: str | None, needs_token: bool) -> Route:
        """Return the route of commands. `needs_token`: refuse those without `token`, or all if there is none."""

        async def answer(request: Request) -> Response:
            if needs_token and token is None:
                return _said(403, "commands over TCP need control_token in the configuration; or use the Unix socket")
            if needs_token and not has_bearer(request.headers, str(token)):
                return _said(401, "the token is missing or wrong: send the header Authorization: Bearer TOKEN")
            return await self._answer(request.path_params["name"], request.path_params["verb"], await request.body())

        return Route("/pipelines/{name:path}/{verb}", answer, methods=["POST"])

    async def _answer(self, name: str, verb: str, body: bytes) -> Response:
        run = None if self.runs is None else self.runs.by_name.get(name)
        if verb not in VERBS:
            return _said(404, f"there is no command {verb!r}; there are {', '.join(VERBS)}")
        if run is None:
            return _said(404, self._unknown(name))
        try:
            asked = msgspec.json.decode(body or b"{}", type=_Asked)
            with anyio.fail_after(ANSWER_S):
                # In the event loop of the pipelines; the command returns what to tell the operator.
                obey = partial(from_thread.run, VERBS[verb], run, asked, token=self._loop)
                return _said(200, await to_thread.run_sync(obey, abandon_on_cancel=True))
        except msgspec.DecodeError as error:
            return _said(400, f"the command cannot be read: {error}")
        except _RefusedError as refused:
            return _said(409, str(refused))
        except (TimeoutError, RuntimeError):
            return _said(503, "the event loop of the pipelines does not answer; see /livez")

    def _unknown(self, name: str) -> str:
        names = [] if self.runs is None else list(self.runs.by_name)
        if tables := [pipeline for pipeline in names if pipeline.startswith(f"{name}/")]:
            return f"{name!r} has a pipeline for each of its tables: name one, such as {tables[0]!r}"
        text = f"there is no pipeline {name!r}, or it has not been started yet"
        return f"{text}. {near}" if (near := did_you_mean(name, names)) else text


def _said(code: int, text: str) -> Response:
    return JSONResponse({"message": text}, code)


async def _pause(run: Run, _asked: _Asked) -> str:
    name = run.status.name
    if run.status.state is PipelineState.PAUSED:
        return f"{name} is paused already"
    run.pause()
    return f"{name} pauses after its transaction"


async def _resume(run: Run, _asked: _Asked) -> str:
    name, was_running = run.status.name, run.is_running
    run.resume()
    return f"{name} {'runs' if was_running else 'begins again, after the progress of its sink'}"


async def _resnapshot(run: Run, _asked: _Asked) -> str:
    _check(run, "resnapshot")
    _check_table(run)
    run.obey(OnDataLoss.RESNAPSHOT)
    return f"{run.status.name} reports a gap and delivers all rows of the newest version"


async def _backfill(run: Run, asked: _Asked) -> str:
    _check(run, "backfill")
    _check_table(run)
    status, name = run.status, run.status.name
    if (had := run.status.backfills.command) is not None:
        raise _RefusedError(f"{name} has not ended backfill {had.id}: wait for its end, or cancel it with --cancel")
    if status.state is PipelineState.STOPPED and status.is_in_snapshot:
        raise _RefusedError(f"{name} has stopped in a snapshot, whose rest comes before any backfill. {status.hint}")
    try:
        await run.backfill(BackfillCommand.make(asked.version, asked.where))
    except TailerError as error:
        raise _RefusedError(_told(run, error)) from error
    rows = "all rows" if asked.where is None else "the rows that fulfil the condition"
    version = "the version where it is" if asked.version is None else f"version {asked.version}"
    return f"{name} delivers {rows} of {version}, and then its changes"


async def _cancel_backfill(run: Run, _asked: _Asked) -> str:
    backfills = run.status.backfills
    if (had := backfills.command) is None:
        raise _RefusedError(f"{run.status.name} has no backfill to cancel")
    try:
        await backfills.end(BackfillPhase.CANCELLED)
    except TailerError as error:
        reason = f"{error}. {error.hint_for(run.status.name)}"
        raise _RefusedError(f"the backfill ends, and comes back at the next start: {reason}") from error
    return f"{run.status.name} ends backfill {had.id}; rows that were delivered stay"


async def _skip(run: Run, _asked: _Asked) -> str:
    _check(run, "skip")
    status = run.status
    if status.state is not PipelineState.STOPPED or not is_lost(run.error):
        reason = f"{status.name} is {status.state} and not stopped by lost changes: there is nothing to skip"
        raise _RefusedError(reason)
    if isinstance(run.error, TableReplaced):
        reason = f"{status.name} follows another table now, whose rows cannot be left out. {status.hint}"
        raise _RefusedError(reason)
    if status.is_in_snapshot:
        raise _RefusedError(f"{status.name} is in a snapshot, of which no rows can be left out. {status.hint}")
    run.obey(OnDataLoss.SKIP)
    return f"{status.name} reports the gap and continues after it"


def _check(run: Run, verb: str) -> None:
    """Raise if another instance delivers the pipeline, or if one of its kind never takes the command."""
    if run.status.state is PipelineState.STANDBY:
        reason = f"stands by, and {run.status.why}: give the command to that instance"
        raise _RefusedError(f"{run.status.name} {reason}")
    try:
        run.check_verb(verb)
    except TailerError as error:
        raise _RefusedError(_told(run, error)) from error


def _told(run: Run, error: TailerError) -> str:
    return f"{type(error).__name__}: {error}. {error.hint_for(run.status.name)}".rstrip()


def _check_table(run: Run) -> None:
    """Raise if the pipeline waits for its table."""
    if run.status.state is PipelineState.WAITING:
        reason = "waits for its table, and begins with its start once it is there: give the command again after that"
        raise _RefusedError(f"{run.status.name} {reason}")


VERBS: Final[dict[str, Callable[[Run, _Asked], Coroutine[Any, Any, str]]]] = {
    "pause": _pause,
    "resume": _resume,
    "resnapshot": _resnapshot,
    "backfill": _backfill,
    "cancel-backfill": _cancel_backfill,
    "skip": _skip,
}
