"""Listings of a log: the files that count, the available versions, and the missing ones."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailer.errors import NotATable, StorageUnavailable, VersionAhead, VersionGone
from tailer.formats.delta.checkpoints.hint import LAST_CHECKPOINT
from tailer.formats.delta.log.listing import (
    LOG,
    REUSE_S,
    CommitLog,
    LogFileKind,
    LogListing,
    LogPath,
    LogSegment,
    commit_name,
)
from tailer.stores.local import LocalStore
from tailer.stores.port import ObjectMeta, Objects, StoredObject
from tests.support.cases import cases
from tests.support.cloud.memory_store import MemoryStore

T = TypeVar("T")

UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"


def meta(name: str) -> ObjectMeta:
    return ObjectMeta(f"{LOG}/{name}", 1, 0)


def commits(*versions: int) -> list[str]:
    return [f"{version:020d}.json" for version in versions]


def classic(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def part(version: int, number: int, of: int) -> str:
    return f"{version:020d}.checkpoint.{number:010d}.{of:010d}.parquet"


def listing(names: Iterable[str]) -> LogListing:
    return LogListing.of("t", [meta(name) for name in names])


@pytest.mark.parametrize(
    ("name", "kind", "version"),
    [
        ("00000000000000000012.json", LogFileKind.COMMIT, 12),
        (classic(12), LogFileKind.CHECKPOINT, 12),
        (part(12, 2, 3), LogFileKind.CHECKPOINT_PART, 12),
        (f"00000000000000000012.checkpoint.{UUID}.json", LogFileKind.CHECKPOINT_V2, 12),
        (f"00000000000000000012.checkpoint.{UUID.upper()}.parquet", LogFileKind.CHECKPOINT_V2, 12),
    ],
)
def test_names_of_ours(name: str, kind: LogFileKind, version: int) -> None:
    path = LogPath.parse(meta(name))
    assert path is not None
    assert (path.kind, path.version, path.name) == (kind, version, f"{LOG}/{name}")


@cases(
    "name",
    [
        "0000000000000000012.json",
        "000000000000000000012.json",
        ".00000000000000000012.json.crc",
        ".00000000000000000012.json",
        "00000000000000000012.crc",
        "00000000000000000012.json.tmp",
        "00000000000000000012.json\n",
        "00000000000000000012.00000000000000000015.compacted.json",
        f"00000000000000000012.{UUID}.json",
        "00000000000000000012.checkpoint.0000000001.parquet",
        "00000000000000000012.CHECKPOINT.parquet",
        "_last_checkpoint",
        "\N{ARABIC-INDIC DIGIT ONE}" * 20 + ".json",
    ],
)
def test_names_that_are_not_ours(name: str) -> None:
    assert LogPath.parse(meta(name)) is None


def test_no_log_at_all() -> None:
    with pytest.raises(NotATable):
        listing(["_last_checkpoint", "00000000000000000000.crc"])


@cases(
    ("names", "earliest", "latest"),
    [
        (commits(0, 1, 2), 0, 2),
        ([*commits(3, 4, 5), classic(3)], 3, 5),
        ([*commits(4, 5), classic(3)], 4, 5),
        ([*commits(3, 4, 5), part(3, 1, 2), part(3, 2, 2)], 3, 5),
        ([*commits(0, 1), classic(4)], 0, 4),
        ([*commits(2, 3, 4), classic(3)], 3, 4),
    ],
)
def test_first_and_last_version(names: list[str], earliest: int, latest: int) -> None:
    found = listing(names)
    assert (found.earliest, found.latest) == (earliest, latest)


@pytest.mark.parametrize("names", [[classic(3)], commits(3, 4), [*commits(5), classic(3)]])
def test_no_version_to_begin_with(names: list[str]) -> None:
    with pytest.raises(VersionGone):
        _ = listing(names).earliest


@cases(
    ("names", "version", "checkpoint", "after"),
    [
        (commits(0, 1, 2), 1, [], [0, 1]),
        ([*commits(0, 1, 2), classic(1)], 2, [classic(1)], [2]),
        ([*commits(0, 1, 2), classic(1)], 1, [classic(1)], []),
        ([*commits(0, 1, 2), classic(1)], 0, [], [0]),
        ([*commits(1, 2), part(1, 1, 2), part(1, 2, 2)], 2, [part(1, 1, 2), part(1, 2, 2)], [2]),
        ([*commits(0, 1, 2), part(1, 1, 2)], 2, [], [0, 1, 2]),
        ([*commits(0, 1, 2), part(1, 1, 2), part(1, 3, 2)], 2, [], [0, 1, 2]),
        ([*commits(2), classic(1), part(1, 1, 2), part(1, 2, 2)], 2, [part(1, 1, 2), part(1, 2, 2)], [2]),
        ([*commits(2), part(1, 1, 1), part(1, 1, 2), part(1, 2, 2)], 2, [part(1, 1, 2), part(1, 2, 2)], [2]),
        (
            [*commits(2), classic(1), f"{1:020d}.checkpoint.{UUID}.json"],
            2,
            [f"{1:020d}.checkpoint.{UUID}.json"],
            [2],
        ),
    ],
)
def test_the_files_of_a_state(names: list[str], version: int, checkpoint: list[str], after: list[int]) -> None:
    segment = listing(reversed(names)).segment(version)
    assert [path.name for path in segment.checkpoint] == [f"{LOG}/{name}" for name in checkpoint]
    assert [path.version for path in segment.commits] == after


@pytest.mark.parametrize(
    ("names", "version", "missing"),
    [
        (commits(0, 2), 2, 1),
        (commits(1, 2), 2, 0),
        ([*commits(0, 1, 4), classic(2)], 4, 3),
        ([*commits(4), part(3, 1, 2)], 4, 0),
        ([*commits(0), classic(3)], 2, 1),
    ],
)
def test_a_state_whose_files_are_missing(names: list[str], version: int, missing: int) -> None:
    with pytest.raises(VersionGone) as caught:
        listing(names).segment(version)
    assert caught.value.version == missing


def test_a_state_without_the_newest_checkpoint() -> None:
    found = listing([*commits(*range(7)), classic(2), part(4, 1, 2), part(4, 2, 2), classic(4), classic(6)])
    for without, left in [([], 6), ([classic(6)], 4), ([classic(6), part(4, 2, 2)], 4)]:
        assert found.segment(6, {f"{LOG}/{name}" for name in without}).checkpoint[0].version == left
    segment = found.segment(6, {f"{LOG}/{name}" for name in (classic(6), part(4, 2, 2))})
    assert [path.name for path in segment.checkpoint] == [f"{LOG}/{classic(4)}"]
    assert found.segment(5, {path.name for files in found.checkpoints for path in files}).checkpoint == ()


def test_a_state_that_is_yet_to_come() -> None:
    with pytest.raises(VersionAhead):
        listing(commits(0, 1)).segment(2)


def test_a_segment_of_another_checkpoints_files() -> None:
    first, second = (LogPath.parse(meta(part(1, number, 2))) for number in (1, 2))
    assert first is not None
    assert second is not None
    with pytest.raises(ValueError, match="does not belong"):
        LogSegment("t", 1, (second, first), ())


class TornStore(MemoryStore):
    """A store whose listings differ every time."""

    def __init__(self, *listings: list[str]) -> None:
        super().__init__()
        self.listings = list(listings)

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        return [meta(name) for name in self.listings.pop(0)]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("listings", "left", "latest"),
    [
        ([commits(0, 1), []], 1, 1),
        ([commits(0, 2), commits(0, 1, 2), []], 1, 2),
        ([commits(0, 2), commits(0, 1, 2, 4), commits(0, 1, 2, 3, 4), []], 1, 4),
        ([commits(0, 2), commits(0, 2, 3), []], 1, 3),
        ([[*commits(0), classic(2)], [*commits(0, 1, 2), classic(2)], []], 1, 2),
    ],
)
async def test_a_gap_counts_once_two_listings_agree(listings: list[list[str]], left: int, latest: int) -> None:
    """A listing is not atomic: it may contain a later file without an earlier one."""
    store = TornStore(*listings)
    assert (await CommitLog(store).listing()).latest == latest
    assert len(store.listings) == left


class EmptyStore(MemoryStore):
    """A store whose listings are from before all of its objects."""

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        return []


@pytest.mark.anyio
@pytest.mark.parametrize("first", [0, 7])
async def test_a_listing_from_before_the_table_may_pass(first: int) -> None:
    """It is no proof that there is no table, which would stop a pipeline for good, also where a log was cleaned up."""
    store = EmptyStore()
    with pytest.raises(NotATable):
        await CommitLog(store).listing()
    await store.put("_delta_log/_last_checkpoint", b'{"version": 7, "size": 1}')
    with pytest.raises(NotATable):
        await CommitLog(store).listing()
    await store.put(commit_name(first), b"")
    for listing in (CommitLog(store).listing(), CommitLog(store).recent(0)):
        with pytest.raises(StorageUnavailable, match="listing is empty"):
            await listing


class CountedStore(MemoryStore):
    """A store that records where listings began."""

    def __init__(self, names: Iterable[str], hint: bytes | None) -> None:
        super().__init__()
        self.names = sorted(names)
        self.hint = hint
        self.asked: list[str] = []

    async def read(self, name: str, decode: Callable[[StoredObject], T]) -> T:
        if name == LAST_CHECKPOINT and self.hint is not None:
            return decode(StoredObject(ObjectMeta(name, 1, 0), self.hint))
        return await super().read(name, decode)

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        self.asked.append(start_after)
        return [meta(name) for name in self.names if f"{LOG}/{name}" > start_after]


LONG = [*commits(*range(150, 400)), *map(classic, range(200, 400, 50))]


@pytest.mark.anyio
@pytest.mark.parametrize("version", [None, 300, 350])
async def test_a_long_log_is_listed_from_its_last_checkpoint(version: int | None) -> None:
    store = CountedStore(LONG, b'{"version": 300}')
    found = await CommitLog(store).recent(10, version)
    assert store.asked == [commit_name(289)]
    assert (found.since, found.latest, found.commits[0].version) == (290, 399, 290)
    assert found.segment(300).checkpoint[0].version == 300
    assert found.segment(399).checkpoint[0].version == 350


@pytest.mark.anyio
async def test_a_partial_listing_refuses_questions_about_earlier_versions() -> None:
    found = await CommitLog(CountedStore(LONG, b'{"version": 300}')).recent(10)
    with pytest.raises(ValueError, match="listed from version 290 on"):
        found.segment(299)
    with pytest.raises(ValueError, match="listed from version 290 on"):
        found.segment(300, {f"{LOG}/{classic(300)}"})
    with pytest.raises(ValueError, match="listed from version 290 on"):
        _ = found.earliest
    with pytest.raises(VersionAhead):
        found.segment(400)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("names", "hint", "version"),
    [
        (LONG, None, None),
        (LONG, b"", None),
        (LONG, b'{"version": 300, "checksum": "0"}', None),
        (LONG, b'{"version": 300}', 299),
        (LONG, b'{"version": 310}', None),
        (LONG, b'{"version": 1000000}', None),
        ([*commits(*range(400)), part(300, 1, 2)], b'{"version": 300, "parts": 2}', None),
        ([*commits(*range(400)), classic(10)], b'{"version": 10}', None),
    ],
)
async def test_without_a_hint_that_holds_all_of_the_log_is_listed(
    names: list[str], hint: bytes | None, version: int | None
) -> None:
    store = CountedStore(names, hint)
    found = await CommitLog(store).recent(10, version)
    assert store.asked[-1] == ""
    assert found == await CommitLog(store).listing()


@pytest.mark.anyio
async def test_a_gap_at_the_end_counts_once_two_listings_agree() -> None:
    class Torn(CountedStore):
        async def list(self, prefix: str, start_after: str = "") -> Objects:
            found = await super().list(prefix, start_after)
            return [one for one in found if len(self.asked) > 1 or commit_name(390) != one.name]

    store = Torn(LONG, b'{"version": 300}')
    (await CommitLog(store).recent(10)).segment(399)
    assert store.asked == [commit_name(289)] * 2
    lost = CountedStore(set(LONG) - set(commits(390)), b'{"version": 300}')
    with pytest.raises(VersionGone) as caught:
        (await CommitLog(lost).recent(10)).segment(399)
    assert caught.value.version == 390


@pytest.mark.anyio
async def test_no_log_to_be_hinted_at() -> None:
    with pytest.raises(NotATable):
        await CommitLog(CountedStore([], b'{"version": 300}')).recent(10)


NAMES = st.one_of(
    st.integers(0, 5).map(lambda version: commits(version)[0]),
    st.integers(0, 5).map(classic),
    st.builds(part, st.integers(0, 5), st.integers(0, 3), st.integers(0, 3)),
    st.text(max_size=12),
)


@given(st.lists(NAMES, unique=True), st.integers(-1, 7))
def test_any_listing_gives_a_segment_or_says_what_is_missing(names: list[str], version: int) -> None:
    try:
        segment = listing(names).segment(version)
    except (NotATable, VersionAhead, VersionGone):
        return
    begin = segment.checkpoint[0].version + 1 if segment.checkpoint else 0
    assert [path.name for path in segment.commits] == [commit_name(v) for v in range(begin, version + 1)]


class Counted(LocalStore):
    """A local log of `versions` commits that counts the objects it lists."""

    def __init__(self, root: Path, versions: int) -> None:
        super().__init__(root)
        self.listed = 0
        (root / LOG).mkdir()
        for version in range(versions):
            (root / commit_name(version)).write_text("{}")

    async def list(self, prefix: str, start_after: str = "") -> Objects:
        found = await super().list(prefix, start_after)
        self.listed += len(found)
        return found


@pytest.mark.anyio
@pytest.mark.parametrize("versions", [1, 127, 128, 129, 300])
async def test_a_log_that_has_not_changed_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: int
) -> None:
    """A change of names, or of the last files, shows at once; a folder just changed may change unnoticed."""
    store = Counted(tmp_path, versions)
    last = CommitLog(store)
    first = await last.listing()
    assert await last.listing() is first
    assert store.listed == 2 * versions

    monkeypatch.setattr("tailer.stores.local.SETTLED_S", -1.0)
    store.listed = 0
    first = await last.listing()
    assert await last.listing() is first
    assert store.listed == versions + min(versions, 128)

    with (tmp_path / commit_name(versions - 1)).open("a") as file:
        file.write("\n{}")
    assert (await last.listing()).commits[-1].size_bytes == 5
    (tmp_path / commit_name(versions)).write_text("{}")
    assert (await last.listing()).latest == versions
    (tmp_path / commit_name(0)).unlink()
    assert [path.version for path in (await last.listing()).commits] == list(range(1, versions + 1))


@pytest.mark.anyio
async def test_a_listing_is_made_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An early commit that is written over does not change the folder."""
    monkeypatch.setattr("tailer.stores.local.SETTLED_S", -1.0)
    times_s = [0.0]
    last = CommitLog(Counted(tmp_path, 200), lambda: times_s[-1])
    first = await last.listing()
    with (tmp_path / commit_name(0)).open("a") as file:
        file.write("\n{}")
    assert await last.listing() is first
    times_s.append(REUSE_S)
    assert (await last.listing()).commits[0].size_bytes == 5
    last.forget_listing()
    assert (await last.listing()).commits[0].size_bytes == 5
