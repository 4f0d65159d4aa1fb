"""Change feeds that lie: `doctor --feed` names version and row, and `changes = "compare"` is right on every path.

Each lie is one that a writer has told (`tests.support.histories.lying_feeds`).
"""

import json
from pathlib import Path
from typing import Any, Final

import anyio
import lance
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import tailer as lake
import tailer.spark
from tailer.changelog.engine import ChangelogEngine
from tailer.changelog.rules import PairingRules
from tailer.cli.doctor.verb import DIFFERS
from tailer.config.shapes import ReadOptions
from tailer.config.tables import TableRef
from tailer.engine.local import LocalEngine
from tailer.errors import ConfigError, FileVacuumed
from tailer.formats.delta.log.listing import commit_name
from tailer.pipeline.policy import ChangeSource, Limits, Policy
from tailer.pipeline.row_delivery import row_pipeline
from tailer.plan import Position
from tailer.sink import Progress, app_id_of
from tailer.start import Start
from tailer.stores.wakeup import TimerWake
from tailer_sinks.memory import MemoryDestination, MemorySink
from tests.support.daemon.commands import background
from tests.support.daemon.commands import tailer as run
from tests.support.histories.lying_feeds import LIES, Lie, checked
from tests.support.waiting import until

ALL: Final = pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.known.partition(":")[0])
Rows = list[tuple[str, int, str]]


def told(rows: list[dict[str, Any]]) -> Rows:
    """Return rows in the form of `Lie.files`, sorted."""
    return sorted((row["_change_type"], row["id"], row["value"]) for row in rows)


def read(path: Path, **options: Any) -> Rows:
    """Return the changes of version 1."""
    return told([row for batch in lake.changes(path, start=1, end=1, **options) for row in batch.to_pylist()])


@ALL
def test_the_api_and_tail_give_what_the_files_say(tmp_path: Path, lie: Lie) -> None:
    path = lie.write(tmp_path / "t")
    assert read(path) == sorted(lie.feed)
    assert read(path, changes="compare") == read(path, changes="compare", net=True) == sorted(lie.files)
    options = "--from", 1, "--to", 1, "--changes", "compare"
    lines = run("tail", path, *options).stdout.splitlines()
    assert told([json.loads(line) for line in lines]) == sorted(lie.files)
    assert read(path, changes="compare", where="id <= 2") == sorted(row for row in lie.files if row[1] <= 2)


@ALL
def test_doctor_names_the_version_and_the_row(tmp_path: Path, lie: Lie) -> None:
    path = lie.write(tmp_path / "t")
    done = run("doctor", path, "--feed", "--values")
    assert done.returncode == DIFFERS
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("warn change files")]
    assert f"version 1 ({lie.operation}): " in line
    assert any(f"of id = {number}, value = " in line for number in lie.named)
    document = json.loads(run("doctor", path, "--feed", "--json").stdout)["tables"][0]["feed"]
    (fault,) = document["differences"]
    assert fault["first"]["values"].get("id") in ({None} if "sail" in lie.known else lie.named)
    assert "value" not in fault["first"]["values"]
    assert (fault["version"], document["compared"], document["unread"]) == (1, 2, [])
    assert run("doctor", path, "--feed", "--last", 1).returncode == 0


def test_rows_that_only_moved_are_no_lie(tmp_path: Path) -> None:
    """As in delta#1500: a MERGE writes a file again, changes nothing, and neither change files nor metrics say so."""
    lie = LIES[1]
    path = lie.write(tmp_path / "t", recorded=False)
    moved = sorted((kind, *row) for _, *row in lie.feed for kind in ("delete", "insert"))
    assert (read(path), read(path, changes="compare")) == (moved, [])
    assert run("doctor", path, "--feed").returncode == 0


def test_feeds_of_delta_rs_are_sound(tmp_path: Path) -> None:
    path, rows = tmp_path / "t", pa.table({"id": list(range(40)), "n": [0.0, float("nan")] * 20})
    write_deltalake(path, rows, configuration={"delta.enableChangeDataFeed": "true"})
    DeltaTable(path).update({"n": "1.0"}, predicate="id % 3 = 0")
    DeltaTable(path).delete("id % 5 = 0")
    merged = DeltaTable(path).merge(rows.slice(0, 12), "t.id = s.id", "s", "t")
    merged.when_matched_update_all().when_not_matched_insert_all().execute()
    write_deltalake(path, rows.slice(1, 2), mode="overwrite", predicate="id < 3")
    DeltaTable(path).optimize.compact()
    check = checked(path)
    assert (check.compared, check.faults, check.unread) == (4, [], {})


