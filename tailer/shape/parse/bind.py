"""The tree of sqlglot becomes the typed tree, with Spark's types and implicit casts.

What has no exact counterpart is refused by name. Where sqlglot reads operators in another order than Spark does
(`a = b < c`, `a = b IN (c)`), parentheses are demanded.

sqlglot's own `qualify` and `annotate_types` do not fit: of 671 expressions in the conditions of the tests that are not
boolean, they give 125 another type than Spark does, and the rules here none. To them 0.1 is a double, `m * 2.0` keeps
the digits of `m`, `f * i` stays a float, a text beside a date stays text, and any name is a field of a struct.
"""

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import reduce
from typing import Final

import pyarrow as pa
from sqlglot import exp

from tailer.errors import did_you_mean
from tailer.events import is_struct, type_text
from tailer.schema.columns import METADATA_NAMES
from tailer.schema.text_types import char_lengths, collations
from tailer.shape.casts import castable
from tailer.shape.comparisons import parse_pattern
from tailer.shape.parse.binding import TIMES, Binding, Nodes
from tailer.shape.parse.literals import literal_of, number
from tailer.shape.parse.operators import OPERATORS, arithmetic, compare, minus, plus
from tailer.shape.parse.signatures import bind_function, case, concat, value_at_path
from tailer.shape.parse.source import Plus, Source
from tailer.shape.tree import Column, Expression, Literal
from tailer.shape.types import BOOLEAN, DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ, kind_text, value_type

__all__ = ["binding_over", "whole_column"]

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
_TYPES: Final = {
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.BOOLEAN: BOOLEAN,
    exp.DType.TEXT: STRING,
    exp.DType.BINARY: pa.binary(),
    exp.DType.DATE: DATE,
    exp.DType.TIMESTAMPTZ: TIMESTAMP,
    exp.DType.TIMESTAMPLTZ: TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: TIMESTAMP_NTZ,
}
_PARENTHESES: Final = "Put parentheses around it."
_DIGITS: Final = re.compile("[0-9a-fA-F]*")
_EXACT: Final = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?", re.ASCII)


def binding_over(source: Source, schema: pa.Schema | None) -> Binding:
    """Return what binds the nodes of an expression over the columns of a schema; None: no table is known."""
    return Binding(source, schema, _NODES)


def whole_column(binding: Binding, node: exp.Column) -> pa.Field:
    """Return the column of the table that a name means, of any type. Raises `ConfigError`."""
    if binding.schema is None:
        return _unknown(binding, node.this)
    return _field(binding, node.this, [], list(binding.schema))


def _operand(binding: Binding, node: exp.Expr) -> Expression:
    """Return an operand of a comparison."""
    if isinstance(node, _PREDICATES):
        raise binding.source.error(
            node, f"{binding.source.written(node)} is an operand of another condition", _PARENTHESES
        )
    return binding.bind(node)


def _comparison(binding: Binding, node: exp.Binary) -> Expression:
    """Bind `left = right` and its like."""
    nodes = (node.this, node.expression)
    comparison = compare(binding, _COMPARISONS[type(node)], nodes, [_operand(binding, operand) for operand in nodes])
    return binding.call("not", [comparison], BOOLEAN) if isinstance(node, _NEGATED) else comparison


def _connective(binding: Binding, node: exp.Connector) -> Expression:
    """Bind AND and OR."""
    function = "and" if isinstance(node, exp.And) else "or"
    return binding.call(function, [binding.boolean(node.this), binding.boolean(node.expression)], BOOLEAN)


def _is(binding: Binding, node: exp.Is) -> Expression:
    """Bind IS NULL, IS UNKNOWN, IS TRUE and IS FALSE."""
    value = _operand(binding, node.this)
    if isinstance(node.expression, exp.Null):
        if binding.source.written(node.expression).upper() == "UNKNOWN":
            value = binding.boolean(node.this)
        return binding.call("is null", [value], BOOLEAN)
    if not isinstance(node.expression, exp.Boolean):
        raise binding.source.error(node, "IS takes NULL, TRUE or FALSE here")
    wanted = Literal(bool(node.expression.this), BOOLEAN)
    return binding.call("<=>", [binding.boolean(node.this), wanted], BOOLEAN)


def _in(binding: Binding, node: exp.In) -> Expression:
    """Bind IN with a list."""
    if not node.expressions:
        raise binding.source.error(node, "IN takes a list of values here", "Write them out: x IN (1, 2).")
    nodes = (node.this, *node.expressions)
    value, *listed = binding.alike(nodes, [_operand(binding, node.this), *map(binding.bind, node.expressions)])
    literals = [item for item in listed if isinstance(item, Literal)]
    if len(literals) == len(listed):
        return binding.call("in", [value, *literals], BOOLEAN)
    comparisons = [binding.call("=", [value, item], BOOLEAN) for item in listed]
    return reduce(lambda left, right: binding.call("or", [left, right], BOOLEAN), comparisons)


