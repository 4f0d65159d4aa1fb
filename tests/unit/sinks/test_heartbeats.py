"""Places of heartbeats after a crash of the machine, with several writers, and with a password that changes."""

import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tailer.errors import SinkError, SinkRejected
from tailer.sink import Heartbeat
from tailer_sinks.heartbeats import FileHeartbeats, heartbeat_name
from tailer_sinks.sql.sink import SqlSink, TableHeartbeats

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("left", [b"", b"\0" * 90], ids=["empty", "zeros"])
async def test_a_file_without_its_data_is_no_heartbeat(tmp_path: Path, left: bytes) -> None:
    """A crash of the machine leaves that of a file that was not synced."""
    path = tmp_path / "p.json"
    path.write_bytes(left)
    heartbeats = FileHeartbeats("s", path)
    assert await heartbeats.read() is None
    beat = Heartbeat("here", 1)
    await heartbeats.write(beat)
    assert await heartbeats.read() == beat


async def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("{")
    with pytest.raises(SinkRejected, match=r"p\.json is not a heartbeat"):
        await FileHeartbeats("s", path).read()


def test_writers_with_the_same_process_id(tmp_path: Path) -> None:
    """Containers that share a folder: each process has the id 1."""
    path, faults = tmp_path / "p.json", list[SinkError]()

    def repeat(act: Callable[[], object]) -> None:
        try:
            for _ in range(2000):
                act()
        except SinkError as error:
            faults.append(error)

    FileHeartbeats("s", path).write_now(Heartbeat("first", 1))
    places = [FileHeartbeats("s", path) for _ in range(3)]
    acts = [
        lambda: places[0].write_now(Heartbeat("a", 1)),
        lambda: places[1].write_now(Heartbeat("b" * 3000, 1)),
        places[2].read_now,
    ]
    threads = [threading.Thread(target=repeat, args=[act]) for act in acts]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not faults
    assert [each.name for each in tmp_path.iterdir()] == ["p.json"]


async def test_a_new_password_is_read_for_each_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, tried = tmp_path / "password", list[str]()

    def connect(conninfo: str, **_: object) -> object:
        tried.append(conninfo)
        raise psycopg.OperationalError("password authentication failed")

    monkeypatch.setattr(psycopg, "connect", connect)
    options = {"url": "postgresql://tailer@127.0.0.1:1/shop", "password": {"file": str(secret)}, "key": ["id"]}
    secret.write_text("former")
    heartbeats = SqlSink.configure("s", {**options, "table": "t"}).open_heartbeats("p", 5.0)
    assert isinstance(heartbeats, TableHeartbeats)
    for password in ("former", "current"):
        secret.write_text(password)
        with pytest.raises(SinkError):
            await heartbeats.read()
        assert f"password={password}" in tried[-1]


@pytest.mark.parametrize("pipelines", [("orders", "Orders", "ORDERS"), ("a" * 250, "a" * 251, "a" * 5000, "ä" * 90)])
async def test_pipelines_share_no_file_whatever_their_names(tmp_path: Path, pipelines: tuple[str, ...]) -> None:
    """Also where the file system takes capitals for small letters, and limits a name to 255 bytes."""
    assert len({heartbeat_name(each).lower() for each in pipelines}) == len(pipelines)
    places = [FileHeartbeats("sink", tmp_path / heartbeat_name(each)) for each in pipelines]
    for term, place in enumerate(places):
        await place.write(Heartbeat("here", term))
    assert [await place.read() for place in places] == [Heartbeat("here", term) for term in range(len(places))]
