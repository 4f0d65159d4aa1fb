"""The functions of Spark that expressions may call: their arguments, and the type of their result."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa
from sqlglot import exp

from tailer.errors import ConfigError, did_you_mean
from tailer.events import is_variant, type_text
from tailer.shape.functions import read_secret
from tailer.shape.parse.binding import Binding
from tailer.shape.tree import Call, Expression, Literal, is_null
from tailer.shape.types import BOOLEAN, DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ, is_number, kind_from_text, kind_text
from tailer.shape.variants import VARIANT_KINDS
from tailer.variant import parse_path

__all__ = ["bind_function", "case", "concat", "value_at_path"]

# What binds a call, from its node and those of its arguments, and the least and the largest number of these.
Signature = tuple[Callable[[Binding, exp.Expr, Sequence[exp.Expr]], Expression], int, int]

_MAX_INT: Final = 2**31 - 1
_MOST_ARGUMENTS: Final = 1000


def bind_function(binding: Binding, node: exp.Anonymous) -> Expression:
    """Bind a call of a function by its name."""
    name = str(node.this).lower()
    if name not in _SIGNATURES:
        remedy = did_you_mean(name, _SIGNATURES) or f"These are: {', '.join(sorted(_SIGNATURES))}."
        raise binding.source.error(node, f"the function {name} is not supported", remedy)
    bind, least, most = _SIGNATURES[name]
    number = len(node.expressions)
    if not least <= number <= most:
        wanted = str(least) if most == least else f"{least} to {most}"
        raise binding.source.error(node, f"{binding.source.written(node)} takes {wanted} arguments, and has {number}")
    return bind(binding, node, node.expressions)


def case(binding: Binding, branches: Sequence[tuple[Expression, exp.Expr]], default: exp.Expr) -> Expression:
    """Bind CASE: each branch is a condition and the node of a value."""
    nodes = [*(value for _, value in branches), default]
    values = binding.alike(nodes, [binding.bind(part) for part in nodes])
    arguments = [part for (condition, _), value in zip(branches, values, strict=False) for part in (condition, value)]
    return binding.call("case", [*arguments, values[-1]], values[-1].kind)


def _choice(binding: Binding, _: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    """Bind IF."""
    condition, value, other = nodes
    return case(binding, [(binding.boolean(condition), value)], other)


def _coalesce(binding: Binding, _: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    values = binding.alike(nodes, [binding.bind(argument) for argument in nodes])
    return binding.call("coalesce", values, values[0].kind)


def _nullif(binding: Binding, _: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    value = binding.bind(nodes[0])
    both = binding.alike(nodes, [value, binding.bind(nodes[1])])
    if is_null(value):  # then the other one is not evaluated, as in Spark
        return value
    same = binding.call("=", both, BOOLEAN)
    return binding.call("case", [same, Literal(None, value.kind), value], value.kind)


def _argument(binding: Binding, node: exp.Expr, kinds: Sequence[pa.DataType]) -> Expression:
    """Return an argument of one of some types; null has the first."""
    value = binding.bind(node)
    if pa.types.is_null(value.kind):
        return binding.null(kinds[0])
    if value.kind not in kinds:
        raise binding.mistyped(node, value, " or ".join(map(kind_text, kinds)))
    return value


def _of(function: str, result: pa.DataType, *kinds: pa.DataType) -> Signature:
    """Return the signature of a function with one argument."""

    def bind(binding: Binding, _: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
        return binding.call(function, [_argument(binding, nodes[0], kinds)], result)

    return bind, 1, 1


def _length(binding: Binding, _: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    value = _argument(binding, nodes[0], (STRING, pa.binary()))
    return binding.call("length" if value.kind == STRING else "length of bytes", [value], pa.int32())


def _absolute(binding: Binding, _: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    value = binding.bind(nodes[0])
    binding.must_be(nodes[0], value, is_number(value.kind), "a number")
    return binding.call("abs", [value], value.kind) if is_number(value.kind) else binding.null(pa.null())


def concat(binding: Binding, _: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    """Bind `||` and concat."""
    return binding.call("concat", [_argument(binding, argument, [STRING]) for argument in nodes], STRING)


def _literal(binding: Binding, node: exp.Expr, kinds: Sequence[pa.DataType]) -> Literal:
    value = _argument(binding, node, kinds)
    if not isinstance(value, Literal) or value.value is None:
        raise binding.source.error(node, f"{binding.source.written(node)} is not a constant")
    return value


def _search(function: str) -> Signature:
    """Return the signature of a function that searches a text for a constant."""

    def bind(binding: Binding, _: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
        return binding.call(
            function, [_argument(binding, nodes[0], [STRING]), _literal(binding, nodes[1], [STRING])], BOOLEAN
        )

    return bind, 2, 2


def _replacing(function: str, least: int) -> Signature:
    """Return the signature of a function that replaces parts of a text: what, and by what, are constants."""

    def bind(binding: Binding, _: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
        arguments = [_argument(binding, argument, [STRING]) for argument in nodes]
        if any(map(is_null, arguments)):
            return binding.null(STRING)
        constants = [_literal(binding, argument, [STRING]) for argument in nodes[1:]]
        return binding.call(function, [arguments[0], *constants, *[Literal("", STRING)] * (3 - len(nodes))], STRING)

    return bind, least, 3


def _regexp_replace(binding: Binding, node: exp.Expr, _: Sequence[exp.Expr]) -> Expression:
    remedy = "Write replace or translate: regular expressions of Java have no exact counterpart."
    raise binding.source.error(node, "regexp_replace is not supported", remedy)


def _int(binding: Binding, node: exp.Expr) -> int:
    return int(str(_literal(binding, node, [pa.int32()]).value))


def _slice(binding: Binding, text: exp.Expr, position: int, length: int) -> Expression:
    numbers = [Literal(number, pa.int32()) for number in (position, length)]
    return binding.call("substring", [_argument(binding, text, [STRING]), *numbers], STRING)


def _substring(binding: Binding, _: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    length = _int(binding, nodes[2]) if len(nodes) == 3 else _MAX_INT
    return _slice(binding, nodes[0], _int(binding, nodes[1]), length)


def _right(binding: Binding, _: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    length = max(_int(binding, nodes[1]), 0)
    return _slice(binding, nodes[0], -length, length)


def _sha2(binding: Binding, _: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    bits = _int(binding, nodes[1]) or 256
    if bits not in (224, 256, 384, 512):
        raise binding.source.error(nodes[1], f"SHA-2 has no {bits} bits", "Write 256.")
    value = _argument(binding, nodes[0], (STRING, pa.binary()))
    return binding.call("sha2", [value, Literal(bits, pa.int32())], STRING)


def _hmac(binding: Binding, _: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    """Bind the keyed hash. The tree has the place of the secret alone, and constants are not hashed while parsing."""
    place = _literal(binding, nodes[1], [STRING])
    try:
        read_secret(str(place.value))
    except ConfigError as error:
        raise binding.source.error(nodes[1], error.reason, error.remedy) from None
    value = _argument(binding, nodes[0], (STRING, pa.binary()))
    return Call("hmac_sha256", (value, place), STRING)


def _variant_get(function: str) -> Signature:
    """Return the signature of a function that takes a Variant, a path and the name of a type."""

    def bind(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
        path, name = (str(_literal(binding, argument, [STRING]).value) for argument in nodes[1:])
        try:
            kind = kind_from_text("".join(name.lower().split()))
        except (KeyError, ValueError):
            raise binding.source.error(nodes[2], f"{name!r} is no type", "Write 'string', for example.") from None
        return value_at_path(binding, node, nodes[0], path, kind, function)

    return bind, 3, 3


def value_at_path(
    binding: Binding, node: exp.Expr, variant: exp.Expr, path: str, kind: pa.DataType, function: str = "variant_get"
) -> Expression:
    """Bind the value at a path in a Variant, as `kind`."""
    value = binding.bind(variant)
    if not (is_variant(value.kind) or binding.schema is None):
        raise binding.source.error(
            variant, f"{binding.source.written(variant)} is {type_text(value.kind)}, not VARIANT"
        )
    if kind not in VARIANT_KINDS and not pa.types.is_decimal(kind):
        remedy = f"Write one of {', '.join(map(kind_text, VARIANT_KINDS))}, decimal(10,2)."
        raise binding.source.error(node, f"a Variant as {kind_text(kind)} is not supported", remedy)
    try:
        parse_path(path)
    except ValueError as error:
        raise binding.source.error(node, str(error)) from None
    return Call(function, (value, Literal(path, STRING)), kind)


_TIMES: Final = (TIMESTAMP, TIMESTAMP_NTZ)
_DAYS: Final = (DATE, *_TIMES)
_SIGNATURES: Final[Mapping[str, Signature]] = {
    **dict.fromkeys(["coalesce", "ifnull", "nvl"], (_coalesce, 1, _MOST_ARGUMENTS)),
    "nullif": (_nullif, 2, 2),
    "if": (_choice, 3, 3),
    **dict.fromkeys(["upper", "ucase"], _of("upper", STRING, STRING)),
    **dict.fromkeys(["lower", "lcase"], _of("lower", STRING, STRING)),
    **dict.fromkeys(["length", "len", "char_length", "character_length"], (_length, 1, 1)),
    **dict.fromkeys(["substring", "substr"], (_substring, 2, 3)),
    "left": (lambda binding, _, nodes: _slice(binding, nodes[0], 1, _int(binding, nodes[1])), 2, 2),
    "right": (_right, 2, 2),
    "trim": _of("trim", STRING, STRING),
    "ltrim": _of("ltrim", STRING, STRING),
    "rtrim": _of("rtrim", STRING, STRING),
    "startswith": _search("startswith"),
    "endswith": _search("endswith"),
    "contains": _search("contains"),
    "replace": _replacing("replace", 2),
    "translate": _replacing("translate", 3),
    "regexp_replace": (_regexp_replace, 0, _MAX_INT),
    "concat": (concat, 1, _MOST_ARGUMENTS),
    "abs": (_absolute, 1, 1),
    "year": _of("year", pa.int32(), *_DAYS),
    "month": _of("month", pa.int32(), *_DAYS),
    **dict.fromkeys(["day", "dayofmonth"], _of("day", pa.int32(), *_DAYS)),
    "hour": _of("hour", pa.int32(), *_TIMES),
    **{name: _variant_get(name) for name in ("variant_get", "try_variant_get")},
    "hmac_sha256": (_hmac, 2, 2),
    "sha2": (_sha2, 2, 2),
}
