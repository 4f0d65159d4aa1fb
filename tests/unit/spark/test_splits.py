"""Splits of tables in a store: they bring what opens their files, survive pickle, and hold no secret."""

import pickle
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.changelog.rules import PairingRules
from tailer.config.tables import open_files
from tailer.errors import ChangesUnavailable, ConfigError
from tailer.plan import ChangePlan
from tailer.read.data_files import DataFiles
from tailer.spark.source.data_source import TailerSource
from tailer.spark.splits import (
    DiffSplit,
    FilesSplit,
    NetChangesSplit,
    Split,
    diff_splits,
    file_slices,
    file_splits,
    read_split,
)
from tailer.stores.ranges import ObjectEnd
from tailer.stores.s3 import S3Options
from tailer.stores.stores import Stores
from tests.support.follow import plans
from tests.support.spark.batches import placed
from tests.support.tables.log_files import add, metadata, parquet, protocol, remove, write_commit

SCHEMA: Final = pa.schema([("a", pa.int64())])
ROOT: Final = "s3://lake/orders"
RULES: Final = PairingRules()


class FileRanges:
    """The bytes of a file as those of an object."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.uri = uri
        self._content = (folder / uri.removeprefix(f"{ROOT}/")).read_bytes()

    def end(self, length: int) -> ObjectEnd:
        """See `ObjectRanges.end`."""
        return ObjectEnd(len(self._content), self._content[-length:])

    def read(self, offset: int, length: int) -> bytes:
        """See `ObjectRanges.read`."""
        return self._content[offset : offset + length]


@pytest.fixture
def rewrite(tmp_path: Path) -> ChangePlan:
    """Plan a version that rewrites a file of three rows without one of them."""
    write_commit(tmp_path, 0, protocol(), metadata(), _file(tmp_path, "old", [1, 2, 3]))
    gone = remove("old", size=(tmp_path / "old").stat().st_size)
    write_commit(tmp_path, 1, gone, _file(tmp_path, "new", [1, 3]))
    return plans(tmp_path, 1)[0]


def _file(table: Path, name: str, values: list[int]) -> dict[str, Any]:
    return add(name, size=parquet(table / name, pa.table([values], SCHEMA)).stat().st_size)


def in_store(plan: ChangePlan) -> ChangePlan:
    """Return the plan of the same table in a store."""
    tasks = tuple(replace(task, uri=f"{ROOT}/{Path(task.uri).name}") for task in plan.tasks)
    return replace(plan, table=ROOT, tasks=tasks)


def splits(plan: ChangePlan, files: DataFiles) -> list[Split]:
    """Return a plan as splits of every kind."""
    slices, diffs = file_splits(file_slices(plan), files=files), diff_splits(plan, RULES, files)[0]
    found: list[Split] = [*slices, *diffs, NetChangesSplit((plan,), RULES, files)]
    assert [type(split) for split in found] == [FilesSplit, DiffSplit, NetChangesSplit]
    return found


def test_every_kind_reads_objects_after_a_journey(rewrite: ChangePlan, tmp_path: Path) -> None:
    files = DataFiles(partial(FileRanges, tmp_path))
    for local, remote in zip(splits(rewrite, DataFiles()), splits(in_store(rewrite), files), strict=True):
        rows = list(placed(read_split(pickle.loads(pickle.dumps(remote)))))
        assert rows == list(placed(read_split(local)))
        assert rows


def test_without_a_store_objects_are_refused(rewrite: ChangePlan) -> None:
    for split in splits(in_store(rewrite), DataFiles()):
        with pytest.raises(ChangesUnavailable, match="s3://lake/orders/"):
            list(read_split(split))


def test_names_travel_and_secrets_do_not(rewrite: ChangePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {name: f"hush-{name}" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    options = S3Options("https://s3.example.com", "eu-central-1", profile="reader", role_arn="arn:aws:iam::1:role/r")
    stores = Stores(((ROOT, options),))
    for split in splits(in_store(rewrite), open_files(stores)):
        packed = pickle.dumps(split)
        for text in (options.endpoint, options.region, options.profile, options.role_arn):
            assert str(text).encode() in packed
        for value in secrets.values():
            assert value.encode() not in packed
        ranges = pickle.loads(packed).files.ranges
        assert ranges.__self__ == stores


def test_an_executor_without_the_extra_says_so(rewrite: ChangePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tailer.stores.s3.bucket", None)
    for split in splits(in_store(rewrite), open_files(Stores())):
        with pytest.raises(ConfigError, match="s3://lake: its client is not installed") as caught:
            list(read_split(split))
        assert "lake-tailer[s3]" in caught.value.hint
        assert "Executors" in caught.value.hint


def test_a_driver_without_the_extra_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tailer.stores.s3.bucket", None)
    with pytest.raises(ConfigError, match="s3://lake: its client is not installed") as caught:
        TailerSource({"path": "s3://lake/orders", "startingVersion": "0"}).schema()
    assert any("lake-tailer[s3]" in note for note in caught.value.__notes__)
