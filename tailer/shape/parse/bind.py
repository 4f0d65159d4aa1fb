"""The tree of sqlglot becomes the typed tree, with Spark's types and implicit casts.

What has no exact counterpart is refused by name. Where sqlglot reads
operators in another order than Spark does (`a = b < c`, `a = b IN (c)`), parentheses are demanded.
"""

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from tailer.errors import did_you_mean
from tailer.events import type_text
from tailer.schema.char_types import char_lengths
from tailer.shape.evaluate import compiled
from tailer.shape.kernels.casts import castable
from tailer.shape.kernels.patterns import parse_pattern
from tailer.shape.parse.literals import literal_of, moment, number, text_of
from tailer.shape.parse.source import Source
from tailer.shape.rows import KnownRow
from tailer.shape.tree import Call, Column, Expression, Literal
from tailer.shape.types import (
    BOOLEAN,
    DATE,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    common_type,
    is_scalar,
    kind_text,
    value_type,
)

__all__ = ["Binder"]

_COMPARISONS: Final = {
    exp.EQ: "=",
    exp.NullSafeEQ: "<=>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NEQ: "=",
    exp.NullSafeNEQ: "<=>",
}
_NEGATED: Final = (exp.NEQ, exp.NullSafeNEQ)
_PREDICATES: Final = (*_COMPARISONS, exp.Is, exp.In, exp.Between, exp.Like, exp.Escape, exp.Not, exp.And, exp.Or)
_TIMES: Final = (DATE, TIMESTAMP, TIMESTAMP_NTZ)
_TYPES: Final = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": BOOLEAN,
    "TEXT": STRING,
    "BINARY": pa.binary(),
    "DATE": DATE,
    "TIMESTAMPTZ": TIMESTAMP,
    "TIMESTAMPLTZ": TIMESTAMP,
    "TIMESTAMPNTZ": TIMESTAMP_NTZ,
}
_PARENTHESES: Final = "Put parentheses around it."
_WRITE_CAST: Final = "Write CAST(... AS ...) to say which type is meant."


