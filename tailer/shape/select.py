"""The columns that leave lake-tailer (`select`): a list of SQL expressions over the columns of a table.

A column that is named keeps its Arrow array, its exact type and its identity over time (the metadata of its field),
under whatever name it leaves. Any other expression gives a column of its own type, which is identified by its name,
and is never taken for a column of the table.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from typing import Any, Final, TypeAlias

import pyarrow as pa

from tailer.errors import ExpressionFailed
from tailer.schema.columns import (
    COLUMN_ID,
    ROW_TRACKING,
    SOURCE_NAME,
    bare_type,
    is_absent,
    output_schema,
    physical_name,
    physical_type,
    schema_from_text,
    schema_to_text,
)
from tailer.shape.evaluate import Evaluator, compiled, failure
from tailer.shape.tree import BatchRows, Column, Expression, column_types, columns_of, from_json, to_json

__all__ = ["MadeColumns", "Select"]

_FORMAT: Final = 1
_COMPUTED: Final = "tailer.computed: "  # prefix of the source name of a computed column; no file has it
_Make: TypeAlias = Callable[[pa.RecordBatch], pa.Array]


@dataclass(frozen=True, slots=True)
class Select:
    """The columns to deliver, checked against the columns of a table.

    `text`: as the user wrote it. `fields`: the columns that it reads, as the table's schema has them. `outputs`: the
    name of each column that leaves, and where its values come from. `schema`: the columns that leave, with the metadata
    of those that are columns of the table.
    """

    text: str
    fields: pa.Schema
    outputs: tuple[tuple[str, Expression], ...]
    schema: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        schema = pa.schema([_field(name, expression, self.fields) for name, expression in self.outputs])
        object.__setattr__(self, "schema", schema)  # one object: tasks that are alike are known by it

    def __reduce__(self) -> tuple[Any, ...]:
        return Select, (self.text, self.fields, self.outputs)

    @property
    def computed(self) -> list[Expression]:
        """The expressions that are more than the name of a column."""
        return [expression for _, expression in self.outputs if _whole_column(expression) is None]

    def making(self, schema: pa.Schema) -> "MadeColumns":
        """Return how to make the columns of `schema`: those that leave, or some, also as `restated` has them.

        Columns of row tracking may be among them.
        """
        expressions = (expression for _, expression in self.outputs)
        outputs = dict(zip(map(physical_name, self.schema), expressions, strict=True))
        # No output makes what row tracking adds, or what the task's rows lack.
        own = [
            None if is_absent(column) or ROW_TRACKING in (column.metadata or {}) else outputs[physical_name(column)]
            for column in schema
        ]
        computed = (one for one in own if one is not None and _whole_column(one) is None)
        names = {column.path[0] for one in computed for column in columns_of(one)}
        inputs = pa.schema([column for column in self.fields if column.name in names])
        read = list(inputs)
        makers: list[_Make] = []
        for wanted, expression in zip(schema, own, strict=True):
            if is_absent(wanted):
                makers.append(partial(_nulls, bare_type(wanted.type)))
            elif expression is not None and _whole_column(expression) is None:
                makers.append(partial(self._computed, expression, compiled(expression), len(inputs), wanted.type))
            else:
                read.append(_as_read(wanted, expression))
                makers.append(methodcaller("column", len(read) - 1))
        return MadeColumns(pa.schema(read), output_schema(schema), tuple(makers))

    def _computed(
        self, expression: Expression, evaluate: Evaluator, inputs: int, wanted: pa.DataType, rows: pa.RecordBatch
    ) -> pa.Array:
        if not rows.num_rows:
            return pa.array([], bare_type(wanted))
        try:
            values = evaluate(BatchRows(rows.select(range(inputs))))
        except pa.ArrowException as error:
            raise ExpressionFailed(self.text, failure(error)) from None
        values = pa.repeat(values, rows.num_rows) if isinstance(values, pa.Scalar) else values
        kind = expression.kind
        if not pa.types.is_nested(kind) or kind.equals(wanted, check_metadata=True):
            bare = bare_type(wanted)
            return values if values.type.equals(bare) else values.cast(bare)
        # It may have other fields, or call them otherwise (`restated`). Arrow casts structs by the names of fields, so
        # these are the physical names meanwhile.
        return values.view(physical_type(kind)).cast(physical_type(wanted)).view(bare_type(wanted))

    def to_text(self) -> str:
        """Return it as JSON."""
        fields = schema_to_text(self.fields)
        outputs = [[name, to_json(expression)] for name, expression in self.outputs]
        document = {"format": _FORMAT, "text": self.text, "fields": fields, "outputs": outputs}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"))

    @staticmethod
    def from_text(text: str) -> "Select":
        """Return what `to_text` wrote. Raises `ValueError` for a format of another release."""
        document = json.loads(text)
        if document["format"] != _FORMAT:
            raise ValueError(f"a select of format {document['format']}; this release reads {_FORMAT}")
        fields = schema_from_text(document["fields"])
        types = column_types(fields)
        outputs = tuple((name, from_json(expression, types)) for name, expression in document["outputs"])
        return Select(document["text"], fields, outputs)


@dataclass(frozen=True, slots=True)
class MadeColumns:
    """Columns to make: `read` are those that this needs, of the table and of row tracking, some of them maybe twice.

    `schema`: the made columns, and then the metadata columns.
    """

    read: pa.Schema
    schema: pa.Schema
    _makers: tuple[_Make, ...]

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return change rows with the made columns, from change rows with the columns `read`.

        Raises `ExpressionFailed` if an expression fails for a row.
        """
        columns = [make(rows) for make in self._makers]
        return pa.RecordBatch.from_arrays([*columns, *rows.columns[len(self.read) :]], schema=self.schema)


def _whole_column(expression: Expression) -> str | None:
    return expression.path[0] if isinstance(expression, Column) and len(expression.path) == 1 else None


def _as_read(wanted: pa.Field, expression: Expression | None) -> pa.Field:
    """Return the column of the table that leaves as `wanted`; without an expression it is one of row tracking."""
    column = None if expression is None else _whole_column(expression)
    metadata = {key: value for key, value in (wanted.metadata or {}).items() if key not in (SOURCE_NAME, COLUMN_ID)}
    return wanted.with_name(column or wanted.name).with_metadata(metadata or None)


def _nulls(kind: pa.DataType, rows: pa.RecordBatch) -> pa.Array:
    return pa.nulls(rows.num_rows, kind)


def _field(name: str, expression: Expression, fields: pa.Schema) -> pa.Field:
    column = _whole_column(expression)
    if column is None:
        return pa.field(name, expression.kind, metadata={SOURCE_NAME: f"{_COMPUTED}{name}".encode()})
    source = fields.field(column)
    if name == column:
        return source
    return source.with_name(name).with_metadata({**(source.metadata or {}), SOURCE_NAME: column.encode()})
