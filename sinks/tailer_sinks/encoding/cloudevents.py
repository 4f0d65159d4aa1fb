"""Change rows as CloudEvents 1.0 in JSON: one event for each of Debezium's messages.

`tailer_sinks.encoding.debezium.operations` gives the events for rows. An event's `data` is `{"before": ..., "after":
...}` and its `id` is `<name>;<table_id>;<version>;<task>;<row>;<operation>`: the same when it is delivered again, and
unique. In *structured* mode the message's value is the whole event, in *binary* mode it is `data`, and headers hold the
attributes. Both name the mode in the header `content-type`, as the Kafka binding of CloudEvents requires. A tombstone
is not an event: it has a key and nothing else.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from tailer.errors import SinkRejected
from tailer.events import METADATA_FIELDS, ChangeBatch
from tailer_sinks.encoding.columns import NoText, join, writer_for
from tailer_sinks.encoding.debezium.images import (
    Draft,
    Images,
    PairedRows,
    PairingEncoder,
    Topics,
    commit_moment,
    drafted,
)
from tailer_sinks.encoding.debezium.schema import json_text
from tailer_sinks.encoding.flat import REMEDY
from tailer_sinks.encoding.messages import BYTES, Messages
from tailer_sinks.encoding.values import FORMS, JsonForms, timestamp_text

__all__ = ["CloudEventsEncoder", "ContentMode", "source_of"]

ContentMode = Literal["structured", "binary"]
EVENT_TYPE: Final = "io.debezium.connector.delta.DataChangeEvent"
CONTENT_TYPE: Final = "content-type"
STRUCTURED: Final = "application/cloudevents+json; charset=UTF-8"
JSON: Final = "application/json"
NO_BYTES: Final = pa.scalar(None, BYTES)


class CloudEventsEncoder(PairingEncoder):
    """An encoder of batches of one schema. Holds back images at the end of a batch until the next one.

    `sink`: the sink's name in errors. `schema`: of the batches (`tailer.plan.output_schema`). `name`: of the pipeline;
    in `id` and `source`. `key`: the columns of the messages' keys, which are JSON objects. `tombstones`: whether one
    follows a delete, if there is a key. `mode`: where the attributes are. `forms`: of numbers. Raises `SinkRejected`
    for a column whose type has no JSON form, and for a missing column of the key; `encode` also for a commit timestamp
    that RFC 3339 cannot express.
    """

    def __init__(
        self,
        sink: str,
        schema: pa.Schema,
        name: str,
        key: Sequence[str] = (),
        tombstones: bool = True,
        mode: ContentMode = "structured",
        forms: JsonForms = FORMS,
    ) -> None:
        self.schema = schema
        self._sink = sink
        self._name = name
        self._tombstones = tombstones
        self._mode = mode
        self.images = Images(sink, schema, key, forms)
        metadata = {field.name for field in METADATA_FIELDS}
        columns = [field for field in schema if field.name not in metadata]
        self._columns = [field.name for field in columns]
        try:
            self._write_row = writer_for(pa.struct(columns), forms)
        except NoText as error:
            raise SinkRejected(sink, str(error), REMEDY) from error

    @override
    def write(
        self,
        now_ms: int,
        paired: PairedRows,
        topics: Topics[Any],  # their messages are alike
    ) -> tuple[Messages, pa.Array | None]:
        draft = drafted(
            paired, self._write_row(paired.batch.rows.select(self._columns).to_struct_array()), self._tombstones
        )
        write = self._structured if self._mode == "structured" else self._binary
        values, headers = write(paired.batch, draft)
        keys = None if draft.keys is None else pc.cast(draft.keys, BYTES)
        return Messages(keys, values, draft.row_index, headers), draft.about

    def _structured(self, batch: ChangeBatch, draft: Draft) -> tuple[pa.Array, tuple[tuple[str, pa.Array], ...]]:
        start = f'{{"specversion":"1.0","id":{json_text(self._id(batch))[:-1]}'
        attributes = json_text({**self._attributes(batch), "datacontenttype": JSON})
        first, *images = draft.images
        rest = f'",{attributes[1:-1]},"data":{{{first}'
        values = pc.cast(join(start, draft.number, ";", draft.operation, rest, *images, "}}"), BYTES)
        return values, ((CONTENT_TYPE, _everywhere(values, STRUCTURED)),)

    def _binary(self, batch: ChangeBatch, draft: Draft) -> tuple[pa.Array, tuple[tuple[str, pa.Array], ...]]:
        ids = pc.cast(join(self._id(batch), draft.number, ";", draft.operation), BYTES)
        attributes = {"specversion": "1.0", **self._attributes(batch)}
        values = pc.cast(join("{", *draft.images, "}"), BYTES)
        if ids.null_count:
            values = pc.if_else(ids.is_valid(), values, NO_BYTES)
        everywhere = partial(_everywhere, ids)
        constant = [(f"ce_{name}", everywhere(value)) for name, value in attributes.items()]
        return values, ((CONTENT_TYPE, everywhere(JSON)), ("ce_id", ids), *constant)

    def _id(self, batch: ChangeBatch) -> str:
        """Return an event's id, up to the number of its row."""
        return f"{self._name};{batch.table_id};{batch.version};{batch.task};"

    def _attributes(self, batch: ChangeBatch) -> dict[str, str]:
        """Return the attributes that all events of a version share."""
        time = timestamp_text(pa.scalar(commit_moment(self._sink, batch), pa.timestamp("us")))
        if not time[0].isdigit():
            raise SinkRejected(self._sink, f"version {batch.version} is of {time}, which CloudEvents cannot express")
        return {"source": source_of(self._name), "type": EVENT_TYPE, "time": f"{time}Z"}


def source_of(name: str) -> str:
    """Return the attribute `source` of the events of a pipeline."""
    return f"/lake-tailer/{quote(name, safe='')}"


def _everywhere(present: pa.Array, text: str) -> pa.Array:
    """Repeat the text for each message that is present, null for the others."""
    value = pa.scalar(text.encode(), BYTES)
    return pc.if_else(present.is_valid(), value, NO_BYTES) if present.null_count else pa.repeat(value, len(present))
