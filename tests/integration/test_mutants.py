"""For each fault of `tests.mutants`, a test that finds it runs on every landing: not all are left to `make nightly`."""

import subprocess
import sys
from typing import Final

import pytest

from tests.mutants.run import IN_CI, MUTANTS, ROOT

pytestmark = pytest.mark.long

COLLECT: Final = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *IN_CI)


def test_a_test_that_finds_it_runs_on_every_landing() -> None:
    named = sorted({test for mutant in MUTANTS for test in mutant.tests})
    done = subprocess.run([*COLLECT, *named], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    run = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    left = [each.name for each in MUTANTS if not any(name.startswith(each.tests) for name in run)]
    assert not left
