"""Pipelines of one daemon into every sink and mode, and the five figures of each destination.

All figures are 0 after each kill. `missing`: changes, or rows of a mirror, that are not there. `doubled`: those that
are there more than once. `disordered`: versions that come after a later one. `changed`: rows that no version has, or
that a mirror does not have at its version. `lost`: versions by which the progress went back.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tailer.plan import SNAPSHOT_TASKS
from tests.support.kafka.history import TABLE_ID, History, Row, RowChange, change_of, row_of
from tests.support.mirrors.databases import Database, mirrored, rows_in

__all__ = [
    "Backfills",
    "DatabaseLog",
    "DatabaseMirror",
    "DeltaLog",
    "DeltaMirror",
    "Faults",
    "FilesLog",
    "Lane",
]

POSITION: Final = ("_commit_version", "_task", "_row", "_change_type")


@dataclass
class Faults:
    """The faults of a destination, by figure."""

    missing: list[Any] = field(default_factory=list)
    doubled: list[Any] = field(default_factory=list)
    disordered: list[Any] = field(default_factory=list)
    changed: list[Any] = field(default_factory=list)
    lost: list[Any] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, int]:
        """Return the figures."""
        return {each.name: len(getattr(self, each.name)) for each in fields(self)}

    def __str__(self) -> str:
        """Return the figures with examples."""
        return ", ".join(f"{each.name}: {getattr(self, each.name)[:3]}" for each in fields(self))


@dataclass(frozen=True)
class Backfills:
    """The versions of the backfills that were asked for. `ended`: all have. `are_whole`: none is visible in part."""

    versions: Sequence[int]
    ended: bool
    are_whole: bool = False


class Lane(Protocol):
    """A pipeline and its destination, which is read without the sink.

    `commands`: what an operator may ask for: `backfill`, `resnapshot` or nothing. `is_verified`: whether `tailer
    verify` compares it.
    """

    name: str
    commands: str
    is_verified: bool

    @property
    def sink(self) -> str:
        """The sink's table in the configuration."""
        ...

    def reached(self) -> int:
        """Return the last complete version; -1 for none."""
        ...

    def faults(self, history: History, backfills: Backfills) -> Faults:
        """Return the faults of what is there."""
        ...


def log_faults(history: History, reached: int, seen: Counter[RowChange], *, announces: bool = False) -> Faults:
    """Return the faults of a log that has all versions up to `reached`. `announces`: events about columns, too."""
    changes = history.changes() + history.announcements() if announces else history.changes()
    wanted = Counter({change: n for change, n in changes.items() if change[0] <= reached})
    over = seen - wanted
    return Faults(
        missing=sorted((wanted - seen).elements()),
        doubled=sorted(change for change in over.elements() if change in wanted),
        changed=sorted(change for change in over.elements() if change not in wanted),
    )


def add_backfills(faults: Faults, history: History, rows: Counter[RowChange], backfills: "Backfills") -> None:
    """Add the faults of the rows of backfills."""
    for version in {change[0] for change in rows} | set(backfills.versions):
        whole = {(version, "insert", row) for row in history.rows(version).values()}
        faults.changed += sorted(change for change in rows if change[0] == version and change not in whole)
        counts = {change: rows[change] for change in whole}
        most = backfills.versions.count(version)
        least = most if backfills.ended else max(counts.values(), default=0) - (0 if backfills.are_whole else 1)
        faults.doubled += sorted(change for change, n in counts.items() if n > most)
        faults.missing += sorted(change for change, n in counts.items() if n < least)


def mirror_faults(history: History, version: int, found: Sequence[Row]) -> Faults:
    """Return the faults of the rows of a mirror of a version; -1: there is none yet."""
    wanted = set() if version < 0 else set(history.rows(version).values())
    ids = {row[0] for row in wanted}
    counts = Counter(row[0] for row in found)
    return Faults(
        missing=sorted(ids - counts.keys()),
        doubled=sorted(each for each, n in counts.items() if n > 1),
        changed=sorted(set(found) - wanted),
    )


def disordered(versions: Iterable[Iterable[int]]) -> list[tuple[int, int]]:
    """Return the versions that come after a later one. `versions`: of each transaction."""
    faults, last = [], -1
    for each in versions:
        for version in sorted(set(each)):
            faults += [(last, version)] if version < last else []
            last = max(last, version)
    return faults


@dataclass
class _DeltaLane:
    path: Path
    name: str
    is_verified: bool = False

    @property
    def app_id(self) -> str:
        return f"{self.name}/{TABLE_ID}"

    def reached(self) -> int:
        try:
            version = DeltaTable(self.path).transaction_version(self.app_id)
        except TableNotFoundError:
            return -1
        return -1 if version is None else version

    def _commits(self) -> Iterator[list[dict[str, Any]]]:
        for commit in sorted((self.path / "_delta_log").glob("[0-9]*.json")):
            yield [json.loads(line) for line in commit.read_text().splitlines()]


