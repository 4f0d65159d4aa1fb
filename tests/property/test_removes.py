"""Removes that leave out what the protocol lets them: the plans are those of removes that say everything.

Histories have deletion vectors, compaction, paths that are used again, other spellings of paths, other partitioning,
row ids, and begin with a checkpoint or not.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from tailer.formats.delta.inspection import DeltaInspector
from tailer.formats.delta.log.listing import LOG, commit_name
from tailer.formats.delta.table import DeltaTableLog
from tailer.plan import ChangePlan
from tailer.start import Start, StartKind
from tailer.stores.local import LocalStore
from tests.support.follow import plans
from tests.support.seeds import seeds
from tests.support.tables.log_files import (
    add,
    checkpoint,
    commit_info,
    inline_vector,
    metadata,
    protocol,
    remove,
    schema_string,
    write_commit,
)

SEEDS: Final = seeds(6)
VERSIONS: Final = 12
COLUMNS: Final = ("p", "q", "r")
LEFT_OUT: Final = ("partitionValues", "size", "baseRowId", "defaultRowCommitVersion", "extendedFileMetadata")

Action = dict[str, Any]


@dataclass
class History:
    """A table in `folder` with random commits, whose removes say everything."""

    folder: Path
    chance: random.Random
    commits: list[list[Action]] = field(default_factory=list)
    live: dict[str, Action] = field(default_factory=dict)  # the add of each path
    states: list[list[Action]] = field(default_factory=list)  # the adds after each commit

    def __post_init__(self) -> None:
        self.partitions = ["p"]
        self.is_tracked = self.chance.random() < 0.5
        self._commit([protocol(3, ["deletionVectors"]), self._metadata(), *self._added(3)])
        for _ in range(VERSIONS - 1):
            self._commit(list(self.chance.choice((self._some, self._some, self._some, self._compact, self._replace))()))

    def _some(self) -> Iterator[Action]:
        """Remove some files, change the vectors of others, and add a few."""
        for path in self.chance.sample(sorted(self.live), self.chance.randint(0, min(3, len(self.live)))):
            old = self.live.pop(path)
            yield self._removed(old)
            if self.chance.random() < 0.5:
                vector = inline_vector(self.chance.sample(range(9), 2))
                self.live[path] = new = {**old, "deletionVector": vector}
                yield {"add": new}
        yield from self._added(self.chance.randint(0, 2))

    def _compact(self) -> Iterator[Action]:
        """Replace files without a change of data: their adds are the ones to be found later."""
        for path in self.chance.sample(sorted(self.live), min(2, len(self.live))):
            old = self.live.pop(path)
            yield self._removed(old, dataChange=False)
            self.live[f"c-{path}"] = new = {**old, "path": f"c-{path}", "dataChange": False}
            yield {"add": new}

    def _replace(self) -> Iterator[Action]:
        """Replace the table by one with another partitioning, which may have files of the same paths."""
        removed = [self._removed(old) for old in self.live.values()]
        self.partitions = self.chance.sample(COLUMNS, self.chance.randint(0, 2))
        self.live.clear()
        return iter([self._metadata(), *removed, *self._added(2)])

    def _added(self, many: int) -> Iterator[Action]:
        free = [path for path in ("a", "b b", "c", "d", "e") if path not in self.live]
        for path in self.chance.sample(free, min(many, len(free))):
            written = path.replace(" ", "%20") if self.chance.random() < 0.5 else path
            values = {name: self.chance.choice((None, "", "1", "2")) for name in self.partitions}
            tracked: Action = {"baseRowId": self.chance.randrange(99), "defaultRowCommitVersion": len(self.commits)}
            action = add(written, partitionValues=values, size=7, **(tracked if self.is_tracked else {}))
            self.live[path] = action["add"]
            yield action

    def _removed(self, old: Action, **more: Any) -> Action:
        kept = {name: value for name, value in old.items() if name not in ("path", "modificationTime")}
        return remove(old["path"], **{**kept, **more})

    def _metadata(self) -> Action:
        tracked = {"delta.enableRowTracking": "true"} if self.is_tracked else {}
        return metadata(schema_string(a="long", **dict.fromkeys(COLUMNS, "string")), self.partitions, **tracked)

    def _commit(self, actions: list[Action]) -> None:
        self.chance.shuffle(actions)
        self.commits.append([commit_info(operation="WRITE"), *actions])
        self.states.append([{"add": file} for file in self.live.values()])

    def write(self) -> None:
        """Write all commits."""
        for version, actions in enumerate(self.commits):
            write_commit(self.folder, version, *actions, modified_ms=1000 * (version + 1))

    def strip(self) -> None:
        """Leave out something of every remove, and remove one more vector of some files."""
        for actions in self.commits:
            added = {each["add"]["path"] for each in actions if "add" in each}
            for action in [each for each in actions if "remove" in each]:
                path = action["remove"]["path"]
                action["remove"] = self._stripped(action["remove"])
                if path not in added and self.chance.random() < 0.3:
                    action["remove"]["path"] = path.replace("b b", "b%20b")  # another spelling of the same file
                if self.chance.random() < 0.2 and action["remove"]["dataChange"]:
                    actions.append(remove(action["remove"]["path"], inline_vector([77])))

    def _stripped(self, file: Action) -> Action:
        kept = {name: file[name] for name in file if name not in LEFT_OUT or self.chance.random() < 0.5}
        values = kept.get("partitionValues")
        if values:
            kept["partitionValues"] = {name: value for name, value in values.items() if self.chance.random() < 0.5}
        return kept

    def clean_up(self, version: int) -> None:
        """Write a checkpoint, and delete the commits before it."""
        last: dict[str, Action] = {}
        for actions in self.commits[: version + 1]:
            last |= {kind: each for each in actions for kind in ("protocol", "metaData") if kind in each}
        path = self.folder / LOG / f"{version:020d}.checkpoint.parquet"
        checkpoint(path, *last.values(), *self.states[version])
        for gone in range(version):
            (self.folder / commit_name(gone)).unlink()


def said(plan: ChangePlan) -> ChangePlan:
    """Return a plan without what needs not be known."""
    return replace(plan, tasks=tuple(replace(task, size_bytes=0) for task in plan.tasks))


@pytest.mark.parametrize("seed", SEEDS)
def test_removes_with_any_of_their_fields(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, random.Random(seed))
    history.write()
    expected = [said(plan) for plan in plans(tmp_path)]
    assert len(expected) == VERSIONS
    history.strip()
    history.write()
    assert [said(plan) for plan in plans(tmp_path)] == expected
    assert anyio.run(DeltaInspector(LocalStore(tmp_path)).contradictions) == ()
    version = random.Random(seed).randrange(1, VERSIONS - 1)
    history.clean_up(version)
    earliest = anyio.run(DeltaTableLog(LocalStore(tmp_path)).resolve, Start(StartKind.EARLIEST)).version
    assert earliest in (version, version + 1)
    assert [said(plan) for plan in plans(tmp_path, earliest)] == expected[earliest:]
