"""Traces and metrics by OTLP: the real daemon sends them to a receiver of the test, on the loopback address."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemon.commands import Orders, background
from tests.support.servers.otlp import Receiver, values
from tests.support.waiting import until

SECRET: Final = "open-sesame"
METRIC_INTERVAL_MS: Final = "200"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver."""
    with Receiver() as made:
        yield made


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    """A table with two versions, followed into files by the configuration `t.toml` beside it."""
    table = Orders(tmp_path / "orders")
    table.insert(1, 2, 3)
    table.delete(2)
    sink = 'sink = {kind = "files", path = "out"}'
    (tmp_path / "t.toml").write_text(f'[pipelines.copy]\ntable = "orders"\npoll_interval_s = 0.1\n{sink}')
    return table


def delivered(orders: Orders) -> int:
    """Return the number of delivered rows."""
    return sum(len(path.read_text().splitlines()) for path in (orders.path.parent / "out").rglob("*.jsonl"))


def points(receiver: Receiver, name: str) -> dict[tuple[str, ...], float]:
    """Return the values of a metric by the values of its attributes."""
    metric = receiver.metrics.get(name)
    if metric is None:
        return {}
    found = metric.sum.data_points if metric.HasField("sum") else metric.gauge.data_points
    return {tuple(values(each.attributes).values()): each.as_double or each.as_int for each in found}


def test_spans_and_metrics_arrive(receiver: Receiver, orders: Orders) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={SECRET}",
        "OTEL_METRIC_EXPORT_INTERVAL": METRIC_INTERVAL_MS,
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    with background("run", "--config", orders.path.parent / "t.toml", **variables) as daemon:
        until(lambda: delivered(orders) == len(orders.changes))
        orders.insert(4, 5)
        until(lambda: points(receiver, "lake_tailer_transaction_rows") == {("copy",): 6})
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert daemon.returncode == 0
    assert "OpenTelemetry: sending traces and metrics" in errors
    spans = sorted(receiver.spans, key=lambda span: span.end_time_unix_nano)
    assert {span.name for span in spans} == {"transaction"}
    found = [values(span.attributes) for span in spans]
    assert {(each["lake_tailer.pipeline"], each["lake_tailer.table"]) for each in found} == {("copy", str(orders.path))}
    # No version is missing, and none is in two transactions.
    versions = [(each["lake_tailer.version.first"], each["lake_tailer.version.last"]) for each in found]
    assert [first for first, _ in versions] == [0, *(last + 1 for _, last in versions[:-1])]
    assert versions[-1][1] == orders.version
    assert sum(each["lake_tailer.rows"] for each in found) == len(orders.changes)
    assert sum(each.get("lake_tailer.rows.delete", 0) for each in found) == 1
    now_ns = time.time_ns()
    assert all(now_ns - 60e9 < span.start_time_unix_nano <= span.end_time_unix_nano <= now_ns for span in spans)
    assert points(receiver, "lake_tailer_transactions")["copy",] == len(spans)
    assert points(receiver, "lake_tailer_lag_versions") == {("copy",): 0}
    assert points(receiver, "lake_tailer_rows_delivered")["copy", "delete"] == 1
    assert points(receiver, "lake_tailer_pipeline_state")["copy", "streaming"] == 1
    assert points(receiver, "lake_tailer_transaction_seconds_count") == {("copy",): len(spans)}
    assert all(each["service.name"] == "lake-tailer" for each in receiver.resources)
    assert all(each["deployment.environment.name"] == "test" for each in receiver.resources)
    assert set(receiver.headers) == {SECRET}
    assert SECRET not in errors
    assert SECRET.encode() not in receiver.texts


@pytest.mark.long
def test_a_collector_that_refuses_or_is_away_delays_nothing(receiver: Receiver, orders: Orders) -> None:
    receiver.refuses = True
    for url in (receiver.url, "http://127.0.0.1:1"):
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_METRIC_EXPORT_INTERVAL": METRIC_INTERVAL_MS}
        with background("run", "--config", orders.path.parent / "t.toml", **variables) as daemon:
            until(lambda: delivered(orders) == len(orders.changes))
            orders.insert(*range(10 * orders.version, 10 * orders.version + 5))
            until(lambda: delivered(orders) == len(orders.changes))
            began = time.monotonic()
            daemon.terminate()
            daemon.communicate(timeout=300)
            assert time.monotonic() - began < 15
        assert daemon.returncode == 0
    assert receiver.headers


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("variables", "sent"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_TRACES_EXPORTER": "none"}, "sending metrics"),
        ({"OTEL_METRICS_EXPORTER": "none"}, "sending traces"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "no traces are sent by the protocol grpc"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_the_standard_variables_decide(
    receiver: Receiver, orders: Orders, variables: dict[str, str], sent: str
) -> None:
    always = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}
    with background("run", "--config", orders.path.parent / "t.toml", **always, **variables) as daemon:
        until(lambda: delivered(orders) == len(orders.changes))
        daemon.terminate()
        _, errors = daemon.communicate(timeout=300)
    assert ("OpenTelemetry: " in errors) == bool(sent)
    assert sent in errors
    assert bool(receiver.spans) == (sent == "sending traces")
    assert bool(receiver.metrics) == (sent == "sending metrics")