def findings(path: Path, *options: str | int) -> str:
    """Return what `doctor --feed` says of change files, where it finds no lie."""
    done = run("doctor", path, "--feed", *options)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    said = [number for number, line in enumerate(lines) if line[5:].startswith("change files")]
    hints = [lines[number + 1] for number in said if "hint: " in lines[number + 1]]
    return "\n".join([lines[number] for number in said] + hints)


@pytest.mark.parametrize("file", ["a.parquet", "_change_data/lie.parquet"])
def test_versions_whose_files_are_gone_are_said(tmp_path: Path, file: str) -> None:
    path = LIES[0].write(tmp_path / "t")
    (path / file).unlink()
    said = findings(path)
    assert "note change files version 1 cannot be compared with the data files: " in said
    assert "ok   change files of versions 0 to 2, 1 could be compared, without a difference" in said
    assert "check sooner than VACUUM" in said
    (path / "_change_data" / "truth.parquet").unlink()
    said = findings(path)
    assert (
        "note change files version 1, and 1 more of versions 0 to 2, cannot be compared with the data files: " in said
    )
    assert "ok " not in said


def updated(path: Path, versions: int) -> Path:
    """Write a table with a feed, and so many updates."""
    write_deltalake(path, pa.table({"id": [1, 2], "n": [0, 0]}), configuration={"delta.enableChangeDataFeed": "true"})
    for number in range(versions):
        DeltaTable(path).update({"n": f"n + {number + 1}"}, predicate="id = 1")
    return path


def test_only_versions_that_the_log_has_are_counted(tmp_path: Path) -> None:
    path = updated(tmp_path / "t", 2)
    DeltaTable(path).create_checkpoint()
    for version in range(2):
        (path / commit_name(version)).unlink()
    kept = "ok   change files of version 2, 1 could be compared, without a difference from the data files"
    assert findings(path) == findings(path, "--last", 3) == findings(path, "--last", 1) == kept
    (path / commit_name(2)).unlink()
    assert "note change files the log has no commit any more" in findings(path)


def test_versions_that_a_gap_hides_are_all_said(tmp_path: Path) -> None:
    """The commits between a lost one and the next checkpoint are there, and cannot be read."""
    path = updated(tmp_path / "t", 5)
    DeltaTable(path, version=4).create_checkpoint()
    (path / commit_name(1)).unlink()
    said = findings(path)
    assert "version 1, and 2 more of versions 0 to 5, cannot be compared" in said
    assert "of versions 0 to 5, 2 could be compared, without a difference" in said
    lines = run("doctor", path).stdout
    assert "the changes of versions 1 to 3 are lost: " in lines
    assert "A pipeline that begins after version 3 is not concerned." in lines


def test_tables_without_change_files(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1, 2]}), tmp_path / "t.lance")
    assert findings(tmp_path / "t.lance") == "ok   change files there are none in version 1: nothing to check"


@pytest.mark.parametrize("option", ["--last=3", "--values"])
def test_options_of_the_check_alone_are_refused(tmp_path: Path, option: str) -> None:
    done = run("doctor", tmp_path, option)
    assert (done.returncode, "has no effect without --feed" in done.stderr) == (2, True)


def test_a_mirror_equals_the_files(tmp_path: Path) -> None:
    """A mirror needs one row for each key, so one lie is left out. With the feed, the first mirror would be wrong."""
    pipelines = {f"p{number}": (lie, "compare") for number, lie in enumerate(LIES) if "sail" not in lie.known}
    pipelines["wrong"] = LIES[0], "feed"
    config, lines = tmp_path / "tailer.toml", list[str]()
    for name, (lie, source) in pipelines.items():
        lie.write(tmp_path / name)
        sink = f'{{kind = "sql", url = "sqlite:///{name}.db", table = "t", key = ["id"]}}'
        lines += [f'[pipelines.{name}]\ntable = "{name}"\nchanges = "{source}"\nsink = {sink}']
    config.write_text("\n".join(lines))
    with background("run", "--config", config) as daemon:
        until(lambda: [line.split("\t")[3] for line in shown(config)].count("2") == len(pipelines))
        daemon.terminate()
        daemon.wait()
    verified = {name: run("verify", name, "--config", config).returncode for name in pipelines}
    assert verified == dict.fromkeys(pipelines, 0) | {"wrong": DIFFERS}


