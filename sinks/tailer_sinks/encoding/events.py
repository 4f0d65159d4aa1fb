"""Events between rows as JSON lines, which begin with the same three metadata columns as rows.

    {"_change_type":"schema_change","_commit_version":5,"_commit_timestamp":"...Z","changes":["column a was added"]}
    {"_change_type":"gap","_commit_version":9,"_commit_timestamp":"...Z","first_version":7,"reason":"...",
     "snapshot":false}

(each on one line). A reader recognises them by their `_change_type`.
"""

import json
from typing import Any

import pyarrow as pa

from tailer.events import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, ControlEvent, Gap
from tailer_sinks.encoding.values import Int64Form, integer, timestamp_text

__all__ = ["event_line", "event_values"]


def event_values(event: ControlEvent, int64: Int64Form = "number") -> dict[str, Any]:
    """Return the event as JSON-ready values, in the order in which they are written. `int64`: the form of versions."""
    moment = pa.scalar(event.timestamp_ms * 1000, pa.timestamp("us"))
    values = {
        CHANGE_TYPE: event.kind,
        COMMIT_VERSION: integer(event.version, int64),
        COMMIT_TIMESTAMP: f"{timestamp_text(moment)}Z",
    }
    if isinstance(event, Gap):
        first = integer(event.first_version, int64)
        return {**values, "first_version": first, "reason": event.reason, "snapshot": event.snapshot}
    return {**values, "changes": list(event.changes)}


def event_line(event: ControlEvent, int64: Int64Form = "number") -> bytes:
    """Return the event as a line of UTF-8 JSON with a newline at its end."""
    text = json.dumps(event_values(event, int64), ensure_ascii=False, separators=(",", ":"))
    # A reason may quote a path with bytes that are not text; their escapes are legal JSON.
    return f"{text}\n".encode(errors="backslashreplace")
