"""The arguments of `changes` and `follow` as options of the data source, which checks them."""

import os
from collections.abc import Mapping, Sequence
from typing import Final

from tailer.errors import ConfigError
from tailer.start import Place, Start, StartKind
from tailer.stores.location import path_text

__all__ = ["Option", "source_options"]

_GIVEN: Final = ("path", "startingversion", "startingtimestamp", "endingversion", "endingtimestamp", "snapshot")

Option = str | bool | int | Sequence[str] | None  # None: not given


def source_options(
    table: str | os.PathLike[str], start: Place, end: Place, options: Mapping[str, Option]
) -> dict[str, str]:
    """Return the options of the data source. Raises `ConfigError` for those that have no place here."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name.lower() in _GIVEN:
            raise ConfigError(name, "is not an option here", "Give the table first, then start = and end =.")
        if name.lower() == "schema":
            remedy = "Read the envelope with spark.read.format('tailer') or spark.readStream.format('tailer')."
            raise ConfigError(name, "is not an option here", remedy)
    found = {name: _text(value) for name, value in given.items()} | {"path": path_text(table, "table")}
    first, last = Start.at(start), Start.at(end, "end")
    if first.kind is StartKind.SNAPSHOT:
        found["snapshot"] = "true"
    else:
        found |= _placed("starting", first)
    return found if last.kind is StartKind.LATEST else found | _placed("ending", last)


def _placed(which: str, place: Start) -> dict[str, str]:
    match place.kind:
        case StartKind.TIMESTAMP:
            return {f"{which}Timestamp": place.moment.isoformat()}
        case StartKind.VERSION:
            return {f"{which}Version": str(place.value)}
        case StartKind.TAG:
            return {f"{which}Version": f"tag:{place.tag}"}
    return {f"{which}Version": place.kind.value}


def _text(value: str | bool | int | Sequence[str]) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int)):
        return str(value).lower()
    return ",".join(f"`{name.replace('`', '``')}`" for name in value)
