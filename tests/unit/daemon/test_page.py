"""The history behind the status page, and the answers that make the page."""

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

import pytest
from starlette.testclient import TestClient

from tailer.daemon.control import VERBS
from tailer.daemon.monitor import Monitor
from tailer.daemon.page import History, page_routes
from tailer.daemon.page.history import EVENTS
from tailer.errors import SinkUnavailable
from tailer.pipeline.status import Committed, PipelineStatus
from tailer.plan import Position


@dataclass
class Clock:
    """A time that the test sets."""

    now_s: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


def pipeline(name: str, clock: Clock) -> PipelineStatus:
    """Return the status of a pipeline that has delivered everything."""
    status = PipelineStatus(name, clock=clock)
    status.note_start()
    status.note_caught_up(0)
    return status


def test_events(clock: Clock) -> None:
    status = pipeline("page-c", clock)
    history = History([status], clock)
    status.note_commit(Committed(Position.end(0), {}))
    history.look()
    status.note_error(SinkUnavailable("kafka", "no broker"))
    history.look()
    status.note_commit(Committed(Position.end(1), {}))
    status.note_caught_up(1)
    history.look()
    clock.now_s += 3600  # it becomes idle, which is no event
    history.look()
    found = history.report()
    assert found is not None
    assert [(event.before, event.state) for event in found.events] == [
        ("retrying", "streaming"),
        ("streaming", "retrying"),
    ]
    assert found.events[1].why.startswith("SinkUnavailable: ")
    for _ in range(EVENTS):
        status.note_pause()
        history.look()
        status.note_start()
        history.look()
    found = history.report()
    assert found is not None
    assert len(found.events) == EVENTS


def test_a_start_that_goes_well_is_no_event(clock: Clock) -> None:
    status = PipelineStatus("page-start", clock=clock)
    history = History([status], clock)
    history.look()

    def begin() -> None:
        status.note_start()
        history.look()
        status.note_work(1, 0, 10)
        history.look()
        status.note_commit(Committed(Position.end(1), {}))
        status.note_caught_up(1)
        history.look()

    def states() -> list[str]:
        """Return the states of the events, newest first."""
        found = history.report()
        assert found is not None
        return [event.state.value for event in found.events]

    begin()
    assert states() == []
    clock.now_s += 10
    status.note_stop(SinkUnavailable("kafka", "no broker"))
    history.look()
    begin()  # after an event, it is worth knowing
    assert states() == ["streaming", "catching_up", "starting", "stopped"]
    begin()
    status.note_pause()
    history.look()
    assert states()[:2] == ["paused", "streaming"]


def test_pipelines_come_and_go(clock: Clock) -> None:
    pipelines = [pipeline("page-d", clock)]
    history = History(pipelines, clock)
    assert history.report("page-d") is not None
    pipelines[:] = [pipeline("page-e", clock)]
    assert history.report("page-d") is None


def test_the_page_holds_all_it_needs_and_allows_nothing_else() -> None:
    history = History([])
    client = TestClient(Monitor([]).app(*page_routes(history)))
    answer = client.get("/")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", answer.text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", answer.text)


def test_history_over_http() -> None:
    status = PipelineStatus("page-f")
    client = TestClient(Monitor([status]).app(*page_routes(History([status]))))
    assert client.get("/history").json() == {"format": 2, "events": [], "journeys": [], "table": None}
    assert client.get("/history?pipeline=page-f").status_code == 200
    unknown = client.get("/history?pipeline=nobody")
    assert (unknown.status_code, unknown.json()) == (404, {"message": "there is no pipeline 'nobody'"})


def test_journeys(clock: Clock) -> None:
    """Versions of one transaction each have the seconds of their own plan and rows."""
    status = pipeline("page-j", clock)
    history = History([status], clock)
    begun_s = clock.now_s
    status.backlog.plan_s = 0.5
    status.note_work(1, int((begun_s - 2) * 1000), 10, first=1)
    status.backlog.read_s += 3.0
    clock.now_s += 4
    status.backlog.plan_s = 0.25
    status.note_work(3, None, 10, first=2)
    status.backlog.read_s += 1.0
    clock.now_s += 2
    status.note_commit(Committed(Position.end(3), {"insert": 1}))
    found = history.report("page-j")
    assert found is not None
    second, first = found.journeys
    assert (first.first, first.last, first.plan_s, first.read_s, first.deliver_s) == (1, 1, 0.5, 3.0, 3.0)
    assert first.appeared is not None
    assert (first.appeared.timestamp(), first.begun.timestamp()) == (begun_s - 2, begun_s - 0.5)
    assert first.delivered.timestamp() == second.delivered.timestamp() == clock.now_s
    assert (second.first, second.last, second.plan_s, second.read_s, second.deliver_s) == (2, 3, 0.25, 1.0, 1.0)
    assert second.appeared is None
    everything = history.report()
    assert everything is not None
    assert (everything.journeys, everything.table) == ([], None)


def test_no_journey_for_versions_that_the_sink_had(clock: Clock) -> None:
    status = pipeline("page-k", clock)
    status.note_work(1, None, 10)
    status.note_resume(Position.end(1))
    assert not status.backlog.journeys


def test_the_page_knows_the_commands_of_the_daemon() -> None:
    script = files("tailer.daemon.page").joinpath("commands.js").read_text("utf-8")
    assert set(re.findall(r'^  "([a-z-]+)": \{$', script, re.MULTILINE)) == set(VERBS)


def test_every_element_that_the_scripts_name_is_on_the_page() -> None:
    texts = {file.name: file.read_text("utf-8") for file in files("tailer.daemon.page").iterdir() if file.is_file()}
    scripts = "".join(text for name, text in texts.items() if name.endswith(".js"))
    named = set(re.findall(r'\$\("([a-z-]+)"\)', scripts))
    assert len(named) > 20
    assert named <= set(re.findall(r' id="([a-z-]+)"', texts["page.html"]))
