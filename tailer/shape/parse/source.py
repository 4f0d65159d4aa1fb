"""SQL text becomes the tree of sqlglot, with the names of functions as they are written, and positions for errors.

sqlglot takes 0.3 s to import, so this module and those that use it are imported when an expression is parsed.
"""

import re
from typing import Any, ClassVar, Final

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser

from tailer.errors import ConfigError

__all__ = ["Source", "parse"]

_EXCERPT: Final = 60
_SEE: Final = "docs/shape.md lists what expressions may be made of."
_SIDES: Final = ("this", "expression")
_OPERATOR: Final = re.compile(r"[A-Za-z_ ]+|[^\w\s()'\"`.,]+")
_TEXTS: Final = (TokenType.STRING, TokenType.RAW_STRING)


class _Parser(SparkParser):
    """Spark's grammar, with every function as it is written: sqlglot would give several functions one name.

    `v:a.b` is a path into a Variant, as in Databricks.
    """

    COLON_IS_VARIANT_EXTRACT = True
    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
    FUNCTION_PARSERS: ClassVar = {
        name: parser for name, parser in SparkParser.FUNCTION_PARSERS.items() if name in ("CAST", "TRY_CAST")
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar = {
        name: parser for name, parser in SparkParser.NO_PAREN_FUNCTION_PARSERS.items() if name == "CASE"
    }


class _Dialect(Spark):
    Parser = _Parser


class Source:
    """The text of an expression, for errors that point into it.

    `option`: the option that has it. `prefix`: what is put before the text so that it can be parsed.
    """

    def __init__(self, option: str, text: str, prefix: str = "") -> None:
        self.option = option
        self.text = prefix + text
        self._prefix = len(prefix)

    def span(self, node: exp.Expr) -> tuple[int, int] | None:
        """Return the first character of a node, and the one after its last; None: unknown."""
        places = [each.meta for each in node.walk() if "start" in each.meta]
        if not places:
            return None
        begin, end = min(each["start"] for each in places), max(each["end"] for each in places) + 1
        missing = self.text.count("(", begin, end) - self.text.count(")", begin, end)
        for _ in range(missing):  # sqlglot has no place for what closes a list
            closing = self.text.find(")", end) + 1
            end = closing or end
        return begin, end

    def of(self, node: exp.Expr) -> str:
        """Return a node as it is written, or nearly so."""
        span = self.span(node)
        return self.text[slice(*span)] if span else node.sql("spark")

    def operator(self, node: exp.Expr) -> str:
        """Return the operator of a node as it is written, such as `RLIKE`; empty where it has none."""
        left, right = (self.span(each) if isinstance(each, exp.Expr) else None for each in map(node.args.get, _SIDES))
        written = self.text[left[1] : right[0]].strip() if left and right else ""
        return " ".join(written.split()) if _OPERATOR.fullmatch(written) else ""

    def error(self, node: exp.Expr, reason: str, remedy: str = _SEE) -> ConfigError:
        """Return an error that points at a node."""
        return self.error_at(self.span(node), reason, remedy)

    def error_at(self, span: tuple[int, int] | None, reason: str, remedy: str = _SEE) -> ConfigError:
        """Return an error that points at the characters of a span."""
        if span is None:
            return ConfigError(self.option, f"{reason}: {self._excerpt(0)}", remedy)
        begin = max(span[0] - self._prefix, 0)
        return ConfigError(self.option, f"{reason}, at character {begin + 1}: {self._excerpt(begin)}", remedy)

    def _excerpt(self, begin: int) -> str:
        """Return what is written from a character on, in one line."""
        rest = " ".join(self.text[self._prefix + begin :].split())
        return rest if len(rest) <= _EXCERPT else f"{rest[:_EXCERPT]}..."


def parse(source: Source) -> exp.Expr:
    """Return the tree of an expression. Raises `ConfigError`."""
    dialect = _Dialect()
    try:
        found = dialect.parser().parse(_joined(dialect.tokenize(source.text)), source.text)
    except SqlglotError as error:
        reason, remedy = "this is no SQL expression", "Write a condition of SQL, such as country = 'DE'."
        places = getattr(error, "errors", [])
        span = None
        if places and places[0].get("line"):
            lines = source.text.splitlines(keepends=True)
            at = sum(map(len, lines[: places[0]["line"] - 1])) + places[0]["col"]
            length = len(places[0].get("highlight") or " ")
            span = (max(0, at - length), at)
        raise source.error_at(span, reason, remedy) from None
    if len(found) != 1 or found[0] is None:
        raise source.error_at(None, "this is not one SQL expression", "Write one condition, such as country = 'DE'.")
    return found[0]


def _joined(tokens: list[Token]) -> list[Token]:
    """Return the tokens with literals of text that follow each other as one, as Spark reads them."""
    joined: list[Token] = []
    for token in tokens:
        last = joined[-1] if joined else None
        if last is not None and last.token_type in _TEXTS and token.token_type in _TEXTS:
            text = last.text + token.text
            joined[-1] = Token(TokenType.STRING, text, token.line, token.col, last.start, token.end)
        else:
            joined.append(token)
    return joined
