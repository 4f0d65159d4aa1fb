"""Checkpoints of every kind give the same state; a corrupt one raises a named error."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.errors import LogCorrupt, StorageUnavailable, TailerError
from tailer.formats.delta.checkpoints.add_columns import read_files
from tailer.formats.delta.checkpoints.checkpoint import from_sound_checkpoint, read_adds, read_state
from tailer.formats.delta.checkpoints.live_files import live_files
from tailer.formats.delta.log.actions import AddFile, DeletionVector
from tailer.formats.delta.log.listing import LOG, CommitLog, LogSegment
from tailer.stores.local import LocalStore
from tests.support.tables.log_files import add, checkpoint, metadata, protocol, write_commit

VECTOR = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 34, "cardinality": 2}
FILES = [
    add("p=1/a", partitionValues={"p": "1"}, stats='{"numRecords":1}'),
    add("b", VECTOR, partitionValues={"p": None}),
    add("c", VECTOR | {"storageType": "u", "offset": 7}, modificationTime=2**40),
]
HEAD = [protocol(3, ["v2Checkpoint"]), metadata(**{"delta.x": "1"})]
V2 = {"checkpointMetadata": {"version": 4}}
SIDECAR = "016ae953-37a9-438e-8683-9a9a4a79a395.parquet"

TEXT = pa.map_(pa.string(), pa.string())
ADD: dict[str, pa.DataType] = {"path": pa.string(), "partitionValues": TEXT, "size": pa.int64()}
ADD |= {"modificationTime": pa.int64(), "dataChange": pa.bool_()}
PARSED = pa.struct({"partitionValues": pa.string()})
WIDE_SCHEMA = pa.schema(
    {
        "add": pa.struct(
            {"stats_parsed": PARSED, "partitionValues_parsed": PARSED, "stats": pa.string(), "tags": TEXT} | ADD
        )
    }
)

pytestmark = pytest.mark.anyio


def lines(path: Path, *actions: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def with_sidecar(log: Path, name: str = SIDECAR, path: str = SIDECAR) -> list[dict[str, Any]]:
    """Make a V2 checkpoint of version 4 whose files are in the sidecar called `path`."""
    size = checkpoint(log / "_sidecars" / name, *FILES).stat().st_size
    return [V2, *HEAD, {"sidecar": {"path": path, "sizeInBytes": size, "modificationTime": 1}}]


def make(log: Path, kind: str) -> None:
    """Write the checkpoint of version 4, in one of its forms."""
    name = f"{4:020d}.checkpoint"
    match kind:
        case "classic":
            checkpoint(log / f"{name}.parquet", *HEAD, *FILES)
        case "multi-part":
            checkpoint(log / f"{name}.{1:010d}.{3:010d}.parquet", FILES[0], HEAD[1])
            checkpoint(log / f"{name}.{2:010d}.{3:010d}.parquet", *FILES[1:])
            checkpoint(log / f"{name}.{3:010d}.{3:010d}.parquet", HEAD[0])
        case "v2 json":
            lines(log / f"{name}.{SIDECAR[:-8]}.json", *with_sidecar(log))
        case "v2 json without sidecars":
            lines(log / f"{name}.{SIDECAR[:-8]}.json", V2, *HEAD, *FILES)
        case "v2 parquet":
            checkpoint(log / f"{name}.{SIDECAR[:-8]}.parquet", *with_sidecar(log))
        case "v2 under a classic name":
            checkpoint(log / f"{name}.parquet", *with_sidecar(log))
        case "v2 under a classic name without sidecars":
            checkpoint(log / f"{name}.parquet", V2, *HEAD, *FILES)


async def segment(table: Path) -> LogSegment:
    return (await CommitLog(LocalStore(table)).listing()).segment(4)


async def adds(table: Path) -> list[AddFile]:
    found: list[AddFile] = []
    await read_adds(LocalStore(table), await segment(table), lambda columns: found.extend(read_files(columns)))
    return found


async def state(table: Path) -> None:
    await read_state(LocalStore(table), await segment(table))


@pytest.mark.parametrize(
    "kind",
    [
        "classic",
        "multi-part",
        "v2 json",
        "v2 json without sidecars",
        "v2 parquet",
        "v2 under a classic name",
        "v2 under a classic name without sidecars",
    ],
)
async def test_every_kind_holds_the_same(tmp_path: Path, kind: str) -> None:
    make(tmp_path / LOG, kind)
    gate, table = await read_state(LocalStore(tmp_path), await segment(tmp_path))
    assert gate is not None
    assert table is not None
    assert (gate.min_reader_version, gate.reader_features) == (3, ["v2Checkpoint"])
    assert (table.id, table.configuration, table.partition_columns) == ("id", {"delta.x": "1"}, [])
    assert await adds(tmp_path) == [
        AddFile("p=1/a", {"p": "1"}, 1, True, 1),
        AddFile("b", {"p": None}, 1, True, 1, DeletionVector("i", "x", 34, 2)),
        AddFile("c", {}, 1, True, 2**40, DeletionVector("u", "x", 34, 2, 7)),
    ]


async def test_a_missing_sidecar(tmp_path: Path) -> None:
    make(tmp_path / LOG, "v2 json")
    shutil.rmtree(tmp_path / LOG / "_sidecars")
    with pytest.raises(LogCorrupt, match=f"{SIDECAR}.*missing"):
        await adds(tmp_path)


async def test_a_broken_page_is_corruption_not_a_store_that_may_answer_later(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / LOG / f"{4:020d}.checkpoint.parquet", *HEAD, *FILES)
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    path.write_bytes(data)
    with pytest.raises(LogCorrupt, match="unreadable checkpoint"):
        await adds(tmp_path)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"garbage" * 20])
async def test_a_file_that_is_no_checkpoint(tmp_path: Path, data: bytes) -> None:
    make(tmp_path / LOG, "classic")
    (tmp_path / LOG / f"{4:020d}.checkpoint.parquet").write_bytes(data)
    with pytest.raises(LogCorrupt, match="unreadable checkpoint"):
        await adds(tmp_path)


@pytest.mark.parametrize(
    "columns",
    [
        {"add": pa.array([1])},
        {"add": pa.array(["text"])},
        {"add": pa.array([{"path": 7, "size": "x"}])},
        {"add": pa.array([{"path": "a", "partitionValues": ["p"], "size": 1, "dataChange": True}])},
        {"add": pa.array([{"path": "a", "size": 1, "dataChange": True}])},
        {"sidecar": pa.array([{"path": None}])},
        {"sidecar": pa.array(["x"])},
    ],
)
async def test_columns_of_another_shape(tmp_path: Path, columns: dict[str, pa.Array]) -> None:
    (tmp_path / LOG).mkdir()
    pq.write_table(pa.table(columns), tmp_path / LOG / f"{4:020d}.checkpoint.parquet")
    with pytest.raises(LogCorrupt, match="unreadable checkpoint"):
        await adds(tmp_path)


async def test_a_checkpoint_without_files(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / LOG / f"{4:020d}.checkpoint.parquet", *HEAD)
    assert await adds(tmp_path) == []
    pq.write_table(pq.read_table(path).drop_columns(["add", "sidecar"]), path)
    assert await adds(tmp_path) == []


async def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    for version in range(5):
        write_commit(tmp_path, version, *HEAD)
    assert await adds(tmp_path) == []
    assert await read_state(LocalStore(tmp_path), await segment(tmp_path)) == (None, None)


async def test_a_malformed_line(tmp_path: Path) -> None:
    make(tmp_path / LOG, "v2 json")
    lines(tmp_path / LOG / f"{4:020d}.checkpoint.{SIDECAR[:-8]}.json", {"add": {"path": "a"}})
    with pytest.raises(TailerError, match="unreadable checkpoint"):
        await adds(tmp_path)


async def test_a_sidecar_named_by_its_whole_path(tmp_path: Path) -> None:
    """The protocol allows a URI-encoded path, and the file is in the table's own folder whatever the path is."""
    held = with_sidecar(tmp_path / LOG, "a b.parquet", "s3://elsewhere/t/_delta_log/_sidecars/a%20b.parquet")
    lines(tmp_path / LOG / f"{4:020d}.checkpoint.{SIDECAR[:-8]}.json", *held)
    assert [file.path for file in await adds(tmp_path)] == ["p=1/a", "b", "c"]


