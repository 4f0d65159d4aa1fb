"""Tables written by hand with every kind of schema change in a log, and the row changes of each version.

A column is an object here, and a row the values of these objects: the identity of columns is known from the operations,
not derived from names. Nothing is shared with the code under test.

Most versions rewrite unchanged rows. Columns are added, dropped, renamed, widened and replaced by others of the same
name, in structs too, with and without a rewrite of all rows in the same version. Column mapping begins and ends, by
name and by id, and the partitioning changes.
"""

import json
import random
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tests.support.tables.log_files import add, commit_info, metadata, parquet, protocol, remove, write_commit

__all__ = ["Change", "Column", "Named", "Reshaped", "named_row", "only"]

Row = dict[int, Any]  # values by the key of each column, those of structs likewise
Canonical = frozenset[tuple[int, Hashable]]  # without null values
Named = tuple[tuple[str, int, Any], ...]  # name and key of each column, and the same of its fields

_ARROW: Final = {"integer": pa.int32(), "long": pa.int64(), "string": pa.string()}
_KINDS: Final = {"k": "long", "a": "integer", "b": "string", "c": "integer", "s": "struct", "x": "integer", "y": "long"}
_VALUES: Final[Mapping[str, Sequence[Any]]] = {"integer": (None, 0, 1), "long": (None, 0, 1), "string": (None, "u")}
_FEATURES: Final = ["columnMapping", "typeWidening"]


@dataclass(eq=False)
class Column:
    """A column or a field of one, as long as it keeps its identity."""

    key: int
    name: str
    physical: str
    number: int
    kind: str
    fields: list["Column"] = field(default_factory=list)


@dataclass(frozen=True)
class Change:
    """A version: the rows that it deletes and inserts, and the columns and all rows after it."""

    gone: Counter[Canonical]
    come: Counter[Canonical]
    columns: Named
    rows: Counter[Canonical]
    story: str


@dataclass
class _File:
    rows: list[Row]
    partition: dict[str, str | None]