class Binder:
    """Makes typed expressions over the columns of a schema. Its methods raise `ConfigError`."""

    def __init__(self, source: Source, schema: pa.Schema) -> None:
        self.source = source
        self._schema = schema

    def bind(self, node: exp.Expr) -> Expression:
        """Return the typed expression of a node."""
        bound = _NODES.get(type(node))
        unknown = {name for name, value in node.args.items() if value} - _ARGUMENTS
        if bound is None or unknown:
            words = " ".join([type(node).__name__, *sorted(unknown)]).upper()
            raise self.source.error(node, f"{words} is not supported in expressions")
        return bound(self, node)

    def boolean(self, node: exp.Expr) -> Expression:
        """Return the typed expression of a node that must be boolean."""
        found = self.bind(node)
        if found.kind == BOOLEAN:
            return found
        if pa.types.is_null(found.kind):
            return Literal(None, BOOLEAN)
        remedy = "Write a condition, such as country = 'DE'."
        raise self.source.error(node, f"{self.source.of(node)} is {type_text(found.kind)}, not boolean", remedy)

    def call(self, function: str, arguments: Iterable[Expression], kind: pa.DataType) -> Expression:
        """Return a call; where all arguments are literals, its result, unless it fails."""
        found = Call(function, tuple(arguments), kind)
        if not all(isinstance(each, Literal) for each in found.arguments):
            return found
        try:
            value = compiled(found)(KnownRow({}))
        except pa.ArrowInvalid:
            return found  # as in Spark, it fails for a row for which it is evaluated
        return literal_of(value if isinstance(value, pa.Scalar) else value[0])

    def converted(self, node: exp.Expr, value: Expression, kind: pa.DataType) -> Expression:
        """Return a value in the type to which Spark casts it implicitly. `node`: for errors."""
        if value.kind == kind:
            return value
        if isinstance(value, Literal) and value.kind == STRING and kind in _TIMES:
            return self.moment(node, str(value.value), kind)
        return self.call("cast", [value], kind)

    def moment(self, node: exp.Expr, text: str, kind: pa.DataType) -> Literal:
        """Return the date or the timestamp of a text."""
        try:
            return moment(text, kind)
        except ValueError as error:
            raise self.source.error(node, f"{text!r} is not read as {kind_text(kind)}: {error}") from None

    def alike(self, nodes: Sequence[exp.Expr], values: Sequence[Expression]) -> tuple[Expression, ...]:
        """Return values in the type that they have in common, as Spark finds it."""
        for node, value in zip(nodes, values, strict=True):
            self.scalar(node, value)
        timely = any(value.kind in _TIMES for value in values)
        kinds = [value.kind for value in values if not (timely and isinstance(value, Literal) and value.kind == STRING)]
        found: pa.DataType | None = reduce(
            lambda left, right: None if left is None else common_type(left, right), kinds, pa.null()
        )
        if found is None:
            types = " and ".join(dict.fromkeys(kind_text(value.kind) for value in values))
            parent = nodes[0].parent or nodes[0]
            raise self.source.error(parent, f"{types} have no type in common that is exact", _WRITE_CAST)
        return tuple(self.converted(node, value, found) for node, value in zip(nodes, values, strict=True))

    def scalar(self, node: exp.Expr, value: Expression) -> Expression:
        """Return a value that must be of a type with an order."""
        if not is_scalar(value.kind):
            remedy = "Name a field of it, or write IS NULL."
            raise self.source.error(
                node, f"{self.source.of(node)} is {type_text(value.kind)}, which has no literals", remedy
            )
        return value

    def operand(self, node: exp.Expr) -> Expression:
        """Return an operand of a comparison."""
        if isinstance(node, _PREDICATES):
            raise self.source.error(node, f"{self.source.of(node)} is an operand of another condition", _PARENTHESES)
        return self.bind(node)

    def comparison(self, node: exp.Binary) -> Expression:
        """Bind `left = right` and its like."""
        nodes = (node.this, node.expression)
        values = self.alike(nodes, [self.operand(each) for each in nodes])
        found = self.call(_COMPARISONS[type(node)], values, BOOLEAN)
        return self.call("not", [found], BOOLEAN) if isinstance(node, _NEGATED) else found

    def connective(self, node: exp.Connector) -> Expression:
        """Bind AND and OR."""
        function = "and" if isinstance(node, exp.And) else "or"
        return self.call(function, [self.boolean(node.this), self.boolean(node.expression)], BOOLEAN)

    def negation(self, node: exp.Not) -> Expression:
        """Bind NOT."""
        return self.call("not", [self.boolean(node.this)], BOOLEAN)

    def is_(self, node: exp.Is) -> Expression:
        """Bind IS NULL, IS TRUE and IS FALSE."""
        value = self.operand(node.this)
        if isinstance(node.expression, exp.Null):
            return self.call("is null", [value], BOOLEAN)
        if not isinstance(node.expression, exp.Boolean):
            raise self.source.error(node, "IS takes NULL, TRUE or FALSE here")
        wanted = Literal(bool(node.expression.this), BOOLEAN)
        return self.call("<=>", [self.boolean(node.this), wanted], BOOLEAN)

    def in_(self, node: exp.In) -> Expression:
        """Bind IN with a list."""
        if not node.expressions:
            raise self.source.error(node, "IN takes a list of values here", "Write them out: x IN (1, 2).")
        nodes = (node.this, *node.expressions)
        value, *listed = self.alike(nodes, [self.operand(node.this), *map(self.bind, node.expressions)])
        literals = [each for each in listed if isinstance(each, Literal)]
        if len(literals) == len(listed):
            return self.call("in", [value, *literals], BOOLEAN)
        found = [self.call("=", [value, each], BOOLEAN) for each in listed]
        return reduce(lambda left, right: self.call("or", [left, right], BOOLEAN), found)

    def between(self, node: exp.Between) -> Expression:
        """Bind BETWEEN: two comparisons."""
        nodes = (node.this, node.args["low"], node.args["high"])
        value, low, high = [self.operand(each) for each in nodes]
        above = self.call(">=", self.alike((nodes[0], nodes[1]), (value, low)), BOOLEAN)
        below = self.call("<=", self.alike((nodes[0], nodes[2]), (value, high)), BOOLEAN)
        return self.call("and", [above, below], BOOLEAN)

    def like(self, node: exp.Expr) -> Expression:
        """Bind LIKE and NOT LIKE, with ESCAPE or without."""
        escape: Expression = Literal("\\", STRING)
        whole = node
        if isinstance(node, exp.Escape):
            escape, node = self.bind(node.expression), node.this
        if not isinstance(node, exp.Like):
            raise self.source.error(whole, "ESCAPE belongs to LIKE")
        value, pattern = self.operand(node.this), self.operand(node.expression)
        if not isinstance(pattern, Literal) or not isinstance(escape, Literal) or pattern.kind != STRING:
            raise self.source.error(whole, "the pattern of LIKE must be a text in quotes")
        if value.kind != STRING and not pa.types.is_null(value.kind):
            raise self.source.error(node.this, f"LIKE takes text, and this is {kind_text(value.kind)}", _WRITE_CAST)
        if len(str(escape.value)) != 1 or escape.kind != STRING:
            raise self.source.error(whole, "ESCAPE takes one character")
        try:
            parse_pattern(str(pattern.value), str(escape.value))
        except ValueError as error:
            raise self.source.error(node.expression, str(error), "Write it twice, as in '\\\\\\\\' for one.") from None
        found = self.call("like", [self.converted(node.this, value, STRING), pattern, escape], BOOLEAN)
        return self.call("not", [found], BOOLEAN) if node.args.get("negate") else found

    def whole_column(self, node: exp.Column) -> pa.Field:
        """Return the column of the table that a name means, of any type."""
        return self._field(node.this, [], list(self._schema))

    def column(self, node: exp.Column | exp.Dot) -> Expression:
        """Bind a column, or a field of a struct."""
        parts = [part for part in node.parts if isinstance(part, exp.Identifier)]
        if not parts or len(parts) < len(node.parts):
            raise self.source.error(node, f"{self.source.of(node)} is not a column")
        fields: Iterable[pa.Field] = self._schema
        path: list[str] = []
        found: pa.Field | None = None
        for part in parts:
            if found is not None and not pa.types.is_struct(found.type):
                raise self.source.error(part, f"{'.'.join(path)} is {type_text(found.type)}, which has no fields")
            found = self._field(part, path, list(fields))
            path.append(found.name)
            fields = found.type if pa.types.is_struct(found.type) else []
        if found is None or char_lengths(found):
            remedy = "Spark pads both sides of such a comparison. Compare another column."
            raise self.source.error(node, f"{'.'.join(path)} is CHAR, which is not supported", remedy)
        return Column(tuple(path), value_type(found.type))

    def _field(self, part: exp.Identifier, path: Sequence[str], fields: Sequence[pa.Field]) -> pa.Field:
        name = part.name
        near = [field for field in fields if field.name.lower() == name.lower()]
        near = [field for field in near if field.name == name] or near
        if len(near) == 1:
            return near[0]
        whole = ".".join([*path, name])
        if near:
            reason = f"{whole} could be each of {', '.join(field.name for field in near)}"
            raise self.source.error(part, reason, "Write it exactly as it is called.")
        names = [field.name for field in fields]
        remedy = did_you_mean(name, names) or f"It has {', '.join(names[:20])}."
        raise self.source.error(part, f"the table has no column {whole}", remedy)

    def literal(self, node: exp.Literal) -> Expression:
        """Bind a number or a text."""
        if node.is_string:
            span = self.source.span(node)
            raw = self.source.text[slice(*span)] if span else f"'{node.this}'"
            return Literal(text_of(raw), STRING)
        return self._number(node, node.this)

    def _number(self, node: exp.Expr, text: str) -> Literal:
        try:
            return number(text)
        except ValueError as error:
            raise self.source.error(node, str(error)) from None

    def negative(self, node: exp.Neg) -> Expression:
        """Bind a minus: one before a number belongs to the number."""
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return self._number(node, f"-{node.this.this}")
        raise self.source.error(node, "minus is supported before numbers only")

    def bytes_(self, node: exp.HexString) -> Expression:
        """Bind X'1F'."""
        text = self.source.of(node)
        digits = str(node.this)
        if text[:1] not in ("x", "X") or len(digits) % 2:
            raise self.source.error(node, f"{text} is not supported", "Write bytes as X'00FF'.")
        return Literal(bytes.fromhex(digits), pa.binary())

    def cast(self, node: exp.Cast) -> Expression:
        """Bind CAST, `::`, DATE'2024-12-31', and numbers with a suffix."""
        target = self._target(node)
        value = self.scalar(node.this, self.bind(node.this))
        if isinstance(value, Literal) and value.kind == STRING and value.value is not None:
            if target in _TIMES:
                return self.moment(node, str(value.value), target)
            if pa.types.is_decimal(target):
                return self._exact(node, Decimal(str(value.value)), target)
        if not castable(value.kind, target):
            raise self.source.error(node, f"CAST from {kind_text(value.kind)} to {kind_text(target)} is not supported")
        return self.call("cast", [value], target)

    def _exact(self, node: exp.Expr, value: Decimal, kind: pa.DataType) -> Literal:
        try:
            return literal_of(pa.scalar(value, kind))
        except pa.ArrowInvalid:
            raise self.source.error(node, f"{value} does not fit into {kind_text(kind)}") from None

    def _target(self, node: exp.Cast) -> pa.DataType:
        kind = node.to
        if kind.this == exp.DType.DECIMAL:
            precision, scale = (
                [*(int(each.name) for each in kind.expressions), 10, 0][:2]
                if not kind.expressions
                else ([*(int(each.name) for each in kind.expressions), 0][:2])
            )
            if not 0 < precision <= 38 or not 0 <= scale <= precision:
                raise self.source.error(node, f"there is no decimal({precision},{scale})")
            return pa.decimal128(precision, scale)
        found = None if kind.expressions else _TYPES.get(kind.this.value)
        if found is None:
            raise self.source.error(node, f"CAST to {kind.sql('spark')} is not supported")
        return found