class DeltaLog(_DeltaLane):
    """Changes appended to a Delta table."""

    commands = "backfill"

    @property
    def sink(self) -> str:
        """See `Lane.sink`."""
        return f'kind = "delta"\npath = "{self.path}"\n'

    def faults(self, history: History, backfills: Backfills) -> Faults:
        """See `Lane.faults`."""
        seen: Counter[RowChange] = Counter()
        again: Counter[RowChange] = Counter()
        versions = []
        for actions in self._commits():
            added = [self.path / each["add"]["path"] for each in actions if "add" in each]
            changes = [change_of(row) for file in added for row in pq.read_table(file).to_pylist()]
            is_backfill = any("~backfill" in each["txn"]["appId"] for each in actions if "txn" in each)
            (again if is_backfill else seen).update(changes)
            versions += [] if is_backfill else [[change[0] for change in changes]]
        faults = log_faults(history, self.reached(), seen)
        add_backfills(faults, history, again, backfills)
        faults.disordered = disordered(versions)
        return faults


@dataclass
class DeltaMirror(_DeltaLane):
    """A mirror that is a Delta table."""

    commands = "resnapshot"
    is_verified: bool = True

    @property
    def sink(self) -> str:
        """See `Lane.sink`."""
        return f'kind = "delta"\npath = "{self.path}"\nmode = "mirror"\nkey = ["id"]\n'

    def faults(self, history: History, backfills: Backfills) -> Faults:
        """See `Lane.faults`."""
        version = self.reached()
        rows = [] if version < 0 else DeltaTable(self.path).to_pyarrow_table().to_pylist()
        faults = mirror_faults(history, version, list(map(row_of, rows)))
        own = [[each["txn"] for each in actions if "txn" in each] for actions in self._commits()]
        faults.disordered = disordered(
            [each["version"] for each in txns if each["appId"] == self.app_id] for txns in own
        )
        return faults


@dataclass
class FilesLog:
    """Changes in JSON Lines, in files named by their versions."""

    path: Path
    name: str
    commands: str = "backfill"
    is_verified: bool = False

    @property
    def sink(self) -> str:
        """See `Lane.sink`."""
        return f'kind = "files"\npath = "{self.path}"\n'

    def reached(self) -> int:
        """See `Lane.reached`."""
        return max((int(file.stem.split("-")[-1]) for file in self._files(TABLE_ID)), default=-1)

    def faults(self, history: History, backfills: Backfills) -> Faults:
        """See `Lane.faults`."""
        files = [list(map(change_of, self._rows(file))) for file in self._files(TABLE_ID)]
        seen = Counter(change for file in files for change in file)
        again = Counter(change_of(row) for file in self._files(f"~backfill-*/{TABLE_ID}") for row in self._rows(file))
        faults = log_faults(history, self.reached(), seen, announces=True)
        add_backfills(faults, history, again, backfills)
        faults.disordered = disordered([change[0] for change in file] for file in files)
        return faults

    def _files(self, folder: str) -> list[Path]:
        return sorted((self.path / self.name).glob(f"{folder}/[0-9]*.jsonl"))

    def _rows(self, file: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in file.read_text().splitlines()]


@dataclass
class _DatabaseLane:
    database: Database
    name: str
    is_verified: bool = True

    @property
    def _options(self) -> str:
        return 'kind = "sql"\n' + "".join(f'{name} = "{value}"\n' for name, value in self.database.options.items())

    def reached(self) -> int:
        version = mirrored(self.database, self.name)
        return -1 if version is None else version


class DatabaseMirror(_DatabaseLane):
    """A mirror in a database."""

    commands = "resnapshot"

    @property
    def sink(self) -> str:
        """See `Lane.sink`."""
        return f'{self._options}key = ["id"]\n'

    def faults(self, history: History, backfills: Backfills) -> Faults:
        """See `Lane.faults`."""
        return mirror_faults(history, self.reached(), list(map(row_of, rows_in(self.database, self.name))))


class DatabaseLog(_DatabaseLane):
    """A log of changes in a database, whose rows have positions and no order."""

    commands = "backfill"

    @property
    def sink(self) -> str:
        """See `Lane.sink`."""
        return f'{self._options}mode = "append"\n'

    def faults(self, history: History, backfills: Backfills) -> Faults:
        """See `Lane.faults`. A backfill is there as a whole or not at all."""
        rows = rows_in(self.database, self.name)
        seen = Counter(change_of(row) for row in rows if row["_task"] < SNAPSHOT_TASKS)
        again = Counter(change_of(row) for row in rows if row["_task"] >= SNAPSHOT_TASKS)
        faults = log_faults(history, self.reached(), seen)
        add_backfills(faults, history, again, replace(backfills, are_whole=True))
        positions = Counter(tuple(row[each] for each in POSITION) for row in rows)
        faults.doubled += [each for each, n in positions.items() if n > 1]
        return faults
