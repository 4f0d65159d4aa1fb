"""Commands for every kind of pipeline in every state: refused at once with a reason, or obeyed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response

from tailer.config.settings import load
from tailer.daemon.control import VERBS, Control
from tailer.daemon.fleet.fleet import make_run
from tailer.daemon.runs import Run, Runs, Stop, Work
from tailer.errors import FileVacuumed, SinkFenced, SinkRejected, TableReplaced, TailerError
from tailer.pipeline.status import PipelineStatus
from tailer.plan import Position
from tests.support.tables.handwritten import HandwrittenTable

pytestmark = pytest.mark.anyio

_KAFKA: Final = 'kind = "kafka"\nbootstrap_servers = "localhost:1"\n'
_LOGS: Final = {
    "files": 'kind = "files"\npath = "x"',
    "delta": 'kind = "delta"\npath = "x"',
    "sql log": 'kind = "sql"\nurl = "sqlite:///x.db"\nmode = "append"',
    "stdout": 'kind = "stdout"\nformat = "csv"',
    "http": 'kind = "http"\nurl = "http://localhost:1/"',
    "kafka": f'{_KAFKA}topic = "x"',
    "kafka with a topic for events": f'{_KAFKA}topic = "x"\nenvelope = "debezium"\nschema_topic = "y"',
}
_FORMATS: Final = {
    "debezium": f'{_KAFKA}topic = "x"\nenvelope = "debezium"',
    "cloudevents": f'{_KAFKA}topic = "x"\nenvelope = "cloudevents"',
    "avro": f'{_KAFKA}topic = "x"\nencoding = "avro"\nregistry_url = "http://localhost:1/"',
}
_MIRRORS: Final = {
    "sqlite": 'kind = "sql"\nurl = "sqlite:///x.db"\nkey = ["id"]',
    "duckdb": 'kind = "sql"\nurl = "duckdb:///x.db"\nkey = ["id"]',
    "postgresql": 'kind = "sql"\nurl = "postgresql://localhost:1/x"\nkey = ["id"]',
    "delta mirror": 'kind = "delta"\npath = "x"\nmode = "mirror"\nkey = ["id"]',
}
_EXECUTORS: Final = {"executors": _LOGS["kafka"]}
KINDS: Final[Mapping[str, str]] = _LOGS | _FORMATS | _MIRRORS | _EXECUTORS

_NO_GAPS: Final = "would tell readers of a gap. Give the sink a schema_topic."
_BY_EXECUTORS: Final = 'only the driver can announce a gap. Set write = "driver".'
_MIRROR: Final = "delivers to a mirror, which {}. `tailer resnapshot p` replaces them."
BY_KIND: Final = (  # kinds, verb, the reason of the refusal
    (_FORMATS, "resnapshot", _NO_GAPS),
    (_FORMATS, "skip", _NO_GAPS),
    (_MIRRORS, "backfill", _MIRROR.format("has all rows")),
    (_MIRRORS, "skip", _MIRROR.format("would lack the changes")),
    (_EXECUTORS, "resnapshot", _BY_EXECUTORS),
    (_EXECUTORS, "backfill", _BY_EXECUTORS),
    (_EXECUTORS, "skip", _BY_EXECUTORS),
)

_LOST: Final = FileVacuumed("t", 1, "f")
_STANDBY: Final = "stands by, and a is active: give the command to that instance"
_WAITING: Final = "waits for its table, and begins with its start once it is there"
_NOTHING: Final = "and not stopped by lost changes: there is nothing to skip"
_SNAPSHOT: Final = "is in a snapshot, of which no rows can be left out"
_REST: Final = "has stopped in a snapshot, whose rest comes before any backfill"
_PARENT: Final = "'p' has a pipeline for each of its tables: name one, such as 'p/a'"


def stopped(error: TailerError, note: Callable[[PipelineStatus], object]) -> Callable[[Run], object]:
    """Make what stops a pipeline with an error, after `note`."""

    def stop(run: Run) -> None:
        note(run.status)
        run.error = error
        run.status.note_stop(error)

    return stop


def caught_up(status: PipelineStatus) -> None:
    """Bring a pipeline to version 1."""
    status.note_resume(Position.end(1))
    status.note_work(1, None, 0)
    status.note_caught_up(1)


def in_snapshot(status: PipelineStatus) -> None:
    """Bring a pipeline into the snapshot of version 0."""
    status.note_resume(Position.opening(0, snapshot=True))
    status.note_snapshot(0)


STATES: Final[Mapping[str, tuple[Callable[[Run], object], Mapping[str, str]]]] = {
    "starting": (lambda each: each.status.note_start(), {"skip": _NOTHING}),
    "streaming": (lambda each: caught_up(each.status), {"skip": _NOTHING}),
    "snapshot": (lambda each: in_snapshot(each.status), {"skip": _NOTHING}),
    "waiting": (
        lambda each: each.status.note_missing_table(),
        {"skip": _NOTHING, "resnapshot": _WAITING, "backfill": _WAITING},
    ),
    "paused": (lambda each: each.status.note_pause(), {"skip": _NOTHING}),
    "retrying": (lambda each: each.status.note_error(SinkRejected("s", "down")), {"skip": _NOTHING}),
    "standby": (
        lambda each: each.status.note_standby("a is active"),
        {"skip": _STANDBY, "resnapshot": _STANDBY, "backfill": _STANDBY},
    ),
    "stopped by lost changes": (stopped(_LOST, caught_up), {}),
    "stopped in a snapshot": (stopped(_LOST, in_snapshot), {"skip": _SNAPSHOT, "backfill": _REST}),
    "stopped by another table": (stopped(TableReplaced("t", 1, "a", "b"), caught_up), {"skip": "another table now"}),
    "stopped by the sink": (stopped(SinkFenced("s", "another"), caught_up), {"skip": _NOTHING}),
    "parent": (lambda each: caught_up(each.status), dict.fromkeys(VERBS, _PARENT)),
}


def expected(verb: str, kind: str, state: str) -> str:
    """Return the reason of the refusal; empty: the command is obeyed."""
    by_state = STATES[state][1].get(verb, "")
    if state == "parent":
        return by_state
    if verb == "cancel-backfill":
        return "has no backfill to cancel"
    if state == "standby":
        return by_state
    by_kind = [reason for kinds, refused, reason in BY_KIND if kind in kinds and verb == refused]
    return by_kind[0] if by_kind else by_state


async def never(_stop: Stop) -> None:
    """Do no work: nobody begins it."""


def make() -> Work:
    """Make the work."""
    return never


async def answer(control: Control, verb: str) -> Response:
    """Give a command to the pipeline `p`."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "method": "POST", "headers": [], "path_params": {"name": "p", "verb": verb}}
    given = control.route(None, needs_token=False).endpoint(Request(scope, receive))
    response: Response = await given
    return response


