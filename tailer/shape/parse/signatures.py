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

Signature = Callable[[Binding, exp.Expr, Sequence[exp.Expr]], Expression]

_MAX_INT: Final = 2**31 - 1


def bind_function(binding: Binding, node: exp.Anonymous) -> Expression:
    """Bind a call of a function by its name."""
    name = str(node.this).lower()
    signature = _SIGNATURES.get(name)
    if signature is None:
        remedy = did_you_mean(name, _SIGNATURES) or f"These are: {', '.join(sorted(_SIGNATURES))}."
        raise binding.source.error(node, f"the function {name} is not supported", remedy)
    return signature(binding, node, node.expressions)


def case(binding: Binding, branches: Sequence[tuple[Expression, exp.Expr]], default: exp.Expr) -> Expression:
    """Bind CASE: each branch is a condition and the node of a value."""
    nodes = [*(value for _, value in branches), default]
    values = binding.alike(nodes, [binding.bind(part) for part in nodes])
    arguments = [part for (condition, _), value in zip(branches, values, strict=False) for part in (condition, value)]
    return binding.call("case", [*arguments, values[-1]], values[-1].kind)


def _choice(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    """Bind IF."""
    _count(binding, node, nodes, 3)
    condition, value, other = nodes
    return case(binding, [(binding.boolean(condition), value)], other)


def _count(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr], least: int, most: int | None = None) -> None:
    most = least if most is None else most
    if not least <= len(nodes) <= most:
        wanted = str(least) if most == least else f"{least} to {most}"
        raise binding.source.error(
            node, f"{binding.source.written(node)} takes {wanted} arguments, and has {len(nodes)}"
        )


def _coalesce(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    _count(binding, node, nodes, 1, 1000)
    values = binding.alike(nodes, [binding.bind(argument) for argument in nodes])
    return binding.call("coalesce", values, values[0].kind)


def _nullif(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    _count(binding, node, nodes, 2)
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

    def bind(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
        _count(binding, node, nodes, 1)
        return binding.call(function, [_argument(binding, nodes[0], kinds)], result)

    return bind


def _length(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    _count(binding, node, nodes, 1)
    value = _argument(binding, nodes[0], (STRING, pa.binary()))
    return binding.call("length" if value.kind == STRING else "length of bytes", [value], pa.int32())


def _absolute(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    _count(binding, node, nodes, 1)
    value = binding.bind(nodes[0])
    binding.must_be(nodes[0], value, is_number(value.kind), "a number")
    return binding.call("abs", [value], value.kind) if is_number(value.kind) else binding.null(pa.null())


def concat(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    """Bind `||` and concat."""
    _count(binding, node, nodes, 1, 1000)
    return binding.call("concat", [_argument(binding, argument, [STRING]) for argument in nodes], STRING)


def _literal(binding: Binding, node: exp.Expr, kinds: Sequence[pa.DataType]) -> Literal:
    value = _argument(binding, node, kinds)
    if not isinstance(value, Literal) or value.value is None:
        raise binding.source.error(node, f"{binding.source.written(node)} is not a constant")
    return value


def _search(function: str) -> Signature:
    """Return the signature of a function that searches a text for a constant."""

    def bind(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
        _count(binding, node, nodes, 2)
        return binding.call(
            function, [_argument(binding, nodes[0], [STRING]), _literal(binding, nodes[1], [STRING])], BOOLEAN
        )

    return bind


def _replacing(function: str, least: int) -> Signature:
    """Return the signature of a function that replaces parts of a text: what, and by what, are constants."""

    def bind(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
        _count(binding, node, nodes, least, 3)
        arguments = [_argument(binding, argument, [STRING]) for argument in nodes]
        if any(map(is_null, arguments)):
            return binding.null(STRING)
        constants = [_literal(binding, argument, [STRING]) for argument in nodes[1:]]
        return binding.call(function, [arguments[0], *constants, *[Literal("", STRING)] * (3 - len(nodes))], STRING)

    return bind


def _regexp_replace(binding: Binding, node: exp.Expr, _: Sequence[exp.Expr]) -> Expression:
    remedy = "Write replace or translate: regular expressions of Java have no exact counterpart."
    raise binding.source.error(node, "regexp_replace is not supported", remedy)


def _int(binding: Binding, node: exp.Expr) -> int:
    return int(str(_literal(binding, node, [pa.int32()]).value))


def _slice(binding: Binding, text: exp.Expr, position: int, length: int) -> Expression:
    numbers = [Literal(number, pa.int32()) for number in (position, length)]
    return binding.call("substring", [_argument(binding, text, [STRING]), *numbers], STRING)


def _substring(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    _count(binding, node, nodes, 2, 3)
    length = _int(binding, nodes[2]) if len(nodes) == 3 else _MAX_INT
    return _slice(binding, nodes[0], _int(binding, nodes[1]), length)


def _left(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    _count(binding, node, nodes, 2)
    return _slice(binding, nodes[0], 1, _int(binding, nodes[1]))


def _right(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    _count(binding, node, nodes, 2)
    length = max(_int(binding, nodes[1]), 0)
    return _slice(binding, nodes[0], -length, length)


def _sha2(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    _count(binding, node, nodes, 2)
    bits = _int(binding, nodes[1]) or 256
    if bits not in (224, 256, 384, 512):
        raise binding.source.error(nodes[1], f"SHA-2 has no {bits} bits", "Write 256.")
    value = _argument(binding, nodes[0], (STRING, pa.binary()))
    return binding.call("sha2", [value, Literal(bits, pa.int32())], STRING)


def _hmac(binding: Binding, node: exp.Expr, nodes: Sequence[exp.Expr]) -> Expression:
    """Bind the keyed hash. The tree has the place of the secret alone, and constants are not hashed while parsing."""
    _count(binding, node, nodes, 2)
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
        _count(binding, node, nodes, 3)
        path, name = (str(_literal(binding, argument, [STRING]).value) for argument in nodes[1:])
        try:
            kind = kind_from_text("".join(name.lower().split()))
        except (KeyError, ValueError):
            raise binding.source.error(nodes[2], f"{name!r} is no type", "Write 'string', for example.") from None
        return value_at_path(binding, node, nodes[0], path, kind, function)

    return bind


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
    **dict.fromkeys(["coalesce", "ifnull", "nvl"], _coalesce),
    "nullif": _nullif,
    "if": _choice,
    **dict.fromkeys(["upper", "ucase"], _of("upper", STRING, STRING)),
    **dict.fromkeys(["lower", "lcase"], _of("lower", STRING, STRING)),
    **dict.fromkeys(["length", "len", "char_length", "character_length"], _length),
    **dict.fromkeys(["substring", "substr"], _substring),
    "left": _left,
    "right": _right,
    "trim": _of("trim", STRING, STRING),
    "ltrim": _of("ltrim", STRING, STRING),
    "rtrim": _of("rtrim", STRING, STRING),
    "startswith": _search("startswith"),
    "endswith": _search("endswith"),
    "contains": _search("contains"),
    "replace": _replacing("replace", 2),
    "translate": _replacing("translate", 3),
    "regexp_replace": _regexp_replace,
    "concat": concat,
    "abs": _absolute,
    "year": _of("year", pa.int32(), *_DAYS),
    "month": _of("month", pa.int32(), *_DAYS),
    **dict.fromkeys(["day", "dayofmonth"], _of("day", pa.int32(), *_DAYS)),
    "hour": _of("hour", pa.int32(), *_TIMES),
    **{name: _variant_get(name) for name in ("variant_get", "try_variant_get")},
    "hmac_sha256": _hmac,
    "sha2": _sha2,
}
