"""A table, a daemon that follows it, and targets of it: what a person has who walks a hint to its end."""

import json
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from deltalake import DeltaTable

from tailer.daemon.client import DaemonClient
from tailer.daemon.status_report import PipelineReport
from tailer.errors import ConfigError
from tests.support.daemon.commands import tailer
from tests.support.kafka.topics import read_topic
from tests.support.mirrors.databases import Database
from tests.support.servers.endpoint import Answer, Endpoint
from tests.support.tables.handwritten import HandwrittenTable
from tests.support.waiting import until

__all__ = [
    "DatabaseTarget",
    "DeltaTarget",
    "FilesTarget",
    "HttpTarget",
    "KafkaTarget",
    "StreamTarget",
    "Target",
    "Walk",
]

COMMAND: Final = re.compile(r"`tailer ([^`]+)`")


class Target(Protocol):
    """A target of the pipeline `copy`. `sink`: its table of the configuration. `names_rival`: what fences us."""

    sink: str
    is_mirror: bool
    names_rival: bool

    def ids(self) -> list[int]:
        """Return the ids that it has. Raises anything while there is no target yet."""
        ...


class FilesTarget:
    """Files in the folder `folder`."""

    is_mirror = False
    names_rival = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sink = f'kind = "files"\npath = "{folder}"'

    def files(self) -> list[Path]:
        """Return the files of rows, in the order of their delivery."""
        return sorted(self.folder.rglob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)

    def ids(self) -> list[int]:
        """See `Target.ids`."""
        return ids_in(json.loads(line) for path in self.files() for line in path.read_text().splitlines())


class StreamTarget(ABC):
    """A target from which nothing can be removed: its reader does."""

    is_mirror = False

    def __init__(self) -> None:
        self._removed: set[int] = set()  # positions of events

    @abstractmethod
    def events(self) -> list[dict[str, Any]]:
        """Return all events, in the order of their delivery."""

    def remove_after(self, version: int) -> None:
        """Remove the changes after a version from the reader's copy."""
        for position, event in enumerate(self.events()):
            if event["_change_type"] != "gap" and event["_commit_version"] > version:
                self._removed.add(position)

    def ids(self) -> list[int]:
        """See `Target.ids`."""
        return ids_in(each for position, each in enumerate(self.events()) if position not in self._removed)


class HttpTarget(StreamTarget):
    """An endpoint, which may get rows twice."""

    names_rival = False

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self.endpoint = endpoint
        self.sink = f'kind = "http"\nurl = "{endpoint.url}"'

    def events(self) -> list[dict[str, Any]]:
        """See `StreamTarget.events`."""
        return self.endpoint.events()

    def ids(self) -> list[int]:
        """See `Target.ids`."""
        return sorted(set(super().ids()))

    def refuse(self, refuses: bool) -> None:
        """Let the endpoint refuse all requests, or take them again."""
        self.endpoint.answer = lambda _: Answer(400) if refuses else Answer()


class KafkaTarget(StreamTarget):
    """A topic."""

    names_rival = True

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__()
        self.servers, self.topic = servers, topic
        self.sink = (
            f'kind = "kafka"\nbootstrap_servers = "{servers}"\ntopic = "{topic}"\ncreate_topics = true\n'
            f'progress_topic = "{topic}-progress"'
        )

    def events(self) -> list[dict[str, Any]]:
        """See `StreamTarget.events`."""
        records = read_topic(self.servers, self.topic)
        return [json.loads(each.value) for each in records if each.value is not None]


class DatabaseTarget:
    """A mirror in a database."""

    is_mirror = True
    names_rival = False

    def __init__(self, database: Database) -> None:
        self.database = database
        options = "".join(f"{name} = {json.dumps(value)}\n" for name, value in database.options.items())
        self.sink = f'kind = "sql"\n{options}table = "copy"\nkey = ["id"]'

    def ids(self) -> list[int]:
        """See `Target.ids`."""
        return [row for (row,) in self.database.query("SELECT id FROM copy")]

    def erase(self, row: int) -> None:
        """Delete a row, as somebody else would."""
        self.database.query(f"DELETE FROM copy WHERE id = {row}")


class DeltaTarget:
    """A mirror in a Delta table."""

    is_mirror = True
    names_rival = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sink = f'kind = "delta"\npath = "{folder}"\nmode = "mirror"\nkey = ["id"]'

    def ids(self) -> list[int]:
        """See `Target.ids`."""
        found: list[int] = DeltaTable(self.folder).to_pyarrow_table()["id"].to_pylist()
        return found

    def erase(self, row: int) -> None:
        """Delete a row, as somebody else would."""
        DeltaTable(self.folder).delete(f"id = {row}")