@pytest.mark.parametrize("path", ["", "a/", ".", "x/..", "%2E%2E", "a%00b"])
async def test_a_sidecar_whose_name_no_file_can_have(tmp_path: Path, path: str) -> None:
    held = with_sidecar(tmp_path / LOG, path=path)
    lines(tmp_path / LOG / f"{4:020d}.checkpoint.{SIDECAR[:-8]}.json", *held)
    with pytest.raises(LogCorrupt, match="is not a file name"):
        await adds(tmp_path)


async def test_a_sidecar_that_names_itself(tmp_path: Path) -> None:
    sidecar = {"sidecar": {"path": "again.json"}}
    lines(tmp_path / LOG / f"{4:020d}.checkpoint.{SIDECAR[:-8]}.json", V2, *HEAD, sidecar)
    lines(tmp_path / LOG / "_sidecars" / "again.json", FILES[0], sidecar)
    assert [file.path for file in await adds(tmp_path)] == ["p=1/a"]


async def test_a_page_whose_checksum_does_not_match(tmp_path: Path) -> None:
    path = tmp_path / LOG / f"{4:020d}.checkpoint.parquet"
    paths = [f"file {number}" for number in range(1000)]
    checkpoint(path, *HEAD, *map(add, paths))
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pq.read_table(path), path, **options)
    assert [file.path for file in await adds(tmp_path)] == paths
    data = path.read_bytes()
    path.write_bytes(data.replace(b"file 500", b"file 5OO", 1))
    with pytest.raises(LogCorrupt, match=r"unreadable checkpoint.*CRC"):
        await adds(tmp_path)


