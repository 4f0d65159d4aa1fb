"""Logs of arbitrary bytes: reading gives a value or a named error, in memory bounded by the file.

Bytes are damaged as by disks and writers: real files with some bytes changed, lost or duplicated, and well-formed
values of the wrong type, size or depth. Examples are the same in every run.
"""

import json
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tailer.errors import LogCorrupt, TailerError
from tailer.formats.delta.changes import plan_changes, plan_snapshot
from tailer.formats.delta.checkpoints import checkpoint as checkpoint_module
from tailer.formats.delta.checkpoints import live_files as module
from tailer.formats.delta.checkpoints.checkpoint import read_state
from tailer.formats.delta.checkpoints.hint import parse_last_checkpoint
from tailer.formats.delta.checkpoints.live_files import live_files
from tailer.formats.delta.checkpoints.sorted_runs import SpillingSort
from tailer.formats.delta.log.actions import Commit, parse_commit
from tailer.formats.delta.log.listing import LOG, CommitLog, LogSegment, commit_name
from tailer.formats.delta.log.paths import locate
from tailer.formats.delta.snapshot import Snapshot
from tests.support.cloud.memory_store import MemoryStore
from tests.support.seeds import examples
from tests.support.tables.damaged import broken
from tests.support.tables.golden import golden_delta
from tests.support.tables.log_files import (
    add,
    cdc,
    checkpoint,
    commit_info,
    inline_vector,
    metadata,
    protocol,
    remove,
)

T = TypeVar("T")

quick: Final = settings(
    derandomize=True,
    max_examples=examples(75),
    phases=[Phase.explicit, Phase.generate],
)
# A length in a damaged file can ask for gigabytes. Memory that other tests of the process gave back grows again here.
MEMORY_MB: Final = 400


@pytest.fixture(scope="module", autouse=True)
def memory_stays_bounded() -> Iterator[None]:
    """Check that no damaged file of some kilobytes makes this process grow by much."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mb < MEMORY_MB


@pytest.fixture(scope="module", autouse=True)
def little_in_memory() -> Iterator[None]:
    """Sort live files on disk, two at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SpillingSort", partial(SpillingSort, run_bytes=1, block_bytes=1))
        patch.setattr(module, "_BATCH_ROWS", 2)
        patch.setattr(checkpoint_module, "_BATCH_ROWS", 2)
        yield


def outcome(work: Callable[[], T]) -> T | None:
    """Return the result of `work`, or None for an error that may be raised."""
    error: TailerError
    try:
        return work()
    except TailerError as caught:
        error = caught
    assert str(error)
    assert isinstance(error.hint, str)
    return None


def parse(data: bytes) -> Commit | None:
    """Parse a commit's bytes, as read from the log."""
    return outcome(lambda: parse_commit(data, "t", "c", 3, 1000))


def follow(data: bytes) -> None:
    """Read a commit and plan it, as the table's first one and as a later one."""
    commit = parse(data)
    if commit is None:
        return
    info = commit.info.in_commit_timestamp if commit.info is not None else None

    def begun() -> Snapshot:
        return Snapshot.begin("t", 3, commit.protocol, commit.metadata, [1000], info)

    states = [outcome(begun), outcome(lambda: STATE.advance(commit))]
    for before, state in zip([None, STATE], states, strict=True):
        if state is not None:
            plan = outcome(lambda before=before, state=state: plan_changes(commit, before, state, "/t"))  # type: ignore[misc]
            if plan is not None:
                assert type(plan).from_json(plan.to_json()) == plan
            outcome(lambda state=state: plan_snapshot(commit.adds, 0, state, "/t"))  # type: ignore[misc]


def lines(*actions: Any) -> bytes:
    """Make a commit file."""
    return "".join(json.dumps(action) + "\n" for action in actions).encode()


VECTOR: Final = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4}
VECTOR_SIZES: Final = {"sizeInBytes": 40, "cardinality": 6}
SCHEMA: Final = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "a", "type": "long", "nullable": True, "metadata": {"delta.columnMapping.id": 1}},
            {"name": "p", "type": "decimal(10,2)", "nullable": False, "metadata": {}},
            {
                "name": "s",
                "type": {"type": "array", "elementType": "string", "containsNull": True},
                "nullable": True,
                "metadata": {},
            },
        ],
    }
)
HEAD: Final = [protocol(3, ["deletionVectors", "columnMapping"]), metadata(SCHEMA, ["p"])]
FILE: Final[dict[str, Any]] = {
    "partitionValues": {"p": "1.25"},
    "stats": '{"numRecords":1}',
    "tags": {"x": None},
    "baseRowId": 7,
}
COMMITS: Final = [
    lines(commit_info(operation="WRITE", operationMetrics={"numFiles": "1"}, inCommitTimestamp=1700000000000), *HEAD),
    lines(*HEAD, add("p=1/a%20b", inline_vector([1, 5]), **FILE), remove("c", VECTOR | VECTOR_SIZES, **FILE)),
    lines(add("a", VECTOR | VECTOR_SIZES, **FILE), remove("a", inline_vector([2]), **FILE), *HEAD),
    lines(cdc("_change_data/c", partitionValues={"p": None}), commit_info(operation="MERGE"), *HEAD),
]
STATE: Final = Snapshot.begin(
    "t", 2, (first := parse_commit(COMMITS[0], "t", "c", 2, 1000)).protocol, first.metadata, [1000], 1000
)


