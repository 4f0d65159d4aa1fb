"""The rows that `tail` shows: of some types of change, up to a number, and counted."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailer.cli.display.amounts import count, duration
from tailer.cli.tail.explanation import Explainer
from tailer.errors import ConfigError, SinkRejected, did_you_mean
from tailer.events import CHANGE_TYPE, ChangeBatch, ChangeType, ControlEvent
from tailer.plan import ChangePlan, TaskKind
from tailer.sink import AtLeastOnceSink

__all__ = ["ChosenRows", "EnoughShownError", "HiddenUpdates", "parse_types"]

_UPDATES: Final = (ChangeType.UPDATE_PREIMAGE.value, ChangeType.UPDATE_POSTIMAGE.value)
_TYPES: Final = {
    "insert": ("insert",),
    "update": _UPDATES,
    "delete": ("delete",),
    **{each: (each,) for each in _UPDATES},
}
_NAMES: Final = {"insert": "inserted", "update_postimage": "updated", "delete": "deleted"}


class HiddenUpdates:
    """Says once that `--type`, which chose `types` (None: all), hides updates that no rule computes.

    `computes`: whether updates are computed.
    """

    def __init__(self, types: frozenset[str] | None, computes: bool, say: Callable[[str], None]) -> None:
        kept = types or frozenset()
        self._is_due = not computes and not kept.isdisjoint(_UPDATES) and not kept.issuperset(("insert", "delete"))
        self._say = say

    def note(self, plan: ChangePlan) -> None:
        """Note a plan whose rows come."""
        if self._is_due and {TaskKind.DELETE, TaskKind.INSERT} <= {task.kind for task in plan.tasks}:
            self._is_due = False
            what = f"version {plan.version} deletes and inserts rows, and --type hides those that together are updates"
            self._say(f"{what}; --compute-updates with --key makes them updates")


class EnoughShownError(Exception):
    """The cause of the error that ends the stream after the last row that is wanted."""


def parse_types(text: str | None) -> frozenset[str] | None:
    """Return the values of `_change_type` that `--type` names; None: all. Raises `ConfigError`."""
    if text is None:
        return None
    found: set[str] = set()
    for word in map(str.strip, text.split(",")):
        if word not in _TYPES:
            remedy = did_you_mean(word, _TYPES) or "Give some of insert, update and delete, with commas between them."
            raise ConfigError("--type", f"{word!r} is no type of change", remedy)
        found.update(_TYPES[word])
    return frozenset(found)


def _first_rows(batch: ChangeBatch, most: int) -> ChangeBatch:
    """Return the first rows, at most so many, but one more where that would cut an update in half."""
    if most < len(batch):
        most += batch.rows.column(CHANGE_TYPE).slice(most - 1, 2).to_pylist() == list(_UPDATES)
    return batch.slice(0, most)


class ChosenRows(AtLeastOnceSink):
    """Hands the changes of some `types` (None: all) over to `sink`, up to `limit` (None: all of them).

    Each image of an update is a row; an update whose first image is the last row is handed over whole. After the last
    row, `SinkRejected` ends the stream, with an `EnoughShownError` as its cause.

    `explainer`: adds a column to the rows; None: they stay as they are.
    """

    def __init__(
        self,
        sink: AtLeastOnceSink,
        types: frozenset[str] | None = None,
        limit: int | None = None,
        explainer: Explainer | None = None,
    ) -> None:
        self.name = sink.name
        self.writes_together = sink.writes_together
        self._sink = sink
        self._types = types
        self._limit = limit
        self._explainer = explainer
        self._counts: Counter[str] = Counter()
        self._versions: set[int] = set()

    async def write(self, batch: ChangeBatch) -> None:
        """See `AtLeastOnceSink.write`."""
        await self.write_all([batch])

    async def write_all(self, batches: Sequence[ChangeBatch]) -> None:
        """See `AtLeastOnceSink.write_all`."""
        left = None if self._limit is None else self._limit - self._counts.total()
        chosen: list[ChangeBatch] = []
        for batch in batches:
            if left is not None and left <= 0:
                break
            some = self._choose(batch)
            if left is not None:
                some = _first_rows(some, left)
                left -= len(some)
            if len(some):
                chosen.append(some if self._explainer is None else self._explainer.explained(some))
        if chosen:
            await self._sink.write_all(chosen)
        for batch in chosen:
            self._counts.update(batch.rows.column(CHANGE_TYPE).to_pylist())
            self._versions.add(batch.version)
        if left is not None and left <= 0:
            await self._sink.flush()
            raise SinkRejected(self.name, "enough was shown") from EnoughShownError()

    async def announce(self, event: ControlEvent) -> None:
        """See `AtLeastOnceSink.announce`."""
        await self._sink.announce(event)

    async def flush(self) -> None:
        """See `AtLeastOnceSink.flush`."""
        await self._sink.flush()

    async def aclose(self) -> None:
        """See `AtLeastOnceSink.aclose`."""
        await self._sink.aclose()

    def summary(self, seconds: float) -> str:
        """Return the sentence about what was shown in so many seconds."""
        kinds = [f"{self._counts[kind]:,} {name}" for kind, name in _NAMES.items()]
        kinds += [f"{number:,} {kind}" for kind, number in self._counts.items() if kind not in (*_NAMES, _UPDATES[0])]
        versions = count(len(self._versions), "version")
        return f"{', '.join(kinds)}; in {versions} with changes; {duration(seconds)}"

    def _choose(self, batch: ChangeBatch) -> ChangeBatch:
        """Return the rows of the types that are wanted."""
        if self._types is None or batch.kind in self._types:
            return batch
        if batch.kind is not None:
            return batch.slice(0, 0)
        wanted = pc.is_in(batch.rows.column(CHANGE_TYPE), pa.array(sorted(self._types)))
        rows, index = batch.rows.filter(wanted), batch.row_index.filter(wanted)
        return ChangeBatch(batch.table_id, batch.version, batch.task, rows, index)
