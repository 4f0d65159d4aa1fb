"""A busy table for Kafka's topics, written by hand and published commit by commit, with each commit's changes by key.

`id` is a key: no two rows of a version share it. Versions insert, update, delete, change keys and swap keys. The change
feed is switched on and off: with it, updates are in change files; without it, they follow from deletion vectors and
rewritten files. The model of the keys does not depend on files: it compares the rows before and after.

With `added_every` columns are added: alone, or with rows in the same commit. Rows of older files lack them.

With `variants` the column `note` is a VARIANT, the object `{"n": n, "note": note}`, and files are shredded differently.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count, cycle, repeat
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tailer.formats.delta.log.listing import commit_name
from tests.support.tables.log_files import (
    Action,
    add,
    cdc,
    inline_vector,
    metadata,
    parquet,
    protocol,
    remove,
    schema_string,
)
from tests.support.variant.encoder import Layout, Scalar
from tests.support.variant.shredder import Shredding, shred

__all__ = ["LARGE_NOTE", "TABLE_ID", "History", "NetChange", "Row", "RowChange", "change_of", "row_of"]

TABLE_ID: Final = "5e5f0f5c-0000-4000-8000-6b61666b6131"
LARGE_NOTE: Final = 3_000  # characters, in a row whose message is too large for small limits
_SWITCHED_EVERY: Final = 20
_SCHEMA: Final = {"id": "long", "n": "long", "note": "string"}
_ARROW: Final = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("note", pa.string())])

_ADDED: Final = "added_"
_ANNOUNCED: Final = "schema_change"
_NULL: Final = -1  # in an added column before another one with a value
_NULL_EVERY: Final = 7

_TEXT: Final = 16
_INT64: Final = 6
_SHREDDINGS: Final = (
    Shredding(members={"note": Shredding(_TEXT)}),
    Shredding(members={"n": Shredding(_INT64), "note": Shredding(_INT64)}, value_first=False),
)

# id, n, note, and the values of the columns that were added, without nulls at the end.
Row = tuple[int, int, str, *tuple[int, ...]]
RowChange = tuple[int, str, Row]  # version, change type, row
NetChange = tuple[int, int, Row | None, Row | None]  # version, id, the row before, the row after


@dataclass
class _File:
    """A live data file: its rows, and the deleted ones among them."""

    path: str
    rows: list[Row]
    gone: set[int] = field(default_factory=set)
    vector: dict[str, Any] | None = None

    def live(self) -> list[tuple[int, Row]]:
        return [(index, row) for index, row in enumerate(self.rows) if index not in self.gone]


@dataclass
class History:
    """The table at `path`: `length` versions, of which only the first is published at the start.

    Every `large_every`-th version inserts `large` rows. `long_notes`: the share of rows with a large note. Every
    `added_every`-th version adds a column of integers; 0: none does.
    """

    path: Path
    seed: int
    length: int
    large: int = 2_500
    large_every: int = 25
    long_notes: float = 0.0
    variants: bool = False
    added_every: int = 0
    published: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._files: list[_File] = []
        self._names = count()
        self._values = count()
        self._ids = count()
        self._shreddings = cycle([Shredding(), *_SHREDDINGS])
        self._changed: list[tuple[str, Row]] = []
        self._row_changes: list[list[tuple[str, Row]]] = []
        self._net_changes: list[list[NetChange]] = []
        self._rows: dict[int, Row] = {}
        self._commits: list[list[Action]] = []
        self._feed = False
        self._added_at: list[int] = []
        features = ["deletionVectors", *(["variantType", "variantShredding"] if self.variants else [])]
        self._commit([protocol(3, features), *self._switch()])
        moves = [self._insert] * 4 + [self._delete] * 3 + [self._update] * 5 + [self._move] * 2 + [self._swap]
        for version in range(1, self.length):
            if version % _SWITCHED_EVERY == 0:
                self._commit(self._switch())
            elif self.added_every and version % self.added_every == 0:
                self._commit(self._add_column(version))
            elif version % self.large_every == self.large_every // 2:
                self._commit(self._insert_many())
            else:
                self._commit(self._random.choice(moves)())
        self.publish()

    @property
    def last(self) -> int:
        """The last version of the history."""
        return self.length - 1

    def publish(self, commits: int = 1) -> None:
        """Publish the next versions, or fewer if fewer are left."""
        for version in range(self.published, min(self.length, self.published + commits)):
            file = self.path / commit_name(version)
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(".part")
            part.write_text("".join(json.dumps(action) + "\n" for action in self._commits[version]))
            part.rename(file)
            self.published = version + 1

    def announcements(self) -> Counter[RowChange]:
        """Return the events about added columns of the published versions, as `change_of` returns them."""
        return Counter(
            (version, _ANNOUNCED, (0, 0, f"column {_ADDED}{number} int64 was added"))
            for number, version in enumerate(self._added_at)
            if version < self.published
        )

    def net_changes(self) -> Counter[NetChange]:
        """Return the changes of the published versions, key by key."""
        return Counter(change for changes in self._net_changes[: self.published] for change in changes)

    def changes(self) -> Counter[RowChange]:
        """Return the change rows of the published versions, without regard to keys."""
        changes = self._row_changes[: self.published]
        return Counter((version, kind, row) for version, rows in enumerate(changes) for kind, row in rows)

    def rows(self, version: int | None = None) -> dict[int, Row]:
        """Return the rows of `version` by id (None: the last published one)."""
        rows: dict[int, Row] = {}
        count = self.published if version is None else version + 1
        for _, key, _, after in (change for changes in self._net_changes[:count] for change in changes):
            rows.pop(key, None)
            if after is not None:
                rows[key] = after
        return rows

    def _commit(self, actions: list[Action]) -> None:
        version = len(self._commits)
        before, after = self._rows, {row[0]: row for file in self._files for _, row in file.live()}
        keys = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
        self._net_changes.append([(version, key, before.get(key), after.get(key)) for key in keys])
        self._row_changes.append(self._changed)
        self._changed = []
        self._rows = after
        self._commits.append(actions)

    def _switch(self) -> list[Action]:
        """Switch the change feed on or off."""
        self._feed = not self._feed
        return self._metadata()

    def _add_column(self, version: int) -> list[Action]:
        """Add a column; every second one with rows that have it."""
        self._added_at.append(version)
        return [*self._metadata(), *(self._insert() if len(self._added_at) % 2 else [])]

    def _metadata(self) -> list[Action]:
        properties = {"delta.enableChangeDataFeed": str(self._feed).lower()}
        columns = {**_SCHEMA, "note": "variant"} if self.variants else dict(_SCHEMA)
        columns |= dict.fromkeys(self._added_columns(), "long")
        action = metadata(schema_string(**columns), table_id=TABLE_ID, **properties)
        action["metaData"]["format"]["options"] = {}  # delta-rs requires it
        return [action]

    def _added_columns(self) -> list[str]:
        return [f"{_ADDED}{number}" for number in range(len(self._added_at))]

    def _note(self, kind: str, rows: Iterable[Row]) -> None:
        self._changed += [(kind, row) for row in rows]

    def _row(self, key: int | None = None) -> Row:
        """Make a new row; `key` None: with a new key."""
        long = self._random.random() < self.long_notes
        note = "x" * LARGE_NOTE if long else self._random.choice(["", "ü", "plain"])
        key, n = next(self._ids) if key is None else key, next(self._values)
        added = {
            name: None if (n + number) % _NULL_EVERY == 0 else n + number
            for number, name in enumerate(self._added_columns())
        }
        return row_of({"id": key, "n": n, "note": note, **added})

    def _add(self, rows: list[Row]) -> Action:
        file = _File(f"part-{next(self._names)}.parquet", rows)
        self._files.append(file)
        return add(file.path, size=self._write(file.path, rows))

    def _write(self, name: str, rows: list[Row], kinds: list[str] | None = None) -> int:
        schema = pa.schema([*_ARROW, *((name, pa.int64()) for name in self._added_columns())])
        columns = [
            pa.array([row[index] if index < len(row) and row[index] != _NULL else None for row in rows], each.type)
            for index, each in enumerate(schema)
        ]
        table = pa.table(columns, schema)
        if self.variants:
            table = table.set_column(2, "note", _shredded(rows, next(self._shreddings)))
        if kinds is not None:
            table = table.append_column("_change_type", pa.array(kinds))
        written = parquet(self.path / name, table, row_group_size=max(5, len(rows) // 3))
        return written.stat().st_size

    def _insert(self) -> list[Action]:
        files = [[self._row() for _ in range(self._random.randint(1, 30))] for _ in range(self._random.randint(1, 2))]
        for rows in files:
            self._note("insert", rows)
        return [self._add(rows) for rows in files]

    def _insert_many(self) -> list[Action]:
        rows = [self._row() for _ in range(self.large)]
        self._note("insert", rows)
        return [self._add(rows)]

    def _some(self) -> tuple[_File, list[tuple[int, Row]]] | None:
        """Choose some live rows of a file, in order."""
        files = [file for file in self._files if file.live()]
        if not files:
            return None
        file = self._random.choice(files)
        live = file.live()
        chosen = sorted(self._random.sample(range(len(live)), self._random.randint(1, min(len(live), 25))))
        return file, [live[index] for index in chosen]

    def _delete(self) -> list[Action]:
        some = self._some()
        if some is None:
            return self._insert()
        file, chosen = some
        self._note("delete", [row for _, row in chosen])
        return self._marked(file, {index for index, _ in chosen})

    def _marked(self, file: _File, indexes: set[int]) -> list[Action]:
        """Mark rows of a file in a new deletion vector."""
        before, size = file.vector, (self.path / file.path).stat().st_size
        file.gone |= indexes
        file.vector = inline_vector(file.gone)
        return [remove(file.path, before, size=size), add(file.path, file.vector, size=size)]

    def _update(self) -> list[Action]:
        """Update other columns of rows."""
        some = self._some()
        return self._insert() if some is None else self._replace(*some, [self._row(row[0]) for _, row in some[1]])

    def _move(self) -> list[Action]:
        """Update keys and other columns of rows."""
        some = self._some()
        return self._insert() if some is None else self._replace(*some, [self._row() for _ in some[1]])

    def _swap(self) -> list[Action]:
        """Exchange the keys of rows."""
        some = self._some()
        if some is None:
            return self._insert()
        keys = [row[0] for _, row in some[1]]
        return self._replace(*some, [self._row(key) for key in keys[1:] + keys[:1]])

    def _replace(self, file: _File, chosen: list[tuple[int, Row]], rows: list[Row]) -> list[Action]:
        """Replace the chosen rows by `rows`: with a change file, a vector, or a rewritten file."""
        before = [row for _, row in chosen]
        if self._feed:
            self._note("update_preimage", before)
            self._note("update_postimage", rows)
            images = [image for pair in zip(before, rows, strict=True) for image in pair]
            name = f"_change_data/cdc-{next(self._names)}.parquet"
            size = self._write(name, images, ["update_preimage", "update_postimage"] * len(rows))
            return [*self._marked(file, {index for index, _ in chosen}), self._add(rows), cdc(name, size=size)]
        self._note("delete", before)
        self._note("insert", rows)
        if self._random.random() < 0.5:
            return [*self._marked(file, {index for index, _ in chosen}), self._add(rows)]
        replaced = {index: row for (index, _), row in zip(chosen, rows, strict=True)}
        kept = [replaced.get(index, row) for index, row in file.live()]
        size = (self.path / file.path).stat().st_size
        self._files.remove(file)
        return [remove(file.path, file.vector, size=size), self._add(kept)]


def row_of(values: Mapping[str, Any]) -> Row:
    """Return a row from its values by column. Other columns are left out; an added one that lacks is null."""
    filled = {
        int(name.removeprefix(_ADDED)): value
        for name, value in values.items()
        if name.startswith(_ADDED) and value is not None
    }
    added = (filled.get(number, _NULL) for number in range(max(filled, default=-1) + 1))
    return (values["id"], values["n"], values["note"], *added)


def change_of(values: Mapping[str, Any]) -> RowChange:
    """Return a change from its values by column; an event about columns has its texts in place of a row."""
    kind = values["_change_type"]
    row = (0, 0, "; ".join(values["changes"])) if kind == _ANNOUNCED else row_of(values)
    return values["_commit_version"], kind, row


def _shredded(rows: list[Row], shredding: Shredding) -> pa.StructArray:
    """Return the Variants of rows."""
    values = [
        {"n": Scalar(_INT64, n, str(n)), "note": Scalar(_TEXT, note, json.dumps(note))} for _, n, note, *_ in rows
    ]
    return shred(values, shredding, repeat(Layout()))
