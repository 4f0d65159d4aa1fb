"""The hint where to begin reading a long log (PROTOCOL.md, "Last Checkpoint File").

`_last_checkpoint` is overwritten in place by whoever wrote a checkpoint last, so it may be old, torn or missing. It is
a hint and nothing more: one that cannot be read, or whose checksum does not match, is as good as none.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from tailer.errors import ObjectNotFound
from tailer.stores.local import ObjectStore, StoredObject

__all__ = ["LAST_CHECKPOINT", "json_checksum", "parse_last_checkpoint", "read_last_checkpoint"]

LAST_CHECKPOINT: Final = "_delta_log/_last_checkpoint"

_log: Final = logging.getLogger(__name__)


class _Hint(msgspec.Struct, frozen=True):
    version: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    checksum: str | None = None


class _Number(str):
    """A number as it is written: its own canonical form."""

    __slots__ = ()


async def read_last_checkpoint(store: ObjectStore) -> int | None:
    """The version of the checkpoint that the hint names; None without a hint that can be believed.

    Raises `StorageUnavailable`.
    """

    def parse(stored: StoredObject) -> int | None:
        try:
            return parse_last_checkpoint(stored.data)
        except ValueError as error:
            _log.warning("%s: %s is not used: %s", store.uri, LAST_CHECKPOINT, error)
            return None

    try:
        return await store.read(LAST_CHECKPOINT, parse)
    except ObjectNotFound:
        return None


def parse_last_checkpoint(data: bytes) -> int:
    """The version in the content of `_last_checkpoint`. Raises `ValueError` for anything but a sound one."""
    try:
        hint = msgspec.json.decode(data, type=_Hint)
        found = json_checksum(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if hint.checksum not in (None, found):
        raise ValueError(f"its checksum is {found}, it says {hint.checksum}")
    return hint.version


def json_checksum(data: bytes) -> str:
    """The checksum of a JSON object, leaving out its `checksum` (PROTOCOL.md, "JSON checksum").

    Raises `ValueError` where it is not JSON or has a key twice.
    """
    value = json.loads(data, object_pairs_hook=_unique, parse_int=_Number, parse_float=_Number)
    value.pop("checksum", None)
    canonical = ",".join(f"{path}={text}" for path, text in sorted(_canonical(value, ())))
    return hashlib.md5(canonical.encode(), usedforsecurity=False).hexdigest()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _canonical(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Paths and values of the leaves of `value` (PROTOCOL.md, "JSON checksum"). An empty object or array has none."""
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
