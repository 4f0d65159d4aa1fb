"""The core of binding: nodes of sqlglot become typed expressions, with Spark's types and implicit casts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from tailer.errors import ConfigError
from tailer.events import is_variant, type_text
from tailer.shape.parse.folding import folded, value_of
from tailer.shape.parse.grammar import check_grammar
from tailer.shape.parse.literals import moment
from tailer.shape.parse.source import Source
from tailer.shape.tree import Call, Column, Expression, Literal
from tailer.shape.types import BOOLEAN, DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ, common_type, is_scalar, kind_text

__all__ = ["TIMES", "Binding", "Nodes"]

Nodes = Mapping[type[exp.Expr], "Callable[[Binding, Any], Expression]"]

TIMES: Final = (DATE, TIMESTAMP, TIMESTAMP_NTZ)
_WRITE_CAST: Final = "Write CAST(... AS ...) to say which type is meant."

# sqlglot says with other arguments what a node means besides, such as `safe` of TRY_CAST.
_ARGUMENTS: Final = frozenset(
    [
        *("this", "expression", "expressions", "is_string", "quoted", "table", "db", "catalog"),
        *("low", "high", "to", "negate", "ifs", "true", "false", "default", "variant_extract"),
    ]
)
_HARMLESS: Final = frozenset(["typed", "safe"])
# Types of which each has another one in common with more types than it has itself.
_UNLIKE: Final = (pa.float64(), STRING, TIMESTAMP)


class Binding:
    """Typed expressions over the columns of a schema. `nodes`: what binds each type of node.

    Without a schema no table is known: a name means a column of an unknown type, written as null, which fits
    everywhere. So does what is made of it, unless its type is the same for all columns. The methods raise
    `ConfigError`.
    """

    def __init__(self, source: Source, schema: pa.Schema | None, nodes: Nodes) -> None:
        self.source = source
        self.schema = schema
        self._nodes = nodes
        self._bound: dict[int, tuple[Expression, exp.Expr]] = {}  # the first node of each, by id of the expression

    def bind(self, node: exp.Expr) -> Expression:
        """Return the typed expression of a node."""
        bound = self._nodes.get(type(node))
        unknown = {name for name, value in node.args.items() if value} - _ARGUMENTS
        if isinstance(node, exp.Div | exp.DPipe | exp.TryCast):
            unknown -= _HARMLESS
        if bound is None or unknown:
            words = self.source.operator(node) or " ".join([type(node).__name__, *sorted(unknown)]).upper()
            raise self.source.error(node, f"{words} is not supported in expressions")
        expression = bound(self, node)
        self._bound.setdefault(id(expression), (expression, node))
        return expression

    def boolean(self, node: exp.Expr) -> Expression:
        """Return the typed expression of a node that must be boolean."""
        expression = self.bind(node)
        if expression.kind == BOOLEAN:
            return expression
        if pa.types.is_null(expression.kind):
            return self.null(BOOLEAN)
        remedy = "Write a condition, such as country = 'DE'."
        raise self.source.error(
            node, f"{self.source.written(node)} is {type_text(expression.kind)}, not boolean", remedy
        )

    def condition(self, node: exp.Expr) -> Expression:
        """Return the typed expression of all of a text, which must be boolean, with its constant parts folded."""
        expression = self.whole(node, self.boolean(node))
        check_grammar(self.source)
        return expression

    def is_unknown(self, value: Expression) -> bool:
        """Return whether the type of a value is that of a column, and no table is known."""
        return self.schema is None and pa.types.is_null(value.kind)

    def null(self, kind: pa.DataType) -> Expression:
        """Return what stands for a null without a type where `kind` is needed, or for a column of an unknown type."""
        return Literal(None, kind) if self.schema is not None else Column(("",), kind)

    def call(self, function: str, arguments: Iterable[Expression], kind: pa.DataType) -> Expression:
        """Return a call; where all arguments are literals, its result, unless it fails."""
        call = Call(function, tuple(arguments), kind)
        if not all(isinstance(argument, Literal) for argument in call.arguments):
            return call
        try:
            return value_of(call) or call
        except pa.ArrowInvalid:
            return call  # `whole` decides whether that is an error

    def whole(self, node: exp.Expr, expression: Expression) -> Expression:
        """Return the expression of all of a text with its constant parts folded. `node`: for errors."""

        def fault(call: Call, reason: str) -> ConfigError:
            named = self._bound.get(id(call), (call, node))[1]
            return self.source.error(named, f"this fails for every row: {reason}", "Write a value in its place.")

        return folded(expression, fault)

    def converted(self, node: exp.Expr, value: Expression, kind: pa.DataType) -> Expression:
        """Return a value in the type to which Spark casts it implicitly. `node`: for errors."""
        if value.kind == kind:
            return value
        if isinstance(value, Literal) and value.kind == STRING and kind in TIMES:
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
        timely = any(value.kind in TIMES for value in values)
        kinds = [value.kind for value in values if not (timely and isinstance(value, Literal) and value.kind == STRING)]
        unknown = any(map(self.is_unknown, values))
        common = _common(kinds)
        if common is None and not (unknown and any(_common([kind, *kinds]) is not None for kind in _UNLIKE)):
            types = " and ".join(
                dict.fromkeys(kind_text(value.kind) for value in values if not pa.types.is_null(value.kind))
            )
            parent = nodes[0].parent or nodes[0]
            raise self.source.error(parent, f"{types} have no type in common that is exact", _WRITE_CAST)
        if unknown:
            return tuple(self.null(pa.null()) for _ in values)
        kind = BOOLEAN if pa.types.is_null(common) else common
        return tuple(self.converted(node, value, kind) for node, value in zip(nodes, values, strict=True))

    def scalar(self, node: exp.Expr, value: Expression) -> Expression:
        """Return a value that must be of a type with an order."""
        if not is_scalar(value.kind):
            name = self.source.written(node)
            remedy = "Name a field of it, or write IS NULL."
            if is_variant(value.kind):
                remedy = f"Write a path and a type, such as {name}:a.b::string, or IS NULL."
            raise self.source.error(node, f"{name} is {type_text(value.kind)}, which has no literals", remedy)
        return value

    def must_be(self, node: exp.Expr, value: Expression, fits: bool, wanted: str) -> None:
        """Raise `ConfigError` if a value is not of the type that an operator takes."""
        if not fits and not pa.types.is_null(value.kind):
            raise self.mistyped(node, value, wanted)

    def mistyped(self, node: exp.Expr, value: Expression, wanted: str) -> ConfigError:
        """Return the error about a value of a wrong type."""
        reason = f"{self.source.written(node)} is {kind_text(value.kind)}, where {wanted} is needed"
        return self.source.error(node, reason, _WRITE_CAST)


def _common(kinds: Iterable[pa.DataType]) -> pa.DataType | None:
    common: pa.DataType | None = pa.null()
    for kind in kinds:
        common = None if common is None else common_type(common, kind)
    return common