async def test_statistics_and_tags_stay_on_disk(tmp_path: Path) -> None:
    """Their pages may be garbage, because they are never read."""
    path = checkpoint(tmp_path / LOG / f"{4:020d}.checkpoint.parquet", *HEAD)
    head = pq.read_table(path).drop_columns("add")
    unread = {"stats": "S" * 99, "tags": [("T" * 99, "T" * 99)], "stats_parsed": {"partitionValues": "P" * 99}}
    unread |= {"partitionValues_parsed": {"partitionValues": "Q" * 99}}
    row = add("a")["add"] | {"partitionValues": [("p", "1")]} | unread
    table = head.append_column(WIDE_SCHEMA.field("add"), pa.array([row, None], WIDE_SCHEMA.field("add").type))
    pq.write_table(table, path, compression="none", write_page_checksum=True)
    data = path.read_bytes()
    pages = data[: -int.from_bytes(data[-8:-4], "little") - 8]
    for letter in (b"S", b"T", b"P", b"Q"):
        assert letter * 99 in pages
        pages = pages.replace(letter * 99, b"?" * 99)
    path.write_bytes(pages + data[len(pages) :])
    assert await adds(tmp_path) == [AddFile("a", {"p": "1"}, 1, True, 1)]


UUID = f".{SIDECAR[:-8]}"
OTHER = {"checkpointMetadata": {"version": 3}}
INCOMPLETE: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "nothing in JSON": (f"{UUID}.json", [], "one protocol action, this one 0"),
    "nothing in Parquet": (".parquet", [], "one protocol action, this one 0"),
    "only files": (".parquet", FILES, "one protocol action, this one 0"),
    "no protocol": (".parquet", [HEAD[1], *FILES], "one protocol action, this one 0"),
    "no metaData": (".parquet", [HEAD[0], *FILES], "one metaData action, this one 0"),
    "two protocols": (".parquet", [*HEAD, HEAD[0], *FILES], "one protocol action, this one 2"),
    "two metaData": (f"{UUID}.parquet", [V2, *HEAD, HEAD[1]], "one metaData action, this one 2"),
    "cut after its first line": (f"{UUID}.json", [V2], "one protocol action, this one 0"),
    "cut before its last line": (f"{UUID}.json", [*HEAD, *FILES], "checkpointMetadata of version 4, this one none"),
    "of another version": (f"{UUID}.json", [OTHER, *HEAD, *FILES], "checkpointMetadata of version 4, this one 3"),
    "of two versions": (f"{UUID}.parquet", [V2, OTHER, *HEAD], "checkpointMetadata of version 4, this one 4, 3"),
    "of no version": (f"{UUID}.parquet", [*HEAD, *FILES], "checkpointMetadata of version 4, this one none"),
    "of another version, called as a classic one": (".parquet", [OTHER, *HEAD], "of version 4, this one 3"),
    "sidecars of a classic one": (".parquet", [*HEAD, {"sidecar": {"path": SIDECAR}}], "of version 4, this one none"),
}


