"""A SQL condition over the columns of a table: which rows fulfil it, and where no row can."""

import json
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import ExpressionFailed
from tailer.schema.columns import Ranges, schema_from_text, schema_to_text
from tailer.shape.evaluate import Evaluator, compiled, failure
from tailer.shape.ranges import may_be_true
from tailer.shape.tree import BatchRows, Expression, Literal, column_types, from_json, to_json

__all__ = ["Condition"]

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Condition:
    """A SQL condition, checked against the columns of a table.

    `text`: as the user wrote it. `fields`: the columns that it reads, as the table's schema has them. `expression`: of
    boolean type.
    """

    text: str
    fields: pa.Schema
    expression: Expression
    _evaluate: Evaluator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_evaluate", compiled(self.expression))

    def __reduce__(self) -> tuple[Any, ...]:
        return Condition, (self.text, self.fields, self.expression)

    @property
    def holds_always(self) -> bool:
        """True if every row fulfils the condition, whatever its values are."""
        return isinstance(self.expression, Literal) and self.expression.value is True

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return which rows fulfil the condition; null does not.

        `rows` has at least the columns of `fields`, by name and in the table's types. Raises `ExpressionFailed` if the
        condition fails for a row, such as by a division by zero.
        """
        if not rows.num_rows:
            return pa.array([], pa.bool_())
        try:
            values = self._evaluate(BatchRows(rows))
        except pa.ArrowException as error:
            raise ExpressionFailed(self.text, failure(error)) from None
        if isinstance(values, pa.Scalar):
            return pa.repeat(pa.scalar(values.as_py() is True), rows.num_rows)
        return pc.fill_null(values, False) if values.null_count else values

    def may_hold(self, ranges: Ranges) -> bool:
        """Return False only where no row with values in these ranges fulfils the condition.

        The keys are paths of names; of a column whose path is missing nothing is known. As in Spark, rows for which
        the condition would fail can be among those that are ruled out.
        """
        return may_be_true(self.expression, ranges)

    def to_text(self) -> str:
        """Return the condition as JSON."""
        fields = schema_to_text(self.fields)
        document = {"format": _FORMAT, "text": self.text, "fields": fields, "expression": to_json(self.expression)}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"))

    @staticmethod
    def from_text(text: str) -> "Condition":
        """Return the condition that `to_text` wrote. Raises `ValueError` for a format of another release."""
        document = json.loads(text)
        if document["format"] != _FORMAT:
            raise ValueError(f"a condition of format {document['format']}; this release reads {_FORMAT}")
        fields = schema_from_text(document["fields"])
        return Condition(document["text"], fields, from_json(document["expression"], column_types(fields)))
