"""Commits ratified by a catalog: the valid file of a version, the use of the folder, and the order of requests."""

from collections.abc import Callable

import pytest

from tailer.errors import NotATable, ObjectNotFound, StorageUnavailable, VersionGone
from tailer.formats.delta.catalog.port import CommitCatalog, RatifiedCommits, RatifiedLog, StagedCommit, merge
from tailer.formats.delta.log.listing import CommitLog, LogListing, commit_name
from tailer.stores.port import ObjectMeta, OpenObject, StoredObject
from tests.support.cases import cases
from tests.support.cloud.memory_store import MemoryStore

UUID = "016ae953-37a9-438e-8683-9a9a4a79a395"


def file(version: int) -> str:
    return f"{version:020d}.{UUID}.json"


def name(version: int) -> str:
    return f"_delta_log/_staged_commits/{file(version)}"


def staged(*versions: int) -> tuple[StagedCommit, ...]:
    return tuple(StagedCommit(version, file(version), 1000 + version) for version in versions)


def checkpoint(version: int) -> str:
    return f"_delta_log/{version:020d}.checkpoint.parquet"


def listed(*names: str) -> LogListing:
    return LogListing.of("t", [ObjectMeta(name, 1, 7) for name in names])


def published(*versions: int) -> list[str]:
    return [commit_name(version) for version in versions]


def text(opened: OpenObject) -> str:
    return opened.file.read().decode()


class Scripted:
    """A catalog with scripted answers; the last one is repeated."""

    def __init__(self, *answers: RatifiedCommits) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.before: Callable[[], None] = lambda: None

    async def ratified(self, location: str) -> RatifiedCommits:
        self.asked.append(location)
        self.before()
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def stored(*names: str) -> MemoryStore:
    store = MemoryStore("t")
    for each in names:
        await store.put(each, each.encode())
    return store


@cases(
    ("latest", "commits"),
    [
        (5, staged(4)),  # not up to the latest
        (5, staged(5, 6)),  # after the latest
        (5, staged(3, 5)),  # not consecutive
        (5, staged(5, 4)),  # not in order
        (5, staged(5, 5)),
        (0, staged(-1, 0)),
        (5, (StagedCommit(5, file(4), 1),)),
        (5, (StagedCommit(5, f"../{file(5)}", 1),)),
        (5, (StagedCommit(5, f"{5:020d}./../../{0:020d}.json", 1),)),
    ],
)
def test_an_answer_that_cannot_be_is_refused(latest: int, commits: tuple[StagedCommit, ...]) -> None:
    with pytest.raises(ValueError, match="commit"):
        RatifiedCommits(latest, commits)


def test_the_example_of_the_protocol() -> None:
    """PROTOCOL.md, "Reading Catalog-managed Tables", with version 9 staged instead of inline."""
    listing = listed(*published(*range(8)), checkpoint(2))
    merged = merge(listing, RatifiedCommits(9, staged(7, 8, 9)))
    assert [path.name for path in merged.commits] == [*published(*range(7)), name(7), name(8), name(9)]
    assert [path.modified_ms for path in merged.commits] == [7] * 7 + [1007, 1008, 1009]
    assert merged.latest == 9
    assert [path.name for path in merged.segment(9).commits] == [*published(*range(3, 7)), name(7), name(8), name(9)]


def test_files_later_than_the_catalogs_latest_version_do_not_count() -> None:
    listing = listed(*published(0, 1, 2, 3, 4), checkpoint(1), checkpoint(3))
    merged = merge(listing, RatifiedCommits(2))
    assert [path.version for path in merged.commits] == [0, 1, 2]
    assert [files[0].version for files in merged.checkpoints] == [1]
    assert merged.latest == 2


def test_a_table_whose_commits_are_all_published_is_its_log() -> None:
    listing = listed(*published(0, 1, 2), checkpoint(1))
    assert merge(listing, RatifiedCommits(2)) == listing


def test_a_log_cleaned_up_to_a_checkpoint_goes_on_with_staged_commits() -> None:
    merged = merge(listed(checkpoint(4)), RatifiedCommits(6, staged(5, 6)))
    assert [path.name for path in merged.segment(6).commits] == [name(5), name(6)]


@pytest.mark.parametrize(
    ("names", "ratified", "missing", "latest"),
    [
        (published(0, 1), RatifiedCommits(3), 2, 1),
        ([*published(0), checkpoint(2)], RatifiedCommits(3), 3, 2),
        (published(5, 6), RatifiedCommits(3), 0, None),  # all of them later than the catalog's latest
    ],
)
def test_a_latest_version_that_is_nowhere_is_missing(
    names: list[str], ratified: RatifiedCommits, missing: int, latest: int | None
) -> None:
    with pytest.raises(VersionGone) as gone:
        merge(listed(*names), ratified)
    assert (gone.value.version, gone.value.latest) == (missing, latest)


