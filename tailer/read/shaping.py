"""Plans of what a pipeline delivers of a table: of rows that fulfil a condition (`where`), with columns (`select`).

A condition is checked against the columns that a task's rows have: deleted rows may have those before a version, all
others have those after it. What a condition lets through are the changes of the filtered table, the table's rows that
fulfil it. Rows are filtered before they are compared, so an update of which one image fulfils the condition has no
partner there, and is a delete or an insert.

Positions must say by which texts a version was read, so that others do not go on in the middle of it. So the task
numbers of a version that is not compared by rules are shifted by a number made of the texts. It is in positions and
event ids, a persisted format: format 4 of `tailer.changelog.rules`.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tailer.errors import ConfigError, ExpressionFailed
from tailer.events import ChangeBatch
from tailer.files.row_bitmaps import bitmap_of, positions_of, span
from tailer.plan import SNAPSHOT_TASKS, TASKS, ChangePlan, ChangeTask
from tailer.read.pruning import prune
from tailer.schema.columns import physical_name, restated, restates
from tailer.schema.text_types import char_lengths, collations

if TYPE_CHECKING:
    from tailer.shape.condition import Condition
    from tailer.shape.select import MadeColumns, Select
    from tailer.shape.tree import Expression

__all__ = ["fulfilling", "selected", "selected_schema", "text_faults", "with_condition", "with_select"]

Read = Callable[[ChangeTask], Iterator[ChangeBatch]]
"""Yields the rows of a task."""


def selected(task: ChangeTask, read: Read) -> Iterator[ChangeBatch]:
    """Yield the rows of a task with columns that are made from those of the table."""
    assert task.select is not None, "asked by the caller"
    # Tasks that are alike share the columns.
    kept: _Kept | None = getattr(_last, "kept", None)
    if kept is None or kept.select is not task.select or kept.schema is not task.schema:
        _last.kept = kept = _Kept(task.select, task.schema, task.select.making(task.schema))
    columns = kept.made
    for batch in read(replace(task, schema=columns.read, select=None)):
        with _placed(task):
            rows = columns.apply(batch.rows)
        yield replace(batch, rows=rows)


@dataclass(frozen=True, slots=True)
class _Kept:
    """The way to make the columns `schema` of a task."""

    select: "Select"
    schema: pa.Schema
    made: "MadeColumns"


_last: Final = threading.local()


def fulfilling(task: ChangeTask, read: Read) -> Iterator[ChangeBatch]:
    """Yield the rows of a task that fulfil its condition: read the condition's columns first, then those rows."""
    condition, positions = task.where, BitMap64()
    assert condition is not None, "asked by the caller"
    for batch in read(replace(task, schema=condition.fields, where=None)):
        with _placed(task):
            positions |= bitmap_of(batch.row_index.filter(condition.mask(batch.rows)))
    for batch in read(replace(task, where=None)) if positions else ():
        some = positions & span(batch.row_index[0].as_py(), batch.last_row + 1)
        kept = pc.is_in(batch.row_index, value_set=positions_of(some))
        if kept.true_count:
            yield replace(batch, rows=batch.rows.filter(kept), row_index=batch.row_index.filter(kept))


@contextmanager
def _placed(task: ChangeTask) -> Iterator[None]:
    """Add the place of the row to an error of an expression."""
    try:
        yield
    except ExpressionFailed as error:
        raise error.of_file(task.table, task.version, task.uri) from None


T = TypeVar("T", "Condition", "Select")

_Path = tuple[str, ...]

_FIRST_READING: Final = 3 * 2**28 + 1
_READINGS: Final = 2**28 - 1


