"""LIKE: `%` is any text, `_` is any character, and the escape character makes the next one of these literal."""

import re
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc

from tailer.shape.rows import Values

__all__ = ["Pattern", "parse_pattern"]

_ANY_TEXT: Final = "%"
_ANY_CHARACTER: Final = "_"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern of LIKE. `parts`: literal texts, `%` and `_`, the latter two in tuples of their own."""

    parts: tuple[str | tuple[str], ...]

    @property
    def prefix(self) -> str:
        """The text with which every match begins."""
        return self.parts[0] if self.parts and isinstance(self.parts[0], str) else ""

    def match(self, values: Values) -> Values:
        """Return which texts match; null where the text is null."""
        match self.parts:
            case ():
                return pc.equal(values, "")
            case (str(text),):
                return pc.equal(values, text)
            case (str(text), ("%",)):
                return pc.starts_with(values, pattern=text)
            case (("%",), str(text)):
                return pc.ends_with(values, pattern=text)
            case (("%",), str(text), ("%",)):
                return pc.match_substring(values, pattern=text)
            case _:
                return pc.match_substring_regex(values, pattern=rf"\A(?s:{''.join(map(_regex, self.parts))})\z")


def _regex(part: str | tuple[str]) -> str:
    """Return a part as a regular expression of RE2."""
    if isinstance(part, tuple):
        return ".*" if part[0] == _ANY_TEXT else "."
    return "".join(char if char.isalnum() or ord(char) >= 128 else rf"\x{{{ord(char):x}}}" for char in part)


def parse_pattern(text: str, escape: str) -> Pattern:
    """Return the pattern of a text. Raises `ValueError` where the escape character is before any other character."""
    parts: list[str | tuple[str]] = []
    for match in re.finditer(rf"{re.escape(escape)}(.?)|(.)", text, re.DOTALL):
        escaped, plain = match[1], match[2]
        if plain in (_ANY_TEXT, _ANY_CHARACTER):
            if not (plain == _ANY_TEXT and parts and parts[-1] == (_ANY_TEXT,)):
                parts.append((plain,))
            continue
        if plain is None and escaped not in (_ANY_TEXT, _ANY_CHARACTER, escape):
            raise ValueError(f"the escape character {escape!r} is before {escaped or 'the end of the pattern'!r}")
        literal = escaped if plain is None else plain
        parts[-1:] = [parts[-1] + literal] if parts and isinstance(parts[-1], str) else [*parts[-1:], literal]
    return Pattern(tuple(parts))
