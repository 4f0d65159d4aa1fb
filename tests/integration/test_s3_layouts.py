"""Tables in S3 at unusual places, among other objects, and changed while they are read: the same rows, or an error.

On every landing: listings in pages (`integration/test_s3_store.py`).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable

from tailer.errors import FileVacuumed, StorageUnavailable, VersionGone
from tailer.stores.s3 import S3Options
from tailer.stores.stores import Stores
from tests.support.follow import Followed
from tests.support.s3.link import Fault, Request, S3Link
from tests.support.s3.server import S3Server, close_thread_clients
from tests.support.s3.tables import RemoteTable
from tests.support.streams import Growing

pytestmark = pytest.mark.stores

LAST: Final = 6
EVERY: Final = list(range(10 * LAST))
PAGE: Final = 1000
# Numbers of requests before which the table changes.
MOMENTS: Final = (0, 1, 2, 3, 5, 8)


@pytest.fixture(autouse=True)
def keys(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the keys."""
    for name, value in versitygw.environment.items():
        monkeypatch.setenv(name, value)
    yield
    close_thread_clients()


@pytest.fixture
def table(tmp_path: Path) -> Growing:
    """A table whose versions after the first insert ten rows each."""
    found = Growing(tmp_path / "t")
    for first in EVERY[::10]:
        found.insert(range(first, first + 10))
    return found


@dataclass
class Place:
    """A table in a bucket, below `prefix`, which is empty or ends with a slash."""

    server: S3Server
    bucket: str
    prefix: str = "t/"

    def put(self, key: str, data: bytes) -> None:
        """Put an object, named as in the table's folder."""
        self.server.client.put_object(Bucket=self.bucket, Key=f"{self.prefix}{key}", Body=data)

    def delete(self, key: str) -> None:
        """Delete an object."""
        self.server.client.delete_object(Bucket=self.bucket, Key=f"{self.prefix}{key}")

    def publish(self, folder: Path, *patterns: str) -> None:
        """Put the files of a local table that match."""
        with ThreadPoolExecutor(4) as threads:
            for pattern in patterns:
                files = sorted(folder.glob(pattern))
                list(threads.map(lambda file: self.put(str(file.relative_to(folder)), file.read_bytes()), files))

    def commit(self, folder: Path, version: int) -> None:
        """Put a version: its data files, then its commit."""
        self.publish(folder, f"{version}-*.parquet", f"_delta_log/{version:020d}.json")

    def opened(self, endpoint: str = "") -> RemoteTable:
        """Return the table, through the server itself or a link."""
        options = S3Options(endpoint=endpoint or self.server.endpoint)
        stores = Stores(((f"s3://{self.bucket}", options),))
        return RemoteTable(f"s3://{self.bucket}/{self.prefix}".rstrip("/"), stores)


def rows_of(versions: list[Followed]) -> list[tuple[int, int]]:
    """Return version and id of each row."""
    return [(version.plan.version, each) for version in versions for each in version.table.column("id").to_pylist()]


def ids_of(pages: list[Followed]) -> list[int]:
    """Return the ids of a snapshot, in order."""
    return sorted(each for page in pages for batch in page.batches for each in batch.rows.column("id").to_pylist())


@pytest.mark.parametrize(
    "prefix",
    ["", "a b/", "a+b/", "100%/", "a%20b/", "été/日本/", "x=1/y=a&b/", "deep/er/and/deeper/", "t;v=1,2/", "q?u#f/"],
)
def test_names_of_folders(versitygw: S3Server, table: Growing, prefix: str) -> None:
    place = Place(versitygw, versitygw.new_bucket(), prefix)
    place.publish(table.path, "*.parquet", "_delta_log/*.json")
    assert rows_of(place.opened().follow(0)) == table.rows()
    assert ids_of(place.opened().snapshot()) == EVERY


def test_other_objects_beside_and_in_the_log(versitygw: S3Server, table: Growing, tmp_path: Path) -> None:
    """Markers of folders, other tables whose names begin alike, and files that belong to no version."""
    bucket = versitygw.new_bucket()
    place, other = Place(versitygw, bucket, "t/"), Growing(tmp_path / "other")
    other.insert(range(900, 905))
    for prefix in ("t2/", "t/_delta_log2/", "t-old/", "t/_delta_log/_staged/", "s/", "t_delta_log/"):
        Place(versitygw, bucket, prefix).publish(other.path, "*.parquet", "_delta_log/*.json")
    for version in range(LAST + 1):
        Place(versitygw, bucket, "t/_delta_log/_commits/").put(f"{version:020d}.0-1.json", b"{}")
    for marker in ("", "_delta_log/"):
        place.put(marker, b"")
    for name in (f"{LAST + 1:020d}.crc", f"{LAST + 1:020d}.json.tmp", f".{LAST + 1:020d}.json", "_x/y", "7.json"):
        place.put(f"_delta_log/{name}", b"")
    place.publish(table.path, "*.parquet", "_delta_log/*.json")
    assert rows_of(place.opened().follow(0)) == table.rows()
    assert rows_of(place.opened().follow(LAST - 1)) == table.rows(LAST - 1)
    assert ids_of(place.opened().snapshot()) == EVERY