@pytest.mark.parametrize("case", INCOMPLETE)
async def test_a_checkpoint_that_does_not_hold_the_whole_state(tmp_path: Path, case: str) -> None:
    """An incomplete checkpoint is not used: an older one and the commits after it are read."""
    ending, held, reason = INCOMPLETE[case]
    with_sidecar(tmp_path / LOG)
    path = tmp_path / LOG / f"{4:020d}.checkpoint{ending}"
    write = lines if path.suffix == ".json" else checkpoint
    write(path, *held)
    for read in (adds, state):
        with pytest.raises(LogCorrupt, match=f"{reason}$") as caught:
            await read(tmp_path)
        assert (caught.value.path, caught.value.version) == (f"{LOG}/{path.name}", 4)
    for version in range(5):
        write_commit(tmp_path, version, *(HEAD if version == 0 else []), add(f"f{version}"))
    assert await sound(tmp_path, 4) == [f"f{version}" for version in range(5)]


async def test_parts_that_are_not_one_checkpoint(tmp_path: Path) -> None:
    make(tmp_path / LOG, "multi-part")
    name = f"{4:020d}.checkpoint"
    for number, held in ((2, [HEAD[1]]), (3, [])):
        checkpoint(tmp_path / LOG / f"{name}.{number:010d}.{3:010d}.parquet", *held)
        with pytest.raises(LogCorrupt, match=r"this one [02]$") as caught:
            await adds(tmp_path)
        assert caught.value.path == f"{LOG}/{name}.{1:010d}.{3:010d}.parquet"


@pytest.mark.parametrize("kind", ["v2 json", "v2 parquet", "v2 under a classic name"])
async def test_a_sidecar_of_another_size(tmp_path: Path, kind: str) -> None:
    make(tmp_path / LOG, kind)
    checkpoint(tmp_path / LOG / "_sidecars" / SIDECAR, FILES[0])
    with pytest.raises(LogCorrupt, match=rf"{SIDECAR}.*the checkpoint says \d+ bytes, the file has \d+$"):
        await adds(tmp_path)


