"""The data source over tables in S3, without Spark: the same rows as over the same tables on the disk."""

from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tailer.errors import StorageError
from tailer.events import COMMIT_TIMESTAMP
from tests.support.oracle.recorded import CASES_DATA, HISTORIES, RecordedTable, read
from tests.support.oracle.rows import assert_same, rows_of
from tests.support.s3.server import S3Server
from tests.support.s3.tables import RemoteTable
from tests.support.spark.queries import Checkpoint, Query, read_batch, rows_of_all

CASES: Final = sorted(CASES_DATA.glob("*.tar.xz"))
# `test_s3_tables.py` reads all of them.
ARCHIVES: Final = [min(HISTORIES.glob("*.tar.xz")), *CASES[::2]]
NET: Final = ("columns_added", "merge", "typed_partition", "unpaired_add", "vectors_on")
NAMES: Final = [archive.name.removesuffix(".tar.xz") for archive in ARCHIVES]


@pytest.fixture(autouse=True)
def _keys(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the keys; the endpoint is an option of the query."""
    for name, value in versitygw.environment.items():
        if name != "AWS_ENDPOINT_URL":
            monkeypatch.setenv(name, value)


def both(archive: Path, folder: Path, server: S3Server) -> tuple[RecordedTable, dict[str, Any]]:
    """Return a local table, and the options for its copy."""
    recorded = read(archive, folder)
    location = RemoteTable.copied(recorded.path, server, server.new_bucket()).location
    return recorded, {"path": location, "endpoint": server.endpoint, "region": "us-east-1"}


def timeless(rows: pa.Table) -> pa.Table:
    """Leave out the times of commits: objects have times of their own."""
    return rows.drop_columns([COMMIT_TIMESTAMP])


@pytest.mark.parametrize("archive", ARCHIVES, ids=NAMES)
@pytest.mark.sampled(8)
def test_batch_and_stream_equal_the_local_table(archive: Path, tmp_path: Path, versitygw: S3Server) -> None:
    """Rows in the envelope name their positions. Micro-batches of few rows divide files."""
    recorded, remote = both(archive, tmp_path, versitygw)
    given = {"startingVersion": "earliest", "schema": "envelope"}
    batch = read_batch(**given, **remote)
    assert_same(rows_of(timeless(batch)), rows_of(timeless(read_batch(path=recorded.path, **given))), "local")
    query = Query(Checkpoint(), **given, **remote, maxRowsPerTrigger=max(len(batch) // 5, 1))
    assert query.run() is None
    assert len(query.checkpoint.batches) > 1
    assert_same(rows_of(rows_of_all(query.checkpoint)), rows_of(batch), "stream")
    recorded_text = "".join(query.checkpoint.offsets)
    assert versitygw.secret not in recorded_text
    assert versitygw.key not in recorded_text


@pytest.mark.parametrize("archive", [each for each in CASES if each.name.startswith(NET)], ids=lambda each: each.name)
def test_net_changes_equal_the_local_ones(archive: Path, tmp_path: Path, versitygw: S3Server) -> None:
    recorded, remote = both(archive, tmp_path, versitygw)
    given = {"startingVersion": "earliest", "netChanges": True, "schema": "envelope"}
    found = read_batch(**given, **remote)
    assert len(found)
    assert_same(rows_of(timeless(found)), rows_of(timeless(read_batch(path=recorded.path, **given))), "local")


def test_an_error_names_the_next_step_and_no_key(
    tmp_path: Path, versitygw: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, remote = both(ARCHIVES[-1], tmp_path, versitygw)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong/ButHush")
    with pytest.raises(StorageError, match="s3://") as caught:
        read_batch(startingVersion=0, **remote)
    text = f"{caught.value} {caught.value.__notes__}"
    assert "Check AWS_SECRET_ACCESS_KEY" in text
    assert "wrong/ButHush" not in text
