"""The text of `select` becomes named expressions, by sqlglot.

sqlglot takes 0.3 s to import, so this module is imported when a text is parsed.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from sqlglot import exp

from tailer.shape.parse.bind import binding_over, whole_column
from tailer.shape.parse.binding import Binding
from tailer.shape.parse.grammar import check_grammar
from tailer.shape.parse.source import Source, parse
from tailer.shape.tree import Column, Expression, Literal
from tailer.shape.types import is_scalar, value_type

__all__ = ["bind_output", "bind_outputs", "parse_list"]

_SELECT: Final = "SELECT "
_EXAMPLE: Final = "Write columns and expressions, such as id, upper(country) AS country, * EXCLUDE (email)."


def bind_outputs(option: str, text: str, schema: pa.Schema | None) -> Iterator[tuple[str, Expression]]:
    """Yield the name and the expression of each column that leaves, those of `*` only with a schema.

    Raises `ConfigError`.
    """
    source, nodes = parse_list(option, text)
    binding = binding_over(source, schema)
    for node in nodes:
        yield from bind_output(binding, node)
    check_grammar(source)


def bind_output(binding: Binding, node: exp.Expr) -> list[tuple[str, Expression]]:
    """Return the columns that one of the expressions makes, with their names. Raises `ConfigError`."""
    if isinstance(node, exp.Star):
        return list(_others(binding, node))
    if isinstance(node, exp.Alias):
        return [(node.alias, _named(binding, node))]
    bound, source = _bound(binding, node), binding.source
    if not isinstance(bound, Column):
        raise source.error(node, f"{source.written(node)} has no name", "Give it one: expression AS name.")
    return [(bound.path[-1], bound)]


def parse_list(option: str, text: str) -> tuple[Source, list[exp.Expr]]:
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
