"""Check the stores of the configuration, without a request."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from tailer.errors import ConfigError
from tailer.stores.location import is_local, parse_location
from tailer.stores.s3.options import S3Options
from tailer.stores.stores import Stores

if TYPE_CHECKING:
    from tailer.config.file import Key, StoreShape

__all__ = ["configured_stores", "store_faults"]

Report = Callable[["Key", str, str], None]

_QUEUE_REMEDY: Final = "Give the URL of a queue, such as https://sqs.eu-central-1.amazonaws.com/123456789012/commits."
_ENDPOINT_REMEDY: Final = "Give one such as https://s3.example.com or http://127.0.0.1:9000."


def configured_stores(shapes: Mapping[str, "StoreShape"], report: Report) -> Stores:
    """Return the stores without a fault. Faults go to `report`."""
    found: dict[str, S3Options] = {}
    for name, shape in shapes.items():
        key = ("stores", name)
        given = {name: value for name, value in msgspec.structs.asdict(shape).items() if name != "prefix"}
        faults = list(store_faults(given))
        for option, reason, remedy in faults:
            report((*key, option), reason, remedy)
        try:
            prefix = parse_location(shape.prefix, Path("/"), "")
        except ConfigError as error:
            report((*key, "prefix"), error.reason, error.remedy)
            continue
        if is_local(prefix):
            report((*key, "prefix"), "is not in a store", "Give s3://BUCKET or s3://BUCKET/FOLDER.")
        elif prefix in found:
            report((*key, "prefix"), f"{prefix} has another table", "Keep one of the two.")
        elif not faults:
            found[prefix] = S3Options(**given, name=name)
    return Stores(tuple(found.items()))


def store_faults(given: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the option, the reason and the next step of each fault of `given`, the fields of `S3Options`.

    Values are in no text.
    """
    if given["endpoint"] is not None:
        yield from (("endpoint", reason, remedy) for reason, remedy in _endpoint_faults(given["endpoint"]))
    if given.get("notifications") is not None:
        yield from (("notifications", reason, remedy) for reason, remedy in _queue_faults(given["notifications"]))
    for option in ("region", "profile", "role_arn", "external_id"):
        if given[option] == "":
            yield option, "is empty", "Leave it out, or give a name."
    if given["anonymous"]:
        for option in ("profile", "role_arn", "external_id"):
            if given[option] is not None:
                yield option, "has no effect with anonymous = true", "Leave one of the two out."
    elif given["external_id"] is not None and given["role_arn"] is None:
        yield "external_id", "has no effect without a role", "Add the role to assume."


def _queue_faults(url: str) -> Iterator[tuple[str, str]]:
    faults = list(_endpoint_faults(url))
    if faults or not urlsplit(url).path.strip("/"):
        reason = faults[0][0] if faults else "does not name a queue"
        yield reason, _QUEUE_REMEDY


def _endpoint_faults(endpoint: str) -> Iterator[tuple[str, str]]:
    try:
        parts = urlsplit(endpoint)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        yield "is not an address", _ENDPOINT_REMEDY
        return
    if parts.username is not None or parts.password is not None:
        yield "holds a user or a password", "Remove them: keys come from the environment or a `profile`."
    elif not is_address or parts.query or parts.fragment:
        yield "is not an address", _ENDPOINT_REMEDY
