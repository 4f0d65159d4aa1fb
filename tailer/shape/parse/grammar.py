"""Spark's grammar of what is supported in expressions, held against the tokens of a text.

sqlglot reads what many databases write, and more: `CASE WHEN a b END`, `i IN (1,)`, `INT '1'`, `BETWEEN 1 2`. Spark
refuses all of that, and so do we: operands and operators alternate, and keywords and brackets belong together. The rest
is in the tree.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final, NoReturn

from sqlglot import Token, TokenType

from tailer.shape.parse.source import SEE, Source

__all__ = ["check_grammar"]

_VALUES: Final = frozenset(
    [TokenType.NUMBER, TokenType.STRING, TokenType.HEX_STRING, TokenType.TRUE, TokenType.FALSE, TokenType.NULL]
)
_OPERATORS: Final = ("=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>", "+", "-", "*", "/", "%", "||")
_NEGATED: Final = ("IN", "LIKE", "BETWEEN")
_TYPED: Final = ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ")
_TYPE: Final = re.compile(
    "BOOLEAN|BYTE|TINYINT|SHORT|SMALLINT|INT|INTEGER|LONG|BIGINT|FLOAT|REAL|DOUBLE|STRING|BINARY|DATE"
    r"|TIMESTAMP|TIMESTAMP_NTZ|TIMESTAMP_LTZ|(?:DECIMAL|DEC|NUMERIC)(?: \( \d+(?: , \d+)? \))?"
    r"|(?:VARCHAR|CHAR|CHARACTER) \( \d+ \)",
    re.ASCII,
)
_NAME: Final = re.compile(r"\w+|`.*`", re.DOTALL)
_SUFFIXED: Final = re.compile(r"\d+[LSY]|(?:\d+\.?\d*|\.\d+)(?:E[+-]?\d+)?(?:D|F|BD)", re.ASCII | re.IGNORECASE)
# The first number that a type lacks. That of floats is half a step above their largest one, to which is rounded.
_LIMITS: Final = {"Y": 1 << 7, "S": 1 << 15, "L": 1 << 63, "F": 3.4028235677973366e38}


def check_grammar(source: Source) -> None:
    """Raise `ConfigError` where Spark does not read a text that sqlglot has read."""
    _Reader(source).read()


class _Reader:
    """The tokens of a text, read once. `read` methods begin at the next token, and end behind what they read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tokens = source.tokens
        self._at = 0

    def read(self) -> None:
        """Read a condition, or the list of a SELECT."""
        if self._takes("SELECT"):
            self._list(self._output)
        else:
            self._expression()
        if self._at < len(self._tokens):
            self._refuse()

    def _output(self) -> None:
        """Read a column that leaves."""
        if self._takes("*"):
            if self._takes("EXCLUDE", "EXCEPT"):
                self._must("(")
                self._list(self._name)
                self._must(")")
            return
        self._expression()
        if self._takes("AS") or self._next() not in (",", ""):
            self._name()

    def _list(self, read: Callable[[], None]) -> None:
        read()
        while self._takes(","):
            read()

    def _expression(self) -> None:
        """Read conditions with AND and OR between them."""
        self._condition()
        while self._takes("AND", "OR"):
            self._condition()

    def _condition(self) -> None:
        """Read a value, with at most one predicate behind it."""
        while self._takes("NOT", "!"):
            pass
        self._value()
        if self._takes("IS"):
            self._takes("NOT")
            if self._takes("DISTINCT"):
                self._must("FROM")
                self._value()
            else:
                self._must("NULL", "TRUE", "FALSE", "UNKNOWN")
            return
        if self._takes("NOT") and self._next() not in _NEGATED:
            self._refuse()
        if self._takes("IN"):
            self._must("(")
            self._list(self._expression)
            self._must(")")
        elif self._takes("BETWEEN"):
            self._value()
            self._must("AND")
            self._value()
        elif self._takes("LIKE"):
            self._value()
            if self._takes("ESCAPE"):
                self._operand()

    def _value(self) -> None:
        """Read operands with operators between them."""
        self._operand()
        while self._takes(*_OPERATORS):
            self._operand()

    def _operand(self) -> None:
        """Read an operand, with signs before it, and with types behind it."""
        while self._takes("+", "-"):
            pass
        token = self._token()
        if token is None:
            self._refuse()
        elif self._takes("("):
            self._list(self._expression)
            self._must(")")
        elif token.token_type is TokenType.NUMBER or self._takes("."):
            self._number(token)
        elif token.token_type in _VALUES:
            self._at += 1
        elif self._takes("CASE"):
            self._case()
        else:
            self._named()
        while self._next() == "::":
            self._at += 1
            self._type(self._at)

    def _number(self, first: Token) -> None:
        """Read a number. One such as `.5` is two tokens of sqlglot, one with a suffix three."""
        number = self._token()
        if number is None or number.token_type is not TokenType.NUMBER or number.start > first.end + 1:
            self._refuse()
        self._at += 1
        suffix = self._token()
        if suffix is None or suffix.end != number.end:
            return
        self._at += 2
        place = (first.start, suffix.end + 1)
        written = self._source.text[slice(*place)] if first is not number else self._text(suffix)
        if not _SUFFIXED.fullmatch(written):
            self._refuse(place=place)
        limit = _LIMITS.get(written[-1].upper())
        if limit is not None and not -limit <= Decimal(number.text) < limit:
            self._refuse("Its type has no such number.", place)

    def _case(self) -> None:
        if self._next() != "WHEN":
            self._expression()
        self._must("WHEN")
        while True:
            self._expression()
            self._must("THEN")
            self._expression()
            if not self._takes("WHEN"):
                break
        if self._takes("ELSE"):
            self._expression()
        self._must("END")

    def _named(self) -> None:
        """Read what begins with a name: a column, a call, CAST, a date or a timestamp."""
        token, name = self._token(), self._next()
        self._name()
        text = self._token()
        if token is not None and text is not None and text.token_type is TokenType.STRING:
            if name not in _TYPED:
                written = self._source.text[token.start : text.end + 1]
                remedy = "Write CAST(... AS ...)."
                raise self._source.error_at((token.start, text.end + 1), f"{written} is not supported", remedy)
            self._at += 1
        elif self._takes("("):
            if name == "CAST":
                self._expression()
                self._must("AS")
                self._type(self._at)
            elif self._next() != ")":
                self._list(self._expression)
            self._must(")")
        else:
            self._path()

    def _path(self) -> None:
        """Read fields of structs and steps in a Variant, such as `.a:b[0].c`."""
        in_variant = False
        while True:
            if self._takes("."):
                self._name()
            elif not in_variant and self._takes(":"):
                in_variant = True
                if self._next() != "[":
                    self._name()
            elif in_variant and self._takes("["):
                self._at += 1
                self._must("]")
            elif in_variant and self._next() != "::":
                self._refuse()
            else:
                return

    def _type(self, first: int) -> None:
        """Read the name of a type."""
        self._name()
        if self._takes("("):
            while self._next() not in (")", ""):
                self._at += 1
            self._must(")")
        tokens = self._tokens[first : self._at]
        if not _TYPE.fullmatch(" ".join(map(self._text, tokens)).upper()):
            place = tokens[0].start, tokens[-1].end + 1
            raise self._source.error_at(place, f"CAST to {self._source.text[slice(*place)]} is not supported")

    def _name(self) -> None:
        token = self._token()
        if token is None or token.token_type is TokenType.NUMBER or not _NAME.fullmatch(self._text(token)):
            self._refuse()
        self._at += 1

    def _token(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _text(self, token: Token) -> str:
        return self._source.text[token.start : token.end + 1]

    def _next(self) -> str:
        """Return the next token as it is written, in capitals; empty: there is none."""
        token = self._token()
        return "" if token is None else self._text(token).upper()

    def _takes(self, *texts: str) -> bool:
        """Read the next token if it is one of these."""
        is_next = self._next() in texts
        self._at += is_next
        return is_next

    def _must(self, *texts: str) -> None:
        if not self._takes(*texts):
            self._refuse()

    def _refuse(self, remedy: str = SEE, place: tuple[int, int] | None = None) -> NoReturn:
        """Raise the error about the next token, or about another place."""
        token = self._token()
        if place is None:
            end = len(self._source.text)
            place = (token.start, token.end + 1) if token else (end, end)
        raise self._source.error_at(place, "Spark cannot read this", remedy)
