"""Lance histories recorded by `tests.generate_lance_histories`, with the rows that pylance has read of every version.

Stable row ids or not, both schemes of names, operations that can be read or not, and versions that are cleaned up.
"""

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

import tailer
from tailer.errors import VersionGone
from tests.generate_lance_histories import COUNT, is_cleaned, is_stable, is_v2, with_transactions
from tests.support.histories.recorded_lance import LANCE_HISTORIES, RecordedDataset, read
from tests.support.oracle.lance_fold import BEGINNINGS, assert_folds
from tests.support.tables.lance_histories import OPERATIONS, changes_of

pytestmark = pytest.mark.long

WRITTEN: Final = sorted(LANCE_HISTORIES.glob("*.tar.xz"))
PAIRS: Final = 500


def _start(recorded: RecordedDataset) -> int:
    """Return the first version whose changes are known: the one that made the dataset, or the one after a gap."""
    return recorded.first + (recorded.operations[recorded.first] in BEGINNINGS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("archive", WRITTEN, ids=lambda archive: archive.name[:2])
def test_every_version_is_the_one_before_with_its_changes(archive: Path, tmp_path: Path) -> None:
    recorded = read(archive, tmp_path)
    found = changes_of(tailer.changes(recorded.path, start=_start(recorded)))
    assert assert_folds(recorded, found) == max(recorded.rows) - recorded.first
    snapshot = changes_of(tailer.changes(recorded.path, start="snapshot"))
    assert Counter(row for rows in snapshot.values() for _, row in rows) == recorded.rows[max(recorded.rows)]


@pytest.mark.parametrize("archive", WRITTEN[::6], ids=lambda archive: archive.name[:2])
def test_versions_alone_have_the_same_changes(archive: Path, tmp_path: Path) -> None:
    """The rows of a version, and their order, do not depend on the versions that are read before it."""
    recorded = read(archive, tmp_path)
    together = changes_of(tailer.changes(recorded.path, start=_start(recorded)))
    some = random.Random(archive.name).sample(range(_start(recorded), max(recorded.rows) + 1), 5)
    for version in some:
        alone = changes_of(tailer.changes(recorded.path, start=version, end=version))
        assert alone.get(version) == together.get(version), version


def test_versions_before_a_gap_are_gone(tmp_path: Path) -> None:
    cleaned = [archive for number, archive in enumerate(WRITTEN) if is_cleaned(number)]
    assert cleaned
    for archive in cleaned:
        recorded = read(archive, tmp_path / archive.name)
        with pytest.raises(VersionGone):
            list(tailer.changes(recorded.path))


def test_the_histories_have_what_is_promised(tmp_path: Path) -> None:
    """There are enough pairs of versions, and every operation under every condition that matters to it."""
    assert [archive.name for archive in WRITTEN] == [f"{number:02d}.tar.xz" for number in range(COUNT)]
    pairs, done, across = 0, Counter[tuple[str, bool, bool]](), 0
    for number, archive in enumerate(WRITTEN):
        recorded = read(archive, tmp_path / archive.name)
        assert recorded.stable == is_stable(number)
        names = [each.stem for each in (recorded.path / "_versions").glob("*.manifest")]
        assert {len(name) == 20 for name in names} == {is_v2(number)}
        assert any((recorded.path / "_transactions").glob("*")) == with_transactions(number)
        pairs += max(recorded.rows) - recorded.first
        done.update((name, recorded.stable, with_transactions(number)) for name in recorded.operations.values())
        across += sum(
            any(recorded.operations[each] == "compact" for each in range(former + 1, version))
            for version, former in recorded.restored.items()
            if former in recorded.operations
        )
    assert pairs >= PAIRS
    operations = {name for name, _ in OPERATIONS} - {"tag"}  # a tag makes no version
    assert done.keys() >= set(itertools.product(operations, (True, False), (True, False)))
    assert across >= 4, "restores of versions before a compaction"
