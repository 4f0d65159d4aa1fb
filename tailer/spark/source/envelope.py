"""The envelope: change rows in a schema that never changes, whatever happens to the table's columns.

Each row has its change type, its position in the stream and its event id; the table's columns are a JSON object in
`value`. A change of columns is announced by a row of `_change_type` `schema_change`, before the first row with the new
columns. Its `value` holds the changes and the new columns::

    {"changes":["column b was renamed to c"],"columns":[{"name":"a","type":"long"},{"name":"c","type":"string"}]}

with types as in a Delta schema: a word, or an object if nested. The JSON of rows is written by the encoding `json`
(`tailer.encodings`), the same as in the flat messages of sinks.

`tailer` itself encodes no rows: encodings are found through the entry-point group `tailer.encodings`, ours and those of
third parties alike. An entry names a callable that takes the Arrow schema of rows and returns their `RowTexts`.
"""

import json
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from importlib.metadata import entry_points
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from tailer.errors import ConfigError, UnsupportedFeature
from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, METADATA_FIELDS, ChangeBatch, SchemaChange
from tailer.spark.source.spark_types import spark_schema

__all__ = ["ENVELOPE", "EnvelopeRows"]

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


ENVELOPE: Final = StructType(
    [
        StructField("_event_id", StringType()),
        StructField(CHANGE_TYPE, StringType()),
        StructField(COMMIT_VERSION, LongType()),
        StructField(COMMIT_TIMESTAMP, TimestampType()),
        StructField("_table_id", StringType()),
        StructField("_task", LongType()),
        StructField("_row", LongType()),
        StructField("value", StringType()),
    ]
)
_ARROW: Final = to_arrow_schema(ENVELOPE, timezone="UTC")
_ENCODING: Final = "json"
_METADATA: Final = tuple(field.name for field in METADATA_FIELDS)


class EnvelopeRows:
    """The encoder of change rows in the envelope. It has no state and survives pickle.

    Raises `ConfigError` if the encoding of rows is not installed, both when made and when used.
    """

    def __init__(self) -> None:
        row_encoding(_ENCODING)

    def batches(self, batch: ChangeBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch in the envelope's schema, some at a time to bound memory.

        Raises `UnsupportedFeature` for a value that has no JSON text.
        """
        columns = batch.rows.select([name for name in batch.rows.schema.names if name not in _METADATA])
        begin = 0
        try:
            for texts in _texts_of(columns.schema).texts(columns):
                yield _envelope(batch.slice(begin, len(texts)), texts)
                begin += len(texts)
        except ValueError as error:
            remedy = 'Leave the column out with the option columns, or read with the option schema = "typed".'
            raise UnsupportedFeature(batch.table_id, "a JSON text", batch.version, str(error), remedy) from error

    def change(self, event: SchemaChange) -> pa.RecordBatch:
        """Make the row that announces a change of columns."""
        columns = spark_schema(pa.schema([field for field in event.after if field.name not in _METADATA]))
        shown = [{"name": field.name, "type": field.dataType.jsonValue()} for field in columns]
        text = json.dumps({"changes": event.changes, "columns": shown}, ensure_ascii=False, separators=(",", ":"))
        values = {
            "_event_id": f"{event.table_id}/{event.version}/{event.kind}",
            CHANGE_TYPE: event.kind,
            COMMIT_VERSION: event.version,
            COMMIT_TIMESTAMP: event.timestamp_ms * 1000,
            "_table_id": event.table_id,
            # A name may have bytes that are not text; their escapes are legal JSON.
            "value": text.encode(errors="backslashreplace").decode(),
        }
        return pa.RecordBatch.from_arrays([pa.array([values.get(f.name)], f.type) for f in _ARROW], schema=_ARROW)


@lru_cache(maxsize=16)
def _texts_of(schema: pa.Schema) -> RowTexts:
    return row_encoding(_ENCODING)(schema)


def _envelope(batch: ChangeBatch, texts: pa.Array) -> pa.RecordBatch:
    rows, count = batch.rows, len(batch)
    types = rows.column(CHANGE_TYPE)
    task = pa.scalar(f"{batch.table_id}/{batch.version}/{batch.task}")
    columns = [
        pc.binary_join_element_wise(task, batch.row_index.cast(pa.string()), types, "/"),
        types,
        rows.column(COMMIT_VERSION),
        rows.column(COMMIT_TIMESTAMP),
        pa.repeat(pa.scalar(batch.table_id), count),
        pa.repeat(pa.scalar(batch.task, pa.int64()), count),
        batch.row_index,
        texts,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ARROW)
