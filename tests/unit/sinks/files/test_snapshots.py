"""The `files` sink with a snapshot in several files: their names, and contradictions between these."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tailer.errors import SinkRejected
from tailer.plan import SNAPSHOT_TASKS, Position
from tailer.sink import Progress
from tailer_sinks.files.sink import FilesSink, Format
from tailer_sinks.testing.announcements import gap
from tailer_sinks.testing.rows import numbered
from tailer_sinks.testing.snapshots import inside, part
from tailer_sinks.testing.suite import SCHEMA, deliver, up_to

APP = "pipeline/table-id"

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The directory of the stream `APP`."""
    return tmp_path / "pipeline" / "table-id"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def name(first: str, last: str, form: str = "jsonl") -> str:
    """Return a name with all numbers in full; a position is given as version.file.row."""
    whole = [".".join(f"{int(number):020d}" for number in place.split(".")) for place in (first, last)]
    return f"{'-'.join(whole)}.{form}"


def touch(folder: Path, *spans: Sequence[str] | int) -> None:
    """Create files between positions, and reset markers for single numbers."""
    folder.mkdir(parents=True)
    for span in spans:
        (folder / (f"{span:020d}.reset" if isinstance(span, int) else name(*span))).touch()


def at(version: int, file: int, row: int) -> Progress:
    return Progress(APP, Position(version, SNAPSHOT_TASKS + file, row))


async def take(sink: FilesSink, version: int, file: int, first_row: int = 0) -> None:
    """Commit three rows of a file of a snapshot, and the position after them."""
    batch = part(version, file, first_row=first_row)
    await deliver(sink, batch, app_id=APP, progress=Progress(APP, inside(batch).position))


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
async def test_names_contain_the_positions_and_sort_like_the_rows(tmp_path: Path, folder: Path, form: Format) -> None:
    sink = FilesSink("files", tmp_path, form)
    for file, row in [(0, 0), (0, 3), (2, 0), (10, 90)]:
        await take(sink, 7, file, row)
    await deliver(sink, part(7, 11), numbered(8), app_id=APP, progress=up_to(APP, 9))
    await deliver(sink, numbered(10), app_id=APP)
    assert names(folder) == [
        name("7", "7.0.2", form),
        name("7.0.2", "7.0.5", form),
        name("7.0.5", "7.2.2", form),
        name("7.2.2", "7.10.92", form),
        name("7.10.92", "9", form),
        name("10", "10", form),
    ]
    await sink.aclose()


async def test_a_snapshot_in_one_transaction_has_the_name_of_its_version(tmp_path: Path, folder: Path) -> None:
    sink = FilesSink("files", tmp_path)
    await deliver(sink, part(7, 0), part(7, 1), app_id=APP, progress=up_to(APP, 7))
    assert names(folder) == [name("7", "7")]
    await sink.aclose()


async def test_a_snapshot_after_a_gap_begins_with_the_lost_versions(tmp_path: Path, folder: Path) -> None:
    sink = FilesSink("files", tmp_path)
    await deliver(sink, numbered(3), app_id=APP)
    await deliver(sink, gap(4, 7, snapshot=True), part(7, 0), app_id=APP, progress=at(7, 0, 2))
    await deliver(sink, gap(7, 9, snapshot=True), part(9, 0), app_id=APP, progress=at(9, 0, 2))
    await deliver(sink, part(9, 1), app_id=APP, progress=up_to(APP, 9))
    assert names(folder) == [name("3", "3"), name("4", "7.0.2"), name("7.0.2", "9.0.2"), name("9.0.2", "9")]
    await sink.aclose()


