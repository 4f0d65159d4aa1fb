"""Facts about a table that a user made."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

__all__ = ["ExistingColumn", "ExistingTable", "Query", "columns_by_name"]

Query = Callable[[str, Sequence[object]], list[tuple[object, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingColumn:
    """A column. `kind`: its type as the database spells it.

    `waiting_type`: returns the type in which values of another type wait for the column; None: it cannot hold all of
    them as they are. `needs_value`: rows without a value are refused. `is_generated`: values are refused. `longest`:
    the most characters of a text. `is_exact`: whether two values are equal only if they are the same.
    """

    name: str
    kind: str
    waiting_type: Callable[[pa.DataType], pa.DataType | None] = field(compare=False)
    needs_value: bool = False
    is_generated: bool = False
    longest: int | None = None
    is_exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingTable:
    """A table. `columns`: by name, in lower case if it `folds` names.

    `uniques`: the columns of each unique index, by the name that errors give it; None: a mirror needs none.
    `obstacles`: what is in the way of a mirror, with the next step. `adds_columns`: whether it may get columns in a
    transaction that changes rows.
    """

    columns: Mapping[str, ExistingColumn]
    uniques: Mapping[str, frozenset[str]] | None
    obstacles: tuple[tuple[str, str], ...]
    folds: bool = False
    adds_columns: bool = True

    def column(self, name: str) -> ExistingColumn | None:
        """Return the column called `name`."""
        return self.columns.get(name.lower() if self.folds else name)

    def key_indexes(self, key: Iterable[str]) -> frozenset[str]:
        """Return the unique indexes on the columns of a key."""
        columns = frozenset(name.lower() if self.folds else name for name in key)
        return frozenset(name for name, indexed in (self.uniques or {}).items() if indexed == columns)


def columns_by_name(columns: Iterable[ExistingColumn], *, folds: bool) -> dict[str, ExistingColumn]:
    """Return columns by the names under which `ExistingTable.column` finds them."""
    return {column.name.lower() if folds else column.name: column for column in columns}
