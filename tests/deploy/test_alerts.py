"""The alert rules and the dashboard: metrics that exist, a test by promtool and a page of the runbook for each alert.

`make check-alerts` runs promtool.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import generate_latest

from tailer.daemon.monitor import metrics_registry
from tailer.daemon.observe.verified import VerifiedMetrics
from tailer.pipeline.status import PipelineState, PipelineStatus
from tailer.pipeline.verification.comparison import Verification
from tailer.stores.traffic import Fault
from tests.deploy.files import DEPLOY, read_yaml

RULES: Final = DEPLOY / "prometheus" / "alerts.yml"
TESTS: Final = DEPLOY / "prometheus" / "alerts_test.yml"
DASHBOARD: Final = DEPLOY / "grafana" / "dashboard.json"
RUNBOOK: Final = DEPLOY / "runbook.md"

OURS: Final = re.compile(r"\blake_tailer_[a-z_]+")


def metrics() -> set[str]:
    """Return the names of all metrics of the daemon, and of `tailer verify`."""
    status = PipelineStatus("orders")
    status.note_start()
    registry = metrics_registry([status])
    registry.register(VerifiedMetrics("orders", [Verification(7, ("id",))], at_s=0.0))
    text = generate_latest(registry).decode()
    named = dict(re.findall(r"^# TYPE (\w+) (\w+)", text, re.MULTILINE))
    parts = {f"{name}_{part}" for name, kind in named.items() if kind == "summary" for part in ("count", "sum")}
    return {*named, *parts}


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    return [rule for group in read_yaml(RULES)["groups"] for rule in group["rules"]]


ALERTS: Final = [rule["alert"] for rule in rules()]


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard, without its rows."""
    document: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def values(document: Any, key: str) -> Iterator[Any]:
    """Yield each value of `key` at any depth."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name == key:
                yield value
            yield from values(value, key)
    elif isinstance(document, list):
        for each in document:
            yield from values(each, key)


@pytest.mark.parametrize("path", [RULES, TESTS, DASHBOARD, RUNBOOK], ids=lambda path: path.name)
def test_every_metric_that_is_named_exists(path: Path) -> None:
    known = metrics()
    assert "lake_tailer_pipeline_state" in known
    assert not set(OURS.findall(path.read_text())) - known, "no code defines these metrics"


def test_each_alert_says_how_bad_it_is_and_leads_to_its_page_in_the_runbook() -> None:
    headings = re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert [name for name in headings if name.startswith("LakeTailer")] == ALERTS
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"deploy/runbook.md#{rule['alert'].lower()}"


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_is_tested_firing_and_quiet(alert: str) -> None:
    cases = [case for test in read_yaml(TESTS)["tests"] for case in test["alert_rule_test"]]
    of_alert = [case.get("exp_alerts") or [] for case in cases if case["alertname"] == alert]
    assert any(of_alert), "alerts_test.yml shows no case in which it fires"
    assert not all(of_alert), "alerts_test.yml shows no case in which it is quiet"


def test_the_dashboard_asks_its_own_data_source_and_its_panels_do_not_overlap() -> None:
    document = json.loads(DASHBOARD.read_text())
    assert {each["uid"] for each in values(document, "datasource")} == {"${datasource}"}
    taken: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        box = panel["gridPos"]
        cells = {(box["x"] + x, box["y"] + y) for x in range(box["w"]) for y in range(box["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len(set(values(document["panels"], "id"))) == len(document["panels"])
    for panel in panels():
        assert panel["description"], panel["title"]
        assert panel["targets"], panel["title"]


def test_queries_of_the_dashboard_follow_the_chosen_pipelines() -> None:
    of_process = ("lake_tailer_store_", "lake_tailer_memory_", "process_")
    for panel in panels():
        for target in panel["targets"]:
            for name, labels in re.findall(r"(\w+)\{([^}]*)\}", target["expr"]):
                chosen = 'job="lake-tailer"' if name.startswith(of_process) else 'pipeline=~"$pipeline"'
                assert chosen in labels, target["expr"]
            assert len(OURS.findall(target["expr"])) <= target["expr"].count("{")


@pytest.mark.parametrize("path", [RULES, DASHBOARD], ids=lambda path: path.name)
def test_every_state_and_fault_that_is_named_exists(path: Path) -> None:
    text = path.read_text().replace('\\"', '"')
    named = {state for states in re.findall(r'state=~?"([^"]+)"', text) for state in states.split("|")}
    assert named
    assert named <= set(PipelineState)
    faults = {fault for each in re.findall(r'fault!?=~?"([^"]+)"', text) for fault in each.split("|")}
    assert faults <= set(Fault)
