"""From Arrow rows to text: what a sink that is not typed writes.

- `flat`: JSON Lines, one object per change row; what programs read. `FlatEncoder` is the one to use.
- `events`: the lines between them, for what is not a row.
- `columns`: how it does that for whole columns at once, at a microsecond or so per row.
- `values`: the same, one value at a time: the reference, and the place where the rules are written down.
- `terminal`: a table for people.

And to messages, for brokers: `messages` says what these are, and what an encoder is.

- `flat_messages`: flat JSON, with or without keys.
- `debezium`: Debezium's envelope, in JSON; `cloudevents`: CloudEvents, likewise.
- `arrow_messages`: Arrow IPC, many rows each.
- `avro`: flat rows and Debezium's envelope as Avro; `avro_schema` and `avro_columns`: what it is made of.
- `debezium_images`, `debezium_operations`: which images of updates belong together, and which messages rows become.
"""

from sinks.encoding.events import event_line, event_values
from sinks.encoding.flat import FlatEncoder, slices
from sinks.encoding.values import row_texts

__all__ = ["FlatEncoder", "event_line", "event_values", "row_texts", "slices"]
