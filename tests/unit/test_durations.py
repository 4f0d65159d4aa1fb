"""Tests of the record of durations: which tests, fixtures and processes it has."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


def test_tests_fixtures_and_what_processes_compute_are_recorded(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LAKE_TAILER_DURATIONS", str(tmp_path))
    pytester.makeconftest("from tests.conftest import pytest_addoption, pytest_configure, pytest_unconfigure")
    pytester.makepyfile("""
        import subprocess, sys, pytest

        @pytest.fixture(scope="session")
        def server(): subprocess.run([sys.executable, "-c", "sum(range(10**7))"])

        def test_first(server): pass

        @pytest.mark.kafka
        def test_computing(server): subprocess.run([sys.executable, "-c", "sum(range(10**7))"])
        """)
    pytester.makeini("[pytest]\nmarkers =\n    kafka: one\n")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)
    lines = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    fixture, first, computing = (line for line in lines if line.get("fixture", "server") == "server")
    assert fixture["scope"] == "session"
    assert (first["tier"], computing["tier"]) == ("test", "kafka")
    assert min(each["cpu_s"] for each in (fixture, first, computing)) > 0.05  # a test's time has its fixtures' in it
    report = subprocess.run(
        [sys.executable, "-m", "tests.durations", tmp_path], check=True, capture_output=True, text=True
    )
    assert report.stdout.index("tiers") < report.stdout.index("::test_computing")
    first_tier, second_tier = (line.split() for line in report.stdout.splitlines()[-2:])
    assert (first_tier[::2], second_tier[2]) == (["0.0", "test"], "kafka")
    assert float(first_tier[1]) <= float(second_tier[0])
