"""The last request of a killed instance arrives when the next one has read the progress and is about to write.

The request is a conditional write, of a file of the sink or of a record of progress. The next instance finds that
another one has committed, reads the progress again, and goes on. A rival that lives on stops it, or is stopped.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
from anyio import to_thread

from tailer.errors import SinkFenced, SinkRejected
from tailer.progress.recorded import Recorded
from tailer.progress.state_table import StateTable
from tailer.sink import Sink
from tailer_sinks.files.in_store import StoreFolders
from tailer_sinks.files.sink import FilesSink
from tests.support.cloud.memory_store import MemoryStore
from tests.support.streams import Delivered, Growing, Lines, pipeline

pytestmark = pytest.mark.anyio

VERSIONS: Final = 5

Write = Callable[[], Awaitable[None]]


class Killed(Exception):
    """The process ends here."""


class SharedStore(MemoryStore):
    """The objects of `shared`, as one instance reaches them. `before_write` runs before each conditional write."""

    def __init__(self, shared: MemoryStore, before_write: Callable[[Write], Awaitable[None]]) -> None:
        super().__init__(shared.uri)
        self.objects, self._attributes = shared.objects, shared._attributes
        self._before_write = before_write

    async def put_if_absent(self, name: str, data: bytes) -> None:
        """See `ObjectStore.put_if_absent`."""
        arrive = super().put_if_absent
        await self._before_write(lambda: arrive(name, data))
        await arrive(name, data)

    async def upload_if_absent(self, name: str, source: Path, attributes: Mapping[str, str]) -> None:
        """See `UploadStore.upload_if_absent`."""
        data = await to_thread.run_sync(source.read_bytes)

        async def arrive() -> None:
            await MemoryStore.put_if_absent(self, name, data)
            self._attributes[name] = dict(attributes)

        await self._before_write(arrive)
        await arrive()


class Files:
    """Files in a store, where the file is the progress."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    def sink(self, store: MemoryStore) -> Sink:
        """Make an instance."""
        return FilesSink("files", StoreFolders("files", store))

    def rows(self) -> Delivered:
        """Return the delivered rows."""
        names = sorted(name for name in self.store.objects if name.endswith(".jsonl"))
        lines = [line for name in names for line in self.store.objects[name].data.splitlines()]
        rows = [json.loads(line) for line in lines]
        return [(int(row["_commit_version"]), int(row["id"])) for row in rows if "id" in row]


class Table(Files):
    """A state table in a store, for a sink without progress of its own, which is here files in another store."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = Lines()

    def sink(self, store: MemoryStore) -> Sink:
        """Make an instance."""
        return Recorded(self._lines, StateTable(store))

    def rows(self) -> Delivered:
        """Return the delivered rows, each once: such a sink may receive them again."""
        return list(dict.fromkeys(self._lines.rows))


@pytest.fixture
def table(tmp_path: Path) -> Growing:
    """Versions 1 to 5, of one row each, after one that creates the table."""
    found = Growing(tmp_path / "t")
    for each in range(VERSIONS):
        found.insert([each])
    return found


async def deliver(table: Growing, sink: Sink, until: str = "latest") -> None:
    """Deliver up to a version, each in a transaction of its own."""
    await pipeline(table, sink, until=until, max_versions=1, retry_for_s=0).run()


async def kill_at(nth: int, table: Growing, there: Files) -> Write | None:
    """Deliver until the `nth` conditional write is sent. Return that write; None: there were fewer."""
    sent: list[Write] = []

    async def send(write: Write) -> None:
        sent.append(write)
        if len(sent) == nth:
            raise Killed

    try:
        await deliver(table, there.sink(SharedStore(there.store, send)))
    except Killed:
        return sent[-1]
    return None


@pytest.mark.parametrize("kind", [Files, Table])
@pytest.mark.parametrize("nth", range(1, VERSIONS + 2))
async def test_the_next_instance_goes_on(table: Growing, kind: type[Files], nth: int) -> None:
    there = kind()
    late = await kill_at(nth, table, there)
    assert late is not None
    waiting = [late]

    async def arrive(_write: Write) -> None:
        if waiting:
            await waiting.pop()()

    await deliver(table, there.sink(SharedStore(there.store, arrive)))
    assert not waiting
    assert there.rows() == table.rows()


@pytest.mark.parametrize("kind", [Files, Table])
async def test_a_rival_that_goes_on_stops_an_instance_that_has_committed_nothing(
    table: Growing, kind: type[Files]
) -> None:
    there = kind()
    versions = iter(range(VERSIONS))

    async def be_late(_write: Write) -> None:
        await deliver(table, there.sink(there.store), until=str(next(versions)))

    with pytest.raises(SinkFenced):
        await deliver(table, there.sink(SharedStore(there.store, be_late)))
    await deliver(table, there.sink(there.store))
    assert there.rows() == table.rows()


@pytest.mark.parametrize("nth", [1, 2])
async def test_the_next_instance_may_not_have_another_format(table: Growing, nth: int) -> None:
    """Names of two formats do not exclude each other, and the first file is not there yet."""
    there = Files()
    late = await kill_at(nth, table, there)
    assert late is not None
    waiting = [late]

    async def arrive(_write: Write) -> None:
        if waiting:
            await waiting.pop()()

    store = SharedStore(there.store, arrive)
    with pytest.raises(SinkRejected, match="is of another format: jsonl"):
        await deliver(table, FilesSink("files", StoreFolders("files", store), "parquet"))
    assert not any(name.endswith(".parquet") for name in there.store.objects)
    await deliver(table, there.sink(there.store))
    assert there.rows() == table.rows()


async def test_an_instance_that_has_committed_is_stopped(table: Growing) -> None:
    there = Files()
    writes = 0

    async def be_late(_write: Write) -> None:
        nonlocal writes
        writes += 1
        if writes == 3:  # after the format and the first file
            await deliver(table, there.sink(there.store), until="3")

    with pytest.raises(SinkFenced):
        await deliver(table, there.sink(SharedStore(there.store, be_late)))
    assert writes == 3
    await deliver(table, there.sink(there.store))
    assert there.rows() == table.rows()