NUMBERS: Final = (0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), -(2**64), 2**64, 10**30, 0.5, 1e308, -0.0)
TEXTS: Final = ("", "\0", "a\0b", "%", "%zz", "%00", "%ff", "s3://", "/", "..", "\udc80", "\ud800\udc00", "é", "#" * 25)
KEYS: Final = st.sampled_from(TEXTS) | st.sampled_from(["type", "fields"])
SCALARS: Final = st.sampled_from([None, True, *NUMBERS, *TEXTS]) | st.text(max_size=5)
VALUES: Final = SCALARS | st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Yield the places in a value where another value can be put."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """Return the value with another one at a place."""
    if not path:
        return other
    items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    changed = [(key, put(item, path[1:], other) if key == path[0] else item) for key, item in items]
    return dict(changed) if isinstance(value, dict) else [item for _, item in changed]


ACTIONS: Final = [[json.loads(line) for line in data.splitlines()] for data in COMMITS]


WOUNDED: Final = st.sampled_from(ACTIONS).flatmap(
    lambda actions: st.builds(put, st.just(actions), st.sampled_from(places(actions)[1:]), VALUES)
)


@quick
@given(WOUNDED)
def test_values_of_the_wrong_type(actions: list[Any]) -> None:
    follow(lines(*actions))
    raw = "\n".join(json.dumps(action, ensure_ascii=False) for action in actions)
    follow(raw.encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("actions", ACTIONS)
def test_any_number_and_text_at_any_place(actions: list[Any]) -> None:
    for place in places(actions)[1:]:
        for value in (None, *NUMBERS, *TEXTS):
            follow(lines(*put(actions, place, value)))


@pytest.mark.anyio
@pytest.mark.parametrize("number", NUMBERS)
async def test_live_files_with_any_number(number: float) -> None:
    for place in (place for place in places(ACTIONS[1]) if place[:2] in {(2, "add"), (3, "remove")}):
        store = MemoryStore("t")
        await store.put(commit_name(0), lines(*put(ACTIONS[1], place, number)))
        await every_live_file(store, (await CommitLog(store).listing()).segment(0))


@pytest.mark.anyio
@quick
@given(WOUNDED)
async def test_live_files_with_values_of_the_wrong_type(actions: list[Any]) -> None:
    store = MemoryStore("t")
    await store.put(commit_name(0), lines(*actions))
    await every_live_file(store, (await CommitLog(store).listing()).segment(0))


@quick
@given(st.sampled_from(places(json.loads(SCHEMA))), VALUES)
def test_a_schema_of_another_shape(place: tuple[Any, ...], value: Any) -> None:
    text = json.dumps(put(json.loads(SCHEMA), place, value))
    follow(lines(HEAD[0], metadata(text, ["p"])))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("depth", [100, 10_000, 1_000_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("action", ['{"commitInfo":{"operation":%s', '{"unknown":%s', '{"add":{"tags":%s', "%s"])
def test_nested_without_end(action: str, opening: str, depth: int) -> None:
    follow((action % (opening * depth)).encode())
    follow(lines(HEAD[0], metadata(action % (opening * depth))))


def test_an_action_twice_in_a_line() -> None:
    doubled = b'{"add":{"path":"a","path":"b","partitionValues":{"p":"1","p":"2"},"size":1,"size":2,"dataChange":true}}'
    commit = parse(doubled)
    assert commit is not None
    assert [(file.path, file.partition_values, file.size) for file in commit.adds] == [("b", {"p": "2"}, 2)]


def checkpoints() -> list[bytes]:
    """Checkpoints and sidecars of several writers."""
    logs = [golden_delta(name) / LOG for name in ("only-checkpoint-files", "v2-checkpoints-json-with-sidecars")]
    logs.append(golden_delta("dv-partitioned-with-checkpoint") / LOG)
    return [path.read_bytes() for log in logs for path in sorted(log.rglob("*.parquet"))[:2]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Rewrite a checkpoint without compression and checksums, so that no damage is detected by these."""
    path = tmp_path_factory.mktemp("plain") / "checkpoint.parquet"
    files = [add(f"f{number}", VECTOR | VECTOR_SIZES, **FILE) for number in range(20)]
    table = pq.read_table(checkpoint(path, *HEAD, *files))
    pq.write_table(table, path, compression="none", data_page_size=128, write_statistics=False)
    return path.read_bytes()


