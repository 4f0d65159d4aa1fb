"""The port of row encodings: text for readers whose schema has a single text column.

`tailer` itself encodes no rows: encodings are found through the entry-point group `tailer.encodings`, ours and those of
third parties alike. An entry names a callable that takes the Arrow schema of rows and returns their `RowTexts`.
"""

from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import entry_points
from typing import Final, Protocol

import pyarrow as pa

from tailer.errors import ConfigError

__all__ = ["RowTexts", "row_encoding"]

ENTRY_POINTS: Final = "tailer.encodings"


class RowTexts(Protocol):
    """The encoder of rows of one schema, one text each."""

    def texts(self, rows: pa.RecordBatch) -> Iterator[pa.Array]:
        """Yield the texts of all rows in order, as `string` without nulls, some rows at a time to bound memory.

        Raises `ValueError` for a value that has no text.
        """
        ...


RowEncoding = Callable[[pa.Schema], RowTexts]
"""The callable that an entry point of the group names: it makes the encoder of rows of a schema.

Raises `ValueError` for a column whose type has no text.
"""


@cache
def row_encoding(name: str) -> RowEncoding:
    """Load the encoding called `name`. Raises `ConfigError` if it is not installed or cannot be loaded."""
    entries = entry_points(group=ENTRY_POINTS, name=name)
    remedy = f"Install lake-tailer with its metadata, on Spark's executors too: it registers the group {ENTRY_POINTS}."
    if not entries:
        raise ConfigError("schema", f"no encoding of rows is called {name!r}", remedy)
    try:
        encoding: RowEncoding = next(iter(entries)).load()
    except (ImportError, AttributeError) as error:
        raise ConfigError("schema", f"the encoding {name!r} cannot be loaded: {error}", remedy) from error
    return encoding
