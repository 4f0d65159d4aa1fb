"""Check the stores of the configuration, without a request."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tailer.config.file import Key, StoreShape
from tailer.errors import ConfigError
from tailer.stores.location import is_local, parse_location
from tailer.stores.s3.options import S3Options
from tailer.stores.stores import Stores

__all__ = ["configured_stores"]

Report = Callable[[Key, str, str], None]

_ENDPOINT_REMEDY: Final = "Give one such as https://s3.example.com or http://127.0.0.1:9000."


def configured_stores(shapes: Mapping[str, StoreShape], report: Report) -> Stores:
    """Return the stores without a fault. Faults go to `report`."""
    found: dict[str, S3Options] = {}
    for name, shape in shapes.items():
        key = ("stores", name)
        faults = list(_faults(shape))
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
            found[prefix] = _options(shape)
    return Stores(tuple(found.items()))


def _options(shape: StoreShape) -> S3Options:
    return S3Options(
        shape.endpoint,
        shape.region,
        shape.path_style,
        shape.profile,
        shape.role_arn,
        shape.external_id,
        shape.anonymous,
        shape.requester_pays,
    )


def _faults(shape: StoreShape) -> Iterator[tuple[str, str, str]]:
    """Yield the option, the reason and the next step of each fault."""
    if shape.endpoint is not None:
        yield from (("endpoint", reason, remedy) for reason, remedy in _endpoint_faults(shape.endpoint))
    for option in ("region", "profile", "role_arn", "external_id"):
        if getattr(shape, option) == "":
            yield option, "is empty", "Leave it out, or give a name."
    if shape.anonymous:
        for option in ("profile", "role_arn", "external_id"):
            if getattr(shape, option) is not None:
                yield option, "has no effect with anonymous = true", "Leave one of the two out."
    elif shape.external_id is not None and shape.role_arn is None:
        yield "external_id", "has no effect without role_arn", "Add the role to assume."


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
