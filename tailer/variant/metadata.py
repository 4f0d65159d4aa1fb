"""The dictionary of names of a Variant (Variant Encoding, "Metadata encoding"), and the error about invalid values.

Values of one column mostly share a few dictionaries, so small ones are cached.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import gt
from typing import Final

__all__ = ["InvalidVariant", "Metadata", "unsigned"]


class InvalidVariant(ValueError):
    """A value, its metadata or the schema of its column is not valid."""


_VERSION: Final = 1
_CACHED: Final = 1024
_CACHED_BYTES: Final = 16_384
_FORMATS: Final = {2: "H", 4: "I"}


@dataclass(frozen=True, slots=True, eq=False)
class Metadata:
    """The names that values refer to by their index, and the index of each name. `data`: as encoded."""

    data: bytes
    names: tuple[str, ...]

    ids: Mapping[str, int]

    def ids_of(self, names: Iterable[str]) -> list[int]:
        """Return the indexes of names. Raises `InvalidVariant` for one that is not there."""
        try:
            return [self.ids[name] for name in names]
        except KeyError as error:
            raise InvalidVariant(f"the name {error.args[0]!r} is not in the metadata") from None

    @staticmethod
    def parse(data: bytes) -> "Metadata":
        """Decode metadata. Raises `InvalidVariant`.

        The flag for sorted names is not used: writers have set it wrongly.
        """
        return _parse_cached(data) if len(data) <= _CACHED_BYTES else _parse(data)


def unsigned(data: bytes, start: int, count: int, size: int) -> Sequence[int]:
    """Read `count` little-endian numbers of `size` bytes, 1 to 4, which must be there."""
    if size == 1:
        return data[start : start + count]
    if size == 3:
        return [int.from_bytes(data[i : i + 3], "little") for i in range(start, start + 3 * count, 3)]
    return struct.unpack_from(f"<{count}{_FORMATS[size]}", data, start)


def _parse(data: bytes) -> Metadata:
    if not data:
        raise InvalidVariant("the metadata is empty")
    header = data[0]
    if header & 0x0F != _VERSION:
        raise InvalidVariant(f"the metadata has version {header & 0x0F}; version {_VERSION} is known")
    size = (header >> 6) + 1
    count = int.from_bytes(data[1 : 1 + size], "little")
    start = 1 + size + (count + 1) * size
    if start > len(data):
        raise InvalidVariant("the metadata is shorter than its list of names")
    offsets = unsigned(data, 1 + size, count + 1, size)
    if offsets[0] != 0 or any(map(gt, offsets, offsets[1:])):
        raise InvalidVariant("the offsets of names in the metadata decrease")
    if start + offsets[-1] != len(data):
        raise InvalidVariant(f"the names in the metadata take {len(data) - start} bytes, not {offsets[-1]}")
    try:
        names = tuple(str(data[start + a : start + b], "utf-8") for a, b in pairwise(offsets))
    except UnicodeDecodeError:
        raise InvalidVariant("a name in the metadata is not UTF-8") from None
    return Metadata(data, names, {name: index for index, name in enumerate(names)})


_parse_cached: Final = lru_cache(_CACHED)(_parse)
