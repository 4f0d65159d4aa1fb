"""The texts of `where` and `select`: what they mean over the columns of a table, or all that is wrong with them.

Binding stops at the first fault. After it the parts of the expression are bound one by one. Where no table is known, a
name may mean a column of any type.

sqlglot takes 0.3 s to import, so this module is imported when a text is parsed.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa
from sqlglot import exp

from tailer.errors import ConfigError
from tailer.schema.columns import METADATA_NAMES
from tailer.shape.condition import Condition
from tailer.shape.parse.bind import binding_over, whole_column
from tailer.shape.parse.binding import Binding
from tailer.shape.parse.grammar import check_grammar
from tailer.shape.parse.source import Source, parse
from tailer.shape.select import Select
from tailer.shape.tree import Column, Expression, Literal, columns_of
from tailer.shape.types import is_scalar, value_type

__all__ = ["condition_faults", "guessed_outputs", "parse_condition", "parse_select", "select_faults"]

_CONDITIONS: Final = (exp.And, exp.Or, exp.Not, exp.Paren)
# What is right or wrong by itself, wherever it is written.
_PARTS: Final = (exp.Column, exp.Dot, exp.Anonymous, exp.Cast, exp.TryCast, exp.Binary, exp.In, exp.Between, exp.Like)
_SELECT: Final = "SELECT "
_EXAMPLE: Final = "Write columns and expressions, such as id, upper(country) AS country, * EXCLUDE (email)."


def parse_condition(text: str, schema: pa.Schema, *, option: str = "where") -> Condition:
    """Return the condition of a text over the columns of a table.

    Raises `ConfigError` for text that is no condition over these columns, or that uses what is not supported.
    """
    source = Source(option, text)
    expression = binding_over(source, schema).condition(parse(source))
    return Condition(text, _read_by([expression], schema), expression)


def parse_select(text: str, schema: pa.Schema, *, option: str = "select") -> Select:
    """Return the `select` of a text over the columns of a table.

    Raises `ConfigError` for text that is no list of expressions over these columns, or that uses what is not supported.
    """
    outputs = _bound_outputs(option, text, schema)
    _check_names(option, [name for name, _ in outputs])
    return Select(text, _read_by((expression for _, expression in outputs), schema), outputs)


def _read_by(expressions: Iterable[Expression], schema: pa.Schema) -> pa.Schema:
    read = {column.path[0] for expression in expressions for column in columns_of(expression)}
    return pa.schema([column for column in schema if column.name in read])


def condition_faults(text: str, schema: pa.Schema | None = None, *, option: str = "where") -> Iterator[ConfigError]:
    """Yield all that is wrong with a text, as `parse_condition` raises the first; `schema` None: no table is known."""
    source = Source(option, text)
    try:
        node = parse(source)
    except ConfigError as error:
        yield error
    else:
        yield from _faults(binding_over(source, schema), node, Binding.condition)


def select_faults(text: str, schema: pa.Schema | None = None, *, option: str = "select") -> Iterator[ConfigError]:
    """Yield all that is wrong with a text, as `parse_select` raises the first; `schema` None: no table is known."""
    faults = list(_output_faults(option, text, schema))
    yield from faults
    names = [] if faults else [name for name, _ in _bound_outputs(option, text, schema)]
    if names or not (faults or schema is None):  # `*` makes columns of a table alone
        try:
            _check_names(option, names)
        except ConfigError as error:
            yield error


def _output_faults(option: str, text: str, schema: pa.Schema | None) -> Iterator[ConfigError]:
    """Yield all faults of the expressions of a `select`, as `condition_faults`."""
    try:
        source, nodes = _parse_list(option, text)
    except ConfigError as error:
        yield error
        return
    binding = binding_over(source, schema)
    faults = [fault for node in nodes for fault in _faults(binding, node, _bind_output)]
    yield from faults
    if not faults:
        try:
            check_grammar(source)
        except ConfigError as error:
            yield error


def guessed_outputs(text: str, schema: pa.Schema) -> list[tuple[str, pa.DataType | None, bool]]:
    """Return the name and the type of each column of a `select` with faults, and whether its name is sure.

    The type is None where the column has a fault. Empty: nothing is known.
    """
    try:
        source, nodes = _parse_list("select", text)
    except ConfigError:
        return []
    binding = binding_over(source, schema)
    outputs: list[tuple[str, pa.DataType | None, bool]] = []
    for node in nodes:
        if _fault(binding, node, _bind_output) is None:
            outputs += ((name, expression.kind, True) for name, expression in _bind_output(binding, node))
        elif isinstance(node, exp.Star):
            outputs += ((field.name, field.type, True) for field in schema)
        else:
            outputs.append((node.alias_or_name, None, isinstance(node, exp.Alias)))
    return outputs


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


def _check_names(option: str, names: list[str]) -> None:
    for index, name in enumerate(names):
        if name.lower() in METADATA_NAMES:
            remedy = "Give it another name: expression AS name."
            raise ConfigError(option, f"change rows have a metadata column {name}", remedy)
        if name.lower() in map(str.lower, names[:index]):
            remedy = "Leave one out, or give it another name: expression AS name."
            raise ConfigError(option, f"has two columns {name}", remedy)
    if not names:
        raise ConfigError(option, "leaves no column", "Name at least one column.")


def _bound_outputs(option: str, text: str, schema: pa.Schema | None) -> tuple[tuple[str, Expression], ...]:
    """Return the name and the expression of each column that leaves, those of `*` only with a schema.

    Raises `ConfigError`.
    """
    source, nodes = _parse_list(option, text)
    binding = binding_over(source, schema)
    outputs = tuple(output for node in nodes for output in _bind_output(binding, node))
    check_grammar(source)
    return outputs


def _bind_output(binding: Binding, node: exp.Expr) -> list[tuple[str, Expression]]:
    """Return the columns that one of the expressions makes, with their names. Raises `ConfigError`."""
    if isinstance(node, exp.Star):
        return list(_others(binding, node))
    if isinstance(node, exp.Alias):
        return [(node.alias, _named(binding, node))]
    bound, source = _bound(binding, node), binding.source
    if not isinstance(bound, Column):
        raise source.error(node, f"{source.written(node)} has no name", "Give it one: expression AS name.")
    return [(bound.path[-1], bound)]


def _parse_list(option: str, text: str) -> tuple[Source, list[exp.Expr]]:
    """Return the text with its expressions. Raises `ConfigError` where it is no list of expressions."""
    source = Source(option, text, _SELECT)
    tree = parse(source)
    others = [name for name, value in tree.args.items() if value and name not in ("expressions", "kind")]
    if not isinstance(tree, exp.Select) or others or not tree.expressions:
        raise source.error(tree, "this is no list of columns and expressions", _EXAMPLE)
    return source, tree.expressions


def _bound(binding: Binding, node: exp.Expr) -> Expression:
    """Bind an expression. A whole column may be of any type, and a CHAR."""
    if isinstance(node, exp.Column) and len(node.parts) == 1:
        field = whole_column(binding, node)
        return Column((field.name,), field.type)
    bound = binding.bind(node)
    whole = binding.whole(node, bound)
    # What is more than a name is never taken for the column of the table.
    return bound if isinstance(whole, Column) else whole


def _named(binding: Binding, node: exp.Alias) -> Expression:
    """Bind an expression with a name. A null without a type gets that of the column of this name."""
    bound, schema = _bound(binding, node.this), binding.schema
    if schema is None or not pa.types.is_null(bound.kind):
        return bound
    index = schema.get_field_index(node.alias)
    if index < 0 or not is_scalar(value_type(schema.field(index).type)):
        raise binding.source.error(
            node, "a null needs a type", f"Write CAST(NULL AS STRING) AS {node.alias}, or another type."
        )
    return Literal(None, value_type(schema.field(index).type))


def _others(binding: Binding, node: exp.Star) -> Iterator[tuple[str, Expression]]:
    """Yield all columns but those that `* EXCLUDE` names."""
    if any(value for name, value in node.args.items() if name != "except_"):
        raise binding.source.error(node, "only EXCLUDE can follow *", _EXAMPLE)
    named = node.args.get("except_") or ()
    for name in named:
        if not isinstance(name, exp.Column) or len(name.parts) != 1:
            raise binding.source.error(name, "EXCLUDE takes names of columns alone", _EXAMPLE)
    excluded = {whole_column(binding, name).name for name in named}
    for field in binding.schema or ():
        if field.name not in excluded:
            yield field.name, Column((field.name,), field.type)