@pytest.mark.parametrize(
    ("spans", "end"),
    [
        ([("7", "7.0.99")], at(7, 0, 99)),
        ([("0", "0.0.0")], at(0, 0, 0)),
        ([("0", "6"), ("7", "9.0.99")], at(9, 0, 99)),
        ([("7", "7.0.99"), ("7.0.99", "7.3.5")], at(7, 3, 5)),
        ([("7.0.99", "7.3.5")], at(7, 3, 5)),  # the ones before it were removed
        ([("7", "7.0.99"), ("7.0.99", "7")], up_to(APP, 7)),
        ([("7.0.99", "9"), ("10", "10")], up_to(APP, 10)),
        ([("7", "7.0.99"), 8], up_to(APP, 7)),
        ([("7", "7.0.99"), 9, ("9", "9")], up_to(APP, 9)),
    ],
)
async def test_progress_is_read_from_names(
    tmp_path: Path, folder: Path, spans: list[Sequence[str] | int], end: Progress
) -> None:
    touch(folder, *spans)
    sink = FilesSink("files", tmp_path)
    assert await sink.progress(APP) == end
    await deliver(sink, numbered(90), app_id=APP)
    assert await sink.progress(APP) == up_to(APP, 90)
    await sink.aclose()


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([("7", "7.0.99"), ("7.1.5", "7")], r"no file holds the rows between .*7\.0*\.0*99 and .*7\.0*1\.0*5"),
        ([("7", "7.0.99"), ("7.3.5", "7.4.5")], "no file holds the rows between"),
        ([("0", "5"), ("7", "7.0.99")], "no file holds versions 6 to 6"),
        ([("0", "5"), ("7.0.3", "7.0.99")], "no file holds the rows between"),
        ([("7", "7.0.99"), ("8", "8")], "no file holds the rows between"),
        ([("7", "7.0.99"), ("7", "7")], "holds versions that other files hold too"),
        ([("7", "7.0.99"), ("7", "7.3.5")], "holds versions that other files hold too"),
        ([("7", "7.2.0"), ("7.0.99", "7.3.5")], "holds versions that other files hold too"),
        ([("7", "7"), ("7.0.99", "8")], "holds versions that other files hold too"),
        ([("7", "7.0.99"), 8, ("7.0.99", "8")], "holds versions that other files hold too"),
        ([("7.3.5", "7.3.5")], "ends before it begins"),
        ([("8", "7.3.5")], "ends before it begins"),
    ],
)
async def test_contradicting_names_stop_everything(
    tmp_path: Path, folder: Path, spans: list[Sequence[str] | int], reason: str
) -> None:
    touch(folder, *spans)
    sink = FilesSink("files", tmp_path)
    with pytest.raises(SinkRejected, match=reason) as raised:
        await sink.progress(APP)
    assert str(folder) in raised.value.hint
    await sink.aclose()


async def test_the_same_part_in_two_formats_is_there_twice(tmp_path: Path, folder: Path) -> None:
    touch(folder, ("7", "7.0.99", "jsonl"), ("7", "7.0.99", "parquet"))
    with pytest.raises(SinkRejected, match="other files hold too"):
        await FilesSink("files", tmp_path).progress(APP)


async def test_a_snapshot_only_goes_forward(tmp_path: Path, folder: Path) -> None:
    sink = FilesSink("files", tmp_path)
    await take(sink, 7, 1)
    before = names(folder)
    for progress in (at(7, 1, 2), at(7, 0, 90), at(6, 9, 9), up_to(APP, 6)):
        with pytest.raises(SinkRejected, match="do not belong"):
            await deliver(sink, part(progress.position.version, 1), app_id=APP, progress=progress)
    with pytest.raises(SinkRejected, match="do not belong"):
        await deliver(sink, numbered(6), app_id=APP, progress=up_to(APP, 7))
    with pytest.raises(SinkRejected, match="whole versions"):
        await deliver(sink, numbered(8), app_id=APP, progress=Progress(APP, Position(8, 0, 3)))
    assert names(folder) == before
    await deliver(sink, part(7, 2), app_id=APP, progress=up_to(APP, 7))
    with pytest.raises(SinkRejected, match="do not belong"):
        await take(sink, 7, 3)
    await sink.aclose()


async def test_a_place_without_rows_is_a_file_too(tmp_path: Path, folder: Path) -> None:
    sink = FilesSink("files", tmp_path)
    for row in (4, 9):
        async with sink.begin(APP, SCHEMA) as transaction:
            await transaction.commit(at(7, 0, row))
        assert await sink.progress(APP) == at(7, 0, row)
    assert names(folder) == [name("7", "7.0.4"), name("7.0.4", "7.0.9")]
    await sink.aclose()


async def test_reset_to_before_half_a_snapshot_needs_its_files_gone(tmp_path: Path, folder: Path) -> None:
    sink = FilesSink("files", tmp_path)
    await deliver(sink, numbered(6), app_id=APP)
    for file in (0, 1):
        await take(sink, 7, file)
    with pytest.raises(SinkRejected, match=f"{name('7', '7.0.2')} holds versions after 6") as raised:
        await sink.reset(up_to(APP, 6))
    assert raised.value.hint == f"Move {name('7', '7.0.2')} and the files after it out of {folder}, then reset again."
    with pytest.raises(SinkRejected, match="inside one"):
        await sink.reset(at(7, 0, 2))
    assert await sink.progress(APP) == at(7, 1, 2)
    for gone in names(folder)[1:]:
        (folder / gone).unlink()
    await sink.reset(up_to(APP, 6))
    await deliver(sink, numbered(7), app_id=APP)
    assert names(folder) == [name("6", "6"), name("7", "7"), f"{7:020d}.reset"]
    await sink.aclose()
