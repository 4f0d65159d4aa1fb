"""The columns that leave lake-tailer (`select`): a list of SQL expressions over the columns of a table.

A column that is named keeps its Arrow array, its exact type and its identity over time (the metadata of its field),
under whatever name it leaves. Any other expression gives a column of its own type, which is identified by its name.
"""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from tailer.errors import ConfigError, ExpressionFailed
from tailer.schema.columns import METADATA_NAMES
from tailer.shape.evaluate import Evaluator, compiled, failure
from tailer.shape.rows import BatchRows
from tailer.shape.tree import Column, Expression, column_types, columns_of, from_json, to_json

__all__ = ["Select", "check_select", "parse_select"]

_FORMAT: Final = 1


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
    _evaluators: tuple[Evaluator, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        made = pa.schema([_field(name, expression, self.fields) for name, expression in self.outputs])
        object.__setattr__(self, "schema", made)  # one object: tasks that are alike are known by it
        object.__setattr__(self, "_evaluators", tuple(compiled(expression) for _, expression in self.outputs))

    def __reduce__(self) -> tuple[Any, ...]:
        return Select, (self.text, self.fields, self.outputs)

    def only(self, names: Iterable[str]) -> "Select":
        """Return what makes the columns that are named, in this order."""
        known = dict(self.outputs)
        outputs = tuple((name, known[name]) for name in names)
        return Select(self.text, _read_by(outputs, self.fields), outputs)

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that leave, and then those columns of `rows` that are not columns of the table.

        `rows` begins with the columns of `fields`. Raises `ExpressionFailed` if an expression fails for a row.
        """
        columns, fields = [], []
        for (name, expression), evaluate in zip(self.outputs, self._evaluators, strict=True):
            column = _whole_column(expression)
            if column is not None:
                columns.append(rows.column(column))
                fields.append(rows.schema.field(column).with_name(name))
            else:
                columns.append(self._computed(evaluate, expression, rows))
                fields.append(pa.field(name, expression.kind))
        others = range(len(self.fields), rows.num_columns)
        columns += [rows.column(index) for index in others]
        fields += [rows.schema.field(index) for index in others]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _computed(self, evaluate: Evaluator, expression: Expression, rows: pa.RecordBatch) -> pa.Array:
        if not rows.num_rows:
            return pa.array([], expression.kind)
        try:
            found = evaluate(BatchRows(rows))
        except pa.ArrowInvalid as error:
            raise ExpressionFailed(self.text, failure(error)) from None
        return pa.repeat(found, rows.num_rows) if isinstance(found, pa.Scalar) else found

    def to_text(self) -> str:
        """Return it as JSON."""
        fields = base64.b64encode(self.fields.serialize().to_pybytes()).decode()
        outputs = [[name, to_json(expression)] for name, expression in self.outputs]
        found = {"format": _FORMAT, "text": self.text, "fields": fields, "outputs": outputs}
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"))

    @staticmethod
    def from_text(text: str) -> "Select":
        """Return what `to_text` wrote. Raises `ValueError` for a format of another release."""
        found = json.loads(text)
        if found["format"] != _FORMAT:
            raise ValueError(f"a select of format {found['format']}; this release reads {_FORMAT}")
        fields = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["fields"])))
        types = column_types(fields)
        outputs = tuple((name, from_json(expression, types)) for name, expression in found["outputs"])
        return Select(found["text"], fields, outputs)


def parse_select(text: str, schema: pa.Schema, *, option: str = "select") -> Select:
    """Return the `select` of a text over the columns of a table.

    Raises `ConfigError` for text that is no list of expressions over these columns, or that uses what is not supported.
    """
    # sqlglot takes 0.3 s to import, and only this needs it
    from tailer.shape.parse.select_list import bind_outputs  # noqa: PLC0415

    outputs = tuple(bind_outputs(option, text, schema))
    _check_names(option, [name for name, _ in outputs])
    return Select(text, _read_by(outputs, schema), outputs)


def _read_by(outputs: Iterable[tuple[str, Expression]], schema: pa.Schema) -> pa.Schema:
    read = {column.path[0] for _, expression in outputs for column in columns_of(expression)}
    return pa.schema([each for each in schema if each.name in read])


def check_select(text: str | None, option: str = "select") -> None:
    """Raise `ConfigError` where a text is no list of SQL expressions, whatever the columns of the table are."""
    if text is not None:
        from tailer.shape.parse.select_list import parse_list  # noqa: PLC0415

        parse_list(option, text)


def _check_names(option: str, names: list[str]) -> None:
    for index, name in enumerate(names):
        if name in METADATA_NAMES:
            remedy = "Give it another name: expression AS name."
            raise ConfigError(option, f"change rows have a metadata column {name}", remedy)
        if name in names[:index]:
            remedy = "Leave one out, or give it another name: expression AS name."
            raise ConfigError(option, f"has two columns {name}", remedy)
    if not names:
        raise ConfigError(option, "leaves no column", "Name at least one column.")


def _whole_column(expression: Expression) -> str | None:
    return expression.path[0] if isinstance(expression, Column) and len(expression.path) == 1 else None


def _field(name: str, expression: Expression, fields: pa.Schema) -> pa.Field:
    column = _whole_column(expression)
    return pa.field(name, expression.kind) if column is None else fields.field(column).with_name(name)
