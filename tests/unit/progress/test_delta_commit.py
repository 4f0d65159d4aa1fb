"""Exactly one writer wins a commit, and a lost answer is resolved by reading back."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from deltalake import DeltaTable

from tailer.errors import LogCorrupt, ObjectAlreadyExists, StorageUnavailable
from tailer.formats.delta.checkpoints.checkpoint import read_state
from tailer.formats.delta.checkpoints.hint import LAST_CHECKPOINT
from tailer.formats.delta.log.actions import Metadata, Protocol, Txn
from tailer.formats.delta.log.listing import LogListing, commit_name
from tailer.progress.delta_commit import checkpoint_name, read_commit, write_checkpoint, write_commit
from tailer.stores.local import LocalStore
from tailer.stores.memory import MemoryStore
from tailer.stores.port import ObjectStore

TXN = {"txn": {"appId": "a", "version": 7, "lastUpdated": 1}}
OTHER = {"txn": {"appId": "a", "version": 8, "lastUpdated": 1}}

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return LocalStore(tmp_path / "table") if request.param == "local" else MemoryStore()


class UnsureStore(MemoryStore):
    """A store that puts an object, or not, and then raises an error."""

    def __init__(self, puts: bytes | bool, answer: Callable[[str], Exception], readable: bool = True) -> None:
        super().__init__()
        self._puts = puts
        self._answer = answer
        self._readable = readable

    async def put_if_absent(self, name: str, data: bytes) -> None:
        if self._puts:
            await super().put_if_absent(name, self._puts if isinstance(self._puts, bytes) else data)
        raise self._answer(name)

    async def read(self, name: str, decode: Callable[..., Any]) -> Any:
        if not self._readable:
            raise StorageUnavailable(name, "connection refused")
        return await super().read(name, decode)


async def test_a_commit_is_one_json_line_per_action(store: ObjectStore) -> None:
    await write_commit(store, 3, [TXN, OTHER], "TEST")
    text = await store.read(commit_name(3), lambda stored: stored.data.decode())
    first, *others = [json.loads(line) for line in text.splitlines()]
    assert first["commitInfo"]["operation"] == "TEST"
    assert first["commitInfo"]["engineInfo"] == "lake-tailer"
    assert others == [TXN, OTHER]
    commit = await read_commit(store, 3)
    assert commit.txns == (Txn("a", 7, 1), Txn("a", 8, 1))


async def test_one_writer_wins(store: ObjectStore) -> None:
    won: list[int] = []

    async def write(number: int) -> None:
        try:
            await write_commit(store, 0, [{"txn": {"appId": "a", "version": number}}], "TEST")
        except ObjectAlreadyExists:
            return
        won.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(write, number)
    assert [txn.version for txn in (await read_commit(store, 0)).txns] == won


@pytest.mark.parametrize("answer", [StorageUnavailable, ObjectAlreadyExists])
async def test_a_lost_answer_is_found_in_the_log(answer: Callable[[str], Exception]) -> None:
    store = UnsureStore(True, answer)
    await write_commit(store, 0, [TXN], "TEST")
    assert [txn.version for txn in (await read_commit(store, 0)).txns] == [7]


@pytest.mark.parametrize("answer", [StorageUnavailable, ObjectAlreadyExists])
@pytest.mark.parametrize("theirs", [b'{"commitInfo":{"txnId":"theirs"}}', json.dumps(OTHER).encode()])
async def test_another_writers_commit_is_not_ours(answer: Callable[[str], Exception], theirs: bytes) -> None:
    store = UnsureStore(theirs, answer)
    with pytest.raises(ObjectAlreadyExists):
        await write_commit(store, 0, [TXN], "TEST")
    assert store.objects[commit_name(0)].data == theirs


async def test_a_failed_commit_is_reported() -> None:
    store = UnsureStore(False, StorageUnavailable)
    with pytest.raises(StorageUnavailable):
        await write_commit(store, 0, [TXN], "TEST")
    assert not store.objects


async def test_an_unknown_outcome_is_not_a_success() -> None:
    with pytest.raises(StorageUnavailable, match="connection refused"):
        await write_commit(UnsureStore(True, StorageUnavailable, readable=False), 0, [TXN], "TEST")


async def test_a_torn_file_in_our_place_is_named(store: ObjectStore) -> None:
    await store.put(commit_name(4), b'{"txn":{"appId"')
    with pytest.raises(LogCorrupt, match=r"00004\.json"):
        await write_commit(store, 4, [TXN], "TEST")


async def test_a_checkpoint_is_read_by_us_and_by_delta_rs(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    schema = '{"type":"struct","fields":[{"name":"a","type":"string","nullable":true,"metadata":{}}]}'
    metadata = Metadata("id-1", [], schema, {"key": "value"}, "name", "words", created_time=5)
    txns = [Txn("a", 2**63 - 1, 1), Txn("é/b", -1, None)]
    await write_checkpoint(store, 12, Protocol(1, 2), metadata, txns)
    listing = LogListing.of("t", await store.list("_delta_log"))
    assert await read_state(store, listing.segment(12)) == (Protocol(1, 2), metadata)
    table = DeltaTable(str(tmp_path))
    assert (table.version(), table.metadata().configuration, table.metadata().description) == (
        12,
        {"key": "value"},
        "words",
    )
    assert [table.transaction_version(app_id) for app_id in ("a", "é/b", "c")] == [2**63 - 1, -1, None]
    hint = json.loads((tmp_path / LAST_CHECKPOINT).read_text())
    size_bytes = (tmp_path / checkpoint_name(12)).stat().st_size
    canonical = f'"numOfAddFiles"=0,"size"=4,"sizeInBytes"={size_bytes},"version"=12'
    assert hint["checksum"] == hashlib.md5(canonical.encode()).hexdigest()