def test_a_gap_before_the_staged_commits_is_missed_when_it_is_needed() -> None:
    merged = merge(listed(*published(0, 1)), RatifiedCommits(4, staged(4)))
    assert merged.segment(1).version == 1
    with pytest.raises(VersionGone) as gone:
        merged.segment(4)
    assert gone.value.version == 2


@pytest.mark.anyio
async def test_the_catalog_is_asked_before_the_folder_is_listed() -> None:
    """A commit published and forgotten by the catalog in between would be missed in the other order."""
    store = await stored(*published(0))
    catalog = Scripted(RatifiedCommits(1))
    catalog.before = lambda: store.objects.update({commit_name(1): StoredObject(ObjectMeta(commit_name(1), 1, 1), b"")})
    assert (await RatifiedLog(store, catalog).listing()).latest == 1
    assert catalog.asked == ["t"]


@pytest.mark.anyio
async def test_a_recent_listing_begins_with_no_checkpoint_beyond_the_catalogs_latest_version() -> None:
    store = await stored(*published(*range(8)), checkpoint(2), checkpoint(6))
    await store.put("_delta_log/_last_checkpoint", b'{"version": 6, "size": 1}')
    log = RatifiedLog(store, Scripted(RatifiedCommits(4, staged(4))))
    for listing in (await log.recent(1), await log.recent(1, 7)):
        assert [path.name for path in listing.segment(4).commits] == [commit_name(3), name(4)]
    later = await RatifiedLog(store, Scripted(RatifiedCommits(7))).recent(1)
    assert (later.since, later.latest) == (5, 7)


@pytest.mark.anyio
async def test_a_version_is_read_where_the_catalog_has_it() -> None:
    store = await stored(*published(0, 1, 2, 3, 4), name(2), name(3), name(4))
    catalog = Scripted(RatifiedCommits(3, staged(2, 3)))
    log = RatifiedLog(store, catalog)
    found = [await log.read(version, text) for version in range(4)]
    assert found == [commit_name(0), commit_name(1), name(2), name(3)]
    assert len(catalog.asked) == 1, "what was ratified stays ratified"


@pytest.mark.anyio
async def test_unratified_commits_are_not_read() -> None:
    store = await stored(*published(0, 1), name(1))
    catalog = Scripted(RatifiedCommits(0), RatifiedCommits(0), RatifiedCommits(1, staged(1)))
    log = RatifiedLog(store, catalog)
    assert await log.read(0, text) == commit_name(0)
    assert await log.read(1, text) is None
    assert await log.read(1, text) == name(1)
    assert len(catalog.asked) == 3


@pytest.mark.anyio
async def test_a_staged_commit_that_was_published_and_tidied_away_is_read_where_it_was_published() -> None:
    store = await stored(*published(0, 1))
    catalog = Scripted(RatifiedCommits(1, staged(1)), RatifiedCommits(1))
    assert await RatifiedLog(store, catalog).read(1, text) == commit_name(1)
    assert len(catalog.asked) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("names", [(), staged(1)])
async def test_a_ratified_commit_whose_file_is_gone_is_missing(names: tuple[StagedCommit, ...]) -> None:
    """A published copy does not count as long as the catalog names the staged file."""
    store = await stored(*published(0), *([commit_name(1)] if names else []))
    log = RatifiedLog(store, Scripted(RatifiedCommits(1, names)))
    with pytest.raises(VersionGone) as gone:
        await log.read(1, text)
    assert gone.value.version == 1


@pytest.mark.anyio
async def test_a_catalog_that_goes_back_has_no_such_version() -> None:
    store = await stored(*published(0))
    log = RatifiedLog(store, Scripted(RatifiedCommits(1, staged(1)), RatifiedCommits(0)))
    assert await log.read(1, text) is None


@pytest.mark.anyio
async def test_a_catalog_that_is_down_is_not_passed_over() -> None:
    class Down:
        async def ratified(self, location: str) -> RatifiedCommits:
            raise StorageUnavailable("the catalog", "refused")

    catalog: CommitCatalog = Down()
    log = RatifiedLog(await stored(*published(0, 1)), catalog)
    for ask in (log.listing, lambda: log.recent(1), lambda: log.read(0, text)):
        with pytest.raises(StorageUnavailable):
            await ask()


@pytest.mark.anyio
async def test_without_a_catalog_the_log_has_all_commits() -> None:
    store = await stored(*published(0, 1), name(2))
    log = CommitLog(store)
    assert (await log.listing()).latest == (await log.recent(1)).latest == 1
    assert await log.read(1, text) == commit_name(1)
    assert await log.read(2, text) is None
    with pytest.raises(NotATable):
        await CommitLog(MemoryStore()).listing()
    with pytest.raises(ObjectNotFound):
        await store.scan(commit_name(2), text)