class Reshaped:
    """A table in `folder` with random changes by `chance`."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.path = folder
        self.changes: list[Change] = []
        self._chance = chance
        self._numbers = count(1)
        self._mode = "none"
        self._files: dict[str, _File] = {}
        # Without mapping, columns are identified by name: a returning name is the same column.
        self._known: dict[tuple[str, ...], Column] = {}
        self._columns = [self._new(name) for name in "kabs"]
        self._parts = [self._columns[1]] if chance.random() < 0.5 else []
        self._commit("create", [], self._rows(4), protocol=True)

    def run(self, versions: int) -> "Reshaped":
        """Add so many versions."""
        for _ in range(versions):
            self._chance.choice((self._write, self._write, self._reshape, self._reshape, self._overwrite))()
        return self

    def refresh(self) -> "Reshaped":
        """Remove all rows and columns, and give the columns back in the next version, as Delta Live Tables do."""
        columns, parts = self._columns, self._parts
        gone = [canonical(row, _named(columns)) for file in self._files.values() for row in file.rows]
        self._columns, self._parts = [], []
        self._commit("refresh", list(self._files), gone=gone)
        self._columns, self._parts = columns, parts
        self._commit("set up")
        return self

    # Rows.

    def _write(self) -> None:
        """Rewrite some files, with a few rows changed, and insert others."""
        paths = self._chance.sample(list(self._files), self._chance.randint(0, min(2, len(self._files))))
        rows = [row for path in paths for row in self._files[path].rows]
        self._commit("write", paths, [*self._changed(rows), *self._rows(self._chance.randint(0, 2))])

    def _rows(self, many: int) -> list[Row]:
        return [{each.key: self._value(each) for each in self._columns} for _ in range(many)]

    def _value(self, column: Column) -> Any:
        if column.kind == "struct":
            return None if self._chance.random() < 0.2 else {each.key: self._value(each) for each in column.fields}
        if column.name == "k":
            return self._chance.randrange(3)
        return self._chance.choice(_VALUES[column.kind])

    def _changed(self, rows: Iterable[Row]) -> list[Row]:
        """Return most of `rows` unchanged, a few changed, and some left out."""
        found = [dict(row) for row in rows if self._chance.random() < 0.8]
        for row in found:
            if self._chance.random() < 0.3:
                column = self._chance.choice(self._columns)
                row[column.key] = self._value(column)
        return found

    # Columns.

    def _reshape(self) -> None:
        """Change the columns, and rows only as far as that requires."""
        choices = [self._add, self._widen, *([self._map, self._map] if self._mode == "none" else [])]
        if self._mode != "none":
            choices += [self._drop, self._rename, self._replace, self._exchange, self._turn, self._unmap]
        self._commit(self._chance.choice(choices)())

    def _overwrite(self) -> None:
        """Change the columns, and rewrite all rows, in one version."""
        paths, rows = list(self._files), [row for file in self._files.values() for row in file.rows]
        choices = [self._add, self._drop, self._widen, self._leave]
        choices += [self._rename, self._replace, self._unmap_and_add] if self._mode != "none" else [self._map_anew]
        was = self._columns
        gone = [canonical(row, _named(was)) for row in rows]
        work = self._chance.choice(choices)
        story = work()
        if work in (self._unmap_and_add, self._map_anew):
            # Other columns with the same values.
            rows = [_moved(row, was, self._columns) for row in rows]
        leaves = [each for each in self._columns if each.kind != "struct"]
        self._parts = self._chance.sample(leaves, self._chance.randint(0, 1))
        self._commit(f"overwrite, {story}", paths, self._changed(only(row, self._columns) for row in rows), gone=gone)

    def _leave(self) -> str:
        return "as they are"

    def _add(self) -> str:
        home, above = self._home()
        taken = {each.name for each in home}
        free = [name for name in ("xy" if above else "abcs") if name not in taken]
        if free:
            home.insert(self._chance.randint(0, len(home)), self._new(self._chance.choice(free), above))
        return f"add {free}"

    def _drop(self) -> str:
        home, column = self._some()
        if column is not None and len(home) > 1:
            home.remove(column)
        return f"drop {column}"

    def _replace(self) -> str:
        """Drop a column, and add another one of the same name."""
        home, column = self._some()
        if column is not None:
            home[home.index(column)] = self._new(column.name)
        return f"replace {column}"

    def _rename(self) -> str:
        home, column = self._some()
        taken = {each.name for each in home}
        free = [name for name in "abcsxy" if name not in taken]
        if column is not None:
            column.name = self._chance.choice(free)
        return f"rename to {column}"

    def _exchange(self) -> str:
        """Exchange the names of two columns."""
        leaves = [each for each in self._columns if each.kind != "struct" and each.name != "k"]
        if len(leaves) > 1:
            one, other = self._chance.sample(leaves, 2)
            one.name, other.name = other.name, one.name
        return "exchange names"

    def _widen(self) -> str:
        home, _ = self._home()
        narrow = [each for each in home if each.kind == "integer"]
        if narrow:
            self._chance.choice(narrow).kind = "long"
        return "widen"

    def _map(self) -> str:
        self._mode = "name"
        return "map"

    def _turn(self) -> str:
        self._mode = "id" if self._mode == "name" else "name"
        return self._mode

    def _unmap(self) -> str:
        """End the column mapping: physical names become the names, and files are rewritten without a change of rows."""
        self._mode = "none"
        self._known.clear()
        for column, path in _all(self._columns):
            column.physical = column.name
            self._known[path] = column
        return "unmap"

    def _unmap_and_add(self) -> str:
        """End the column mapping and add a column. Columns whose physical name differed become other columns."""
        self._mode = "none"
        self._known.clear()
        self._columns = [self._again(each, ()) for each in self._columns]
        self._columns.append(
            self._new(next(name for name in "cde" if name not in {each.name for each in self._columns}))
        )
        return "unmap, add"

    def _again(self, column: Column, above: tuple[str, ...], alike: bool = True) -> Column:
        alike = alike and column.physical == column.name
        path = (*above, column.name)
        found = Column(
            column.key if alike else next(self._numbers), column.name, column.name, column.number, column.kind
        )
        found.fields = [self._again(each, path, alike) for each in column.fields]
        self._known[path] = found
        return found

    def _map_anew(self) -> str:
        """Begin a new column mapping, as REPLACE TABLE does: all columns are others."""
        self._mode = "name"
        self._columns = [self._copied(each) for each in self._columns]
        return "map anew"

    def _copied(self, column: Column) -> Column:
        number = next(self._numbers)
        fields = [self._copied(each) for each in column.fields]
        return Column(number, column.name, f"p{number}", number, column.kind, fields)

    def _home(self) -> tuple[list[Column], tuple[str, ...]]:
        """Return the columns, or the fields of one, and the path that leads there."""
        structs = [each for each in self._columns if each.kind == "struct"]
        if structs and self._chance.random() < 0.5:
            struct = self._chance.choice(structs)
            return struct.fields, (struct.physical,)
        return self._columns, ()

    def _some(self) -> tuple[list[Column], Column | None]:
        """Choose a column or field that may be changed, and its place."""
        home, _ = self._home()
        free = [each for each in home if each.name != "k" and each not in self._parts]
        return home, self._chance.choice(free) if free else None

    def _new(self, name: str, above: tuple[str, ...] = ()) -> Column:
        path = (*above, name)
        if self._mode == "none" and path in self._known:
            return self._known[path]
        number = next(self._numbers)
        column = Column(
            number, name, name if self._mode == "none" else f"p{number}", number, _KINDS.get(name, "integer")
        )
        self._known[(*above, column.physical)] = column
        if column.kind == "struct":
            column.fields = [self._new(each, (*above, column.physical)) for each in "xy"]
        return column

    # The log.

    def _commit(
        self,
        story: str,
        paths: Sequence[str] = (),
        rows: Sequence[Row] = (),
        protocol: bool = False,
        gone: Sequence[Canonical] = (),
    ) -> None:
        """Remove files and add rows; if the column mapping ended, rewrite the other rows."""
        version = len(self.changes)
        columns = _named(self._columns)
        gone = gone or [canonical(row, columns) for path in paths for row in self._files[path].rows]
        actions: list[Any] = [commit_info(operation=story), *([_protocol()] if protocol else [])]
        if story != "write":
            actions.append(self._metadata())
        actions += [remove(path, partitionValues=self._files.pop(path).partition) for path in paths]
        again = []
        for path, file in list(self._files.items()):
            file.rows = [only(row, self._columns) for row in file.rows]
            if story == "unmap":
                actions.append(remove(path, data_change=False, partitionValues=self._files.pop(path).partition))
                again += file.rows
        actions += self._added(again, f"{version}-again", False)
        actions += self._added(rows, f"{version}-new", True)
        write_commit(self.path, version, *actions)
        come = Counter(canonical(row, columns) for row in rows)
        everything = Counter(canonical(row, columns) for file in self._files.values() for row in file.rows)
        self.changes.append(Change(Counter(gone), come, columns, everything, story))

    def _added(self, rows: Sequence[Row], prefix: str, data_change: bool) -> Iterator[Any]:
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            groups.setdefault(tuple(row.get(each.key) for each in self._parts), []).append(row)
        for number, (values, some) in enumerate(groups.items()):
            path = f"{prefix}-{number}.parquet"
            stored = [each for each in self._columns if each not in self._parts]
            kind = pa.schema([_arrow(each) for each in stored])
            table = pa.Table.from_pylist([_physical(row, stored) for row in some], kind)
            size = parquet(self.path / path, table).stat().st_size
            texts = (None if value is None else str(value) for value in values)
            partition = dict(zip((each.physical for each in self._parts), texts, strict=True))
            self._files[path] = _File(some, partition)
            yield add(path, data_change=data_change, size=size, partitionValues=partition)

    def _metadata(self) -> Any:
        schema = json.dumps(_delta(self._columns, self._mode))
        names = [each.name for each in self._parts]
        made = metadata(schema, names, **{"delta.columnMapping.mode": self._mode})
        if not self._columns:
            del made["metaData"]["schemaString"]
        return made


def canonical(row: Row | None, columns: Named) -> Any:
    """Return a hashable form of a row: its values in these columns, by their keys."""
    if row is None:
        return None
    found = ((key, canonical(row.get(key), inner) if inner else row.get(key)) for _, key, inner in columns)
    return frozenset((key, value) for key, value in found if value is not None)


def named_row(values: Mapping[str, Any] | None, columns: Named) -> Any:
    """Return the same of a row by the names of its columns."""
    if values is None:
        return None
    found = ((key, named_row(values[name], inner) if inner else values[name]) for name, key, inner in columns)
    return frozenset((key, value) for key, value in found if value is not None)


def only(row: Row, columns: Sequence[Column]) -> Row:
    """Return the row without values of other columns."""
    found = {}
    for each in columns:
        value = row.get(each.key)
        found[each.key] = only(value, each.fields) if each.kind == "struct" and value is not None else value
    return found


def _named(columns: Sequence[Column]) -> Named:
    return tuple((each.name, each.key, _named(each.fields)) for each in columns)


def _all(columns: Sequence[Column], above: tuple[str, ...] = ()) -> Iterator[tuple[Column, tuple[str, ...]]]:
    for each in columns:
        path = (*above, each.name)
        yield each, path
        yield from _all(each.fields, path)


def _moved(row: Row, before: Sequence[Column], after: Sequence[Column]) -> Row:
    """Move the values of columns to other columns of the same names."""
    old = {each.name: each for each in before}
    found: Row = {}
    for each in after:
        was = old.get(each.name)
        value: Any = None if was is None else row.get(was.key)
        if was is not None and each.kind == "struct" and value is not None:
            value = _moved(value, was.fields, each.fields)
        found[each.key] = value
    return found


def _physical(row: Row, columns: Sequence[Column]) -> dict[str, Any]:
    found = {}
    for each in columns:
        value = row.get(each.key)
        found[each.physical] = _physical(value, each.fields) if each.kind == "struct" and value is not None else value
    return found


def _arrow(column: Column) -> pa.Field:
    inner = pa.struct([_arrow(each) for each in column.fields]) if column.kind == "struct" else None
    number = {b"PARQUET:field_id": str(column.number).encode()}
    return pa.field(column.physical, inner or _ARROW[column.kind], metadata=number)


def _delta(columns: Sequence[Column], mode: str) -> dict[str, Any]:
    fields = []
    for each in columns:
        mapping = {"delta.columnMapping.id": each.number, "delta.columnMapping.physicalName": each.physical}
        kind = _delta(each.fields, mode) if each.kind == "struct" else each.kind
        fields.append(
            {"name": each.name, "type": kind, "nullable": True, "metadata": {} if mode == "none" else mapping}
        )
    return {"type": "struct", "fields": fields}


def _protocol() -> Any:
    return protocol(3, _FEATURES)
