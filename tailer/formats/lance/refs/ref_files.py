"""Files of branches and tags: one JSON object each, below `_refs`, named after the branch or tag."""

import json
from typing import Any, Final
from urllib.parse import quote, unquote

from tailer.errors import ConfigError, LogCorrupt, ObjectNotFound, did_you_mean
from tailer.stores.port import ObjectStore

__all__ = ["number_of", "read_ref"]

_SUFFIX: Final = ".json"


async def read_ref(store: ObjectStore, kind: str, name: str, where: str) -> dict[str, Any]:
    """Read the file of a branch (`kind`: branches) or tag (tags).

    Raises `ConfigError` naming `where` for a name that the dataset does not have, and `LogCorrupt`.
    """
    folder = f"_refs/{kind}"
    path = f"{folder}/{quote(name, safe='')}{_SUFFIX}"
    try:
        found = await store.read(path, lambda stored: json.loads(stored.data))
    except ObjectNotFound:
        listed = [each.name.rpartition("/")[2] for each in await store.list(folder)]
        known = [unquote(each.removesuffix(_SUFFIX)) for each in listed if each.endswith(_SUFFIX)]
        remedy = did_you_mean(name, known) or f"Its {kind}: {', '.join(known) or 'none'}."
        raise ConfigError(where, f"{store.uri} has no {name!r} among its {kind}", remedy) from None
    except ValueError as error:
        raise LogCorrupt(store.uri, path, f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise LogCorrupt(store.uri, path, "not a JSON object")
    return found


def number_of(found: dict[str, Any], key: str, store: ObjectStore, name: str) -> int:
    """Return a version in the file of the branch or tag `name`. Raises `LogCorrupt`."""
    value = found.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise LogCorrupt(store.uri, f"_refs, {name}", f"{key} is not a version")
    return value
