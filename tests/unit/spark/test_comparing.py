"""The versions that all executors compare: those for which that is faster. Without Spark."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from tailer.plan import ChangePlan, ChangeTask, Regime, TaskKind
from tailer.spark.native.comparing import is_worth
from tests.support.cases import cases

SCHEMA = pa.schema([("a", pa.int64())])


def plan_of(size_bytes: int) -> ChangePlan:
    """Make a version that rewrites a file."""
    task = ChangeTask("t", "id", 1, 0, 0, TaskKind.DELETE, "before", size_bytes // 2, SCHEMA)
    tasks = (task, replace(task, index=1, kind=TaskKind.INSERT, uri="after"))
    return ChangePlan("t", "id", 1, 0, "UPDATE", Regime.FILES, SCHEMA, tasks)


def session(cores: int) -> Any:
    """Make what is asked of a session."""
    return SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=cores))


@cases(("cores", "least_gb"), [(1, None), (3, None), (4, 4.0), (8, 1.34), (16, 1.0), (1000, 0.81)])
def test_more_cores_share_smaller_versions(cores: int, least_gb: float | None) -> None:
    if least_gb is None:
        assert not is_worth(session(cores), [plan_of(10**15)])
        return
    assert is_worth(session(cores), [plan_of(int(least_gb * 1.01e9))])
    assert not is_worth(session(cores), [plan_of(int(least_gb * 0.98e9))])
    assert is_worth(session(cores), [plan_of(int(least_gb * 0.51e9))] * 2)
