"""Rows as JSON objects: the entry `json` of the group `tailer.encodings`."""

from collections.abc import Iterator

import pyarrow as pa

from tailer_sinks.encoding.columns import whole, writer_for
from tailer_sinks.encoding.flat import slices

__all__ = []


class JsonObjects:
    """An encoder of rows of `schema` as JSON objects with all columns, as `FlatEncoder` does.

    Raises `NoText`, which is a `ValueError`, for a column whose type has no JSON form.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._writer = writer_for(pa.struct(schema))

    def texts(self, rows: pa.RecordBatch) -> Iterator[pa.Array]:
        """Yield one JSON text per row as `string`, some rows at a time. Raises `NoText` for text that is not UTF-8."""
        for part in slices(rows):
            yield whole(self._writer(part.to_struct_array())).cast(pa.string())
