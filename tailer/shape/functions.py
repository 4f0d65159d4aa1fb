"""The functions of expressions as Arrow kernels; those that evaluate their arguments themselves are in `evaluate`.

Arithmetic is that of Spark's ANSI mode: integers overflow by an error, and nothing is divided by zero. Keyed hashes are
made by a secret that only this process reads: expressions have no more than where it is.
"""

import hashlib
import hmac
import os
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.errors import ConfigError
from tailer.shape import comparisons
from tailer.shape.casts import cast, cast_can_fail
from tailer.shape.tree import Call, Literal, Values
from tailer.shape.types import STRING
from tailer.shape.variants import value_at

__all__ = ["FUNCTIONS", "UNSTABLE", "read_secret"]

# Characters that Unicode 16, which Spark uses, changes to another case than the versions of Python before 3.14.
UNSTABLE: Final = frozenset("\u019b\u0264\u0295\ua7d3\ua7d5")
_OPTION: Final = "hmac_sha256"
_REMEDY: Final = "Name it as 'env:VARIABLE' or 'file:/path'."


def _divisor_can_be_zero(call: Call) -> bool:
    """Return whether the second argument can be zero."""
    divisor = call.arguments[1]
    return not isinstance(divisor, Literal) or divisor.value == 0


def _remainder(_: pa.DataType, left: Values, right: Values) -> Values:
    """Return the remainder of integers, with the sign of `left`."""
    one = pa.scalar(1, right.type)
    # A division by -1 overflows for the least number, and its remainder is that of a division by 1.
    right = pc.if_else(pc.equal(right, pa.scalar(-1, right.type)), one, right)
    return pc.subtract(left, pc.multiply(pc.divide_checked(left, right), right))


def _change_case(ascii_only: Callable[[Values], Values], change: Callable[[str], str]) -> Callable[..., Values]:
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
        answer = pc.string_is_ascii(values)
        is_ascii = answer.as_py() is not False if isinstance(answer, pa.Scalar) else answer.false_count == 0
        if is_ascii:
            return ascii_only(values)
        if isinstance(values, pa.Scalar):
            return pa.scalar(of_one(values.as_py()), STRING)
        return pa.array([of_one(text) for text in values.to_pylist()], STRING)

    return run


def _sliced(values: Values, position: int, length: int) -> Values:
    """Return `substring(values, position, length)`: positions count from 1, negative ones from the end."""
    if length <= 0:
        return pc.utf8_slice_codeunits(values, start=0, stop=0)
    if position >= 0:
        start = max(position - 1, 0)
        return pc.utf8_slice_codeunits(values, start=start, stop=start + length)
    end = position + length
    return pc.utf8_slice_codeunits(values, start=position, stop=end if end < 0 else None)


def _hashed(values: Values, bits: int) -> Values:
    """Return the SHA-2 of texts or bytes, as hexadecimal text."""
    new = {224: hashlib.sha224, 256: hashlib.sha256, 384: hashlib.sha384, 512: hashlib.sha512}[bits]
    raw = pc.cast(values, pa.binary())
    if isinstance(raw, pa.Scalar):
        return pa.scalar(new(raw.as_py()).hexdigest() if raw.is_valid else None, STRING)
    return pa.array([None if value is None else new(value).hexdigest() for value in raw.to_pylist()], STRING)


def _replaced(values: Values, search: str, replacement: str) -> Values:
    """Return `replace(values, search, replacement)`: an empty search finds nothing."""
    return pc.replace_substring(values, pattern=search, replacement=replacement) if search else values


def _translated(values: Values, old: str, new: str) -> Values:
    """Return `translate(values, old, new)`: the first of equal characters counts, and U+0000 deletes as in Spark."""
    others = [None if character == "\0" else character for character in new]
    places = {character: place for place, character in reversed(list(enumerate(old)))}
    table = {ord(character): others[place] if place < len(others) else None for character, place in places.items()}
    if isinstance(values, pa.Scalar):
        return pa.scalar(values.as_py().translate(table) if values.is_valid else None, STRING)
    return pa.array([None if text is None else text.translate(table) for text in values.to_pylist()], STRING)


def _keyed_hash(values: Values, place: str) -> Values:
    """Return the HMAC-SHA-256 of texts or bytes, as hexadecimal text. `place`: of the secret.

    Raises `ConfigError` where there is no secret.
    """
    secret, raw = read_secret(place), pc.cast(values, pa.binary())
    if isinstance(raw, pa.Scalar):
        return pa.scalar(hmac.new(secret, raw.as_py(), "sha256").hexdigest() if raw.is_valid else None, STRING)
    # Most columns that need a mask have each value several times.
    distinct = raw.dictionary_encode()
    hashes = [hmac.new(secret, value, "sha256").hexdigest() for value in distinct.dictionary.to_pylist()]
    return pa.array(hashes, STRING).take(distinct.indices)


