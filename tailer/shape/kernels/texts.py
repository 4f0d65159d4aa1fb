"""Functions of text that Arrow has not, or not as Spark does them."""

import hashlib
import unicodedata
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.shape.rows import Values
from tailer.shape.types import STRING

__all__ = ["UNSTABLE", "change_case", "hashed", "replaced", "sliced", "translated"]

# Characters that Unicode 16, which Spark uses, changes to another case than the versions of Python before 3.14.
UNSTABLE: Final = frozenset("\u019b\u0264\u0295\ua7d3\ua7d5")


def change_case(ascii_only: Callable[[Values], Values], change: Callable[[str], str]) -> Callable[..., Values]:
    """Return the function that changes the case of texts: by Arrow if all are ASCII, else by Unicode's full mappings.

    It fails for characters whose case depends on the version of Unicode: those that this Python has not, and a few.
    """

    def of_one(text: str | None) -> str | None:
        if text is None or text.isascii():
            return text if text is None else change(text)
        if any(character in UNSTABLE or unicodedata.category(character) == "Cn" for character in text):
            raise pa.ArrowInvalid("the case of a character depends on the version of Unicode")
        return change(text)

    def run(_: pa.DataType, values: Values) -> Values:
        if _is_ascii(values):
            return ascii_only(values)
        if isinstance(values, pa.Scalar):
            return pa.scalar(of_one(values.as_py()), STRING)
        return pa.array([of_one(text) for text in values.to_pylist()], STRING)

    return run


def _is_ascii(values: Values) -> bool:
    answer = pc.string_is_ascii(values)
    return answer.as_py() is not False if isinstance(answer, pa.Scalar) else answer.false_count == 0


def sliced(values: Values, position: int, length: int) -> Values:
    """Return `substring(values, position, length)`: positions count from 1, negative ones from the end."""
    if length <= 0:
        return pc.utf8_slice_codeunits(values, start=0, stop=0)
    if position >= 0:
        start = max(position - 1, 0)
        return pc.utf8_slice_codeunits(values, start=start, stop=start + length)
    end = position + length
    return pc.utf8_slice_codeunits(values, start=position, stop=end if end < 0 else None)


def hashed(values: Values, bits: int) -> Values:
    """Return the SHA-2 of texts or bytes, as hexadecimal text."""
    new = {224: hashlib.sha224, 256: hashlib.sha256, 384: hashlib.sha384, 512: hashlib.sha512}[bits]
    raw = pc.cast(values, pa.binary())
    if isinstance(raw, pa.Scalar):
        return pa.scalar(new(raw.as_py()).hexdigest() if raw.is_valid else None, STRING)
    return pa.array([None if value is None else new(value).hexdigest() for value in raw.to_pylist()], STRING)


def replaced(values: Values, search: str, replacement: str) -> Values:
    """Return `replace(values, search, replacement)`: an empty search finds nothing."""
    return pc.replace_substring(values, pattern=search, replacement=replacement) if search else values


def translated(values: Values, old: str, new: str) -> Values:
    """Return `translate(values, old, new)`: the first of equal characters counts, and U+0000 deletes as in Spark."""
    others = [None if character == "\0" else character for character in new]
    places = {character: place for place, character in reversed(list(enumerate(old)))}
    table = {ord(character): others[place] if place < len(others) else None for character, place in places.items()}
    if isinstance(values, pa.Scalar):
        return pa.scalar(values.as_py().translate(table) if values.is_valid else None, STRING)
    return pa.array([None if text is None else text.translate(table) for text in values.to_pylist()], STRING)
