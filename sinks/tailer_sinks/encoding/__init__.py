"""Rows for destinations: text, messages, and `typed` for destinations with column types.

Text:

- `flat`: JSON Lines for programs, one object per change row or event. `FlatEncoder` is the usual entry.
- `columns`: the encoding of whole columns at once, at about a microsecond per row.
- `values`: the same, one value at a time: the reference, which documents the rules.
- `terminal`: a table for people.

Messages, for brokers:

- `messages`: what messages are; `debezium.images` has the base of encoders, `PairingEncoder`.
- `flat_messages`: flat JSON, with or without keys; Arrow IPC, many rows each.
- `debezium`: Debezium's envelope, in JSON; `cloudevents`: CloudEvents, likewise.
- `avro`: flat rows and Debezium's envelope as Avro; `avro.schema` and `avro.columns` are its parts.
- `debezium.images`, `debezium.operations`: which images of updates belong together, and which messages rows become.
"""

from tailer_sinks.encoding.flat import FlatEncoder, event_line, event_values, slices
from tailer_sinks.encoding.values import JsonForms, row_texts

__all__ = ["FlatEncoder", "JsonForms", "event_line", "event_values", "row_texts", "slices"]
