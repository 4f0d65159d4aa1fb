"""The ports of a destination, app ids, and a base for sinks around other sinks.

A sink is the only authority on which changes it has (invariant 2). The pipeline asks it for `progress`, hands it rows
and commits rows and progress together (invariant 1). Life of a transaction::

    async with sink.begin(app_id, schema) as transaction:      # leaving without commit aborts
        await transaction.write(batch)                         # any number of times, in position order
        await transaction.announce(event)                      # where the columns change, or changes are missing
        await transaction.commit(Progress(app_id, position))   # everything becomes visible, or nothing

A destination that cannot commit rows and progress atomically (a terminal, an HTTP endpoint) is an `AtLeastOnceSink`,
and its type says so. `tailer.progress.recorded.Recorded` makes it usable for a pipeline, with progress kept in a
`ProgressStore`.

Sinks are found through the entry-point group `tailer.sinks`, ours and those of third parties alike. An entry names a
class with a classmethod `configure(name, options)` that validates without any I/O.
"""

from tailer.sink.app_id import (
    LAYOUT,
    LAYOUT_SHARDS,
    app_id_of,
    backfill_name,
    backfill_of,
    backfilled_app_id,
    is_layout,
    main_app_id,
    pipeline_of,
    shard_name,
    shard_of,
    shards_in,
    stream_name,
    stream_number,
    table_of,
)
from tailer.sink.heartbeats import Heartbeat, Heartbeats, instance_name, process_of
from tailer.sink.ports import (
    OTHER_CLASS,
    AtLeastOnceSink,
    Demands,
    MirrorRepair,
    MirrorRows,
    Progress,
    ProgressStore,
    Sink,
    SinkFactory,
    SinkTransaction,
    refused,
)
from tailer.sink.wrapper import SinkWrapper, TransactionWrapper

__all__ = [
    "LAYOUT",
    "LAYOUT_SHARDS",
    "OTHER_CLASS",
    "AtLeastOnceSink",
    "Demands",
    "Heartbeat",
    "Heartbeats",
    "MirrorRepair",
    "MirrorRows",
    "Progress",
    "ProgressStore",
    "Sink",
    "SinkFactory",
    "SinkTransaction",
    "SinkWrapper",
    "TransactionWrapper",
    "app_id_of",
    "backfill_name",
    "backfill_of",
    "backfilled_app_id",
    "instance_name",
    "is_layout",
    "main_app_id",
    "pipeline_of",
    "process_of",
    "refused",
    "shard_name",
    "shard_of",
    "shards_in",
    "stream_name",
    "stream_number",
    "table_of",
]