class _Columns:
    """A schema as a key: schemas that Arrow calls equal may differ in the metadata of fields, which names columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return hash(tuple(self.schema.names))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Columns) and self.schema.equals(other.schema, check_metadata=True)


@lru_cache(maxsize=256)
def _parsed(text: str, columns: _Columns) -> "Condition":
    from tailer.shape.parse.texts import parse_condition  # noqa: PLC0415 - most pipelines have no condition

    return parse_condition(text, columns.schema)


@lru_cache(maxsize=256)
def _parsed_select(text: str, columns: _Columns) -> "Select":
    from tailer.shape.parse.texts import parse_select  # noqa: PLC0415 - as above

    return parse_select(text, columns.schema)


def with_condition(plan: ChangePlan, text: str, columns: pa.Schema | None = None) -> ChangePlan:
    """Return the plan of those rows that fulfil the condition `text`.

    `columns`: those that the names in the condition mean, at whatever version; None: the version's own names count.

    Raises `ConfigError` where the condition does not fit the columns, unless the version has none (`is_bare`), and
    where the version gives a name in it to another column.
    """
    if plan.is_bare:
        return plan
    parse = partial(_parsed, text)
    latest = _fitted(plan, parse, _named(plan.schema, columns))
    _check_renewed(plan, "where", [latest.expression], () if columns is not None else plan.replaced)
    own = {id(plan.schema): latest}
    for task in plan.tasks:
        if id(task.schema) not in own:
            own[id(task.schema)] = _before(plan, parse, latest, _named(task.schema, columns))
    tasks = (_shaped(task, task.select, own[id(task.schema)]) for task in plan.tasks)
    return prune(replace(plan, tasks=tuple(tasks)))


def with_select(plan: ChangePlan, text: str) -> ChangePlan:
    """Return the plan of rows with the columns that the `select` of `text` makes.

    Raises `ConfigError` where it does not fit the columns of the version, unless the version has none (`is_bare`), and
    where the version gives a name in an expression to another column. A column that is named alone keeps its identity:
    it was dropped, and another one added.
    """
    if plan.is_bare:
        return plan
    latest = _fitted(plan, partial(_parsed_select, text), plan.schema)
    _check_renewed(plan, "select", latest.computed, plan.replaced)
    selects = {id(plan.schema): (latest, latest.schema)}
    for task in plan.tasks:
        if id(task.schema) not in selects:
            own = _before(plan, partial(_parsed_select, text), latest, task.schema)
            selects[id(task.schema)] = own, own.schema
    tasks = []
    for task in plan.tasks:
        select, schema = selects[id(task.schema)]
        tasks.append(replace(_shaped(task, select, task.where), schema=schema))
    return replace(plan, schema=selects[id(plan.schema)][1], tasks=tuple(tasks))


def text_faults(plan: ChangePlan, where: str | None, select: str | None) -> Iterator[ConfigError]:
    """Yield all that does not fit the columns of a version; of each text, `with_...` raises the first."""
    if not plan.is_bare and (where, select) != (None, None):
        from tailer.shape.parse.texts import condition_faults, select_faults  # noqa: PLC0415 - as above

        faults = () if where is None else condition_faults(where, plan.schema)
        others = () if select is None else select_faults(select, plan.schema)
        yield from (_at_version(plan, fault) for fault in chain(faults, others))


def _shaped(task: ChangeTask, select: "Select | None", where: "Condition | None") -> ChangeTask:
    """Give a task its columns and its condition, and the number for both."""
    texts = (None if select is None else select.text), (None if where is None else where.text)
    first = SNAPSHOT_TASKS if task.index >= SNAPSHOT_TASKS else 0
    index = first + _reading(*texts) * TASKS + task.index % TASKS
    return replace(task, index=index, select=select, where=where)


@lru_cache(maxsize=256)
def _reading(select: str | None, where: str | None) -> int:
    texts = {name: text for name, text in (("select", select), ("where", where)) if text is not None}
    canonical = json.dumps(texts, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return _FIRST_READING + crc32(canonical.encode("ascii")) % _READINGS


def selected_schema(schema: pa.Schema, text: str) -> pa.Schema | None:
    """Return the columns that the `select` of `text` makes from `schema`; None where it does not fit."""
    try:
        return _parsed_select(text, _Columns(schema)).schema
    except ConfigError:
        return None


def _fitted(plan: ChangePlan, parse: Callable[[_Columns], T], columns: pa.Schema) -> T:
    try:
        return parse(_Columns(columns))
    except ConfigError as error:
        raise _at_version(plan, error) from error


def _at_version(plan: ChangePlan, error: ConfigError) -> ConfigError:
    return ConfigError(error.where, f"at version {plan.version} of {plan.table}: {error.reason}", error.remedy)


def _check_renewed(
    plan: ChangePlan, option: str, expressions: Iterable["Expression"], replaced: Sequence[_Path]
) -> None:
    """Raise `ConfigError` where an expression says another thing of rows that stay: no change reports them.

    That is where it reads a column whose name belonged to another one before the version (`replaced`), or one that the
    version widens as more than a value to compare, such as its text.
    """
    if not (replaced or plan.widened):
        return
    from tailer.shape.tree import columns_beside_comparisons, columns_of  # noqa: PLC0415 - as above

    for expression in expressions:
        read = [(column, replaced) for column in columns_of(expression)]
        read += [(column, plan.widened) for column in columns_beside_comparisons(expression)]
        for column, paths in read:
            if any(column.path[: len(path)] == path for path in paths):
                name = ".".join(column.path)
                done = f"gives the name {name} to another column" if paths is replaced else f"widens the column {name}"
                reason = f"version {plan.version} of {plan.table} {done}, so this has another value for rows that stay"
                later = "or go on from the rows of a later version: `tailer resnapshot PIPELINE`."
                raise ConfigError(option, reason, f"Write it without that column, {later}")


def _before(plan: ChangePlan, parse: Callable[[_Columns], T], latest: T, columns: pa.Schema) -> T:
    """Return what shapes rows that have `columns`, those before the version; columns that it adds are null for them.

    Raises `ConfigError` where the text only fits the types after the version.
    """
    try:
        return parse(_Columns(columns))
    except ConfigError as error:
        fields = restated(columns, latest.fields)
        compares_alike = all(
            collations(one) == collations(other) and char_lengths(one) == char_lengths(other)
            for one, other in zip(fields, latest.fields, strict=False)
        )
        if not compares_alike or not restates(pa.struct(list(columns)), pa.struct(list(latest.fields))):
            reason = f"for rows that version {plan.version} of {plan.table} deletes, with the types before it: "
            remedy = "Write it with CAST, so that it fits the types before and after, or start after that version."
            raise ConfigError(error.where, f"{reason}{error.reason}", remedy) from error
        return replace(latest, fields=fields)


def _named(schema: pa.Schema, columns: pa.Schema | None) -> pa.Schema:
    """Return the fields of a version's `schema` under the names that they have in `columns`."""
    if columns is None:
        return schema
    own = {physical_name(field): field for field in schema}
    return pa.schema([own.get(physical_name(field), field).with_name(field.name) for field in columns])
