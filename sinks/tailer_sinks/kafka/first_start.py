"""The check of a first start: lost progress, or a pipeline that never began?

A progress topic may be deleted, or drop records by age under a wrong policy. Starting over would then deliver rows
twice, or leave some out. So a pipeline without progress begins only if

- no topic for rows ever had a message, unless others also write there (`shared_topic`), and
- the end topic has no END record of this table and these topics. The last one also gives the pipeline's progress.

A claimed stream has passed this check: its messages may be those of aborted transactions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tailer.errors import SinkRejected
from tailer.plan import Position
from tailer.sink import is_layout, pipeline_of, shard_name, shard_of
from tailer_sinks.kafka.link import Link
from tailer_sinks.kafka.progress import Entry, ProgressTopic

__all__ = ["LastEnds", "check_first_start", "lost"]

_COMPACT = "Keep the progress topic (cleanup.policy=compact). "


def check_first_start(link: Link, pipeline: str, table_ids: Sequence[str]) -> None:
    """Raise `SinkRejected` if `pipeline` without progress seems to have delivered before, and `SinkUnavailable`.

    `table_ids`: all ids that its table has had.
    """
    options = link.options
    entries = (link.decided_progress(pipeline) or ProgressTopic()).entries
    if _has_begun(pipeline, entries):
        return
    ends = LastEnds(options.sends_to, table_ids)
    if options.end_topic is not None and link.had_messages(options.end_topic):
        link.scan(options.end_topic, ends.take)
    if _shards_of(pipeline, entries):
        what = "there is progress of its shards"
    elif ends.found:
        what = f"{options.end_topic} has END records of it"
    elif not options.shared_topic and (used := next(filter(link.had_messages, link.row_topics()), None)) is not None:
        what = f"the topic {used} has messages, or had some"
    else:
        return
    # Another instance may have begun since the first look: it claims its stream before it sends a message.
    if _has_begun(pipeline, (link.progress() or ProgressTopic()).entries):
        return
    reason = f"{options.progress_topic} has no progress of {pipeline}, but {what}: was its progress lost?"
    remedy = "Set the last delivered version: `tailer progress reset PIPELINE --to VERSION`."
    if ends.version is not None:
        remedy = (
            f"To continue after the last END record: `tailer progress reset PIPELINE --to {ends.version}` "
            "(rows of the version after it that are there already come again)."
        )
    if not (options.shared_topic or ends.found):
        remedy += " If others wrote these messages, set shared_topic = true."
    raise SinkRejected(link.name, reason, remedy)


def lost(link: Link, app_id: str, delivered: Position | None) -> SinkRejected:
    """Make the error for progress of `app_id`, once at `delivered`, that is lost."""
    reason = f"the progress of {app_id} is gone from {link.options.progress_topic}"
    if is_layout(app_id):
        remedy = "Set the position of its shards: `tailer progress reset PIPELINE --to VERSION`."
        return SinkRejected(link.name, reason, f"{_COMPACT}{remedy}")
    if delivered is None:
        return SinkRejected(link.name, reason, f"{_COMPACT}Nothing was delivered yet: run it again.")
    last = delivered.version if delivered.closes_version else delivered.version - 1
    remedy = f"To continue after the delivered rows: `tailer progress reset PIPELINE --to {last}`"
    if not (delivered.closes_version or delivered.opens_version):
        remedy += f" (the rows of version {delivered.version} that are there already come again)"
    return SinkRejected(link.name, reason, f"{_COMPACT}{remedy}.")


def _has_begun(pipeline: str, entries: Mapping[str, Entry]) -> bool:
    """Return whether a stream of `pipeline` was claimed."""
    return any(pipeline_of(app_id) == pipeline for app_id in entries)


def _shards_of(pipeline: str, entries: Mapping[str, Entry]) -> bool:
    """Return whether shards of `pipeline`, which is recorded as undivided, have delivered something."""
    for app_id, entry in entries.items():
        shard = shard_of(app_id)
        if shard is not None and entry.position is not None and pipeline_of(app_id) == shard_name(pipeline, *shard):
            return True
    return False


class _End(msgspec.Struct):
    id: str
    commit_version: int
    data_collections: list[dict[str, str | int]]
    status: str = ""
    shard: int = 0
    shards: int = 1


@dataclass
class LastEnds:
    """The END records of a table, under any of `table_ids`, about topics of the sink: the last one of each shard.

    Where a column names topics, those of versions without rows name none, and do not count.
    """

    is_ours: Callable[[str], bool]
    table_ids: Sequence[str]
    _last: dict[int, int] = field(default_factory=dict)
    _shards: int = 1

    def take(self, value: bytes) -> None:
        """Take the next message of the end topic, from any writer."""
        try:
            end = msgspec.json.decode(value, type=_End)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        ours = any(self.is_ours(str(count.get("data_collection"))) for count in end.data_collections)
        if end.status != "END" or not ours or end.id.rpartition(":")[0] not in self.table_ids:
            return
        if end.shards != self._shards:
            self._last, self._shards = {}, end.shards
        self._last[end.shard] = end.commit_version

    @property
    def found(self) -> bool:
        """Return whether there is any."""
        return bool(self._last)

    @property
    def version(self) -> int | None:
        """The last version that is complete in all shards; None: unknown."""
        return min(self._last.values()) if len(self._last) == self._shards else None