def _between(binding: Binding, node: exp.Between) -> Expression:
    """Bind BETWEEN: two comparisons."""
    nodes = (node.this, node.args["low"], node.args["high"])
    value, low, high = [_operand(binding, operand) for operand in nodes]
    above = compare(binding, ">=", (nodes[0], nodes[1]), (value, low))
    below = compare(binding, "<=", (nodes[0], nodes[2]), (value, high))
    return binding.call("and", [above, below], BOOLEAN)


def _like(binding: Binding, node: exp.Expr) -> Expression:
    """Bind LIKE and NOT LIKE, with ESCAPE or without."""
    escape: Expression = Literal("\\", STRING)
    whole = node
    if isinstance(node, exp.Escape):
        escape, node = binding.bind(node.expression), node.this
    if not isinstance(node, exp.Like):
        raise binding.source.error(whole, "ESCAPE belongs to LIKE")
    value, pattern = _operand(binding, node.this), _operand(binding, node.expression)
    if not isinstance(pattern, Literal) or not isinstance(escape, Literal) or pattern.kind != STRING:
        raise binding.source.error(whole, "the pattern of LIKE must be a text in quotes")
    binding.must_be(node.this, value, value.kind == STRING, "text")
    if len(str(escape.value)) != 1 or escape.kind != STRING:
        raise binding.source.error(whole, "ESCAPE takes one character")
    try:
        parse_pattern(str(pattern.value), str(escape.value))
    except ValueError as error:
        raise binding.source.error(node.expression, str(error), "Write it twice, as in '\\\\\\\\' for one.") from None
    matches = binding.call("like", [binding.converted(node.this, value, STRING), pattern, escape], BOOLEAN)
    return binding.call("not", [matches], BOOLEAN) if node.args.get("negate") else matches


def _column(binding: Binding, node: exp.Column | exp.Dot) -> Expression:
    """Bind a column, or a field of a struct."""
    parts = [part for part in node.parts if isinstance(part, exp.Identifier)]
    if not parts or len(parts) < len(node.parts):
        raise binding.source.error(node, f"{binding.source.written(node)} is not a column")
    if binding.schema is None:
        return Column(tuple(part.name for part in parts), _unknown(binding, parts[0]).type)
    fields: Iterable[pa.Field] = binding.schema
    path: list[str] = []
    field: pa.Field | None = None
    for part in parts:
        if field is not None and not is_struct(field.type):
            raise binding.source.error(part, f"{'.'.join(path)} is {type_text(field.type)}, which has no fields")
        field = _field(binding, part, path, list(fields))
        path.append(field.name)
        fields = field.type if is_struct(field.type) else []
    if field is None or char_lengths(field):
        remedy = "Spark pads both sides of such a comparison. Compare another column."
        raise binding.source.error(node, f"{'.'.join(path)} is CHAR, which is not supported", remedy)
    if names := collations(field):
        remedy = (
            "Spark compares its texts by that, not by their bytes. Name another column; select can deliver this one."
        )
        reason = f"{'.'.join(path)} has the collation {names[0]}, which is not supported"
        raise binding.source.error(node, reason, remedy)
    return Column(tuple(path), value_type(field.type))


def _field(binding: Binding, part: exp.Identifier, path: Sequence[str], fields: Sequence[pa.Field]) -> pa.Field:
    name = part.name
    near = [field for field in fields if field.name.lower() == name.lower()]
    near = [field for field in near if field.name == name] or near
    if len(near) == 1:
        return near[0]
    whole = ".".join([*path, name])
    if near:
        reason = f"{whole} could be each of {', '.join(field.name for field in near)}"
        raise binding.source.error(part, reason, "Write it exactly as it is called.")
    if not path:
        _unknown(binding, part)
    names = [field.name for field in fields]
    remedy = did_you_mean(name, names) or f"It has {', '.join(names[:20])}."
    raise binding.source.error(part, f"the table has no column {whole}", remedy)


def _unknown(binding: Binding, part: exp.Identifier) -> pa.Field:
    """Return a column of which only the name is known. Raises `ConfigError` where no table can have it."""
    if part.name.lower() in METADATA_NAMES:
        remedy = "Rows have it beside the columns that leave, whatever these are."
        raise binding.source.error(part, f"{part.name} is a metadata column, which expressions cannot read", remedy)
    return pa.field(part.name, pa.null())


def _literal(binding: Binding, node: exp.Literal) -> Expression:
    """Bind a number or a text."""
    if node.is_string:
        return Literal(str(node.this), STRING)
    try:
        return number(node.this)
    except ValueError as error:
        raise binding.source.error(node, str(error)) from None