@pytest.mark.parametrize("kind", ["classic", "multi-part", "v2 json", "v2 parquet"])
async def test_a_checkpoint_that_goes_while_it_is_read(tmp_path: Path, kind: str) -> None:
    """It was cleaned up with its sidecars: the log is listed again and another checkpoint is read."""
    make(tmp_path / LOG, kind)
    listed = await segment(tmp_path)
    store, taken = LocalStore(tmp_path), list[pa.StructArray]()
    if kind.startswith("v2"):
        scan = store.scan

        async def scan_and_clean_up(name: str, work: Any) -> Any:
            found = await scan(name, work)
            shutil.rmtree(tmp_path / LOG)
            return found

        setattr(store, "scan", scan_and_clean_up)  # noqa: B010
    else:
        shutil.rmtree(tmp_path / LOG)
    with pytest.raises(StorageUnavailable, match=r"\.checkpoint\..*removed while"):
        await read_adds(store, listed, taken.append)
    with pytest.raises(StorageUnavailable, match=r"\.checkpoint\..*removed while"):
        await read_state(LocalStore(tmp_path), listed)


async def sound(table: Path, version: int, recent: int | None = None) -> list[str]:
    """Return the files at `version`, from any readable checkpoint."""
    store = LocalStore(table)
    listing = await (CommitLog(store).listing() if recent is None else CommitLog(store).recent(recent))

    async def use(segment: LogSegment) -> list[str]:
        with await live_files(store, segment) as files:
            return [file.path for file in files]

    return await from_sound_checkpoint(lambda: CommitLog(store).listing(), listing, version, use)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Write versions 0 to 6, each adding a file, with checkpoints of 2, 4 (in two parts) and 6."""
    for version in range(7):
        write_commit(tmp_path, version, *(HEAD if version == 0 else []), add(f"f{version}"))
    names = [f"{2:020d}.checkpoint", f"{6:020d}.checkpoint"]
    for last, name in zip((2, 6), names, strict=True):
        checkpoint(tmp_path / LOG / f"{name}.parquet", *HEAD, *(add(f"f{version}") for version in range(last + 1)))
    for number in (1, 2):
        path = tmp_path / LOG / f"{4:020d}.checkpoint.{number:010d}.{2:010d}.parquet"
        checkpoint(path, HEAD[number - 1], *(add(f"f{version}") for version in range(number - 1, 5, 2)))
    return tmp_path


@pytest.mark.parametrize("broken", [[], [6], [6, 4], [6, 4, 2]])
@pytest.mark.parametrize("recent", [None, 1, 100])
async def test_an_older_checkpoint_where_the_newest_is_broken(
    history: Path, broken: list[int], recent: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    for version in broken:
        for path in list((history / LOG).glob(f"{version:020d}.checkpoint.*"))[:1]:
            path.write_bytes(b"PAR1 is not all")
    (history / LOG / "_last_checkpoint").write_text('{"version": 6}')
    with caplog.at_level(logging.WARNING):
        assert await sound(history, 6, recent) == [f"f{version}" for version in range(7)]
    assert caplog.text.count("using an older checkpoint") == len(broken)


async def test_the_newest_checkpoint_is_named_where_none_can_be_read(history: Path) -> None:
    (history / LOG / f"{0:020d}.json").unlink()
    for path in (history / LOG).glob("*.parquet"):
        path.write_bytes(b"")
    with pytest.raises(LogCorrupt, match=rf"{6:020d}.checkpoint.parquet \(version 6\): unreadable checkpoint"):
        await sound(history, 6)


async def test_a_broken_commit_is_no_matter_of_checkpoints(history: Path) -> None:
    write_commit(history, 5, "garbage")
    with pytest.raises(LogCorrupt, match=f"{5:020d}.json"):
        await sound(history, 5)
    assert await sound(history, 6) == [f"f{version}" for version in range(7)]


async def test_a_missing_sidecar_makes_a_checkpoint_unsound(tmp_path: Path) -> None:
    for version in range(5):
        write_commit(tmp_path, version, add(f"f{version}"))
    make(tmp_path / LOG, "v2 json")
    shutil.rmtree(tmp_path / LOG / "_sidecars")
    assert await sound(tmp_path, 4) == [f"f{version}" for version in range(5)]
