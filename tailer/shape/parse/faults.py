"""All that is wrong with a text, where binding stops at the first fault.

After a first fault the parts of the expression are bound one by one. Where no table is known, a name may mean a column
of any type.
"""

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
from sqlglot import exp

from tailer.errors import ConfigError
from tailer.shape.parse.bind import binding_over
from tailer.shape.parse.binding import Binding
from tailer.shape.parse.grammar import check_grammar
from tailer.shape.parse.select_list import bind_output, parse_list
from tailer.shape.parse.source import Source, parse

__all__ = ["condition_faults", "output_faults", "output_names"]

_CONDITIONS: Final = (exp.And, exp.Or, exp.Not, exp.Paren)
# What is right or wrong by itself, wherever it is written.
_PARTS: Final = (exp.Column, exp.Dot, exp.Anonymous, exp.Cast, exp.TryCast, exp.Binary, exp.In, exp.Between, exp.Like)


def condition_faults(option: str, text: str, schema: pa.Schema | None) -> Iterator[ConfigError]:
    """Yield all faults of a condition over the columns of a table; `schema` None: no table is known."""
    source = Source(option, text)
    try:
        node = parse(source)
    except ConfigError as error:
        yield error
    else:
        yield from _faults(binding_over(source, schema), node, Binding.condition)


def output_faults(option: str, text: str, schema: pa.Schema | None) -> Iterator[ConfigError]:
    """Yield all faults of the expressions of a `select`, as `condition_faults`."""
    try:
        source, nodes = parse_list(option, text)
    except ConfigError as error:
        yield error
        return
    binding = binding_over(source, schema)
    faults = [fault for node in nodes for fault in _faults(binding, node, bind_output)]
    yield from faults
    if not faults:
        try:
            check_grammar(source)
        except ConfigError as error:
            yield error


def output_names(option: str, text: str, schema: pa.Schema) -> Iterator[tuple[str, pa.DataType | None, bool]]:
    """Yield the name and the type of each column of a `select` with faults, and whether its name is sure.

    The type is None where the column has a fault. Raises `ConfigError` as `parse_list`.
    """
    source, nodes = parse_list(option, text)
    binding = binding_over(source, schema)
    for node in nodes:
        if _fault(binding, node, bind_output) is None:
            yield from ((name, expression.kind, True) for name, expression in bind_output(binding, node))
        elif isinstance(node, exp.Star):
            yield from ((field.name, field.type, True) for field in schema)
        else:
            yield node.alias_or_name, None, isinstance(node, exp.Alias)


def _faults(binding: Binding, node: exp.Expr, bind: Callable[[Binding, exp.Expr], object]) -> Iterator[ConfigError]:
    first = _fault(binding, node, bind)
    if first is None:
        return
    faults = {str(first): first}
    for part in node.walk():
        is_condition = isinstance(part.parent, _CONDITIONS) and not isinstance(part, _CONDITIONS)
        if (is_condition or isinstance(part, _PARTS)) and not isinstance(part.parent, exp.Dot | exp.JSONExtract):
            # The path into a Variant is a part of a CAST.
            fault = None if isinstance(part, exp.JSONExtract) else _fault(binding, part, Binding.bind)
            if fault is not None:
                faults.setdefault(str(fault), fault)
    yield from faults.values()


def _fault(binding: Binding, node: exp.Expr, bind: Callable[[Binding, exp.Expr], object]) -> ConfigError | None:
    try:
        bind(binding, node)
    except ConfigError as error:
        return error
    return None
