"""The port of what writes rows as texts, for readers whose schema has a column of text and no others.

`tailer` does not know how rows are written: encodings are found through the entry-point group `tailer.encodings`, ours
and third parties' alike. An entry names a callable that takes the Arrow schema of rows and gives a `RowTexts` for them.
"""

from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from typing import Final, Protocol

import pyarrow as pa

from tailer.errors import ConfigError

__all__ = ["RowEncoding", "RowTexts", "row_encoding"]

ENTRY_POINTS: Final = "tailer.encodings"


class RowTexts(Protocol):
    """Writes rows of one schema as texts, one each."""

    def texts(self, rows: pa.RecordBatch) -> Iterator[pa.Array]:
        """The texts of all rows in order, as `string` without nulls, some rows at a time to bound memory.

        Raises `ValueError` for a value that has no text.
        """
        ...


class RowEncoding(Protocol):
    """What an entry point of the group names."""

    def __call__(self, schema: pa.Schema) -> RowTexts:
        """What writes rows of `schema`. Raises `ValueError` for a column whose type has no text."""
        ...


@cache
def row_encoding(name: str) -> RowEncoding:
    """The encoding called `name`. Raises `ConfigError` where it is not installed, or cannot be loaded."""
    found = entry_points(group=ENTRY_POINTS, name=name)
    remedy = f"Install lake-tailer whole, on Spark's executors as well: its metadata names the group {ENTRY_POINTS}."
    if not found:
        raise ConfigError("schema", f"no encoding of rows is called {name!r}", remedy)
    try:
        encoding: RowEncoding = next(iter(found)).load()
    except (ImportError, AttributeError) as error:
        raise ConfigError("schema", f"the encoding {name!r} cannot be loaded: {error}", remedy) from error
    return encoding
