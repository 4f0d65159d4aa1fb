"""Forms that the format allows and pylance does not write, and damaged files: read, or refused by name."""

from datetime import UTC, datetime
from pathlib import Path

import anyio
import lance
import pyarrow as pa
import pytest

import tailer
from tailer.errors import ConfigError, FileOutsideTable, LogCorrupt, TailerError, UnsupportedFeature, VersionGone
from tailer.formats.lance.history import History
from tailer.formats.lance.manifest import parse_manifest
from tailer.stores.local import LocalStore
from tests.support.daemon.commands import tailer as command
from tests.support.tables.lance_files import (
    change_fragments,
    drop_transaction,
    field,
    manifest_file,
    message_of,
)

ROW_IDS, UPDATED, CREATED = (5, 6), (7, 8), (9, 10)
DELETION = 3
Rows = list[tuple[int, str, int]]
WHOLE: Rows = [(1, "insert", 1), (1, "insert", 2), (2, "delete", 1)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A dataset with stable row ids of two versions: an insert of 1 and 2, a delete of 1."""
    path = tmp_path / "t"
    lance.write_dataset(pa.table({"id": [1, 2]}), path, enable_stable_row_ids=True)
    lance.dataset(path).delete("id = 1")
    return path


def manifest(path: Path, version: int) -> Path:
    return path / "_versions" / f"{2**64 - 1 - version:020d}.manifest"


def outcome(path: Path, **options: object) -> tuple[Rows, TailerError | None]:
    """Return all rows that are delivered, and the error after them."""
    rows: Rows = []
    try:
        for batch in tailer.changes(path, **options):  # type: ignore[arg-type]
            rows += [(row["_commit_version"], row["_change_type"], row["id"]) for row in batch.to_pylist()]
    except TailerError as error:
        return rows, error
    return rows, None


def moved_out(path: Path, version: int, inline: int, external: int) -> None:
    """Move a sequence of each fragment from the manifest of a version to a file of its own."""

    def change(number: int, content: bytes, encoded: bytes) -> bytes:
        if number != inline:
            return encoded
        (path / "sequence.bin").write_bytes(content)
        return field(external, field(1, "sequence.bin") + field(2, 0) + field(3, len(content)))

    change_fragments(manifest(path, version), change)


def test_row_ids_in_a_file_of_their_own_are_refused_by_name(path: Path) -> None:
    """Every version before is delivered."""
    moved_out(path, 2, *ROW_IDS)
    rows, error = outcome(path)
    assert rows == WHOLE[:2]
    assert isinstance(error, UnsupportedFeature)
    assert str(error).startswith(f"{path}: version 2 needs row ids in a file of their own: ")


@pytest.mark.parametrize("numbers", [UPDATED, CREATED])
def test_versions_of_rows_in_a_file_of_their_own_do_not_matter(path: Path, numbers: tuple[int, int]) -> None:
    moved_out(path, 2, *numbers)
    assert (path / "sequence.bin").exists()
    assert outcome(path) == (WHOLE, None)


def test_a_deletion_file_that_is_none_is_named(path: Path) -> None:
    (file,) = (path / "_deletions").iterdir()
    file.write_bytes(b"not Arrow")
    rows, error = outcome(path)
    assert rows == WHOLE[:2]
    assert isinstance(error, LogCorrupt)
    assert error.path == f"_deletions/{file.name}"


def test_a_deletion_file_in_a_place_that_is_not_listed_is_named(path: Path) -> None:
    change_fragments(
        manifest(path, 2),
        lambda number, content, encoded: field(DELETION, content + field(7, 4)) if number == DELETION else encoded,
    )
    rows, error = outcome(path)
    assert rows == WHOLE[:2]
    assert isinstance(error, LogCorrupt)
    assert "is in the base path 4, which it does not have" in str(error)


def with_field(path: Path, version: int, more: bytes) -> None:
    """Add a field to the manifest of a version."""
    file = manifest(path, version)
    file.write_bytes(manifest_file(message_of(file.read_bytes()) + more))


def test_a_place_that_is_no_location_is_refused(path: Path) -> None:
    drop_transaction(manifest(path, 2))
    with_field(path, 2, field(18, field(1, 1) + field(4, "gopher://there/t")))
    rows, error = outcome(path)
    assert rows == WHOLE[:2]
    assert isinstance(error, FileOutsideTable)
    assert "gopher://there/t" in str(error)


@pytest.mark.parametrize("file", ["whole", "damaged", "missing"])
def test_a_compaction_whose_transaction_is_a_file_changes_nothing(path: Path, file: str) -> None:
    """As older writers have it. The rows are the same where it cannot be read."""
    lance.write_dataset(pa.table({"id": [3, 4]}), path, mode="append")
    lance.dataset(path).optimize.compact_files()
    last = lance.dataset(path).version
    transaction = parse_manifest(manifest(path, last).read_bytes(), str(path)).transaction
    assert transaction is not None
    drop_transaction(manifest(path, last))
    with_field(path, last, field(12, "compaction.txn"))
    (path / "_transactions").mkdir(exist_ok=True)
    if file != "missing":
        (path / "_transactions" / "compaction.txn").write_bytes(transaction if file == "whole" else b"\xff\xff")
    done = command("plan", path, last, "--json")
    assert done.returncode == 0, done.stderr
    assert ("Rewrite" in done.stdout) == (file == "whole")
    assert outcome(path) == ([*WHOLE, (3, "insert", 3), (3, "insert", 4)], None)


def test_a_version_that_is_gone_when_it_is_read(path: Path) -> None:

    async def read() -> None:
        history = History(LocalStore(path), "id", lambda root: LocalStore(Path(root)))
        await history.listed()
        manifest(path, 1).unlink()
        await history.existing(1)

    with pytest.raises(VersionGone) as found:
        anyio.run(read)
    assert (found.value.version, found.value.earliest, found.value.latest) == (1, 2, 2)


def test_times_outside_the_history_are_named(path: Path) -> None:
    early, late = datetime(2000, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
    for options, reason in (({"start": late}, "no version after that time"), ({"end": early}, "no version before")):
        rows, error = outcome(path, **options)
        assert rows == []
        assert isinstance(error, ConfigError)
        assert reason in str(error)
    assert outcome(path, start=early, end=late) == (WHOLE, None)
