"""Hints of errors, walked to their ends: a daemon whose only pipeline stops, and one with another pipeline."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tailer import errors
from tailer.daemon.client import DaemonClient
from tailer.errors import Retry, TailerError
from tests.conftest import POSTGRESQL
from tests.support.daemon.commands import background
from tests.support.daemon.walks import (
    DatabaseTarget,
    DeltaTarget,
    FilesTarget,
    HttpTarget,
    KafkaTarget,
    StreamTarget,
    Target,
    Walk,
)
from tests.support.kafka.topics import unique_name
from tests.support.mirrors.databases import PostgresDatabase, SqliteDatabase
from tests.support.servers.endpoint import serving
from tests.support.tables.handwritten import HandwrittenTable
from tests.support.tables.log_files import cdc
from tests.support.waiting import until

pytestmark = pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning")

NOTE: Final = {"name": "note", "type": "string", "nullable": True, "metadata": {}}


def vacuumed(walk: Walk) -> None:
    """A missing data file: put back; left out by a snapshot, or as a gap."""
    table = walk.table

    def harm(drop: bool) -> None:
        version = walk.insert()
        file = table.path / walk.file(version)
        if drop:
            walk.forget_last()
        if drop and walk.is_mirror:
            table.commit(table.remove(file.name))
        file.rename(file.with_suffix(".kept"))

    commands = walk.stop("FileVacuumed", lambda: harm(drop=False))
    assert commands[:3] == ["resume copy", "resnapshot copy", "skip copy"]
    for kept in table.path.glob("*.kept"):
        kept.rename(kept.with_suffix(".parquet"))
    walk.run(commands[0])
    walk.delivers()
    walk.stop("FileVacuumed", lambda: harm(drop=True))
    if walk.is_mirror:
        assert "`tailer resnapshot copy`" in walk.run(commands[2], 2)
    walk.run(commands[1 if walk.is_mirror else 2])
    walk.delivers()


def undefined(walk: Walk) -> None:
    """A version that drops a column which its change files may have: a snapshot in its place, or a gap."""
    table = walk.table
    reshape(walk, NOTE)

    def harm() -> None:
        reshape(walk, commits=False)
        added = walk.added(note=[None, None])
        change = table.data("change.parquet", walk.last_ids, _change_type=["insert", "insert"])
        table.commit({"metaData": table.metadata}, added, cdc(change, size=(table.path / change).stat().st_size))

    commands = walk.stop("ChangesUnavailable", harm)
    assert commands[:2] == ["resnapshot copy", "skip copy"]
    if walk.is_mirror:
        walk.run(commands[0])
    else:
        walk.forget_last()
        walk.run(commands[1])
    walk.delivers()


def reshape(walk: Walk, *more: dict[str, object], commits: bool = True) -> None:
    """Give the table the column `id` and `more`."""
    columns = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}, *more]
    walk.table.metadata["schemaString"] = json.dumps({"type": "struct", "fields": columns})
    if commits:
        walk.table.commit({"metaData": walk.table.metadata})


def garbage(walk: Walk) -> None:
    """A commit that cannot be read: restored."""

    def harm() -> None:
        walk.insert()
        file = walk.table.commit_file()
        file.with_suffix(".kept").write_text(file.read_text())
        file.write_text("{garbage\n")

    commands = walk.stop("LogCorrupt", harm)
    file = walk.table.commit_file()
    file.write_text(file.with_suffix(".kept").read_text())
    walk.run(commands[0])
    walk.delivers()


def gone(walk: Walk) -> None:
    """A commit that is missing: restored."""

    def harm() -> None:
        walk.insert()
        file = walk.table.commit_file()
        walk.insert()
        file.rename(file.with_suffix(".kept"))

    commands = walk.stop("VersionGone", harm)
    file = walk.table.commit_file(walk.table.version - 1)
    file.with_suffix(".kept").rename(file)
    walk.run(commands[0])
    walk.delivers()


def corrupt(walk: Walk) -> None:
    """A data file that is none: restored."""

    def harm() -> None:
        file = walk.table.path / walk.file(walk.insert())
        file.with_suffix(".kept").write_bytes(file.read_bytes())
        file.write_bytes(bytes(len(file.read_bytes())))

    commands = walk.stop("DataCorrupt", harm)
    file = walk.table.path / walk.file(walk.table.version)
    file.write_bytes(file.with_suffix(".kept").read_bytes())
    walk.run(commands[0])
    walk.delivers()


def replaced(walk: Walk) -> None:
    """Another table at the location: all its rows, or all its versions after those of the former one."""

    def harm(number: int) -> None:
        shutil.rmtree(walk.table.path)
        walk.table = HandwrittenTable(walk.table.path)
        walk.table.metadata["id"] = f"{number}9999999-2222-3333-4444-555555555555"
        walk.table.version, walk.ids = -1, set()
        protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        walk.table.commit({"protocol": protocol}, {"metaData": walk.table.metadata})
        walk.insert()

    commands = walk.stop("TableReplaced", lambda: harm(1))
    assert commands == ["resnapshot copy", "progress reset copy --to -1", "resume copy"]
    walk.run(commands[0])
    walk.delivers()
    if not walk.is_mirror:
        before = set(walk.ids)
        walk.stop("TableReplaced", lambda: harm(2))
        walk.run(commands[1])
        walk.run(commands[2])
        walk.ids |= before  # rows stay
        walk.delivers()


def set_back(walk: Walk, version: int, commands: list[str]) -> None:
    """Remove the changes after a version from a log, set its progress to it, and go on."""
    if isinstance(walk.target, FilesTarget):
        found = re.search(r"Move (\S+) and the files after it out of (\S+),", walk.run(commands[0], 4))
        assert found is not None
        for file in Path(found[2]).iterdir():
            if file.suffix == ".jsonl" and file.name >= found[1]:
                file.unlink()
    if isinstance(walk.target, StreamTarget):
        walk.target.remove_after(version)
    assert f"next version to be delivered: {version + 1}" in walk.run(commands[0])
    walk.run(commands[1])


def ahead(walk: Walk) -> None:
    """A log that was set back."""

    def harm() -> None:
        walk.table.commit_file().unlink()
        walk.table.version -= 1
        walk.forget_last()

    walk.insert()
    until(lambda: sorted(walk.copied()) == sorted(walk.ids))
    commands = walk.stop("VersionAhead", harm)
    if walk.is_mirror:
        assert "would not be a mirror" in walk.run(commands[0], 4)
        walk.insert()
        walk.run(commands[2])
    else:
        set_back(walk, walk.table.version, commands)
    walk.delivers()


def rewritten(walk: Walk) -> None:
    """A commit that was delivered, and is another one now."""
    walk.insert()
    until(lambda: sorted(walk.copied()) == sorted(walk.ids) and walk.state() == "streaming")
    version = walk.table.version

    def harm() -> None:
        walk.forget_last()
        walk.table.version -= 1
        added = walk.added()
        commit = walk.table.commit_file(version)
        commit.write_text(json.dumps(added) + "\n" + json.dumps({"commitInfo": {"operation": "RESTORED"}}) + "\n")
        walk.table.version = version
        walk.insert()

    commands = walk.stop("LogRewritten", harm, paused=False)
    assert commands == ["progress reset copy --to VERSION", "resume copy", "resnapshot copy"]
    if walk.is_mirror:
        walk.run(commands[2])
    else:
        set_back(walk, version - 1, [each.replace("VERSION", str(version - 1)) for each in commands])
    walk.delivers()


def outside(walk: Walk) -> None:
    """A file in a folder that is not allowed: allowed by the configuration, and the pipeline goes on by itself."""
    elsewhere = walk.folder / "elsewhere"

    def harm() -> None:
        added = walk.added()
        elsewhere.mkdir()
        file = (walk.table.path / added["add"]["path"]).rename(elsewhere / "a.parquet")
        added["add"]["path"] = file.as_uri()
        walk.table.commit(added)

    walk.stop("FileOutsideTable", harm)
    walk.edit('table = "t"\n', f'table = "t"\nallowed_roots = ["{elsewhere}"]\n')
    walk.delivers()


def reshaped(walk: Walk) -> None:
    """A column that comes where that is forbidden: allowed by the configuration, and forbidden again."""
    walk.edit('table = "t"\n', 'table = "t"\non_schema_change = "fail"\n')
    walk.delivers()

    def harm() -> None:
        reshape(walk, NOTE)
        walk.table.commit(walk.added(note=["a", "b"]))

    walk.stop("SchemaChanged", harm)
    walk.edit('on_schema_change = "fail"', 'on_schema_change = "evolve"')
    walk.delivers()
    walk.edit('on_schema_change = "evolve"', 'on_schema_change = "fail"')
    walk.delivers()
    walk.edit('on_schema_change = "fail"\n', "")


def rejected(walk: Walk) -> None:
    """A refusal by the target: mended there, or in the configuration."""
    match walk.target:
        case FilesTarget() as files:
            kept = files.folder.with_name("kept")
            commands = walk.stop("SinkRejected", lambda: (files.folder.rename(kept), walk.insert()), paused=False)
            kept.rename(files.folder)
            walk.run(commands[-1])
        case HttpTarget() as endpoint:
            endpoint.refuse(True)
            commands = walk.stop("SinkRejected", walk.insert)
            endpoint.refuse(False)
            walk.run(commands[-1])
        case KafkaTarget() as kafka:
            other, version = f"{kafka.topic}-other", walk.table.version
            walk.edit(f'topic = "{kafka.topic}"', f'topic = "{other}"')
            commands = walk.stopped("SinkRejected")
            walk.run(commands[0].replace("VERSION", str(version)))
            walk.run(commands[-1])
            walk.target, walk.ids = KafkaTarget(kafka.servers, other), set()
        case DatabaseTarget() | DeltaTarget() as mirror:
            row = walk.last

            def harm() -> None:
                mirror.erase(row)
                walk.forget_last()
                walk.table.commit(walk.table.remove(walk.file(walk.table.version)))

            commands = walk.stop("SinkRejected", harm)
            walk.run(commands[0])
    walk.delivers()


def fenced(walk: Walk) -> None:
    """Another daemon with the same pipeline: the other one is ended, and this one goes on."""
    config, client = walk.rival()
    assert walk.process is not None
    with background("run", "--config", config, "--log-format", "text") as rival:
        clients = {walk.client: walk.process, client: rival}

        def stopped() -> list[DaemonClient]:
            walk.insert()
            reports = {each: walk.report_of(each) for each in clients}
            return [each for each, report in reports.items() if report is not None and report.state == "stopped"]

        until(lambda: len(stopped()) > 0)
        (loser,) = stopped()
        (process,) = (found for each, found in clients.items() if each is not loser)
        if loser is client:
            walk.client, walk.config, walk.others = client, config, None
        (command,) = walk.stopped("SinkFenced")
        if walk.target.names_rival:
            assert f"another instance took over (process {process.pid} on " in walk.why
        process.terminate()
        process.communicate(timeout=60)
        walk.run(command)
        walk.delivers()


WALKS: Final[dict[type[TailerError], Callable[[Walk], None]]] = {
    errors.FileVacuumed: vacuumed,
    errors.ChangesUnavailable: undefined,
    errors.LogCorrupt: garbage,
    errors.VersionGone: gone,
    errors.DataCorrupt: corrupt,
    errors.SinkRejected: rejected,
    errors.SchemaChanged: reshaped,
    errors.FileOutsideTable: outside,
    errors.TableReplaced: replaced,
    errors.VersionAhead: ahead,
    errors.LogRewritten: rewritten,
    errors.SinkFenced: fenced,
}
NOT_WALKED: Final = {
    errors.ConfigError: "the hint is a change of the configuration, as that of SchemaChanged",
    errors.ExpressionFailed: "the hint is a change of the configuration, as that of SchemaChanged",
    errors.NotATable: "the hint is a change of the configuration, as that of SchemaChanged",
    errors.UnsupportedFeature: "the hint is another release",
    errors.StateUnknown: "the pipeline waits, and goes on by itself",
    errors.StorageRefused: "the hint names what a store refuses, and no store of this machine refuses anything",
    errors.ObjectNotFound: "no pipeline stops with it",
}


def classes(root: type[TailerError]) -> set[type[TailerError]]:
    """Return the classes below `root` that stop a pipeline until a person acts: none that begin again by themselves."""
    found = {each for below in root.__subclasses__() for each in classes(below)} or {root}
    return {each for each in found | {root} if each.__module__.startswith("tailer.errors.")}


def test_every_error_that_waits_for_a_person_is_walked_or_says_why_not() -> None:
    families = {errors.TailerError, errors.StorageError, errors.LogError, errors.ChangeError, errors.SinkError}
    waiting = {each for each in classes(TailerError) - families if each.retry in (Retry.MANUAL, Retry.ONCE)}
    assert waiting == WALKS.keys() | NOT_WALKED.keys()


def target(kind: str, folder: Path, request: pytest.FixtureRequest, until_the_end: ExitStack) -> Target:
    """Make a target of a kind."""
    match kind:
        case "files":
            return FilesTarget(folder / "copy")
        case "http":
            return HttpTarget(until_the_end.enter_context(serving()))
        case "kafka":
            return KafkaTarget(request.getfixturevalue("kafka").bootstrap_servers, unique_name())
        case "delta":
            return DeltaTarget(folder / "copy")
        case "sqlite":
            return DatabaseTarget(SqliteDatabase(folder / "copy.db"))
    return DatabaseTarget(PostgresDatabase(request.getfixturevalue("postgres")))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    "kind", ["files", "http", "sqlite", "delta", POSTGRESQL, pytest.param("kafka", marks=pytest.mark.kafka)]
)
def test_the_commands_of_hints_are_obeyed(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, alone: bool
) -> None:
    with ExitStack() as until_the_end:
        walk = Walk(tmp_path, target(kind, tmp_path, request, until_the_end), alone)
        walk.insert()
        command = ("run", "--config", walk.config, "--log-format", "text")
        walk.process = until_the_end.enter_context(background(*command))
        until(lambda: walk.state() == "streaming")
        for walked in WALKS.values():
            walked(walk)