@pytest.mark.nightly
def test_more_commits_than_a_page_of_a_listing(versitygw: S3Server, tmp_path: Path) -> None:
    table, place = Growing(tmp_path / "t"), Place(versitygw, versitygw.new_bucket())
    table.insert_again([1, 2], PAGE + 3)
    place.publish(table.path, "*.parquet", "_delta_log/*.json")
    for first in (0, PAGE - 2, PAGE, PAGE + 3):
        plans = place.opened().plans(first, 3)
        assert [plan.version for plan in plans] == list(range(first, PAGE + 4))[:3]
    assert ids_of(place.opened().snapshot()) == [1, 2]
    place.delete(f"_delta_log/{PAGE:020d}.json")
    versions, error = place.opened().follow_until_error(PAGE - 2)
    assert [each.plan.version for each in versions] == [PAGE - 2, PAGE - 1]
    assert isinstance(error, VersionGone)
    assert error.fields["version"] == PAGE


def before_request(link: S3Link, number: int, work: Callable[[], None]) -> None:
    """Call `work` before the request with that number, from 0 on."""
    seen = iter(range(10**6))

    def is_it(_: Request) -> bool:
        return next(seen) == number

    link.faults = [Fault(is_it, before=work)]


@pytest.mark.parametrize("number", MOMENTS)
def test_a_commit_appears_before_any_request(versitygw: S3Server, table: Growing, number: int) -> None:
    """All rows of what is there at the end are delivered once and in order."""
    place = Place(versitygw, versitygw.new_bucket())
    for version in range(LAST - 1):
        place.commit(table.path, version)

    def publish() -> None:
        for version in (LAST - 1, LAST):
            place.commit(table.path, version)

    with S3Link(versitygw) as link:
        before_request(link, number, publish)
        found = place.opened(link.endpoint).follow(0)
    last = found[-1].plan.version
    assert last in (LAST - 2, LAST)
    assert rows_of(found) == table.rows(0, last)


@pytest.mark.parametrize("number", MOMENTS)
def test_a_checkpoint_appears_and_the_log_is_cleaned_up_before_any_request(
    versitygw: S3Server, table: Growing, number: int
) -> None:
    """Either all rows of the versions from the first one on, or a named error after some; a snapshot has all rows."""
    place = Place(versitygw, versitygw.new_bucket())
    place.publish(table.path, "*.parquet", "_delta_log/*.json")
    DeltaTable(table.path).create_checkpoint()

    def clean_up() -> None:
        place.publish(table.path, "_delta_log/*.checkpoint.parquet", "_delta_log/_last_checkpoint")
        for version in range(LAST):
            place.delete(f"_delta_log/{version:020d}.json")

    with S3Link(versitygw) as link:
        before_request(link, number, clean_up)
        found, error = place.opened(link.endpoint).follow_until_error()
    last = len(found) - 1
    assert rows_of(found) == table.rows(0, last)
    assert error is None if last == LAST else isinstance(error, (VersionGone, StorageUnavailable)), error
    place.publish(table.path, "_delta_log/*.json")
    for name in (f"{LAST:020d}.checkpoint.parquet", "_last_checkpoint"):
        place.delete(f"_delta_log/{name}")
    with S3Link(versitygw) as link:
        before_request(link, number, clean_up)
        # A file of the log that was listed and is gone is an error that is tried again.
        with suppress(StorageUnavailable):
            assert ids_of(place.opened(link.endpoint).snapshot(LAST)) == EVERY
        assert ids_of(place.opened(link.endpoint).snapshot(LAST)) == EVERY


def test_a_vacuum_during_a_snapshot(versitygw: S3Server, table: Growing) -> None:
    """A file that is deleted just before it is read stops the snapshot by name."""
    place = Place(versitygw, versitygw.new_bucket())
    place.publish(table.path, "*.parquet", "_delta_log/*.json")
    with S3Link(versitygw) as link:
        of_it = Fault(lambda each: each.path.endswith("/4-0.parquet"), before=lambda: place.delete("4-0.parquet"))
        link.faults = [of_it]
        with pytest.raises(FileVacuumed, match=r"4-0\.parquet"):
            place.opened(link.endpoint).snapshot(LAST)
