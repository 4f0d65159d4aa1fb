"""Random projections, as SQL and as plain Python: the rows and the columns that one makes, without the code under test.

With random conditions (`tests.support.oracle.conditions`) they are the judge of what a pipeline delivers of a version.
"""

import hashlib
import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tests.support.oracle.column_identity import Schema, restate
from tests.support.oracle.conditions import Wanted, random_condition
from tests.support.oracle.recorded import RecordedTable
from tests.support.oracle.rows import METADATA, Row, Rows, assert_same, gone_and_come, rows_of
from tests.support.spark.sql_types import quoted

__all__ = ["Projection", "Shape", "named_projection", "random_projection"]

Value = Hashable


@dataclass(frozen=True)
class Output:
    """A column that leaves: its name, its SQL, its value for a row, and the column of the table that it is, if any."""

    name: str
    text: str
    of: Callable[[Mapping[str, Value]], Value]
    column: str | None = None


@dataclass(frozen=True)
class Projection:
    """Columns that leave: `outputs`, and with `excluded` also all columns of the table but those."""

    outputs: tuple[Output, ...]
    excluded: frozenset[str] | None = None

    @property
    def texts(self) -> list[str]:
        """Return the SQL of each part."""
        star = []
        if self.excluded is not None:
            names = ", ".join(quoted(name) for name in sorted(self.excluded))
            star = [f"* EXCLUDE ({names})" if names else "*"]
        return star + [output.text for output in self.outputs]

    def rows(self, rows: Rows) -> Rows:
        """Return what it makes of rows."""
        found = Rows()
        for row, count in rows.items():
            found[self._row(row)] += count
        return found

    def _row(self, row: Row) -> Row:
        made = {output.name: output.of(dict(row)) for output in self.outputs}
        if self.excluded is not None:
            made |= {name: value for name, value in row if name not in self.excluded}
        return tuple(sorted((name, value) for name, value in made.items() if value is not None))

    def schema(self, schema: Schema) -> Schema:
        """Return the columns that it makes, for `restate`: a computed one is known by its name."""
        own = {field["name"]: field for field in schema["fields"]}
        kept = [] if self.excluded is None else [own[name] for name in own if name not in self.excluded]
        made = [
            {"name": each.name, "type": "computed", "metadata": {}}
            if each.column is None
            else {**own[each.column], "name": each.name}
            for each in self.outputs
        ]
        return {**schema, "fields": kept + made}


@dataclass(frozen=True)
class Shape:
    """The rows and columns to deliver of a version: a condition, and a projection of the rows that fulfil it."""

    wanted: Wanted
    projection: Projection

    def rows(self, rows: Rows) -> Rows:
        """Return the rows that leave of a table with these rows."""
        return self.projection.rows(self.wanted.rows(rows))

    def judge(self, recorded: RecordedTable, at: int, deleted: Schema, changes: Iterable[pa.Table], way: str) -> None:
        """Fail unless the changes turn what leaves of Spark's snapshot before version `at` into that of the one after.

        `deleted`: the columns that deleted rows have.
        """
        where = f"{recorded.where(at, way)}\nwhere {self.wanted.text}\nselect {', '.join(self.projection.texts)}"
        before, after = (rows_of(recorded.answers[version].snapshot) for version in (at - 1, at))
        old, new = recorded.schemas[at - 1], recorded.schemas[at]
        kept, come = gone_and_come(self.rows(restate(before, old, deleted)), changes, where)
        kept = restate(kept, self.projection.schema(deleted), self.projection.schema(new))
        assert_same(kept + come, self.rows(after), where)

    def judge_snapshot(self, recorded: RecordedTable, at: int, pages: Iterable[pa.Table]) -> None:
        """Fail unless the rows are what leaves of Spark's snapshot of version `at`."""
        found = sum((rows_of(page, METADATA) for page in pages), Rows())
        assert_same(found, self.rows(rows_of(recorded.answers[at].snapshot)), recorded.where(at, "snapshot"))


def named_projection(names: Iterable[str]) -> Projection:
    """Return the projection to some columns."""
    return Projection(tuple(_named(name) for name in names))


def random_projection(
    chance: random.Random, columns: Mapping[str, str], rows: Sequence[Row], *, star: bool = True
) -> Projection:
    """Return a projection that computes from some of the `columns`; `star`: maybe with all the others."""
    names = sorted(columns)
    chosen = chance.sample(names, chance.randint(1, len(names)))
    if star and chance.random() < 0.5:
        outputs = [_computed(chance, number, name, columns, rows) for number, name in enumerate(chosen[:3])]
        return Projection(tuple(outputs), frozenset(chance.sample(names, chance.randint(0, len(names)))))
    make = (_computed, lambda _chance, _number, name, *_: _named(name))
    return Projection(
        tuple(chance.choice(make)(chance, number, name, columns, rows) for number, name in enumerate(chosen))
    )


def _named(name: str) -> Output:
    return Output(name, quoted(name), lambda row: row.get(name), name)


def _computed(chance: random.Random, number: int, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> Output:
    column, alias = quoted(name), f"computed_{number}"
    judged = random_condition(chance, columns, rows, depth=1)
    outputs = [
        Output(alias, f"{column} AS {alias}", lambda row: row.get(name), name),
        Output(alias, f"'fixed' AS {alias}", lambda _: "fixed"),
        Output(
            alias,
            f"CASE WHEN {judged.text} THEN 'yes' ELSE 'no' END AS {alias}",
            lambda row: "yes" if judged.judge(row) is True else "no",
        ),
    ]
    text, of = _OF_TYPES.get(columns[name], _OF_NUMBERS)
    outputs += [Output(alias, f"{text.format(column)} AS {alias}", lambda row: of(row.get(name)))] * 3
    return chance.choice(outputs)


def _remainder(value: Any) -> Value:
    return -1 if value is None else abs(value) % 5 if value >= 0 else -(abs(value) % 5)


_OF_NUMBERS: Final[tuple[str, Callable[[Any], Value]]] = "coalesce(CAST({} AS BIGINT) % 5, -1)", _remainder
_OF_TYPES: Final[Mapping[str, tuple[str, Callable[[Any], Value]]]] = {
    "string": ("sha2({}, 256)", lambda value: None if value is None else hashlib.sha256(value.encode()).hexdigest()),
    "boolean": ("NOT {}", lambda value: None if value is None else not value),
}