def shown(config: Path) -> list[str]:
    """Return the lines of `progress show`, without the heading."""
    return run("progress", "show", "--config", config).stdout.splitlines()[1:]


async def places(path: Path, source: ChangeSource) -> list[Position]:
    """Return the place after each row of version 1."""
    log, engine = (
        TableRef(str(path)).open(policy=Policy(changes=source)),
        ChangelogEngine(LocalEngine(), PairingRules()),
    )
    await log.seek(1)
    plan = await log.next_plan()
    assert plan is not None
    async with engine.run([plan]) as batches:
        return [Position(1, batch.task, row) async for batch in batches for row in batch.row_index.to_pylist()]


async def go_on(path: Path, source: ChangeSource, place: Position) -> Rows:
    """Run a pipeline that was killed at a place, and return what it delivers."""
    destination, options, limits = MemoryDestination(), ReadOptions(changes=source), Limits(retry_for_s=0.0)
    app_id = app_id_of("p", "id")
    sink = MemorySink("memory", destination)
    await sink.reset(Progress(app_id, place))
    engine, log = ChangelogEngine(LocalEngine(), options.rules()), TableRef(str(path)).open(policy=options.policy())
    start, end = Start.parse("1"), Start.parse("2")
    await row_pipeline("p", log, sink, engine, TimerWake(), start, end, options.policy(), limits).run()
    return told(list(destination.rows(app_id)))


@ALL
@pytest.mark.parametrize("before", ChangeSource)
def test_another_choice_inside_a_version_stops(tmp_path: Path, lie: Lie, before: ChangeSource) -> None:
    """It would lose or double rows. With the former choice the version is finished, and then any choice goes on."""
    path, (after,) = lie.write(tmp_path / "t"), set(ChangeSource) - {before}
    rows = {ChangeSource.FEED: lie.feed, ChangeSource.COMPARE: lie.files}[before]
    reached = anyio.run(places, path, before)
    assert len(reached) == len(rows)
    for number, place in enumerate(reached, 1):
        with pytest.raises(ConfigError, match="version 1 was delivered in part") as caught:
            anyio.run(go_on, path, after, place)
        assert " changes, " in caught.value.hint
        rest = anyio.run(go_on, path, before, place)
        assert len(rest) == len(rows) - number + 1
        assert set(rest) <= {*rows, ("insert", 9, "z")}
    for source in ChangeSource:
        assert anyio.run(go_on, path, source, Position.end(1)) == [("insert", 9, "z")]


def test_a_version_without_its_change_files_is_no_loss(tmp_path: Path) -> None:
    """Its data files may be there still, and say the same."""
    path = updated(tmp_path / "t", 2)

    def read(version: int, **options: Any) -> list[dict[str, Any]]:
        rows = [row for batch in lake.changes(path, start=version, end=version, **options) for row in batch.to_pylist()]
        return sorted(rows, key=lambda row: row["_change_type"])  # a feed has the images of an update in any order

    known = {version: read(version) for version in (1, 2)}
    for file in (path / "_change_data").iterdir():
        file.unlink()
    with pytest.raises(FileVacuumed):
        list(lake.changes(path, start=1))
    options: dict[str, Any] = {"changes": "compare", "compute_updates": True, "key": ["id"]}
    for version, rows in known.items():
        assert read(version, **options) == rows


@pytest.mark.parametrize("reader", ["source", "changes"])
def test_spark_reads_what_the_files_say(spark: SparkSession, tmp_path: Path, reader: str) -> None:
    tailer.spark.register(spark)
    for number, lie in enumerate(LIES):
        path = lie.write(tmp_path / f"t{number}")
        options: dict[str, Any] = {"startingVersion": 1, "endingVersion": 1, "changes": "COMPARE"}
        if reader == "source":
            frame = spark.read.format("tailer").options(**options).load(str(path))
        else:
            frame = tailer.spark.changes(spark, path, start=1, end=1, changes="compare")
        assert told([row.asDict() for row in frame.collect()]) == sorted(lie.files), lie.known