# sqlglot says with other arguments what a node means besides, such as `safe` of TRY_CAST.
_ARGUMENTS: Final = frozenset(
    [
        *("this", "expression", "expressions", "is_string", "quoted", "table", "db", "catalog"),
        *("low", "high", "to", "negate", "ifs", "true", "false", "default"),
    ]
)
_NODES: Final[dict[type[exp.Expr], Callable[[Binder, Any], Expression]]] = {
    **dict.fromkeys(_COMPARISONS, Binder.comparison),
    exp.And: Binder.connective,
    exp.Or: Binder.connective,
    exp.Not: Binder.negation,
    exp.Paren: lambda binder, node: binder.bind(node.this),
    exp.Is: Binder.is_,
    exp.In: Binder.in_,
    exp.Between: Binder.between,
    exp.Like: Binder.like,
    exp.Escape: Binder.like,
    exp.Column: Binder.column,
    exp.Dot: Binder.column,
    exp.Literal: Binder.literal,
    exp.RawString: lambda _, node: Literal(str(node.this), STRING),
    exp.HexString: Binder.bytes_,
    exp.Boolean: lambda _, node: Literal(bool(node.this), BOOLEAN),
    exp.Null: lambda *_: Literal(None, pa.null()),
    exp.Neg: Binder.negative,
    exp.Cast: Binder.cast,
    exp.TryCast: Binder.cast,
}
