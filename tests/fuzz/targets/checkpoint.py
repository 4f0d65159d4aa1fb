"""Checkpoints in Parquet and JSON, and sidecars: the first byte says which. Live files come sorted, once each."""

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pyarrow.parquet as pq

from tailer.errors import TailerError
from tailer.formats.delta.checkpoints.checkpoint import read_state
from tailer.formats.delta.checkpoints.live_files import live_files
from tailer.formats.delta.log.listing import LOG, CommitLog
from tailer.formats.delta.log.paths import locate
from tests.fuzz.target import Target
from tests.support.cloud.memory_store import MemoryStore
from tests.support.tables.log_files import add, checkpoint, inline_vector, metadata, protocol

_ID = "016ae953-37a9-438e-8683-9a9a4a79a395"
_HEAD = (protocol(3, ["v2Checkpoint", "deletionVectors"]), metadata())


def _v2(*actions: object) -> bytes:
    lines = ({"checkpointMetadata": {"version": 4}}, *_HEAD, *actions)
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _seeds() -> list[bytes]:
    files = [add(f"f{number}", inline_vector([1]) if number == 2 else None) for number in range(4)]
    with TemporaryDirectory() as folder:
        path = checkpoint(Path(folder) / "c.parquet", *_HEAD, *files)
        table = pq.read_table(path)
        pq.write_table(table, path, compression="none", write_statistics=False)
        plain = path.read_bytes()
        pq.write_table(table, path, compression="snappy", write_page_checksum=True)
        checked = path.read_bytes()
    return [b"\0" + plain, b"\0" + checked, b"\x01" + _v2(*files), b"\x02" + plain]


async def _read(data: bytes) -> None:
    store, body = MemoryStore("t"), data[1:]
    if data[0] % 3 == 0:
        await store.put(f"{LOG}/{4:020d}.checkpoint.parquet", body)
    elif data[0] % 3 == 1:
        await store.put(f"{LOG}/{4:020d}.checkpoint.{_ID}.json", body)
    else:
        sidecar = {"sidecar": {"path": "s.parquet", "sizeInBytes": len(body), "modificationTime": 1}}
        await store.put(f"{LOG}/{4:020d}.checkpoint.{_ID}.json", _v2(sidecar))
        await store.put(f"{LOG}/_sidecars/s.parquet", body)
    segment = (await CommitLog(store).listing()).segment(4)
    with suppress(TailerError):
        await read_state(store, segment)
    with suppress(TailerError):
        with await live_files(store, segment) as files:
            found = [(file.modification_time, locate(file.path, "t")) for file in files]
        assert found == sorted(found)


def _run(data: bytes) -> None:
    if data:
        anyio.run(_read, data)


TARGET = Target(
    _run,
    _seeds,
    (
        "tailer.formats.delta.checkpoints.checkpoint",
        "tailer.formats.delta.checkpoints.add_columns",
        "tailer.formats.delta.checkpoints.live_files",
    ),
)
