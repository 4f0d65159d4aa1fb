"""Every test is in one tier, every tier has a target, and a test that needs another marker fails."""

import re
from itertools import chain, combinations
from pathlib import Path
from typing import Final

import pytest

from tests.support.cases import cases
from tests.tiers import BY_HAND, TIERS, tier_of

pytest_plugins = ["pytester"]

ROOT: Final = Path(__file__).resolve().parents[2]
MARKERS: Final = (
    "golden",
    "spark",
    "kafka",
    "faults",
    "smoke",
    "long",
    "bench",
    "nightly",
    "spark_connect",
    "stores",
    "page",
)
CONFTEST: Final = """
    from tests.conftest import (
        pytest_addoption, pytest_collection_modifyitems, pytest_configure, pytest_runtest_protocol,
        pytest_runtest_teardown, pytest_unconfigure,
    )
    """


@cases(
    ("markers", "tier"),
    [
        ("", "test"),
        ("anyio parametrize", "test"),
        ("golden", "golden"),
        ("golden spark", "golden"),
        ("spark", "spark"),
        ("spark kafka", "kafka"),
        ("spark spark_connect kafka golden", "connect"),
        ("faults spark kafka", "faults"),
        ("faults", "faults"),
        ("smoke faults kafka", "test"),
        ("smoke spark", "test"),
        ("stores", "stores"),
        ("stores long", "stores"),
        ("stores spark", "spark"),
        ("long", "long"),
        ("long spark", "spark"),
        ("nightly kafka faults", "nightly"),
        ("smoke nightly", "nightly"),
        ("bench spark", "bench"),
    ],
)
def test_markers_decide_the_tier(markers: str, tier: str) -> None:
    assert tier_of(set(markers.split())) == tier


def test_any_markers_have_a_tier() -> None:
    sets = chain.from_iterable(combinations(MARKERS, size) for size in range(len(MARKERS) + 1))
    assert {tier_of(set(markers)) for markers in sets} == {*TIERS, *BY_HAND}


def test_each_tier_has_one_target_and_all_are_made_by_test_all() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipes = dict(re.findall(r"^([\w-]+):[^=\n]*\n((?:\t.*\n)+)", makefile, re.MULTILINE))
    targets = {
        tier: [name for name, recipe in recipes.items() if re.search(rf"--tier {tier}\b", recipe)]
        for tier in TIERS + BY_HAND
    }
    assert {tier: len(names) for tier, names in targets.items()} == dict.fromkeys(TIERS + BY_HAND, 1)
    made = re.findall(r"\btest[\w-]*", recipes["test-all"])
    assert sorted(made) == sorted(targets[tier][0] for tier in TIERS)


def run(pytester: pytest.Pytester, test: str, *arguments: str) -> pytest.RunResult:
    """Run a generated test with the hooks of `tests/conftest.py`."""
    pytester.makeconftest(CONFTEST)
    markers = "".join(f"    {marker}: one\n" for marker in (*MARKERS, "sampled(n)"))
    pytester.makeini(f"[pytest]\nmarkers =\n{markers}")
    pytester.makepyfile(test)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)


def test_a_resource_without_its_marker_fails_the_test(pytester: pytest.Pytester) -> None:
    test = """
        import os, subprocess
        from contextlib import suppress
        import pytest
        from tests.support.kafka.cluster import KafkaCluster
        from tests.support.spark.session import build_spark
        from tests.support.spark.cluster import StandaloneCluster
        from tests.support.tables.golden import golden

        USES = {
            "golden": lambda folder: golden("delta"),
            "kafka": KafkaCluster,
            "spark": build_spark,
            "cluster": StandaloneCluster,
            "java": lambda _: subprocess.run(["java", "-version"]),
            "a child's java": lambda _: subprocess.run(["sh", "-c", "java -x"]),
            "java's home": lambda _: subprocess.run([os.environ["JAVA_HOME"] + "/bin/java", "-y"]),
        }

        @pytest.mark.parametrize("uses", USES)
        def test_one(uses, tmp_path):
            with suppress(Exception):
                USES[uses](tmp_path)
        """
    result = run(pytester, test)
    result.assert_outcomes(passed=7, errors=7)
    used = ("golden", "kafka", "spark", "spark")
    markers = [f"this test uses {what}: mark it with @pytest.mark.{what}*" for what in used]
    java = [f"this test needs the marker spark or kafka, it starts: java -{what}" for what in ("version", "x", "y")]
    result.stdout.fnmatch_lines([*markers, *java])


def test_a_resource_used_during_collection_stops_the_run(pytester: pytest.Pytester) -> None:
    result = run(
        pytester, "from tests.support.tables.golden import golden\nTABLE = golden('delta')\ndef test_one(): pass"
    )
    result.stdout.fnmatch_lines(["*golden: used while tests are collected*"])
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_a_tier_runs_its_tests_only(pytester: pytest.Pytester) -> None:
    test = """
        import pytest

        @pytest.fixture
        def kafka(): pass

        def test_none(): pass

        def test_kafka(kafka): pass

        @pytest.mark.golden
        def test_golden(): pass
        """
    for tier in ("test", "kafka", "golden"):
        run(pytester, test, "--tier", tier).assert_outcomes(passed=1, deselected=2)
    run(pytester, test, "--tier", "kafka", "--tier", "test").assert_outcomes(passed=2, deselected=1)
    run(pytester, test).assert_outcomes(passed=3)


def test_of_sampled_tests_one_case_in_n_stays_with_each_value(pytester: pytest.Pytester) -> None:
    test = """
        import pytest

        @pytest.mark.sampled(3)
        class TestOne:
            @pytest.mark.parametrize("case", range(7))
            def test_many_values(self, case): pass

            @pytest.mark.parametrize("way", ["a", "b", "c"])
            @pytest.mark.parametrize(("client", "port"), [("x", 1), ("y", 1), ("z", 1)])
            def test_values(self, client, port, way): print(f"<{client}{way}>")

            def test_none(self): pass
        """
    landing = run(pytester, test, "--tier", "test", "-s")
    landing.assert_outcomes(passed=7, deselected=10)
    clients, ways = zip(*re.findall("<(.)(.)>", landing.stdout.str()), strict=True)
    assert (sorted(clients), sorted(ways)) == (["x", "y", "z"], ["a", "b", "c"])
    run(pytester, test, "--tier", "nightly").assert_outcomes(passed=10, deselected=7)


def test_a_class_is_sampled_by_its_own_marker_and_not_by_the_one_that_it_inherits(pytester: pytest.Pytester) -> None:
    test = """
        import pytest

        @pytest.mark.sampled(2)
        class TestOne:
            @pytest.mark.parametrize("case", range(8))
            def test_one(self, case): pass

        @pytest.mark.sampled(8)
        class TestTwo(TestOne): pass
        """
    run(pytester, test, "--tier", "test").assert_outcomes(passed=4 + 1, deselected=4 + 7)
