"""The option of all sinks that write JSON. `tailer_sinks.encoding.values` says what the forms are for."""

from collections.abc import Iterator

import msgspec

from tailer.errors import ConfigError
from tailer_sinks.encoding.values import Int64Form

__all__ = ["Int64Option", "int64_faults"]


class Int64Option(msgspec.Struct, frozen=True, kw_only=True):
    """A struct that the options of such a sink inherit."""

    int64: Int64Form = "number"  # 64-bit integers in JSON; string: for JavaScript (json.md)


def int64_faults(name: str, options: Int64Option, *, is_typed: bool) -> Iterator[ConfigError]:
    """Yield the fault of the sink called `name` if its encoding has types of its own (`is_typed`)."""
    if options.int64 == "string" and is_typed:
        yield ConfigError(f"{name}.int64", "as string is for JSON without schemas", "Leave it out.")