async def bootstrap(data: bytes, extension: str = "parquet") -> None:
    """Read a checkpoint with these bytes."""
    store = MemoryStore("t")
    middle = "" if extension == "parquet" else "016ae953-37a9-438e-8683-9a9a4a79a395."
    await store.put(f"{LOG}/{4:020d}.checkpoint.{middle}{extension}", data)
    segment = (await CommitLog(store).listing()).segment(4)
    with suppress(LogCorrupt):
        await read_state(store, segment)
    await every_live_file(store, segment)


async def every_live_file(store: MemoryStore, segment: LogSegment) -> None:
    """Find the live files, sorted on disk."""
    with suppress(LogCorrupt):
        with await live_files(store, segment) as files:
            found = [(file.modification_time, locate(file.path, "t")) for file in files]
        assert found == sorted(found)


@pytest.mark.golden
@pytest.mark.anyio
@quick
@given(st.data())
async def test_bytes_for_a_checkpoint(plain: bytes, data: st.DataObject) -> None:
    await bootstrap(data.draw(broken([plain, plain, *checkpoints()])))


@pytest.mark.anyio
@quick
@given(st.data())
async def test_bytes_for_a_json_checkpoint(data: st.DataObject) -> None:
    sidecar = {"sidecar": {"path": "a", "sizeInBytes": 1, "modificationTime": 1}}
    await bootstrap(data.draw(broken([lines(*HEAD, sidecar), COMMITS[1]])), "json")


# As Spark writes it for a V2 checkpoint with a sidecar.
HINT: Final = (
    rb'{"version":2,"size":9,"sizeInBytes":19554,"numOfAddFiles":4,"v2Checkpoint":{"path":"00000000000000000002.'
    rb'checkpoint.6374b053-df23-479b-b2cf-c9c550132b49.json","sizeInBytes":891,"modificationTime":1714496115810,'
    rb'"nonFileActions":[{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["v2Checkpoint"],'
    rb'"writerFeatures":["v2Checkpoint","appendOnly","invariants"]}},{"metaData":{"id":"8a390218-e4ee-4341-b6de-'
    rb'4920e27d3f78","format":{"provider":"parquet","options":{}},"schemaString":"{\"type\":\"struct\",\"fields\":'
    rb'[{\"name\":\"id\",\"type\":\"long\",\"nullable\":true,\"metadata\":{}}]}","partitionColumns":[],'
    rb'"configuration":{"delta.checkpointInterval":"2","delta.checkpointPolicy":"v2"},"createdTime":1714496114564}},'
    rb'{"checkpointMetadata":{"version":2}}],"sidecarFiles":[{"path":"00000000000000000002.checkpoint.0000000001.'
    rb'0000000002.bd1885fd-6ec0-4370-b0f5-43b5162fd4de.parquet","sizeInBytes":9367,"modificationTime":1714496115780},'
    rb'{"path":"00000000000000000002.checkpoint.0000000002.0000000002.0a8d73ee-aa83-49d0-9583-c99db75b89b2.parquet",'
    rb'"sizeInBytes":9296,"modificationTime":1714496115788}]},"checksum":"d09f95a326aab562c60d415a32ddd216"}'
)


@quick
@given(
    st.binary(max_size=60)
    | broken([HINT, b'{"version":1,"size":2}'])
    | VALUES.map(lambda value: json.dumps(value).encode())
)
def test_bytes_for_a_hint(data: bytes) -> None:
    with suppress(ValueError):
        assert 0 <= parse_last_checkpoint(data) < 2**63


# Parts of paths whose combinations matter.
PATHS: Final = st.lists(st.sampled_from(["x", ":", "/", "..", ".", "file", "FILE", "localhost", "%2F", "s3", "é"])).map(
    "".join
)


@quick
@given(st.text() | st.sampled_from(TEXTS) | PATHS, st.sampled_from(["/l/t", "s3://b/l/t"]))
def test_any_path(path: str, root: str) -> None:
    """It is below the table, above it by dot segments, or absolute: never in the working directory."""
    with suppress(ValueError):
        uri = locate(path, root)
        assert "\0" not in uri
        absolute = path.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path)
        above = ".." in unquote(path).split("/")
        assert uri.startswith(f"{root}/") or absolute or above
        assert uri.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", uri) or (above and root[0] != "/")