def ids_in(events: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the ids that the reader of a log has: none from before a gap with a snapshot."""
    ids: list[int] = []
    for event in events:
        if event["_change_type"] == "insert":
            ids.append(event["id"])
        elif event.get("snapshot"):
            ids.clear()
    return ids


class Walk:
    """A table, its pipeline `copy` into `target`, and the ids that the table has.

    `alone`: whether it is the only pipeline; if not, `other` delivers another table into files.
    """

    def __init__(self, folder: Path, target: Target, alone: bool) -> None:
        self.folder, self.target = folder, target
        self.table, self.ids, self.last = HandwrittenTable(folder / "t"), set[int](), 0
        self.others = None if alone else HandwrittenTable(folder / "u")
        self.other_target = FilesTarget(folder / "other")
        self.config, self.client = folder / "tailer.toml", DaemonClient(socket=folder / "tailer.sock")
        self.is_mirror = target.is_mirror
        self.process: subprocess.Popen[str] | None = None  # the daemon, once it runs
        self.config.write_text(self.text(alone))

    def text(self, alone: bool) -> str:
        """Return the configuration."""
        text = 'state_table = "state"\n[pipelines.copy]\ntable = "t"\npoll_interval_s = 0.05\n\n[pipelines.copy.sink]\n'
        text += f"{self.target.sink}\n"
        if not alone:
            text += '[pipelines.other]\ntable = "u"\npoll_interval_s = 0.05\nsink = {kind = "files", path = "other"}\n'
        return text

    def edit(self, before: str, after: str) -> None:
        """Edit the configuration; return when the daemon has taken it, by itself."""
        text, former = self.config.read_text(), self.report
        assert before in text
        assert former is not None
        self.config.write_text(text.replace(before, after, 1))
        until(lambda: (now := self.report) is not None and (now.state, now.since) != (former.state, former.since))

    def insert(self) -> int:
        """Commit two rows in a file of their own; return the version."""
        return self.table.commit(self.added())

    def added(self, **more: list[Any]) -> dict[str, Any]:
        """Make the action that adds two rows in a file of their own."""
        self.last += 2
        self.ids |= set(self.last_ids)
        return self.table.add(self.table.data(self.file(self.table.version + 1), self.last_ids, None, **more))

    def forget_last(self) -> None:
        """Note that the table has not the two rows that were made last."""
        self.ids -= set(self.last_ids)

    def file(self, version: int) -> str:
        """Return the name of the data file of a version."""
        return f"{self.table.metadata['id'][:4]}-{version}.parquet"

    @property
    def last_ids(self) -> tuple[int, int]:
        """The ids of the two rows that were made last."""
        return self.last - 1, self.last

    def report_of(self, client: DaemonClient) -> PipelineReport | None:
        """Return the report of a daemon about the pipeline; None while it does not answer."""
        try:
            return client.status().pipelines[0]
        except ConfigError:
            return None

    @property
    def report(self) -> PipelineReport | None:
        """The report of our daemon."""
        return self.report_of(self.client)

    @property
    def why(self) -> str:
        """The reason of the state of the pipeline."""
        return "" if (found := self.report) is None else found.why

    def state(self) -> str:
        """Return the state of the pipeline."""
        return "" if (found := self.report) is None else found.state.value

    def pause(self) -> None:
        """Pause the pipeline."""
        self.client.send("copy", "pause")
        until(lambda: self.state() == "paused")

    def stop(self, error: str, harm: Callable[[], object], *, paused: bool = True) -> list[str]:
        """Do harm, let the pipeline stop with `error`; return the commands of its hint.

        `paused`: while the pipeline is paused.
        """
        if paused:
            self.pause()
        harm()
        if paused:
            self.client.send("copy", "resume")
        return self.stopped(error)

    def stopped(self, error: str) -> list[str]:
        """Wait until the pipeline has stopped with `error`; return the commands of its hint. The other one goes on."""
        until(lambda: self.state() == "stopped", said=lambda: str(self.report))
        found = self.report
        assert found is not None
        assert found.why.startswith(f"{error}: "), found.why
        self.others_deliver()
        return COMMAND.findall(found.hint)

    def run(self, command: str, code: int = 0) -> str:
        """Run a command of a hint; return what it said."""
        done = tailer(*command.split(), "--config", self.config)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def delivers(self) -> None:
        """Commit rows; return when the target has exactly the rows of the table, and the pipelines go on."""
        self.insert()
        until(lambda: sorted(self.copied()) == sorted(self.ids), said=lambda: f"{self.report} {self.copied()}")
        until(lambda: self.state() in ("streaming", "catching_up", "idle"))
        self.others_deliver()

    def others_deliver(self) -> None:
        """Return when the other pipeline, if there is one, has delivered something more."""
        if self.others is not None:
            number = self.others.version + 1
            self.others.commit(self.others.add(self.others.data(f"{number}.parquet", [number])))
            until(lambda: self.other_target.ids() == list(range(1, number + 1)))

    def copied(self) -> list[int]:
        """Return the ids in the target."""
        try:
            return self.target.ids()
        except Exception:  # noqa: BLE001 - there is none yet
            return []

    def rival(self) -> tuple[Path, DaemonClient]:
        """Return the configuration of another daemon with the same pipeline, and its client."""
        config = self.folder / "rival.toml"
        config.write_text(self.config.read_text().partition("[pipelines.other]")[0])
        return config, DaemonClient(socket=config.with_suffix(".sock"))
