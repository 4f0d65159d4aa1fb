"""The differences between pipelines and configurations that a reload acts on, and sequences that readers share."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tailer.changelog.rules import PairingRules
from tailer.config.overlaps import conflict
from tailer.config.pipelines import MetricsSettings, PipelineSettings, Settings
from tailer.config.shapes import EngineKind
from tailer.config.tables import TableRef
from tailer.daemon.fleet.fleet import Difference, Statuses, difference, fixed_changes
from tailer.pipeline.policy import Policy
from tailer.pipeline.status import PipelineStatus
from tailer.start import Start
from tests.support.cases import cases


def pipeline(name: str, **more: Any) -> PipelineSettings:
    """Return a pipeline with some settings of its own."""
    source, options = TableRef(more.pop("table", f"/lake/{name}")), {"path": f"/out/{name}"}
    start = Start.parse("earliest")
    made = PipelineSettings(
        name=name,
        source=source,
        start=start,
        policy=Policy(),
        pairing=PairingRules(),
        poll_interval_s=1.0,
        sink_kind="delta",
        sink_options=options,
    )
    return replace(made, **more)


def named(*pipelines: PipelineSettings) -> dict[str, PipelineSettings]:
    """Return pipelines by name."""
    return {each.name: each for each in pipelines}


def test_what_comes_changes_and_goes() -> None:
    running = named(pipeline("a"), pipeline("b"), pipeline("c"))
    wanted = named(pipeline("d"), pipeline("a"), pipeline("b", poll_interval_s=2.0))
    assert difference(running, wanted) == Difference(("d",), ("b",), ("c",))
    assert not difference(running, dict(running))


@cases(
    "more",
    [
        {"table": "/x"},
        {"start": Start.parse("latest")},
        {"policy": Policy(("id",))},
        {"pairing": PairingRules(compute_updates=True)},
        {"sink_kind": "files"},
        {"sink_options": {"path": "/out/a", "adopt": True}},
        {"catalog_options": {"uri": "http://h"}},
        {"shards": 5},
        {"source": TableRef("/lake/a", allowed_roots=("/x",))},
        {"max_polls_per_hour": 9},
    ],
)
def test_every_setting_counts(more: dict[str, object]) -> None:
    assert pipeline("a", **more).differs(pipeline("a"))


def test_settings_of_the_whole_process() -> None:
    before = Settings(path=Path("t.toml"), state_table=None, drain_s=30.0, pipelines=(pipeline("a"),))
    after = replace(
        before, drain_s=1.0, pipelines=(), state_table="/s", metrics=MetricsSettings("h", 1), engine=EngineKind.AUTO
    )
    assert fixed_changes(before, after) == ["state_table", "metrics, its token or one of its files", "engine"]


def topic(name: str, **more: str) -> PipelineSettings:
    """Return a pipeline into Kafka."""
    options = {"bootstrap_servers": "h:1", "topic": "t", **more}
    return pipeline(name, sink_kind="kafka", sink_options=options)


@cases(
    ("other", "reason"),
    [
        (pipeline("b"), None),
        (pipeline("b", sink_options={"path": "/out/a"}), "its target /out/a is that of b too"),
        (pipeline("b", sink_options={"path": "/out/a/below"}), "its target /out/a is that of b too"),
        (pipeline("b", table="/out/a"), None),  # it follows what the other writes
        (pipeline("b", table="/out/a/below"), "/out/a and the table /out/a/below are nested in each other"),
        (
            pipeline("b", sink_options={"path": "/lake/a/x"}),
            "/lake/a/x and the table /lake/a are nested in each other",
        ),
        (topic("b"), None),
    ],
)
def test_targets_of_two_pipelines(other: PipelineSettings, reason: str | None) -> None:
    error = conflict(pipeline("a"), [pipeline("c"), other])
    assert (None if error is None else error.reason) == reason


def test_topics_of_two_pipelines() -> None:
    assert conflict(topic("a"), [topic("b", topic="other"), topic("c", bootstrap_servers="other:1")]) is None
    error = conflict(topic("a"), [topic("b")])
    assert error is not None
    assert error.reason == "its target t is that of b too"


def test_a_reader_sees_the_pipelines_of_one_moment() -> None:
    first, second = PipelineStatus("fleet-1"), PipelineStatus("fleet-2")
    statuses = Statuses([first])
    reader = iter(statuses)
    statuses.replace([second, first])
    assert list(reader) == [first]
    assert (list(statuses), len(statuses), statuses[0], list(statuses[1:])) == ([second, first], 2, second, [first])
