"""The hint at the newest checkpoint of a long log (PROTOCOL.md, "Last Checkpoint File").

`_last_checkpoint` is overwritten in place by the writer of the last checkpoint, so it may be outdated, torn or missing.
It is only a hint: an unreadable one, or one with a wrong checksum, is ignored.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from tailer.errors import ObjectNotFound
from tailer.stores.port import ObjectStore, StoredObject

__all__ = ["LAST_CHECKPOINT", "json_checksum", "parse_last_checkpoint", "read_last_checkpoint"]

LAST_CHECKPOINT: Final = "_delta_log/_last_checkpoint"

_log: Final = logging.getLogger(__name__)


class _Hint(msgspec.Struct, frozen=True):
    version: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    checksum: str | None = None


class _Number(str):
    """A number as written in the JSON text, which is its canonical form."""

    __slots__ = ()


async def read_last_checkpoint(store: ObjectStore) -> int | None:
    """Read the version of the checkpoint that the hint names; None without a valid hint.

    Raises `StorageUnavailable`.
    """

    def parse(stored: StoredObject) -> int | None:
        try:
            return parse_last_checkpoint(stored.data)
        except ValueError as error:
            _log.warning("%s: ignoring %s: %s", store.uri, LAST_CHECKPOINT, error)
            return None

    try:
        return await store.read(LAST_CHECKPOINT, parse)
    except ObjectNotFound:
        return None


def parse_last_checkpoint(data: bytes) -> int:
    """Parse the version from `_last_checkpoint`. Raises `ValueError` for malformed content or a wrong checksum."""
    try:
        hint = msgspec.json.decode(data, type=_Hint)
        checksum = json_checksum(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if hint.checksum not in (None, checksum):
        raise ValueError(f"its checksum is {checksum}, it says {hint.checksum}")
    return hint.version


def json_checksum(data: bytes) -> str:
    """Compute the checksum of a JSON object without its `checksum` field (PROTOCOL.md, "JSON checksum").

    Raises `ValueError` for malformed JSON and for duplicate keys.
    """
    value = json.loads(data, object_pairs_hook=_unique, parse_int=_Number, parse_float=_Number)
    value.pop("checksum", None)
    canonical = ",".join(f"{path}={text}" for path, text in sorted(_canonical(value, ())))
    return hashlib.md5(canonical.encode(), usedforsecurity=False).hexdigest()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a duplicate key")
    return fields


def _canonical(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the paths and values of the leaves (PROTOCOL.md, "JSON checksum"). Empty objects and arrays have none."""
    match value:
        case dict():
            for key, item in value.items():
                yield from _canonical(item, (*path, _text(key)))
        case list():
            for index, item in enumerate(value):
                yield from _canonical(item, (*path, str(index)))
        case _Number():
            yield "+".join(path), value
        case str():
            yield "+".join(path), _text(value)
        case _:
            yield "+".join(path), json.dumps(value)


def _text(value: str) -> str:
    return f'"{quote(value, safe="")}"'
