"""Micro-batches of any size, with splits executed in any order: each row of `LocalEngine`, once."""

import random
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.changelog.rules import PairingRules
from tailer.spark.source.admission import Budget
from tailer.start import StartPoint
from tests.support.follow import snapshot
from tests.support.oracle.recorded import HISTORIES, read
from tests.support.seeds import seeds
from tests.support.spark.batches import KEEP, feed_all, placed, places_of
from tests.support.tables.golden import golden_delta
from tests.support.tables.golden_feeds import TABLES
from tests.support.tables.log_files import (
    add,
    commit_info,
    metadata,
    parquet,
    protocol,
    remove,
    schema_string,
    write_commit,
)

WRITTEN: Final = sorted(HISTORIES.glob("*.tar.xz"))


def budgets(chance: random.Random, count: int) -> list[Budget]:
    """Limits of every kind, mostly small ones."""

    def some(most: int) -> int | None:
        return chance.choice([None, 1, chance.randint(1, most)])

    return [Budget(), *(Budget(some(9), some(9_000), some(60)) for _ in range(count))]


@pytest.mark.golden
@pytest.mark.parametrize("name", sorted(set(TABLES)))
@pytest.mark.parametrize("rules", [KEEP, PairingRules()], ids=["all rows", "compared"])
def test_golden_tables(name: str, rules: PairingRules) -> None:
    path, chance = golden_delta(name), random.Random(name)
    expected = places_of(path, rules)
    for budget in budgets(chance, 2):
        assert feed_all(path, StartPoint(0), budget, rules, seed=chance.randint(0, 99)).rows == expected


@pytest.mark.sampled(3)
@pytest.mark.parametrize("archive", WRITTEN, ids=lambda archive: archive.name[:2])
def test_evolving_histories(archive: Path, tmp_path: Path) -> None:
    recorded, chance = read(archive, tmp_path), random.Random(archive.name)
    for rules in (KEEP, PairingRules(compute_updates=True)):
        first = chance.randint(recorded.first, recorded.last)
        expected = places_of(recorded.path, rules, first)
        for budget in budgets(chance, 1):
            fed = feed_all(recorded.path, StartPoint(first), budget, rules, seed=chance.randint(0, 99))
            assert fed.rows == expected, (first, budget)
    version = recorded.last
    there = set(placed(snapshot(recorded.path, version).batches))
    for budget in budgets(chance, 1):
        fed = feed_all(recorded.path, StartPoint(version, snapshot=True), budget, seed=chance.randint(0, 99))
        assert set(fed.rows) == there
        assert fed.rows.total() == len(there)


@pytest.mark.parametrize("seed", seeds(3))
def test_partitions_are_compared_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Values written in several ways are one partition; equal rows are inserted in several files, and deleted."""
    monkeypatch.setattr("tailer.spark.splits.MIN_SPLIT_BYTES", 1)
    chance = random.Random(seed)
    write_commit(tmp_path, 0, protocol(), metadata(schema_string(a="long", p="integer"), ["p"]))
    there: dict[str, Any] = {}
    for version in range(1, 8):
        gone = {name: there.pop(name) for name in chance.sample(sorted(there), chance.randint(0, len(there)))}
        come = {}
        for number in range(chance.randint(0, 6)):
            rows = pa.table({"a": [chance.randint(0, 5) for _ in range(chance.randint(1, 9))]})
            name = f"{version}-{number}.parquet"
            size = parquet(tmp_path / name, rows).stat().st_size
            come[name] = {"size": size, "partitionValues": {"p": chance.choice(["1", "01", "2", "02", "", None])}}
        there |= come
        actions = [
            make(name, **values) for make, files in ((remove, gone), (add, come)) for name, values in files.items()
        ]
        write_commit(tmp_path, version, commit_info(operation="WRITE"), *actions)
    expected = places_of(tmp_path, PairingRules())
    for budget in budgets(chance, 2):
        assert feed_all(tmp_path, StartPoint(0), budget, PairingRules(), seed=seed).rows == expected
    assert expected.total() < places_of(tmp_path).total()
