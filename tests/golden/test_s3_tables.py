"""Golden tables read from an S3 server: the rows, positions and errors of the local run, and the expected feeds."""

import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tailer.errors import NotATable, TailerError
from tailer.events import COMMIT_TIMESTAMP, COMMIT_VERSION
from tests.support.follow import Followed, follow_until_error, snapshot
from tests.support.oracle.rows import assert_same
from tests.support.s3.server import S3Server, close_thread_clients
from tests.support.s3.tables import RemoteTable
from tests.support.tables.golden import expected_feed, golden_delta
from tests.support.tables.golden_feeds import TABLES, expected_table, rows

# The list of tests/golden/README.md, which `test_catalogue.py` compares with the folder.
README: Final = (Path(__file__).parent / "README.md").read_text()
EVERY: Final = re.findall(r"^\| `([^`]+)` \|", README.partition("## Golden Delta tables\n")[2], re.MULTILINE)
# Their commits have times of their own, which do not come from the objects.
IN_COMMIT: Final = "cdc_ict_table"

Copied = Callable[[str], RemoteTable]


@pytest.fixture(scope="module")
def copied(versitygw: S3Server) -> Iterator[Copied]:
    """Copy a golden table to the server, below its name in one bucket, when it is first used."""
    bucket = versitygw.new_bucket()
    yield cache(lambda name: RemoteTable.copied(golden_delta(name), versitygw, bucket))
    close_thread_clients()


@pytest.fixture(autouse=True)
def keys(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the keys; the endpoint is configured."""
    for name, value in versitygw.environment.items():
        if name != "AWS_ENDPOINT_URL":
            monkeypatch.setenv(name, value)


def rows_of(versions: list[Followed], name: str) -> list[tuple[pa.Schema, str]]:
    """Return schema and rows of each batch as text, in which NaN is itself, without the times of objects."""
    left_out = () if name == IN_COMMIT else (COMMIT_TIMESTAMP,)
    batches = (batch.rows.drop_columns(left_out) for version in versions for batch in version.batches)
    return [(batch.schema, str(batch.to_pylist())) for batch in batches]


def described(error: Exception | None, location: str) -> tuple[type[Exception] | None, str, str]:
    """Return class, text and hint of an error, without the location of the table.

    Where there is no table, a store cannot tell what else is there, so its hint says more.
    """
    hint = error.hint if isinstance(error, TailerError) and not isinstance(error, NotATable) else ""
    return (
        None if error is None else type(error),
        str(error).replace(location, "TABLE"),
        hint.replace(location, "TABLE"),
    )


def judged(read: Callable[[], list[Followed]], name: str) -> tuple[list[tuple[pa.Schema, str]], Exception | None]:
    """Return the rows that `read` gives, or its error."""
    try:
        return rows_of(read(), name), None
    except TailerError as error:
        return [], error


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.sampled(12)
def test_rows_positions_and_errors_are_the_local_ones(name: str, copied: Copied) -> None:
    remote, path = copied(name), golden_delta(name)
    found, error = remote.follow_until_error()
    expected, local_error = follow_until_error(path)
    assert described(error, remote.location) == described(local_error, str(path))
    assert rows_of(found, name) == rows_of(expected, name)
    assert [version.positions for version in found] == [version.positions for version in expected]
    pages, error = judged(remote.snapshot, name)
    local_pages, local_error = judged(lambda: [snapshot(path)], name)
    assert described(error, remote.location) == described(local_error, str(path))
    assert pages == local_pages


@pytest.mark.parametrize("name", sorted(set(TABLES)))
def test_the_feed_is_the_expected_one(name: str, copied: Copied) -> None:
    feed, expected = expected_feed(name), expected_table(name)
    found = [each for each in copied(name).follow(0) if feed.first <= each.plan.version <= feed.last]
    assert [version.plan.version for version in found] == list(range(feed.first, feed.last + 1))
    for version in found:
        at = version.plan.version
        answer = expected.filter(pc.equal(expected.column(COMMIT_VERSION), at))
        assert_same(rows(version.table), rows(answer), f"{name} version {at}")


def test_an_absolute_vector_path_with_special_characters(versitygw: S3Server, tmp_path: Path) -> None:
    """The vector is named by an encoded URI of the bucket."""
    path = tmp_path / "table-with-dv-special-char"
    shutil.copytree(golden_delta(path.name), path)
    bucket = versitygw.new_bucket()
    commit = path / "_delta_log" / f"{0:020d}.json"
    folder = quote(f"//{bucket}/{path.name}/folder&with%special char")
    commit.write_text(commit.read_text().replace("file:{{FOLDER_WITH_SPECIAL_CHAR}}", f"s3:{folder}"))
    (version,) = RemoteTable.copied(path, versitygw, bucket).follow(0)
    assert version.table.column("id").to_pylist() == [1, 3, 5, 7, 9]
