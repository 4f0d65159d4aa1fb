"""Comparisons as Spark does them: NaN equals NaN and is greater than all other numbers, and -0.0 equals 0.0.

Both sides have one type. Texts and bytes are compared byte by byte. Of LIKE, `%` is any text, `_` is any character, and
the escape character makes the next one of these literal.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.shape.tree import Values

__all__ = ["equal", "equal_or_both_null", "is_in", "less", "less_or_equal", "parse_pattern"]

_ANY_TEXT: Final = "%"
_ANY_CHARACTER: Final = "_"


def equal(left: Values, right: Values) -> Values:
    """Return `left = right`; null where one is null."""
    answer = pc.equal(left, right)
    if not _may_be_nan(left) or not _may_be_nan(right):
        return answer
    return pc.or_kleene(answer, pc.and_kleene(pc.is_nan(left), pc.is_nan(right)))


def less(left: Values, right: Values) -> Values:
    """Return `left < right`; null where one is null."""
    answer = pc.less(left, right)
    if not _may_be_nan(right):
        return answer
    return pc.or_kleene(answer, pc.and_kleene(pc.invert(pc.is_nan(left)), pc.is_nan(right)))


def less_or_equal(left: Values, right: Values) -> Values:
    """Return `left <= right`; null where one is null."""
    answer = pc.less_equal(left, right)
    if not _may_be_nan(right):
        return answer
    return pc.or_kleene(answer, pc.and_kleene(pc.is_nan(right), pc.is_valid(left)))


def equal_or_both_null(left: Values, right: Values) -> Values:
    """Return `left <=> right`, which is never null."""
    if isinstance(right, pa.Scalar) and isinstance(left, pa.Array):
        return pc.fill_null(equal(left, right), False) if right.is_valid else pc.is_null(left)
    both = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.coalesce(equal(left, right), pa.scalar(False)), both)


def is_in(values: Values, items: Sequence[pa.Scalar]) -> Values:
    """Return `values IN (found)`: null where the value is null, or is none of them and one of them is null."""
    not_null = [item for item in items if item.is_valid]
    listed = pa.array(not_null, items[0].type)
    if pa.types.is_floating(listed.type):
        # The kernel tells the two zeros apart.
        zeros = pa.array([0.0, -0.0], listed.type)
        listed = pa.concat_arrays([listed, zeros]) if 0.0 in listed.to_pylist() else listed
    answer = pc.is_in(values, value_set=listed, skip_nulls=True)
    unknown = pc.is_null(values)
    if len(not_null) < len(items):
        unknown = pc.or_(unknown, pc.invert(answer))
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), answer)


def _may_be_nan(values: Values) -> bool:
    if not pa.types.is_floating(values.type):
        return False
    return not isinstance(values, pa.Scalar) or bool(values.is_valid and values.as_py() != values.as_py())


@dataclass(frozen=True, slots=True)
class _Pattern:
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


def parse_pattern(text: str, escape: str) -> _Pattern:
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
    return _Pattern(tuple(parts))
