"""The writer of a Delta table that knows the right answer: the rows and the change events of every version.

Tables are small: a few rows in a few files, written straight into the bucket. Each commit is drawn from a seed of its
own, so leaving out another one changes only what that one wrote.
"""

import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from tailer.formats.delta.log.listing import commit_name
from tests.simulation.bucket import Objects
from tests.support.tables.log_files import add, cdc, checkpoint, inline_vector, metadata, protocol, remove

__all__ = ["COMMITS", "Facts", "Row", "SimulatedTable", "row_of"]

Row = tuple[tuple[str, Any], ...]
Rows = Counter[Row]
Events = Counter[tuple[str, Row]]
_FEED: Final = "delta.enableChangeDataFeed"
_META: Final = ("_change_type", "_commit_version", "_commit_timestamp")

COMMITS: Final = ("append", "append", "append", "vector", "rewrite", "rewrite", "optimize", "nothing", "many")


def row_of(values: dict[str, Any]) -> Row:
    """Return the values of a row without nulls and without what a change adds to them."""
    return tuple(sorted((name, value) for name, value in values.items() if value is not None and name not in _META))


@dataclass(frozen=True)
class Facts:
    """The truth of one version: all of its rows, and its changes (None: nobody can read them)."""

    table_id: str
    rows: Rows
    events: Events | None
    kind: str


@dataclass
class _File:
    rows: list[dict[str, Any]]
    deleted: set[int] = field(default_factory=set)
    size: int = 0

    @property
    def live(self) -> list[dict[str, Any]]:
        return [row for number, row in enumerate(self.rows) if number not in self.deleted]

    @property
    def vector(self) -> dict[str, Any] | None:
        return inline_vector(sorted(self.deleted)) if self.deleted else None