@lru_cache(maxsize=16)
def read_secret(place: str) -> bytes:
    """Return the secret at `place`: `env:VARIABLE`, or `file:/path`, whose last newline does not count.

    Each process reads it once. Raises `ConfigError` where there is none.
    """
    kind, _, name = place.partition(":")
    if kind == "env" and name:
        secret = os.environ.get(name, "").encode()
        missing = f"the environment has no {name}"
    elif kind == "file" and name:
        try:
            secret = Path(name).read_bytes().removesuffix(b"\n")
        except OSError as error:
            raise ConfigError(_OPTION, f"the secret in {name} cannot be read: {error.strerror}", _REMEDY) from None
        missing = f"{name} is empty"
    else:
        raise ConfigError(_OPTION, f"{place!r} is no place of a secret", _REMEDY)
    if not secret:
        raise ConfigError(_OPTION, missing, "Give it a secret that nobody can guess, such as 32 random bytes in hex.")
    return secret


def _always(_: Call) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Function:
    """A function. `run` gets the type of the result and the arguments, and raises `pa.ArrowInvalid` if it fails."""

    run: Callable[..., Values]
    can_fail: Callable[[Call], bool] = lambda _: False


def _plain(kernel: Callable[..., Values]) -> _Function:
    return _Function(lambda _, *values: kernel(*values))


def _swapped(compare: Callable[[Values, Values], Values]) -> _Function:
    return _Function(lambda _, left, right: compare(right, left))


def _checked(kernel: Callable[..., Values]) -> _Function:
    """Return a function whose result can be beyond an integer type."""
    return _Function(lambda _, *values: kernel(*values), lambda call: bool(pa.types.is_integer(call.kind)))


def _part_of_time(kernel: Callable[[Values], Values]) -> _Function:
    return _Function(lambda kind, value: pc.cast(kernel(value), kind))


def _with_pattern(kernel: Callable[..., Values]) -> _Function:
    """Return a function whose second argument is a literal that is not null."""
    return _Function(lambda _, value, pattern: kernel(value, pattern=pattern.as_py()))


def _with_two_texts(kernel: Callable[[Values, str, str], Values]) -> _Function:
    """Return a function whose second and third arguments are literals that are not null."""
    return _Function(lambda _, value, first, second: kernel(value, first.as_py(), second.as_py()))


FUNCTIONS: Final[Mapping[str, _Function]] = {
    "=": _plain(comparisons.equal),
    "<=>": _plain(comparisons.equal_or_both_null),
    "<": _plain(comparisons.less),
    "<=": _plain(comparisons.less_or_equal),
    ">": _swapped(comparisons.less),
    ">=": _swapped(comparisons.less_or_equal),
    "not": _plain(pc.invert),
    "is null": _plain(pc.is_null),
    "cast": _Function(cast, cast_can_fail),
    "+": _checked(pc.add_checked),
    "-": _checked(pc.subtract_checked),
    "*": _checked(pc.multiply_checked),
    "/": _Function(lambda _, left, right: pc.divide_checked(left, right), _divisor_can_be_zero),
    "%": _Function(_remainder, _divisor_can_be_zero),
    "negative": _checked(pc.negate_checked),
    "abs": _checked(pc.abs_checked),
    "concat": _plain(lambda *values: pc.binary_join_element_wise(*values, "", null_handling="emit_null")),
    "upper": _Function(_change_case(pc.ascii_upper, str.upper), _always),
    "lower": _Function(_change_case(pc.ascii_lower, str.lower), _always),
    "length": _plain(pc.utf8_length),
    "length of bytes": _plain(pc.binary_length),
    "substring": _Function(lambda _, value, start, length: _sliced(value, start.as_py(), length.as_py())),
    "trim": _plain(lambda value: pc.utf8_trim(value, characters=" ")),
    "ltrim": _plain(lambda value: pc.utf8_ltrim(value, characters=" ")),
    "rtrim": _plain(lambda value: pc.utf8_rtrim(value, characters=" ")),
    "startswith": _with_pattern(pc.starts_with),
    "endswith": _with_pattern(pc.ends_with),
    "contains": _with_pattern(pc.match_substring),
    "replace": _with_two_texts(_replaced),
    "translate": _with_two_texts(_translated),
    "year": _part_of_time(pc.year),
    "month": _part_of_time(pc.month),
    "day": _part_of_time(pc.day),
    "hour": _part_of_time(pc.hour),
    "variant_get": _Function(partial(value_at, True), _always),
    "try_variant_get": _Function(partial(value_at, False), _always),
    "hmac_sha256": _Function(lambda _, value, place: _keyed_hash(value, place.as_py())),
    "sha2": _Function(lambda _, value, bits: _hashed(value, bits.as_py())),
}