@pytest.mark.parametrize("kind", KINDS)
async def test_a_command_is_refused_at_once_or_obeyed(tmp_path: Path, kind: str, subtests: pytest.Subtests) -> None:
    table = HandwrittenTable(tmp_path / "t")
    table.commit(table.add(table.data("1.parquet", [1])))
    top = 'engine = "spark"\n' if kind in _EXECUTORS else ""
    writers = 'write = "executors"\nshards = 2\n' if kind in _EXECUTORS else ""
    text = f'{top}state_table = "s"\n[pipelines.p]\ntable = "t"\n{writers}[pipelines.p.sink]\n{KINDS[kind]}'
    (tmp_path / "t.toml").write_text(text)
    (pipeline,) = load(tmp_path / "t.toml").pipelines
    control = Control()
    for state, (bring, _) in STATES.items():
        for verb in VERBS:
            name = "p/a" if state == "parent" else "p"
            run = make_run(pipeline, PipelineStatus(name, str(table.path)), make)
            bring(run)
            control.runs = Runs([run], 1)
            before = run.status.command, run.status.backfills.command
            response = await answer(control, verb)
            said, reason = msgspec.json.decode(response.body)["message"], expected(verb, kind, state)
            with subtests.test(state=state, verb=verb):
                assert (response.status_code == 200) == (not reason), said
                assert reason in said
                after = run.status.command, run.status.backfills.command
                assert (after != before) == (not reason and verb in ("resnapshot", "skip", "backfill"))
