"""Check the stores of the configuration, without a request."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from tailer.errors import ConfigError
from tailer.stores.cloud import CREDENTIAL_TYPES
from tailer.stores.glue import GlueOptions, check_prefix, is_named
from tailer.stores.location import address_faults, is_local, parse_location
from tailer.stores.stores import KINDS, StoreOptions, Stores

if TYPE_CHECKING:
    from tailer.config.file import Key
    from tailer.config.shapes import StoreShape

__all__ = ["configured_catalogs", "configured_stores", "make_options", "store_faults"]

Report = Callable[["Key", str, str], None]

_QUEUE_REMEDY: Final = "Give the URL of a queue, such as https://sqs.eu-central-1.amazonaws.com/123456789012/commits."
_PREFIXES: Final = ("s3://BUCKET", "gs://BUCKET", "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net")
# Options whose default is not None.
_DEFAULTS: Final = {"anonymous": False, "requester_pays": False}
_ENDPOINT_REMEDIES: Final = (
    "Give one such as https://s3.example.com or http://127.0.0.1:9000.",
    "Remove them: keys come from the environment or a `profile`.",
)


def configured_stores(shapes: Mapping[str, "StoreShape"], report: Report) -> Stores:
    """Return the stores without a fault. Faults go to `report`."""
    options: dict[str, StoreOptions | GlueOptions] = {}
    for name, shape in shapes.items():
        key = ("stores", name)
        try:
            prefix = check_prefix(shape.prefix, "") or parse_location(shape.prefix, Path("/"), "")
        except ConfigError as error:
            report((*key, "prefix"), error.reason, error.remedy)
            continue
        if is_local(prefix):
            report((*key, "prefix"), "is not in a store", f"Give one such as {', '.join(_PREFIXES)}.")
            continue
        given = {name: value for name, value in msgspec.structs.asdict(shape).items() if name != "prefix"}
        faults = list(store_faults(given, [prefix]))
        for option, reason, remedy in faults:
            report((*key, option), reason, remedy)
        if prefix in options:
            report((*key, "prefix"), f"{prefix} has another table", "Keep one of the two.")
        elif not faults:
            named = {**given, "name": name}
            options[prefix] = make_options(prefix, named)
    return Stores(tuple(options.items()))


def configured_catalogs(folder: Path, tables: Mapping[str, Any], report: Report) -> dict[str, dict[str, Any]]:
    """Return the options of catalogs that name tables, with the files of secrets below `folder`.

    Their format reads them when a catalog is asked.
    """
    catalogs: dict[str, dict[str, Any]] = {}
    for name, table in tables.items():
        if isinstance(table, dict):
            catalogs[name] = {option: _placed(folder, value) for option, value in table.items()}
        else:
            report(("catalogs", name), "must be a table", f"Begin it with [catalogs.{name}].")
    return catalogs


def _placed(folder: Path, value: Any) -> Any:
    """Return the value of an option with absolute paths of files."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: str(folder / inner) if key == "file" and isinstance(inner, str) and inner else _placed(folder, inner)
        for key, inner in value.items()
    }


def make_options(location: str, given: Mapping[str, Any]) -> StoreOptions | GlueOptions:
    """Make the options of the store of `location`, or of Glue, from those that its kind has."""
    kind = _kind(location)
    return kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given})


def store_faults(given: Mapping[str, Any], locations: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the option, the reason and the next step of each fault of `given`, the options of all kinds of stores.

    `locations`: in the stores that the options are for. Values are in no text.
    """
    yield from _foreign_options(given, locations)
    if given["endpoint"] is not None:
        yield from (
            ("endpoint", reason, remedy) for reason, remedy in address_faults(given["endpoint"], *_ENDPOINT_REMEDIES)
        )
    yield from _queue_faults(given.get("notifications"))
    for option in ("region", "profile", "role_arn", "external_id", "service_account"):
        if given[option] == "":
            yield option, "is empty", "Leave it out, or give a name."
    if given["credential_type"] not in (None, *CREDENTIAL_TYPES):
        yield "credential_type", "is not a way to log in to Azure", f"Give one of {', '.join(CREDENTIAL_TYPES)}."
    if given["anonymous"]:
        for option in ("profile", "role_arn", "external_id", "service_account", "credential_type"):
            if given[option] is not None:
                yield option, "has no effect with anonymous = true", "Leave one of the two out."
    elif given["external_id"] is not None and given["role_arn"] is None:
        yield "external_id", "has no effect without a role", "Add the role to assume."


def _queue_faults(url: str | None) -> Iterator[tuple[str, str, str]]:
    faults = [] if url is None else list(address_faults(url, *_ENDPOINT_REMEDIES))
    if faults or (url is not None and not urlsplit(url).path.strip("/")):
        yield "notifications", faults[0][0] if faults else "does not name a queue", _QUEUE_REMEDY


def _foreign_options(given: Mapping[str, Any], locations: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the faults of options that no store of `locations` has."""
    names = {field.name for location in locations for field in fields(_kind(location))}
    for option, value in given.items():
        if locations and option not in names and value != _DEFAULTS.get(option):
            schemes = " and ".join(sorted({f"{location.partition(':')[0]}://" for location in locations}))
            yield option, f"is no option of a store at {schemes}", "Leave it out."


def _kind(location: str) -> type[StoreOptions | GlueOptions]:
    return GlueOptions if is_named(location) else KINDS[location.partition(":")[0]].options