class SimulatedTable:
    """The table in the folder `folder` of `objects`. `feed`: whether rewritten files come with change files."""

    def __init__(self, objects: Objects, folder: str, *, feed: bool, number: int = 0) -> None:
        self.feed = feed
        self.first = 0  # the first version whose commit is left
        self.checkpoints: list[int] = []
        self.broken = False  # whether no version after the last one can be delivered
        self.facts: list[Facts] = []
        self.cleaned: set[int] = set()
        self.vacuumed: set[int] = set()  # versions that need a file that is gone
        self.at_s: list[float] = []
        self._objects = objects
        self._folder = folder
        self._generation = number
        self._ids = 0
        self._names = 0
        self._replaced = 0
        self._columns: dict[str, str] = {"id": "long", "v": "string"}
        self._files: dict[str, _File] = {}
        self._needs: list[set[str]] = []
        self._names_ids: set[int] = set()  # versions whose commit names the table's id
        self._commit("create", [protocol(3, ["deletionVectors"]), self._metadata()], Counter(), set())

    @property
    def table_id(self) -> str:
        """The current id."""
        return str(UUID(int=1000 * (self._generation + 1) + self._replaced))

    @property
    def latest(self) -> int:
        """The newest version."""
        return len(self.facts) - 1

    @property
    def ids(self) -> set[str]:
        """All ids that the table has had."""
        return {each.table_id for each in self.facts}

    @property
    def left_ids(self) -> set[str]:
        """All ids that its log still names: in commits that are left, and in checkpoints."""
        commits = (version for version in self._names_ids if version >= self.first)
        return {self.facts[version].table_id for version in (*commits, *self.checkpoints)}

    def commit(self, kind: str, chance: random.Random) -> None:
        """Make a commit of one of `COMMITS`, or `schema`, `replace`, `feature`, `garbage`."""
        if self.broken:
            return
        getattr(self, f"_make_{kind}")(chance)

    def clean_up(self, keep: int) -> None:
        """Write a checkpoint of the newest version, and delete the commits before it but the last `keep`."""
        if self.broken:
            return
        version = self.latest
        actions = [protocol(3, ["deletionVectors"]), self._metadata(), *(self._add(name) for name in self._files)]
        with tempfile.TemporaryDirectory() as folder:
            data = checkpoint(Path(folder) / "checkpoint", *actions).read_bytes()
        self._put(f"_delta_log/{version:020d}.checkpoint.parquet", data)
        hint = {"version": version, "size": len(actions)}
        self._put("_delta_log/_last_checkpoint", json.dumps(hint).encode())
        self.checkpoints.append(version)
        first = max(version - keep, self.first)
        self._objects.delete(*(f"{self._folder}/{commit_name(each)}" for each in range(self.first, first)))
        self.cleaned |= set(range(self.first, first))
        self.first = first

    def vacuum(self, chance: random.Random) -> None:
        """Delete the data files that no longer belong to the newest version, and that no version after it reads."""
        kept = set(self._files)
        for needs in self._needs:
            if needs - kept and chance.random() < 0.7:
                self._objects.delete(*(f"{self._folder}/{name}" for name in needs - kept))
        for version, needs in enumerate(self._needs):
            if any(f"{self._folder}/{name}" not in self._objects.there for name in needs):
                self.vacuumed.add(version)

    def drop(self) -> None:
        """Delete everything."""
        self._objects.delete(*(key for key in self._objects.there if key.startswith(f"{self._folder}/")))

    def has_key_twice(self, version: int) -> bool:
        """Return whether two rows of a version have one id: no mirror gets there."""
        ids = Counter[int]()
        for row, number in self.facts[version].rows.items():
            ids[dict(row)["id"]] += number
        return any(number > 1 for number in ids.values())

    def lost(self, version: int) -> bool:
        """Return whether a reader may have had a reason to call the changes of a version lost."""
        facts = self.facts[version] if version <= self.latest else None
        unreadable = facts is None or facts.events is None
        # Behind a lost commit, the state may be unknown until the next checkpoint.
        return unreadable or version in self.vacuumed or version - 1 in self.cleaned or version in self.cleaned

    def _make_append(self, chance: random.Random) -> None:
        names = [
            self._write([self._row(chance) for _ in range(chance.randint(1, 4))]) for _ in range(chance.randint(1, 3))
        ]
        events: Events = Counter(("insert", row_of(row)) for name in names for row in self._files[name].rows)
        self._commit("append", [self._add(name) for name in names], events, set(names))

    def _make_many(self, chance: random.Random) -> None:
        """Append more rows than a transaction may have."""
        names = [self._write([self._row(chance) for _ in range(12)]) for _ in range(3)]
        events: Events = Counter(("insert", row_of(row)) for name in names for row in self._files[name].rows)
        self._commit("many", [self._add(name) for name in names], events, set(names))

    def _make_vector(self, chance: random.Random) -> None:
        name = self._some_file(chance)
        if name is None:
            self._make_append(chance)
            return
        file = self._files[name]
        before = file.vector
        left = [number for number in range(len(file.rows)) if number not in file.deleted]
        chosen = chance.sample(left, chance.randint(1, len(left)))
        events: Events = Counter(("delete", row_of(file.rows[number])) for number in chosen)
        removed = self._remove(name, before)
        if len(chosen) == len(left):
            del self._files[name]
            self._commit("vector", [removed], events, {name})
            return
        file.deleted |= set(chosen)
        self._commit("vector", [removed, self._add(name)], events, {name})

    def _make_rewrite(self, chance: random.Random) -> None:
        """Rewrite a file with rows that changed, that are gone and that stay."""
        name = self._some_file(chance)
        if name is None:
            self._make_append(chance)
            return
        file = self._files.pop(name)
        changes: list[tuple[str, dict[str, Any]]] = []
        rows: list[dict[str, Any]] = []
        for row in file.live:
            fate = chance.choice(("stays", "stays", "changes", "goes"))
            if fate == "stays":
                rows.append(row)
            elif fate == "goes":
                changes.append(("delete", row))
            else:
                new = {**row, "v": self._text(chance)}
                changes += [("update_preimage", row), ("update_postimage", new)]
                rows.append(new)
        actions = [self._remove(name, file.vector)]
        needs = {name}
        if rows:
            written = self._write(rows)
            actions.append(self._add(written))
            needs.add(written)
        if self.feed and changes:
            change_file = self._write_file("_change_data/cdc", [{**row, "_change_type": kind} for kind, row in changes])
            actions.append(cdc(change_file, size=len(self._objects.there[f"{self._folder}/{change_file}"].data)))
            needs = {change_file}
        elif self.feed:  # nothing changed, so that is what the writer says
            actions = [{key: {**value, "dataChange": False}} for each in actions for key, value in each.items()]
            needs = set()
        else:
            changes = [(_PLAIN.get(kind, kind), row) for kind, row in changes]
        self._commit("rewrite", actions, Counter((kind, row_of(row)) for kind, row in changes), needs)

    def _make_optimize(self, chance: random.Random) -> None:
        """Put all rows into one file: no row changes."""
        if not self._files:
            self._make_append(chance)
            return
        actions = [self._remove(name, file.vector, data_change=False) for name, file in self._files.items()]
        rows = [row for file in self._files.values() for row in file.live]
        self._files.clear()
        written = self._write(rows)
        self._commit("optimize", [*actions, self._add(written, data_change=False)], Counter(), set())

    def _make_twice(self, chance: random.Random) -> None:
        """Insert a row with the id of one that is there."""
        name = self._some_file(chance)
        if name is None:
            self._make_append(chance)
            return
        row = {**chance.choice(self._files[name].live), "v": self._text(chance)}
        written = self._write([row])
        self._commit("twice", [self._add(written)], Counter([("insert", row_of(row))]), {written})

    def _make_once(self, chance: random.Random) -> None:
        """Delete the oldest row of an id that is there twice."""
        places = [
            (row["id"], name, number)
            for name, file in self._files.items()
            for number, row in enumerate(file.rows)
            if number not in file.deleted
        ]
        ids = Counter(identity for identity, _, _ in places)
        doubled = [(name, number) for identity, name, number in places if ids[identity] > 1]
        if not doubled:
            self._make_nothing(chance)
            return
        name, number = doubled[0]
        file = self._files[name]
        events: Events = Counter([("delete", row_of(file.rows[number]))])
        removed = self._remove(name, file.vector)
        if len(file.live) == 1:
            del self._files[name]
            self._commit("once", [removed], events, {name})
            return
        file.deleted.add(number)
        self._commit("once", [removed, self._add(name)], events, {name})

    def _make_nothing(self, _: random.Random) -> None:
        self._commit("nothing", [{"txn": {"appId": "other", "version": len(self.facts)}}], Counter(), set())

    def _make_schema(self, chance: random.Random) -> None:
        """Add a column, with rows or without."""
        self._columns[f"c{len(self._columns)}"] = "string"
        names = [self._write([self._row(chance)])] if chance.random() < 0.5 else []
        events: Events = Counter(("insert", row_of(row)) for name in names for row in self._files[name].rows)
        self._commit("schema", [self._metadata(), *(self._add(name) for name in names)], events, set(names))

    def _make_replace(self, chance: random.Random) -> None:
        """REPLACE TABLE: another id and other rows in the same log."""
        gone = [("delete", row_of(row)) for file in self._files.values() for row in file.live]
        actions = [self._remove(name, file.vector) for name, file in self._files.items()]
        needs = set(self._files)
        self._files.clear()
        self._replaced += 1
        written = self._write([self._row(chance) for _ in range(2)])
        events: Events = Counter(gone + [("insert", row_of(row)) for row in self._files[written].rows])
        self._commit("replace", [self._metadata(), *actions, self._add(written)], events, {*needs, written})

    def _make_feature(self, _: random.Random) -> None:
        """Enable a feature that nobody knows: no version from here on can be read."""
        self._commit("feature", [protocol(3, ["deletionVectors", "fancyRows"])], None, set())
        self.broken = True

    def _make_garbage(self, _: random.Random) -> None:
        self._put(commit_name(len(self.facts)), b'{"add": {"path"')
        self._note("garbage", None, set())

    def _commit(self, kind: str, actions: Iterable[dict[str, Any]], events: Events | None, needs: set[str]) -> None:
        listed = [{"commitInfo": {"operation": kind.upper()}}, *actions]
        if any("metaData" in each for each in listed):
            self._names_ids.add(len(self.facts))
        self._put(commit_name(len(self.facts)), "".join(json.dumps(each) + "\n" for each in listed).encode())
        self._note(kind, events, needs)

    def _note(self, kind: str, events: Events | None, needs: set[str]) -> None:
        rows: Rows = Counter(row_of(row) for file in self._files.values() for row in file.live)
        self.facts.append(Facts(self.table_id, rows, events, kind))
        self._needs.append(needs)
        self.at_s.append(self._objects.network.physics.now_s)
        self._objects.network.trace.add(f"TABLE version {self.latest}: {kind}")

    def _metadata(self) -> dict[str, Any]:
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in self._columns.items()
        ]
        schema = json.dumps({"type": "struct", "fields": fields})
        return metadata(schema, table_id=self.table_id, **{_FEED: str(self.feed).lower()})

    def _add(self, name: str, *, data_change: bool = True) -> dict[str, Any]:
        file = self._files[name]
        return add(name, file.vector, data_change, size=file.size)

    def _remove(self, name: str, vector: dict[str, Any] | None, *, data_change: bool = True) -> dict[str, Any]:
        return remove(name, vector, data_change, size=self._objects_size(name))

    def _objects_size(self, name: str) -> int:
        found = self._objects.there.get(f"{self._folder}/{name}")
        return 1 if found is None else len(found.data)

    def _some_file(self, chance: random.Random) -> str | None:
        names = [name for name, file in self._files.items() if file.live]
        return chance.choice(names) if names else None

    def _row(self, chance: random.Random) -> dict[str, Any]:
        self._ids += 1
        more = {name: self._text(chance) for name in self._columns if name not in ("id", "v")}
        return {"id": self._ids, "v": self._text(chance), **more}

    def _text(self, chance: random.Random) -> str:
        return f"{chance.randrange(10**6):06d}"

    def _write(self, rows: list[dict[str, Any]]) -> str:
        name = self._write_file("part", rows)
        self._files[name] = _File(rows, size=self._objects_size(name))
        return name

    def _write_file(self, prefix: str, rows: list[dict[str, Any]]) -> str:
        self._names += 1
        name = f"{prefix}-{self._generation}-{self._names}.parquet"
        types = {**self._columns, **({"_change_type": "string"} if "_change_type" in rows[0] else {})}
        schema = pa.schema({each: pa.int64() if kind == "long" else pa.string() for each, kind in types.items()})
        out = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema), out, row_group_size=5)
        self._put(name, out.getvalue().to_pybytes())
        return name

    def _put(self, name: str, data: bytes) -> None:
        self._objects.put(f"{self._folder}/{name}", data)


_PLAIN: Final = {"update_preimage": "delete", "update_postimage": "insert"}