def _bytes(binding: Binding, node: exp.HexString) -> Expression:
    """Bind X'1F'."""
    text = binding.source.written(node)
    digits = str(node.this)
    if text[:1] not in ("x", "X") or len(digits) % 2 or not _DIGITS.fullmatch(digits):
        raise binding.source.error(node, f"{text} is not supported", "Write bytes as X'00FF'.")
    return Literal(bytes.fromhex(digits), pa.binary())


def _cast(binding: Binding, node: exp.Cast) -> Expression:
    """Bind CAST, `::`, DATE'2024-12-31', and numbers with a suffix."""
    if node.args.get("safe"):
        raise binding.source.error(node, "TRY_CAST is not supported", "Write CAST, which fails where this is null.")
    target = _target(binding, node)
    if isinstance(node.this, exp.JSONExtract):
        return value_at_path(binding, node, node.this.this, _path(binding, node.this), target)
    value = binding.scalar(node.this, binding.bind(node.this))
    if isinstance(value, Literal) and value.kind == STRING and value.value is not None:
        if target in TIMES:
            return binding.moment(node, str(value.value), target)
        if pa.types.is_decimal(target):
            return _exact(binding, node, str(value.value), target)
    if not castable(value.kind, target):
        raise binding.source.error(node, f"CAST from {kind_text(value.kind)} to {kind_text(target)} is not supported")
    return binding.call("cast", [value], target)


def _path(binding: Binding, node: exp.JSONExtract) -> str:
    """Return the path of `v:a.b`, as in Databricks."""
    steps = []
    for step in node.expression.expressions[1:]:
        name = step.this
        if isinstance(step, exp.JSONPathSubscript) and isinstance(name, int):
            steps.append(f"[{name}]")
        elif isinstance(step, exp.JSONPathKey) and isinstance(name, str) and "'" not in name:
            steps.append(f"['{name}']")
        else:
            raise binding.source.error(node, f"{step.sql()} is not supported in a path")
    return "".join(["$", *steps])


def _bare_path(binding: Binding, node: exp.JSONExtract) -> Expression:
    """Refuse a path into a Variant without a type."""
    remedy = f"Write {binding.source.written(node)}::string, or another type."
    raise binding.source.error(node, "a path into a Variant needs a type", remedy)


def _exact(binding: Binding, node: exp.Expr, text: str, kind: pa.DataType) -> Literal:
    """Return the decimal of a text, which is not rounded."""
    if _EXACT.fullmatch(text):
        try:
            return literal_of(pa.scalar(Decimal(text), kind))
        except pa.ArrowInvalid:
            pass
    raise binding.source.error(node, f"{text!r} is no {kind_text(kind)}", "Write it with as many digits.")


def _case(binding: Binding, node: exp.Case) -> Expression:
    """Bind CASE, with or without a value to compare."""
    branches = []
    for branch in node.args["ifs"]:
        condition = branch.this
        if node.this is None:
            holds = binding.boolean(condition)
        else:
            values = [_operand(binding, node.this), _operand(binding, condition)]
            holds = compare(binding, "=", (node.this, condition), values)
        branches.append((holds, branch.args["true"]))
    return case(binding, branches, node.args.get("default") or exp.Null())


def _target(binding: Binding, node: exp.Cast) -> pa.DataType:
    kind = node.to
    digits = [parameter.name for parameter in kind.expressions]
    if kind.this == exp.DType.DECIMAL and all(map(str.isdecimal, digits)):
        precision, scale = [*map(int, digits or ["10"]), 0][:2]
        if not 0 < precision <= 38 or not 0 <= scale <= precision:
            raise binding.source.error(node, f"there is no decimal({precision},{scale})")
        return pa.decimal128(precision, scale)
    target = None if kind.expressions else _TYPES.get(kind.this)
    if target is None:
        raise binding.source.error(node, f"CAST to {kind.sql()} is not supported")
    return target


_NODES: Final[Nodes] = {
    **dict.fromkeys(_COMPARISONS, _comparison),
    exp.And: _connective,
    exp.Or: _connective,
    exp.Not: lambda binding, node: binding.call("not", [binding.boolean(node.this)], BOOLEAN),
    exp.Paren: lambda binding, node: binding.bind(node.this),
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.Escape: _like,
    exp.Column: _column,
    exp.Dot: _column,
    exp.Literal: _literal,
    exp.HexString: _bytes,
    exp.Boolean: lambda _, node: Literal(bool(node.this), BOOLEAN),
    exp.Null: lambda *_: Literal(None, pa.null()),
    exp.Neg: minus,
    Plus: plus,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.JSONExtract: _bare_path,
    exp.Case: _case,
    exp.DPipe: lambda binding, node: concat(binding, node, (node.this, node.expression)),
    exp.Anonymous: bind_function,
    **dict.fromkeys(OPERATORS, arithmetic),
}
