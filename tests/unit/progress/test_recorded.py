"""`Recorded`, which makes an at-least-once destination a sink, and the lookup of sinks by name."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints, PathDistribution
from pathlib import Path
from typing import Any

import pytest

from tailer.config import tables as kinds
from tailer.config.tables import configure_sink, sink_kinds
from tailer.errors import ConfigError, SinkFenced, SinkUnavailable
from tailer.events import ChangeBatch, ControlEvent
from tailer.plan import Position
from tailer.progress.recorded import Recorded
from tailer.sink import AtLeastOnceSink, Progress, Sink
from tailer_sinks.files.sink import FilesSink
from tailer_sinks.memory import MemoryProgressStore, MemorySink
from tailer_sinks.stdout import StdoutSink
from tailer_sinks.testing.rows import numbered

APP = "orders/one"
SCHEMA = numbered(0).rows.schema


class Diary(AtLeastOnceSink):
    """A destination without transactions, and a progress store, that record their calls."""

    def __init__(self, fails_at: str = "") -> None:
        self.entries: list[str] = []
        self._fails_at = fails_at
        self._records = MemoryProgressStore()

    name = "diary"

    async def _note(self, entry: str) -> None:
        if entry == self._fails_at:
            raise SinkUnavailable(self.name, entry)
        self.entries.append(entry)

    async def write(self, batch: ChangeBatch) -> None:
        await self._note(f"write {batch.version}")

    async def announce(self, event: ControlEvent) -> None:
        await self._note(f"announce {event.kind}")

    async def flush(self) -> None:
        await self._note("flush")

    async def progress(self, app_id: str) -> Progress | None:
        return await self._records.progress(app_id)

    async def has_delivered(self, pipeline: str) -> bool:
        return await self._records.has_delivered(pipeline)

    async def record(self, progress: Progress) -> None:
        await self._note(f"record {progress.position.version}")
        await self._records.record(progress)

    async def aclose(self) -> None:
        await self._note("close")


async def deliver(sink: Sink, version: int) -> None:
    async with sink.begin(APP, SCHEMA) as transaction:
        await transaction.write(numbered(version))
        await transaction.commit(Progress(APP, Position.end(version)))


@pytest.mark.anyio
async def test_rows_have_left_before_progress_is_recorded() -> None:
    diary = Diary()
    sink = Recorded(diary, diary)
    await deliver(sink, 1)
    assert diary.entries == ["write 1", "flush", "record 1"]
    assert await sink.progress(APP) == Progress(APP, Position.end(1))
    assert await sink.progress("orders/another") is None


@pytest.mark.anyio
@pytest.mark.parametrize("step", ["write 1", "flush", "record 1"])
async def test_a_failure_repeats_rows_and_never_loses_them(step: str) -> None:
    diary = Diary(fails_at=step)
    with pytest.raises(SinkUnavailable):
        await deliver(Recorded(diary, diary), 1)
    assert await diary.progress(APP) is None


@pytest.mark.anyio
async def test_leaving_without_commit_records_nothing() -> None:
    diary = Diary()
    async with Recorded(diary, diary).begin(APP, SCHEMA) as transaction:
        await transaction.write(numbered(1))
    assert await diary.progress(APP) is None


@pytest.mark.anyio
async def test_a_position_inside_a_version_is_kept() -> None:
    diary = Diary()
    sink = Recorded(diary, diary)
    async with sink.begin(APP, SCHEMA) as transaction:
        await transaction.commit(Progress(APP, Position(3, 1, 17)))
    assert sink.splits_versions
    assert sink.splits_snapshots
    assert await sink.progress(APP) == Progress(APP, Position(3, 1, 17))


@pytest.mark.anyio
async def test_reset_goes_forward_and_back_without_having_looked() -> None:
    records: dict[str, Progress] = {APP: Progress(APP, Position.end(5))}
    for version in (9, 2):
        sink = Recorded(Diary(), MemoryProgressStore(records=records))
        await sink.reset(Progress(APP, Position.end(version)))
        assert records[APP].position == Position.end(version)


@pytest.mark.anyio
async def test_the_second_of_two_instances_is_fenced() -> None:
    records: dict[str, Progress] = {}
    one, other = (Recorded(Diary(), MemoryProgressStore(records=records)) for _ in range(2))
    await one.progress(APP)
    await other.progress(APP)
    await deliver(one, 1)
    with pytest.raises(SinkFenced):
        await deliver(other, 1)
    assert records[APP].position == Position.end(1)


@pytest.mark.anyio
@pytest.mark.parametrize("fails_at", ["", "close"])
async def test_sink_and_store_are_both_closed(fails_at: str) -> None:
    sink, store = Diary(fails_at=fails_at), Diary()
    try:
        await Recorded(sink, store).aclose()
    except SinkUnavailable:
        assert fails_at
    assert store.entries == ["close"]


def test_its_name_is_the_name_of_the_sink() -> None:
    assert Recorded(Diary(), Diary()).name == "diary"


def test_transactional_and_other_sinks_are_distinguished() -> None:
    stdout, memory = configure_sink("out", "stdout", {}), MemorySink("mem")
    assert isinstance(stdout, StdoutSink)
    assert not isinstance(stdout, Sink)
    assert isinstance(memory, Sink)
    assert not isinstance(memory, AtLeastOnceSink)
    assert isinstance(Recorded(stdout, MemoryProgressStore()), Sink)


class Holding(Diary):
    """A destination that holds rows back."""

    def forget(self) -> None:
        self.entries.append("forget")


@pytest.mark.anyio
@pytest.mark.parametrize("commits", [False, True])
async def test_rows_that_are_held_back_end_with_their_transaction(commits: bool) -> None:
    diary = Holding()
    async with Recorded(diary, diary).begin(APP, SCHEMA) as transaction:
        await transaction.write(numbered(1))
        if commits:
            await transaction.commit(Progress(APP, Position.end(1)))
    assert diary.entries == ["write 1", *["flush", "record 1"] * commits, "forget"]


def test_sinks_are_found_by_kind() -> None:
    assert set(sink_kinds()) == {"delta", "files", "http", "kafka", "sql", "stdout"}
    assert isinstance(configure_sink("archive", "files", {"path": "out"}), FilesSink)


def test_an_unknown_kind_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as raised:
        configure_sink("archive", "flies", {"path": "out"})
    assert str(raised.value) == "archive: no sink of kind 'flies'"
    assert "delta, files, http, kafka, sql, stdout" in raised.value.hint


def test_a_missing_client_is_named_only_when_its_sink_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("pigeon", "pigeonclient.nowhere:PigeonSink", "tailer.sinks")
    monkeypatch.setattr(kinds, "_installed", lambda: EntryPoints([point]))
    assert sink_kinds() == ["pigeon"]
    with pytest.raises(ConfigError, match=r"post: the pigeon sink cannot be loaded.*pigeonclient") as raised:
        configure_sink("post", "pigeon", {})
    assert raised.value.hint == "Install the library that is missing."


def test_the_extra_with_the_client_is_the_one_of_the_sinks_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = tmp_path / "loft-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: loft\nVersion: 1.0\nProvides-Extra: pigeon\n")
    (described / "entry_points.txt").write_text("[tailer.sinks]\npigeon = pigeonclient.nowhere:PigeonSink\n")
    points = PathDistribution(described).entry_points
    monkeypatch.setattr(kinds, "_installed", lambda: points)
    with pytest.raises(ConfigError, match="the pigeon sink cannot be loaded") as raised:
        configure_sink("post", "pigeon", {})
    assert raised.value.hint == "Install it: pip install 'loft[pigeon]'."


class Pigeon:
    """A class that has inherited no port."""

    @classmethod
    def configure(cls, name: str, options: Mapping[str, Any]) -> "Pigeon":
        return cls()


def test_a_class_that_inherits_no_port_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("pigeon", f"{__name__}:Pigeon", "tailer.sinks")
    monkeypatch.setattr(kinds, "_installed", lambda: EntryPoints([point]))
    with pytest.raises(ConfigError, match="Pigeon inherits neither"):
        configure_sink("post", "pigeon", {})


def test_a_bad_option_is_the_sinks_own_to_name() -> None:
    options: Mapping[str, Any] = {"path": "out", "colour": "red"}
    with pytest.raises(ConfigError, match=r"archive\.colour"):
        configure_sink("archive", "files", options)
