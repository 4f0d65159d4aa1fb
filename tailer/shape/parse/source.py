"""SQL text becomes the tree of sqlglot, with the names of functions as they are written, and positions for errors.

sqlglot takes 0.3 s to import, so this module and those that use it are imported when an expression is parsed.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, ClassVar, Final

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser

from tailer.errors import ConfigError
from tailer.shape.parse.literals import text_of

__all__ = ["SEE", "Plus", "Source", "parse"]

_EXCERPT: Final = 60
SEE: Final = "docs/shape.md lists what expressions may be made of."
_SIDES: Final = ("this", "expression")
_OPERATOR: Final = re.compile(r"[A-Za-z_ ]+|[^\w\s()'\"`.,]+")
# A comment that goes on in the next line for Spark, and a hint.
_COMMENT: Final = re.compile(r"--[^\n]*\\\r?\n|/\*\+")
# sqlglot trips over some texts, such as `{: 1}`.
_UNREADABLE: Final = (SqlglotError, AttributeError, ValueError, ArithmeticError)
_BEFORE_OPERANDS: Final = frozenset(
    [
        *(TokenType.L_PAREN, TokenType.COMMA, TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT),
        *(TokenType.GTE, TokenType.NULLSAFE_EQ, TokenType.PLUS, TokenType.DASH, TokenType.STAR, TokenType.SLASH),
        *(TokenType.MOD, TokenType.DPIPE, TokenType.AND, TokenType.OR, TokenType.NOT, TokenType.WHEN, TokenType.THEN),
        *(TokenType.ELSE, TokenType.CASE, TokenType.BETWEEN, TokenType.LIKE, TokenType.SELECT, TokenType.FROM),
    ]
)
_TEXTS: Final = (TokenType.STRING, TokenType.RAW_STRING)


class Plus(exp.Unary):
    """A plus before an operand, which sqlglot would leave out."""


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
    PRIMARY_PARSERS: ClassVar = {
        **SparkParser.PRIMARY_PARSERS,
        TokenType.NULL: lambda parser, token: parser.expression(exp.Null(), token),
        TokenType.TRUE: lambda parser, token: parser.expression(exp.Boolean(this=True), token),
        TokenType.FALSE: lambda parser, token: parser.expression(exp.Boolean(this=False), token),
    }
    UNARY_PARSERS: ClassVar = {
        **SparkParser.UNARY_PARSERS,
        TokenType.PLUS: lambda parser: parser.expression(Plus(this=parser._parse_unary())),  # noqa: SLF001 - as theirs do
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar = {
        name: parser for name, parser in SparkParser.NO_PAREN_FUNCTION_PARSERS.items() if name == "CASE"
    }


class _Dialect(Spark):
    Parser = _Parser


class Source:
    """The text of an expression, for errors that point into it.

    `option`: the option that has it. `prefix`: what is put before the text so that it can be parsed. `tokens`: those of
    the text that `parse` has read.
    """

    def __init__(self, option: str, text: str, prefix: str = "") -> None:
        self.option = option
        self.text = prefix + text
        self.tokens: list[Token] = []
        self._prefix = len(prefix)

    def span(self, node: exp.Expr) -> tuple[int, int] | None:
        """Return the first character of a node, and the one after its last; None: unknown."""
        places = [part.meta for part in node.walk() if "start" in part.meta]
        if not places:
            return None
        begin, end = min(part["start"] for part in places), max(part["end"] for part in places) + 1
        missing = self.text.count("(", begin, end) - self.text.count(")", begin, end)
        for _ in range(missing):  # sqlglot has no place for what closes a list
            closing = self.text.find(")", end) + 1
            end = closing or end
        return begin, end

    def written(self, node: exp.Expr) -> str:
        """Return a node as it is written; where that is not known, all of the text."""
        return self.text[slice(*(self.span(node) or (self._prefix, None)))]

    def operator(self, node: exp.Expr) -> str:
        """Return the operator of a node as it is written, such as `RLIKE`; empty where it has none."""
        left, right = (self.span(side) if isinstance(side, exp.Expr) else None for side in map(node.args.get, _SIDES))
        written = self.text[left[1] : right[0]].strip() if left and right else ""
        return " ".join(written.split()) if _OPERATOR.fullmatch(written) else ""

    def error(self, node: exp.Expr, reason: str, remedy: str = SEE) -> ConfigError:
        """Return an error that points at a node."""
        return self.error_at(self.span(node), reason, remedy)

    def error_at(self, span: tuple[int, int] | None, reason: str, remedy: str = SEE) -> ConfigError:
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
        tokens = dialect.tokenize(source.text)
        _check_comments(source, tokens)
        source.tokens = _with_signs(_with_texts(source, tokens))
        trees = dialect.parser().parse(source.tokens, source.text)
    except _UNREADABLE as error:
        reason, remedy = "this is no SQL expression", "Write a condition of SQL, such as country = 'DE'."
        places = getattr(error, "errors", [])
        span = None
        if places and places[0].get("line"):
            lines = source.text.splitlines(keepends=True)
            end = sum(map(len, lines[: places[0]["line"] - 1])) + places[0]["col"]
            length = len(places[0].get("highlight") or " ")
            span = (max(0, end - length), end)
        raise source.error_at(span, reason, remedy) from None
    if len(trees) != 1 or trees[0] is None:
        raise source.error_at(None, "this is not one SQL expression", "Write one condition, such as country = 'DE'.")
    return trees[0]


def _check_comments(source: Source, tokens: Sequence[Token]) -> None:
    ends = [0, *(token.end + 1 for token in tokens)]
    starts = [*(token.start for token in tokens), len(source.text)]
    for end, start in zip(ends, starts, strict=True):
        if start > end and _COMMENT.search(source.text, end, start):
            raise source.error_at((end, start), "Spark reads this comment otherwise", "Leave it out.")


def _with_texts(source: Source, tokens: Iterable[Token]) -> Iterator[Token]:
    """Yield the tokens with literals of text as Spark reads them, those that follow each other as one.

    That of a date or a timestamp (`DATE'2024-12-31'`) stays alone.
    """
    last = None
    for are_texts, group in groupby(tokens, lambda token: token.token_type in _TEXTS):
        if are_texts:
            texts = list(group)
            typed = last is not None and last.token_type in SparkParser.TYPE_TOKENS
            yield from (_text(source, literals) for literals in ([[token] for token in texts] if typed else [texts]))
        else:
            for last in group:
                yield last


def _text(source: Source, literals: Sequence[Token]) -> Token:
    first, last = literals[0], literals[-1]
    ends = [first.start, *(token.end + 1 for token in literals)]
    # What touches stays together: `'a''b'` is one literal for Spark, and two tokens of sqlglot.
    written = (
        " " * (token.start > end) + source.text[token.start : token.end + 1]
        for end, token in zip(ends, literals, strict=False)
    )
    try:
        text = text_of("".join(written))
    except ValueError as error:
        raise source.error_at((first.start, last.end + 1), str(error)) from None
    return Token(TokenType.STRING, text, first.line, first.col, first.start, last.end)


def _with_signs(tokens: Iterable[Token]) -> list[Token]:
    """Return the tokens with a minus as a part of the number behind it, where no operand is before it.

    So `-1::STRING` is the text of -1, and -128Y is a number although there is no 128Y.
    """
    signed: list[Token] = []
    for token in tokens:
        before = [earlier.token_type for earlier in signed[-2:]]
        is_signed = before[-1:] == [TokenType.DASH] and (len(before) == 1 or before[0] in _BEFORE_OPERANDS)
        if is_signed and token.token_type is TokenType.NUMBER:
            sign = signed.pop()
            signed.append(Token(token.token_type, f"-{token.text}", sign.line, sign.col, sign.start, token.end))
        else:
            signed.append(token)
    return signed
